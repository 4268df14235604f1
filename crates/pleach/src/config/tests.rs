//! A table of mistakes, each with the error line it causes, and tests of the result of valid files.

use core::time::Duration;
use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
};

use pleach_core::{
    class::{Duplicate, Match, Service},
    sched::{AdaptiveSettings, Policy},
    units::Bytes,
};
use tempfile::TempDir;

use super::*;
use crate::keys;

/// Private key with the public key `hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=`.
const PRIVATE: &str = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
const OTHER_PUBLIC: &str = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";
const THIRD_PUBLIC: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";

const CLIENT: &str = r#"mode = "client"
[tunnel]
name = "pleach0"
address = ["10.77.0.2/24", "fd77::2/64"]
private_key = "PRIVATE"
control = "/run/pleach/pleach0.sock"
mtu = 1400
[scheduler]
policy = "adaptive"
[gateway]
public_key = "OTHER"
endpoints = ["203.0.113.5:7700", "[2001:db8::5]:7700"]
allowed_ips = ["0.0.0.0/0", "::/0"]
[[link]]
name = "dsl"
device = "eth1"
cost = 0
weight = 64
[[link]]
name = "lte"
device = "wwan0"
cost = "standby"
upload = "20Mbit"
"#;

/// A client with two gateways.
const TWO: &str = r#"mode = "client"
[tunnel]
name = "pleach0"
address = ["10.77.0.2/24", "fd77::2/64"]
private_key = "PRIVATE"
gateway_return = 30
portal_check = "http://check.example/204"
[[gateway]]
name = "spare"
priority = 1
public_key = "THIRD"
endpoints = ["198.51.100.7:7700", "gw.example.net:7700"]
allowed_ips = ["0.0.0.0/0"]
[[gateway]]
name = "near"
public_key = "OTHER"
preshared_key_file = "good.key"
endpoints = ["203.0.113.5:7700"]
allowed_ips = ["0.0.0.0/0", "::/0"]
"#;

const GATEWAY: &str = r#"mode = "gateway"
[tunnel]
name = "pleach0"
address = ["10.77.0.1/24", "fd77::1/64"]
private_key = "PRIVATE"
listen = "[::]:7700"
control = "/run/pleach/pleach0.sock"
nat = true
[scheduler]
policy = "adaptive"
[[client]]
name = "home"
public_key = "OTHER"
allowed_ips = ["10.77.0.2/32", "fd77::2/128"]
[[client]]
name = "office"
public_key = "THIRD"
allowed_ips = ["10.77.1.0/24"]
[client.scheduler]
policy = "flow"
"#;

/// A directory with configuration and key files that only the owner may read.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(TempDir::new().expect("temporary directory"));
        files.write("good.key", PRIVATE, 0o600);
        files.write("open.key", PRIVATE, 0o644);
        files.write("bad.key", "hello", 0o600);
        files.write("two.key", "one two", 0o600);
        files.write("long.key", &"x".repeat(5000), 0o600);
        files
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        path
    }

    /// Loads `text` after replacing the placeholders of keys. The directory is removed from error messages.
    fn load(&self, text: &str) -> Result<Loaded, String> {
        let text = text
            .replace("PRIVATE", PRIVATE)
            .replace("OTHER", OTHER_PUBLIC)
            .replace("THIRD", THIRD_PUBLIC);
        let path = self.write("f.toml", &text, 0o600);
        load(&path).map_err(|error| {
            let directory = format!("{}/", self.0.path().display());
            error.to_string().replace(&directory, "")
        })
    }
}

/// A mistake: in `base`, `from`, which must occur once, is replaced by `to`. The error must be the line `expected`.
struct Mistake {
    kind: &'static str,
    base: &'static str,
    from: &'static str,
    to: &'static str,
    expected: &'static str,
}

macro_rules! mistakes {
    ($($kind:literal: $base:ident, $from:literal => $to:literal, $expected:literal;)*) => {
        &[$(Mistake { kind: $kind, base: $base, from: $from, to: $to, expected: $expected }),*]
    };
}

const MISTAKES: &[Mistake] = mistakes! {
    "TOML syntax": CLIENT, "name = \"dsl\"" => "name = \"dsl",
        "f.toml:15: TOML syntax: invalid basic string, expected `\"`; remedy: correct the line";
    "TOML key twice": CLIENT, "mtu = 1400" => "mtu = 1400\nmtu = 1400",
        "f.toml:8: TOML syntax: duplicate key; remedy: correct the line";
    "mode missing": CLIENT, "mode = \"client\"\n" => "",
        "f.toml:1: mode: missing required key; remedy: add mode = \"client\", \"gateway\", \"proxy\" or \"equalize\"";
    "mode unknown": CLIENT, "mode = \"client\"" => "mode = \"server\"",
        "f.toml:1: mode: expected \"client\", \"gateway\", \"proxy\" or \"equalize\", found \"server\"; remedy: write mode = \"client\" (has the links), \"gateway\" (serves clients), \"proxy\" (needs no gateway) or \"equalize\" (spreads packets)";
    "mode of another type": CLIENT, "mode = \"client\"" => "mode = 7",
        "f.toml:1: mode: expected \"client\", \"gateway\", \"proxy\" or \"equalize\", found 7; remedy: write mode = \"client\" (has the links), \"gateway\" (serves clients), \"proxy\" (needs no gateway) or \"equalize\" (spreads packets)";
    "unknown key": CLIENT, "weight = 64" => "wieght = 64",
        "f.toml:18: [[link]] wieght: unknown key; remedy: the nearest known key is `weight` (others here: name, device, cost, upload, download, budget, billing_day, at_limit, carrier, http_proxy, http_proxy_user, http_proxy_password_file)";
    "unknown table": CLIENT, "[gateway]" => "[gatway]",
        "f.toml:10: [gatway]: unknown key; remedy: the nearest known key is `gateway` (others here: mode, tunnel, scheduler, link, carrier, class, rule, dashboard, metrics, notices)";
    "unknown key with odd characters": CLIENT, "weight = 64" => "\"we\\night\" = 64",
        "f.toml:18: [[link]] \"we\\night\": unknown key; remedy: the nearest known key is `weight` (others here: name, device, cost, upload, download, budget, billing_day, at_limit, carrier, http_proxy, http_proxy_user, http_proxy_password_file)";
    "table of the other mode": GATEWAY, "[scheduler]" => "[gateway]\n[scheduler]",
        "f.toml:9: [gateway]: not used with mode = \"gateway\"; remedy: remove it, or correct the mode";
    "invitations of a client": CLIENT, "[scheduler]" => "[invitations]\n[scheduler]",
        "f.toml:8: [invitations]: not used with mode = \"client\"; remedy: remove it, or correct the mode";
    "invitations without store": GATEWAY, "[scheduler]" => "[invitations]\nendpoints = [\"203.0.113.5:7700\"]\n[scheduler]",
        "f.toml:9: [invitations] store: missing required key; remedy: add store = \"/var/lib/pleach/gateway\"";
    "invitations to nowhere": GATEWAY, "[scheduler]" => "[invitations]\nstore = \"s\"\nendpoints = []\n[scheduler]",
        "f.toml:11: [invitations] endpoints: expected at least one entry, found an empty list; remedy: write for example [\"203.0.113.5:7700\"]";
    "service without an address": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\n[scheduler]",
        "f.toml:9: [clients] store: missing required key; remedy: add store = \"https://clients.example.net/v1\"";
    "service of another protocol": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"ftp://clients.example.net\"\n[scheduler]",
        "f.toml:11: [clients] store: expected an address that begins with https:// or http://, without user, query and fragment; remedy: write for example \"https://clients.example.net/v1\"";
    "service with a password": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"https://me:hidden@clients.example.net\"\n[scheduler]",
        "f.toml:11: [clients] store: expected an address that begins with https:// or http://, without user, query and fragment; remedy: write for example \"https://clients.example.net/v1\"";
    "service with a query": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"https://clients.example.net/?a=b\"\n[scheduler]",
        "f.toml:11: [clients] store: expected an address that begins with https:// or http://, without user, query and fragment; remedy: write for example \"https://clients.example.net/v1\"";
    "service without a token": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"http://127.0.0.1:80\"\n[scheduler]",
        "f.toml:9: [clients] token_file: missing required key; remedy: add token_file = \"/etc/pleach/clients.token\"";
    "service with an open token": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"http://127.0.0.1:80\"\ntoken_file = \"open.key\"\n[scheduler]",
        "f.toml:12: [clients] token_file: token file \"open.key\" is open to others (mode 644); remedy: chmod 600 the file, and make a new token if others may have read it";
    "service far away in the clear": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"http://192.0.2.1/\"\ntoken_file = \"good.key\"\n[scheduler]",
        "f.toml:11: [clients] store: the service is on another host, to which keys must not be sent in the clear; remedy: write https://, and ca_file = \"FILE\" with the certificate of the authority that signed the service's certificate";
    "service of an unknown authority": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"https://clients.example.net\"\ntoken_file = \"good.key\"\n[scheduler]",
        "f.toml:11: [clients] store: needs to know which authority signs the service's certificate; remedy: add ca_file = \"FILE\" with the certificate of the authority, or with all that this host trusts (Debian: /etc/ssl/certs/ca-certificates.crt)";
    "service at port 0": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"http://127.0.0.1:0\"\ntoken_file = \"good.key\"\n[scheduler]",
        "f.toml:11: [clients] store: expected a host, and after a colon a port from 1 to 65535 or no colon; remedy: write for example \"https://clients.example.net/v1\"";
    "service at too high a port": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"http://127.0.0.1:65536/v1\"\ntoken_file = \"good.key\"\n[scheduler]",
        "f.toml:11: [clients] store: expected a host, and after a colon a port from 1 to 65535 or no colon; remedy: write for example \"https://clients.example.net/v1\"";
    "service at an empty port": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"http://127.0.0.1:/v1\"\ntoken_file = \"good.key\"\n[scheduler]",
        "f.toml:11: [clients] store: expected a host, and after a colon a port from 1 to 65535 or no colon; remedy: write for example \"https://clients.example.net/v1\"";
    "service at no name": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"http://a..b:80\"\ntoken_file = \"good.key\"\n[scheduler]",
        "f.toml:11: [clients] store: expected a host, and after a colon a port from 1 to 65535 or no colon; remedy: write for example \"https://clients.example.net/v1\"";
    "token with a space": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"http://127.0.0.1:80\"\ntoken_file = \"two.key\"\n[scheduler]",
        "f.toml:12: [clients] token_file: the token has white space, or characters that are not printable ASCII; remedy: write the token that the service expects into the first line of the file, or correct the path";
    "token that is too long": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"http://127.0.0.1:80\"\ntoken_file = \"long.key\"\n[scheduler]",
        "f.toml:12: [clients] token_file: token file \"long.key\" is not text, or has more than 4096 bytes; remedy: write the token that the service expects into the first line of the file, or correct the path";
    "password of a service": GATEWAY, "[scheduler]" => "[clients]\nsource = \"http\"\nstore = \"http://[::1]:80\"\ntoken_file = \"good.key\"\npassword_file = \"good.key\"\n[scheduler]",
        "f.toml:13: [clients] password_file: not used with source = \"http\"; remedy: remove it, or write source = \"postgres\"";
    "database without a host": GATEWAY, "[scheduler]" => "[clients]\nsource = \"postgres\"\nstore = \"dbname=pleach\"\n[scheduler]",
        "f.toml:11: [clients] store: names no host; remedy: write for example \"host=127.0.0.1 dbname=pleach user=pleach\"";
    "database with a password": GATEWAY, "[scheduler]" => "[clients]\nsource = \"postgres\"\nstore = \"host=localhost password=hidden\"\n[scheduler]",
        "f.toml:11: [clients] store: contains a password; remedy: write the password into a file with mode 0600, and name the file in password_file";
    "database far away in the clear": GATEWAY, "[scheduler]" => "[clients]\nsource = \"postgres\"\nstore = \"host=db.example.com user=x\"\n[scheduler]",
        "f.toml:11: [clients] store: the database is on another host, to which keys must not be sent in the clear; remedy: add ca_file = \"FILE\" with the certificate of the authority that signed the server's certificate";
    "an option of libpq alone": GATEWAY, "[scheduler]" => "[clients]\nsource = \"postgres\"\nstore = \"host=localhost sslrootcert=x\"\n[scheduler]",
        "f.toml:11: [clients] store: expected a connection string of PostgreSQL: unknown option `sslrootcert`; remedy: write for example \"host=127.0.0.1 dbname=pleach user=pleach\"";
    "encryption without an authority": GATEWAY, "[scheduler]" => "[clients]\nsource = \"postgres\"\nstore = \"host=localhost sslmode=require\"\n[scheduler]",
        "f.toml:11: [clients] store: sslmode is not used: connections are encrypted if, and only if, there is a ca_file; remedy: remove sslmode, and write ca_file = \"FILE\" with the certificate of the authority that signed the server's certificate";
    "no connection string": GATEWAY, "[scheduler]" => "[clients]\nsource = \"postgres\"\nstore = \"/var/lib/x\"\n[scheduler]",
        "f.toml:11: [clients] store: expected a connection string of PostgreSQL; remedy: write for example \"host=127.0.0.1 dbname=pleach user=pleach\"";
    "certificates for a file": GATEWAY, "[scheduler]" => "[clients]\nsource = \"sqlite\"\nstore = \"s\"\nca_file = \"ca.pem\"\n[scheduler]",
        "f.toml:12: [clients] ca_file: not used with source = \"sqlite\"; remedy: remove it, or write source = \"postgres\" or \"http\"";
    "fleet of a client": CLIENT, "[scheduler]" => "[fleet]\n[scheduler]",
        "f.toml:8: [fleet]: not used with mode = \"client\"; remedy: remove it, or correct the mode";
    "fleet without a database": GATEWAY, "[scheduler]" => "[fleet]\nname = \"gw1\"\nhome = [\"10.77.0.0/25\"]\n[scheduler]",
        "f.toml:9: [fleet]: the gateways of a fleet share their clients in a database; remedy: add a table [clients] with source = \"postgres\", or remove [fleet]";
    "fleet without a name": GATEWAY, "[scheduler]" => "[fleet]\n[scheduler]",
        "f.toml:9: [fleet] name: missing required key; remedy: add name = \"gw1\"";
    "home of no client": GATEWAY, "[scheduler]" => "[clients]\nsource = \"postgres\"\nstore = \"host=localhost user=x\"\n[fleet]\nname = \"gw1\"\nhome = [\"10.78.0.0/24\"]\n[scheduler]",
        "f.toml:14: [fleet] home: no client can have an address of 10.78.0.0/24; remedy: add a network that contains it to [clients] networks, which is the same at all gateways, or correct it";
    "clients from an unknown source": GATEWAY, "[scheduler]" => "[clients]\nsource = \"redis\"\n[scheduler]",
        "f.toml:10: [clients] source: expected \"file\", \"sqlite\", \"postgres\" or \"http\", found \"redis\"; remedy: write \"sqlite\" for a store in a file, \"postgres\" for one in a database, \"http\" for a service, or \"file\" for the clients in this file";
    "store without a path": GATEWAY, "[scheduler]" => "[clients]\nsource = \"sqlite\"\n[scheduler]",
        "f.toml:9: [clients] store: missing required key; remedy: add store = \"/var/lib/pleach/gateway/clients.db\"";
    "store of the clients in the file": GATEWAY, "[scheduler]" => "[clients]\nsource = \"file\"\nstore = \"s\"\n[scheduler]",
        "f.toml:11: [clients] store: not used with source = \"file\"; remedy: remove it, or write source = \"sqlite\"";
    "answers that live for ever": GATEWAY, "[scheduler]" => "[clients]\nsource = \"sqlite\"\nstore = \"s\"\nanswer_life = \"2d\"\n[scheduler]",
        "f.toml:12: [clients] answer_life: expected a duration from \"1s\" to \"1day\", found \"2d\"; remedy: write for example \"60s\"";
    "invitations in two places": GATEWAY, "[scheduler]" => "[clients]\nsource = \"sqlite\"\nstore = \"s\"\n[invitations]\nstore = \"i\"\n[scheduler]",
        "f.toml:13: [invitations] store: not used with a store in [clients], which contains the invitations as well; remedy: remove it";
    "store of a client": CLIENT, "[scheduler]" => "[clients]\n[scheduler]",
        "f.toml:8: [clients]: not used with mode = \"client\"; remedy: remove it, or correct the mode";
    "cap of nothing": GATEWAY, "name = \"home\"" => "name = \"home\"\nrate_up = \"0bit\"",
        "f.toml:13: [[client]] rate_up: expected a rate above zero such as \"64Mbit\" (bit, kbit, Mbit, Gbit), found \"0bit\"; remedy: write number and unit as a string, or remove the limit";
    "gateway without name": TWO, "name = \"near\"\n" => "",
        "f.toml:14: [[gateway]] name: missing required key; remedy: add name = \"frankfurt\"";
    "gateway with the name of another": TWO, "\"near\"" => "\"spare\"",
        "f.toml:15: [[gateway]] name: \"spare\" is already used on line 9; remedy: give every gateway its own name";
    "gateway twice": TWO, "\"OTHER\"" => "\"THIRD\"",
        "f.toml:16: [[gateway]] public_key: \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\" is already used on line 11; remedy: write each gateway once, with all its endpoints; two gateways need two key pairs";
    "endpoint of two gateways": TWO, "[\"203.0.113.5:7700\"]" => "[\"198.51.100.7:7700\"]",
        "f.toml:18: [[gateway]] endpoints: \"198.51.100.7:7700\" is already used on line 12; remedy: give every endpoint to one gateway only";
    "named endpoint of two gateways": TWO, "[\"203.0.113.5:7700\"]" => "[\"gw.example.net:7700\"]",
        "f.toml:18: [[gateway]] endpoints: \"gw.example.net:7700\" is already used on line 12; remedy: give every endpoint to one gateway only";
    "one of several gateways without endpoint": TWO, "[\"203.0.113.5:7700\"]" => "[]",
        "f.toml:18: [[gateway]] endpoints: expected at least one entry, found an empty list; remedy: write for example [\"203.0.113.5:7700\"]";
    "one of several gateways with the own key": TWO, "\"OTHER\"" => "\"hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=\"",
        "f.toml:16: [[gateway]] public_key: is the public key of this end itself; remedy: write the public key of the other end";
    "priority of another type": TWO, "priority = 1" => "priority = \"first\"",
        "f.toml:10: [[gateway]] priority: expected a whole number from 0 to 255, found \"first\"; remedy: write 0 for the gateway to use first, a higher number for one to use when that does not answer";
    "priority of the only gateway": CLIENT, "[gateway]" => "[gateway]\npriority = 1",
        "f.toml:11: [gateway] priority: unknown key; remedy: the nearest known key is `public_key` (others here: preshared_key, preshared_key_file, endpoints, allowed_ips)";
    "no gateway in the list": CLIENT, "[gateway]\npublic_key = \"OTHER\"\nendpoints = [\"203.0.113.5:7700\", \"[2001:db8::5]:7700\"]\nallowed_ips = [\"0.0.0.0/0\", \"::/0\"]\n" => "",
        "f.toml:1: [gateway]: missing required table; remedy: add a table [gateway] with its keys";
    "both forms of gateways": TWO, "[[gateway]]\nname = \"near\"" => "[gateway]",
        "f.toml:14: TOML syntax: duplicate key; remedy: write one table [gateway], or a table [[gateway]] for each of several gateways, but not both";
    "return to one gateway": CLIENT, "mtu = 1400" => "gateway_return = 60",
        "f.toml:7: [tunnel] gateway_return: the client has one gateway only; remedy: remove it, or add a [[gateway]] for every gateway";
    "return at once": TWO, "gateway_return = 30" => "gateway_return = 1",
        "f.toml:6: [tunnel] gateway_return: expected a number of seconds from 5 to 86400, or \"never\", found 1; remedy: write for example 60, or \"never\" to leave a gateway only when it falls silent";
    "carrier of several gateways": TWO, "[[gateway]]\nname = \"spare\"" => "[carrier]\nendpoints = [\"203.0.113.5:443\"]\n[[gateway]]\nname = \"spare\"",
        "f.toml:8: [carrier]: endpoints do not say to which of several gateways they belong; remedy: remove endpoints: port 443 of each gateway is used";
    "portal check by https": TWO, "http://check" => "https://check",
        "f.toml:7: [tunnel] portal_check: expected \"off\", or a URL that begins with http://, found \"https://check.example/204\"; remedy: write a page that answers with status 204, such as \"http://connectivity-check.ubuntu.com/\"; portals cannot answer for https";
    "client without gateway": CLIENT, "[gateway]\npublic_key = \"OTHER\"\nendpoints = [\"203.0.113.5:7700\", \"[2001:db8::5]:7700\"]\nallowed_ips = [\"0.0.0.0/0\", \"::/0\"]\n" => "",
        "f.toml:1: [gateway]: missing required table; remedy: add a table [gateway] with its keys";
    "required key missing": CLIENT, "public_key = \"OTHER\"\n" => "",
        "f.toml:10: [gateway] public_key: missing required key; remedy: add public_key = \"KEY\", the public key of the other end, as printed by `pleach pubkey`";
    "link is no array": CLIENT, "[[link]]\nname = \"dsl\"\ndevice = \"eth1\"\ncost = 0\nweight = 64\n[[link]]" => "[link]",
        "f.toml:14: [[link]]: expected an array of tables, found a table; remedy: write [[link]] with double brackets";
    "scheduler is no table": GATEWAY, "[scheduler]" => "[[scheduler]]",
        "f.toml:9: [[scheduler]]: expected a table, found a list; remedy: write [scheduler] on a line of its own";
    "CIDR bad": CLIENT, "\"10.77.0.2/24\"" => "\"10.77.0/24\"",
        "f.toml:4: [tunnel] address: expected ADDRESS/PREFIX, found \"10.77.0/24\"; remedy: write for example \"10.77.0.2/24\" or \"fd77::2/64\"";
    "CIDR of another type": CLIENT, "\"10.77.0.2/24\"" => "10",
        "f.toml:4: [tunnel] address: expected ADDRESS/PREFIX, found 10; remedy: write for example \"10.77.0.2/24\"";
    "CIDR without prefix": CLIENT, "\"10.77.0.2/24\"" => "\"10.77.0.2\"",
        "f.toml:4: [tunnel] address: expected ADDRESS/PREFIX, found \"10.77.0.2\"; remedy: add the prefix length, for example \"10.77.0.2/32\"";
    "IPv4 prefix too long": CLIENT, "\"10.77.0.2/24\"" => "\"10.77.0.2/33\"",
        "f.toml:4: [tunnel] address: expected ADDRESS/PREFIX, found \"10.77.0.2/33\"; remedy: write a prefix length from 0 to 32";
    "IPv6 prefix too long": CLIENT, "\"fd77::2/64\"" => "\"fd77::2/129\"",
        "f.toml:4: [tunnel] address: expected ADDRESS/PREFIX, found \"fd77::2/129\"; remedy: write a prefix length from 0 to 128";
    "host bits": GATEWAY, "\"10.77.1.0/24\"" => "\"10.77.1.9/24\"",
        "f.toml:18: [[client]] allowed_ips: 10.77.1.9/24 has host bits set; remedy: write \"10.77.1.0/24\" for the network, or \"10.77.1.9/32\" for the one host";
    "address nobody has": CLIENT, "\"10.77.0.2/24\"" => "\"224.0.0.1/24\"",
        "f.toml:4: [tunnel] address: expected a unicast address, not loopback, found \"224.0.0.1/24\"; remedy: write for example [\"10.77.0.2/24\"]";
    "address twice": CLIENT, "\"fd77::2/64\"" => "\"10.77.0.2/16\"",
        "f.toml:4: [tunnel] address: address 10.77.0.2 given twice; remedy: remove one of the two";
    "no address": CLIENT, "[\"10.77.0.2/24\", \"fd77::2/64\"]" => "[]",
        "f.toml:4: [tunnel] address: expected at least one entry, found an empty list; remedy: write for example [\"10.77.0.2/24\"]";
    "private key bad": CLIENT, "\"PRIVATE\"" => "\"secret words\"",
        "f.toml:5: [tunnel] private_key: expected a key in base64 (44 characters), found other text; remedy: paste the output of `pleach genkey`";
    "private key of another type": CLIENT, "\"PRIVATE\"" => "7",
        "f.toml:5: [tunnel] private_key: expected a key in base64, found no string; remedy: paste the output of `pleach genkey`";
    "private key too short": CLIENT, "\"PRIVATE\"" => "\"c2VjcmV0\"",
        "f.toml:5: [tunnel] private_key: expected a key of 32 bytes, found 6; remedy: paste the output of `pleach genkey`";
    "private key missing": CLIENT, "private_key = \"PRIVATE\"\n" => "",
        "f.toml:2: [tunnel] private_key: missing required key; remedy: add private_key_file = \"FILE\"; `pleach genkey` prints its content";
    "private key and file": CLIENT, "control =" => "private_key_file = \"good.key\"\ncontrol =",
        "f.toml:6: [tunnel] private_key_file: given together with private_key; remedy: keep one of the two, preferably the file";
    "key file missing": CLIENT, "private_key = \"PRIVATE\"" => "private_key_file = \"none.key\"",
        "f.toml:5: [tunnel] private_key_file: key file \"none.key\" cannot be read: No such file or directory; remedy: make the file with `pleach genkey`, or correct the path";
    "key file is a directory": CLIENT, "private_key = \"PRIVATE\"" => "private_key_file = \".\"",
        "f.toml:5: [tunnel] private_key_file: \".\" is not a regular file; remedy: give the path of a file that contains one key";
    "key file open to others": CLIENT, "private_key = \"PRIVATE\"" => "private_key_file = \"open.key\"",
        "f.toml:5: [tunnel] private_key_file: key file \"open.key\" is open to others (mode 644); remedy: chmod 600 the file, and make a new key if others may have read it";
    "key file without key": CLIENT, "private_key = \"PRIVATE\"" => "private_key_file = \"bad.key\"",
        "f.toml:5: [tunnel] private_key_file: key file \"bad.key\": expected a key in base64 (44 characters), found other text; remedy: paste the output of `pleach genkey`";
    "public key bad": GATEWAY, "\"OTHER\"" => "\"hello\"",
        "f.toml:13: [[client]] public_key: expected a key in base64 (44 characters), found other text; remedy: write the public key of the other end, as printed by `pleach pubkey`";
    "public key is the own one": CLIENT, "\"OTHER\"" => "\"hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=\"",
        "f.toml:11: [gateway] public_key: is the public key of this end itself; remedy: write the public key of the other end";
    "client with the gateway's key": GATEWAY, "\"OTHER\"" => "\"hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=\"",
        "f.toml:13: [[client]] public_key: is the public key of this end itself; remedy: write the public key of the other end";
    "preshared key bad": GATEWAY, "public_key = \"OTHER\"" => "public_key = \"OTHER\"\npreshared_key = \"AAAA\"",
        "f.toml:14: [[client]] preshared_key: expected a key of 32 bytes, found 3; remedy: paste the output of `pleach genkey`";
    "preshared key file open to others": CLIENT, "endpoints" => "preshared_key_file = \"open.key\"\nendpoints",
        "f.toml:12: [gateway] preshared_key_file: key file \"open.key\" is open to others (mode 644); remedy: chmod 600 the file, and make a new key if others may have read it";
    "endpoint without port": CLIENT, "\"203.0.113.5:7700\"" => "\"203.0.113.5\"",
        "f.toml:12: [gateway] endpoints: expected ADDRESS:PORT of the gateway, found \"203.0.113.5\"; remedy: write for example \"203.0.113.5:7700\" or \"[2001:db8::5]:7700\", or a name such as \"gw.example.net:7700\"";
    "endpoint is a name with a bad port": CLIENT, "\"203.0.113.5:7700\"" => "\"example.org:77000\"",
        "f.toml:12: [gateway] endpoints: expected a name with a port from 1 to 65535, found \"example.org:77000\"; remedy: write for example \"gw.example.net:7700\"";
    "endpoint is no name": CLIENT, "\"203.0.113.5:7700\"" => "\"exa mple.org:7700\"",
        "f.toml:12: [gateway] endpoints: expected ADDRESS:PORT of the gateway, found \"exa mple.org:7700\"; remedy: write for example \"203.0.113.5:7700\" or \"[2001:db8::5]:7700\", or a name such as \"gw.example.net:7700\"";
    "name given twice": CLIENT, "\"203.0.113.5:7700\"" => "\"example.org:7700\", \"example.org:7700\"",
        "f.toml:12: [gateway] endpoints: example.org:7700 given twice; remedy: remove one of the two";
    "resolver is a name": CLIENT, "[scheduler]" => "dns = [\"dns.example\"]\n[scheduler]",
        "f.toml:8: [tunnel] dns: expected the address of a resolver, found \"dns.example\"; remedy: write the addresses of resolvers, for example [\"10.77.0.1\"]";
    "endpoint port zero": CLIENT, "\"203.0.113.5:7700\"" => "\"203.0.113.5:0\"",
        "f.toml:12: [gateway] endpoints: expected ADDRESS:PORT of the gateway, found \"203.0.113.5:0\"; remedy: write for example \"203.0.113.5:7700\" or \"[2001:db8::5]:7700\", or a name such as \"gw.example.net:7700\"";
    "endpoint twice": CLIENT, "\"[2001:db8::5]:7700\"" => "\"203.0.113.5:7700\"",
        "f.toml:12: [gateway] endpoints: 203.0.113.5:7700 given twice; remedy: remove one of the two";
    "listen bad": GATEWAY, "\"[::]:7700\"" => "\"*:7700\"",
        "f.toml:6: [tunnel] listen: expected ADDRESS:PORT to listen on, found \"*:7700\"; remedy: write \"[::]:7700\" for all addresses, or \"0.0.0.0:7700\" for IPv4 only";
    "listen missing": GATEWAY, "listen = \"[::]:7700\"\n" => "",
        "f.toml:2: [tunnel] listen: missing required key; remedy: add listen = \"[::]:7700\"";
    "nat unknown": GATEWAY, "nat = true" => "nat = \"nat64\"",
        "f.toml:8: [tunnel] nat: expected true, false or \"nat66\", found \"nat64\"; remedy: write true for NAT of IPv4, \"nat66\" for NAT of IPv6 too";
    "isolate no switch": GATEWAY, "nat = true" => "isolate = \"yes\"",
        "f.toml:8: [tunnel] isolate: expected true or false, found \"yes\"; remedy: write true, or remove it";
    "split TCP sometimes": CLIENT, "[scheduler]" => "split_tcp = \"sometimes\"\n[scheduler]",
        "f.toml:8: [tunnel] split_tcp: expected \"auto\", \"on\" or \"off\", found \"sometimes\"; remedy: write \"auto\" to split TCP connections if the RTTs of the links differ much, or \"off\"";
    "kill switch at a gateway": GATEWAY, "nat = true" => "kill_switch = true",
        "f.toml:8: [tunnel] kill_switch: unknown key; remedy: the nearest known key is `split_tcp` (others here: name, address, confine, private_key, private_key_file, control, mtu, compression, parity, remember, listen, nat, isolate, speedtest, workers)";
    "no data thread": GATEWAY, "nat = true" => "workers = 0",
        "f.toml:8: [tunnel] workers: expected \"auto\" or a number from 1 to 64, found 0; remedy: write \"auto\", or as many data threads as the machine has processor cores";
    "too many data threads": GATEWAY, "nat = true" => "workers = 65",
        "f.toml:8: [tunnel] workers: expected \"auto\" or a number from 1 to 64, found 65; remedy: write \"auto\", or as many data threads as the machine has processor cores";
    "data threads of a client": CLIENT, "mtu = 1400" => "mtu = 1400\nworkers = 2",
        "f.toml:8: [tunnel] workers: a client has one data thread; remedy: remove it; it is a setting of gateways";
    "duration bad": CLIENT, "policy = \"adaptive\"" => "policy = \"adaptive\"\ntarget_delay = \"20\"",
        "f.toml:10: [scheduler] target_delay: expected a duration from \"1ms\" to \"10s\", found \"20\"; remedy: write for example \"20ms\"";
    "target delay too long": CLIENT, "policy = \"adaptive\"" => "policy = \"adaptive\"\ntarget_delay = \"11s\"",
        "f.toml:10: [scheduler] target_delay: expected a duration from \"1ms\" to \"10s\", found \"11s\"; remedy: write for example \"20ms\"";
    "yield to an unknown link": CLIENT, "policy = \"adaptive\"" => "policy = \"adaptive\"\nyield = [\"dsl\", \"cable\"]",
        "f.toml:10: [scheduler] yield: no link is called \"cable\"; remedy: write the name of a [[link]]: dsl, lte";
    "yield of another type": CLIENT, "policy = \"adaptive\"" => "policy = \"adaptive\"\nyield = true",
        "f.toml:10: [scheduler] yield: expected a name of 1 to 32 characters from A-Z a-z 0-9 . _ -, found true; remedy: write a short name such as \"dsl\"";
    "yield and hold": CLIENT, "policy = \"adaptive\"" => "policy = \"adaptive\"\nyield = \"dsl\"\nhold = [\"lte\", \"dsl\"]",
        "f.toml:11: [scheduler] hold: \"dsl\" is also named in \"yield\"; remedy: remove it from one of the two keys";
    "share of nothing": CLIENT, "policy = \"adaptive\"" => "policy = \"adaptive\"\nshare = 50",
        "f.toml:10: [scheduler] share: has no effect without \"hold\"; remedy: add hold = \"NAME\", or remove it";
    "share above all": CLIENT, "policy = \"adaptive\"" => "policy = \"adaptive\"\nhold = \"dsl\"\nshare = 101",
        "f.toml:11: [scheduler] share: expected a whole number from 1 to 100, found 101; remedy: write a share of the link's capacity in percent, for example 50";
    "confine of another type": CLIENT, "mtu = 1400" => "mtu = 1400\nconfine = 1",
        "f.toml:8: [tunnel] confine: expected true or false, found 1; remedy: write true, or remove it";
    "remember of another type": CLIENT, "mtu = 1400" => "mtu = 1400\nremember = 1",
        "f.toml:8: [tunnel] remember: expected true or false, found 1; remedy: write true, or remove it";
    "rate bad": CLIENT, "\"20Mbit\"" => "\"20 MB\"",
        "f.toml:23: [[link]] upload: expected a rate above zero such as \"64Mbit\" (bit, kbit, Mbit, Gbit), found \"20 MB\"; remedy: write number and unit as a string, or remove the limit";
    "rate zero": CLIENT, "\"20Mbit\"" => "\"0Mbit\"",
        "f.toml:23: [[link]] upload: expected a rate above zero such as \"64Mbit\" (bit, kbit, Mbit, Gbit), found \"0Mbit\"; remedy: write number and unit as a string, or remove the limit";
    "tunnel name too long": CLIENT, "\"pleach0\"" => "\"a-very-long-name\"",
        "f.toml:3: [tunnel] name: expected a device name of 1 to 15 characters from A-Z a-z 0-9 . _ -, found \"a-very-long-name\"; remedy: write a short name such as \"pleach0\"";
    "tunnel name with bad characters": CLIENT, "\"pleach0\"" => "\"ple/ach\"",
        "f.toml:3: [tunnel] name: expected a device name of 1 to 15 characters from A-Z a-z 0-9 . _ -, found \"ple/ach\"; remedy: write a short name such as \"pleach0\"";
    "link name bad": CLIENT, "\"lte\"" => "\"lte=5\"",
        "f.toml:20: [[link]] name: expected a name of 1 to 32 characters from A-Z a-z 0-9 . _ -, found \"lte=5\"; remedy: write a short name such as \"dsl\"";
    "link name twice": CLIENT, "\"lte\"" => "\"dsl\"",
        "f.toml:20: [[link]] name: \"dsl\" is already used on line 15; remedy: give every link its own name";
    "link device twice": CLIENT, "\"wwan0\"" => "\"eth1\"",
        "f.toml:21: [[link]] device: \"eth1\" is already used on line 16; remedy: remove one of the two links";
    "link device cannot exist": CLIENT, "\"wwan0\"" => "\"ww an0\"",
        "f.toml:21: [[link]] device: expected a device name of 1 to 15 characters without spaces, '/' and ':', found \"ww an0\"; remedy: write the name of a network device; `ip link` lists them";
    "link device empty": CLIENT, "\"wwan0\"" => "\"\"",
        "f.toml:21: [[link]] device: expected a device name of 1 to 15 characters without spaces, '/' and ':', found \"\"; remedy: write the name of a network device; `ip link` lists them";
    "link device is the tunnel": CLIENT, "\"wwan0\"" => "\"pleach0\"",
        "f.toml:21: [[link]] device: \"pleach0\" is the tunnel's own device; remedy: write the device of an uplink";
    "client name twice": GATEWAY, "\"office\"" => "\"home\"",
        "f.toml:16: [[client]] name: \"home\" is already used on line 12; remedy: give every client its own name";
    "client key twice": GATEWAY, "\"THIRD\"" => "\"OTHER\"",
        "f.toml:17: [[client]] public_key: \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\" is already used on line 13; remedy: give every client its own key pair, made with `pleach genkey`";
    "allowed_ips overlap": GATEWAY, "\"10.77.1.0/24\"" => "\"10.77.0.0/16\"",
        "f.toml:18: [[client]] allowed_ips: 10.77.0.0/16 overlaps 10.77.0.2/32 of client \"home\"; remedy: give every inner address to one client only";
    "allowed_ips multicast": GATEWAY, "\"10.77.1.0/24\"" => "\"239.0.0.0/8\"",
        "f.toml:18: [[client]] allowed_ips: 239.0.0.0/8 is multicast space, which a tunnel cannot carry; remedy: remove it";
    "allowed_ips empty": CLIENT, "[\"0.0.0.0/0\", \"::/0\"]" => "[]",
        "f.toml:13: [gateway] allowed_ips: expected at least one entry, found an empty list; remedy: write for example [\"10.77.0.2/32\"], or [\"0.0.0.0/0\", \"::/0\"] for everything";
    "allowed_ips no list": CLIENT, "[\"0.0.0.0/0\", \"::/0\"]" => "\"0.0.0.0/0\"",
        "f.toml:13: [gateway] allowed_ips: expected a list, found \"0.0.0.0/0\"; remedy: write for example [\"10.77.0.2/32\"], or [\"0.0.0.0/0\", \"::/0\"] for everything";
    "weight zero": CLIENT, "weight = 64" => "weight = 0",
        "f.toml:18: [[link]] weight: expected a whole number from 1 to 1000, found 0; remedy: write a share such as 64; to disable a link, write cost = \"never\"";
    "weight of another type": CLIENT, "weight = 64" => "weight = \"x\"",
        "f.toml:18: [[link]] weight: expected a whole number from 1 to 1000, found \"x\"; remedy: write a share such as 64; to disable a link, write cost = \"never\"";
    "weight beyond any number": CLIENT, "weight = 64" => "weight = 99999999999999999999",
        "f.toml:18: [[link]] weight: expected a whole number from 1 to 1000, found 99999999999999999999; remedy: write a share such as 64; to disable a link, write cost = \"never\"";
    "cost unknown word": CLIENT, "cost = \"standby\"" => "cost = \"backup\"",
        "f.toml:22: [[link]] cost: expected a whole number from 0 to 255, \"standby\" or \"never\", found \"backup\"; remedy: write 0 for the link to use first, a higher number for a more expensive one";
    "cost too high": CLIENT, "cost = 0" => "cost = 256",
        "f.toml:17: [[link]] cost: expected a whole number from 0 to 255, \"standby\" or \"never\", found 256; remedy: write 0 for the link to use first, a higher number for a more expensive one";
    "policy unknown": CLIENT, "policy = \"adaptive\"" => "policy = \"fastest\"",
        "f.toml:9: [scheduler] policy: expected a known policy, found \"fastest\"; remedy: write one of: adaptive, auto-weight, awi, consn, cwnd-aware, earliest-arrival, flow, min-rtt, osia, redundant, round-robin, single, srtt-weighted, weighted";
    "policy missing": CLIENT, "policy = \"adaptive\"" => "",
        "f.toml:8: [scheduler] policy: missing required key; remedy: add policy = \"adaptive\"";
    "key of another policy": CLIENT, "policy = \"adaptive\"" => "policy = \"flow\"\nlink = \"dsl\"",
        "f.toml:10: [scheduler] link: not a key of policy \"flow\"; remedy: remove it, or choose a policy that has this key: single";
    "unknown policy key": CLIENT, "policy = \"adaptive\"" => "policy = \"single\"\nlnik = \"dsl\"",
        "f.toml:10: [scheduler] lnik: unknown key; remedy: the nearest known key is `link` (others here: policy, target_delay, yield, hold, share, interval, fixed, k, t_dwd, w_fixed, w_mobile_max, t_report, t_lto, dwd, loss, count, wrr, variant, redundancy, pdc, alpha, deadline, in_order, period, merge, faucets, weights, ack_pacing, fec, look_ahead, pacing, repair, search, trains, voice, without)";
    "profile part not a truth value": CLIENT, "policy = \"adaptive\"" => "policy = \"flow\"\nrepair = \"yes\"",
        "f.toml:10: [scheduler] repair: expected true or false, found \"yes\"; remedy: write true or false";
    "look-ahead without osia": CLIENT, "policy = \"adaptive\"" => "policy = \"consn\"\nlook_ahead = true",
        "f.toml:10: [scheduler] look_ahead: only policy \"osia\" uses look_ahead; remedy: remove it";
    "search without pacing": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nsearch = true",
        "f.toml:10: [scheduler] search: search requires pacing, which is off; remedy: add pacing = true, or remove it";
    "single without link": CLIENT, "policy = \"adaptive\"" => "policy = \"single\"",
        "f.toml:8: [scheduler] link: missing required key; remedy: add link = \"NAME\", the name of the link to use";
    "single with unknown link": CLIENT, "policy = \"adaptive\"" => "policy = \"single\"\nlink = \"cable\"",
        "f.toml:10: [scheduler] link: no link is called \"cable\"; remedy: write the name of a [[link]]: dsl, lte";
    "awi with unknown link": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nk = 1\nfixed = \"cable\"",
        "f.toml:11: [scheduler] fixed: no link is called \"cable\"; remedy: write the name of a [[link]]: dsl, lte";
    "awi with a key of another policy": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nlink = \"dsl\"",
        "f.toml:10: [scheduler] link: not a key of policy \"awi\"; remedy: remove it, or choose a policy that has this key: single";
    "key of awi at another policy": CLIENT, "policy = \"adaptive\"" => "policy = \"flow\"\nk = 1",
        "f.toml:10: [scheduler] k: not a key of policy \"flow\"; remedy: remove it, or choose a policy that has this key: awi";
    "awi gain of zero": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nk = 0",
        "f.toml:10: [scheduler] k: expected a number from 0.000001 to 1000, found 0; remedy: write for example 0.5";
    "awi gain no number": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nk = nan",
        "f.toml:10: [scheduler] k: expected a number from 0.000001 to 1000, found nan; remedy: write for example 0.5";
    "awi gain of another type": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nk = \"0.5\"",
        "f.toml:10: [scheduler] k: expected a number from 0.000001 to 1000, found \"0.5\"; remedy: write for example 0.5";
    "awi time without a unit": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nt_dwd = \"250\"",
        "f.toml:10: [scheduler] t_dwd: expected a duration from \"1ms\" to \"1m\", found \"250\"; remedy: write for example \"250ms\"";
    "awi time of another type": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nt_lto = 50",
        "f.toml:10: [scheduler] t_lto: expected a duration from \"1ms\" to \"10s\", found 50; remedy: write for example \"50ms\"";
    "awi reports too often": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nt_report = \"1ms\"",
        "f.toml:10: [scheduler] t_report: expected a duration from \"5ms\" to \"10s\", found \"1ms\"; remedy: write for example \"50ms\"";
    "awi weight of zero": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nw_fixed = 0",
        "f.toml:10: [scheduler] w_fixed: expected a whole number from 1 to 1000, found 0; remedy: write for example 50";
    "awi weight too large": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nw_mobile_max = 1001",
        "f.toml:10: [scheduler] w_mobile_max: expected a whole number from 0 to 1000, found 1001; remedy: write for example 45";
    "awi word unknown": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\ndwd = \"linear\"",
        "f.toml:10: [scheduler] dwd: expected \"rearm\" or \"literal\", found \"linear\"; remedy: write \"rearm\", or remove it";
    "awi word of another type": CLIENT, "policy = \"adaptive\"" => "policy = \"awi\"\nwrr = 1",
        "f.toml:10: [scheduler] wrr: expected \"block\" or \"smooth\", found 1; remedy: write \"block\", or remove it";
    "auto-weight interval too short": CLIENT, "policy = \"adaptive\"" => "policy = \"auto-weight\"\ninterval = \"1ms\"",
        "f.toml:10: [scheduler] interval: expected a duration from \"10ms\" to \"1m\", found \"1ms\"; remedy: write for example \"200ms\"";
    "osia period without a unit": CLIENT, "policy = \"adaptive\"" => "policy = \"osia\"\nperiod = \"1\"",
        "f.toml:10: [scheduler] period: expected a duration from \"10ms\" to \"1m\", found \"1\"; remedy: write for example \"1s\"";
    "osia merges too much": CLIENT, "policy = \"adaptive\"" => "policy = \"osia\"\nmerge = \"2s\"",
        "f.toml:10: [scheduler] merge: expected a duration from \"0s\" to \"1s\", found \"2s\"; remedy: write for example \"10ms\"";
    "osia word unknown": CLIENT, "policy = \"adaptive\"" => "policy = \"osia\"\nfaucets = \"dripping\"",
        "f.toml:10: [scheduler] faucets: expected \"smooth\" or \"random\", found \"dripping\"; remedy: write \"smooth\", or remove it";
    "policy of a client unknown": GATEWAY, "policy = \"flow\"" => "policy = \"flw\"",
        "f.toml:20: [client.scheduler] policy: expected a known policy, found \"flw\"; remedy: write one of: adaptive, auto-weight, awi, consn, cwnd-aware, earliest-arrival, flow, min-rtt, osia, redundant, round-robin, single, srtt-weighted, weighted";
    "mtu below IPv6": CLIENT, "mtu = 1400" => "mtu = 1279",
        "f.toml:7: [tunnel] mtu: expected a whole number from 1280 to 9000, found 1279; remedy: remove it to use the MTU of the links' devices, or write 1280 (the minimum of IPv6) to 9000";
    "parity of another code": CLIENT, "mtu = 1400" => "parity = \"xor\"",
        "f.toml:7: [tunnel] parity: expected \"hamming\" or \"bch\", found \"xor\"; remedy: write \"hamming\", or remove it";
    "compression by number": CLIENT, "mtu = 1400" => "compression = 1",
        "f.toml:7: [tunnel] compression: expected true or false, found 1; remedy: write true, or remove it";
    "mtu too large": CLIENT, "mtu = 1400" => "mtu = 9001",
        "f.toml:7: [tunnel] mtu: expected a whole number from 1280 to 9000, found 9001; remedy: remove it to use the MTU of the links' devices, or write 1280 (the minimum of IPv6) to 9000";
    "nothing in the tunnel": CLIENT, "upload = \"20Mbit\"" => "[[rule]]\naction = \"direct\"",
        "f.toml:24: [[rule]] action: the rule has no condition, so nothing would use the tunnel; remedy: add destination, port or protocol";
    "program past the tunnel": CLIENT, "upload = \"20Mbit\"" => "[[rule]]\napp = \"x\"\naction = \"direct\"",
        "f.toml:24: [[rule]] app: not used with action = \"direct\", for which the host's routes decide; remedy: remove it";
    "class without a match": CLIENT, "upload = \"20Mbit\"" => "[[class]]\nname = \"v\"\ndeadline = \"1s\"",
        "f.toml:24: [[class]] name: the class has no condition that packets could match; remedy: add one or more of: dscp, protocol, ports, from, to, max_size, max_rate";
    "class with an unknown key": CLIENT, "upload = \"20Mbit\"" => "[[class]]\nname = \"v\"\nport = 5004",
        "f.toml:25: [[class]] port: unknown key; remedy: the nearest known key is `ports` (others here: name, dscp, protocol, from, to, max_size, max_rate, deadline, ordered, duplicate, share, links)";
    "class with a bad code point": CLIENT, "upload = \"20Mbit\"" => "[[class]]\nname = \"v\"\ndscp = [46, \"af51\"]",
        "f.toml:25: [[class]] dscp: expected a code point: 0 to 63, \"ef\", \"va\", \"cs0\" to \"cs7\", or \"af11\" to \"af43\", found \"af51\"; remedy: write for example \"ef\"";
    "class with ports the wrong way round": CLIENT, "upload = \"20Mbit\"" => "[[class]]\nname = \"v\"\nports = \"9-3\"",
        "f.toml:25: [[class]] ports: expected a port, or a range of ports with the lower port first, found \"9-3\"; remedy: write for example 5060, or \"16384-32767\"";
    "class with a deadline of no use": CLIENT, "upload = \"20Mbit\"" => "[[class]]\nname = \"v\"\nports = 9\ndeadline = \"1ms\"",
        "f.toml:26: [[class]] deadline: expected a duration from \"10ms\" to \"10s\", found \"1ms\"; remedy: write for example \"200ms\"";
    "copies without a deadline": CLIENT, "upload = \"20Mbit\"" => "[[class]]\nname = \"v\"\nports = 9\nduplicate = \"auto\"",
        "f.toml:26: [[class]] duplicate: copies are sent only of packets with a deadline; remedy: add for example deadline = \"200ms\"";
    "share without copies": CLIENT, "upload = \"20Mbit\"" => "[[class]]\nname = \"v\"\nports = 9\nshare = 10",
        "f.toml:26: [[class]] share: has no effect without copies; remedy: add duplicate = \"auto\", or remove it";
    "class on a link there is not": CLIENT, "upload = \"20Mbit\"" => "[[class]]\nname = \"v\"\nports = 9\nlinks = [\"dsl\", \"sat\"]",
        "f.toml:26: [[class]] links: no link is called \"sat\"; remedy: write the name of a [[link]]: dsl, lte";
    "rule over a link that is not there": CLIENT, "upload = \"20Mbit\"" => "[[rule]]\nport = 443\nlink = \"umts\"",
        "f.toml:25: [[rule]] link: no link is called \"umts\"; remedy: write the name of a [[link]]: dsl, lte";
    "strict rule over a link on standby": CLIENT, "upload = \"20Mbit\"" => "[[rule]]\nlink = \"lte\"\nstrict = true",
        "f.toml:25: [[rule]] strict: \"lte\" has cost = \"standby\", so it carries nothing while another link works; remedy: remove strict, or give the link a number as its cost";
    "rule for a name in a tunnel": CLIENT, "upload = \"20Mbit\"" => "[[rule]]\ndestination = \"example.com\"\nlink = \"lte\"",
        "f.toml:24: [[rule]] destination: packets in a tunnel have addresses, no names; remedy: write an address or a network, or use a proxy, which knows names";
    "rule without consequence": CLIENT, "upload = \"20Mbit\"" => "[[rule]]\nport = 25",
        "f.toml:23: [[rule]] link: missing required key; remedy: add link = \"lte\", the name of a [[link]], or action = \"block\"";
    "rule with two consequences": CLIENT, "upload = \"20Mbit\"" => "[[rule]]\naction = \"block\"\nlink = \"lte\"",
        "f.toml:25: [[rule]] link: packets that are dropped take no link; remedy: remove it, or remove action";
    "rule of a gateway": GATEWAY, "[scheduler]" => "[[rule]]\nport = 25\naction = \"block\"\n[scheduler]",
        "f.toml:9: [[rule]]: not used with mode = \"gateway\"; remedy: remove it, or correct the mode";
    "two classes of one name": CLIENT, "upload = \"20Mbit\"" => "[[class]]\nname = \"v\"\nports = 9\n[[class]]\nname = \"v\"\nports = 8",
        "f.toml:27: [[class]] name: there are two classes called \"v\"; remedy: give one of them another name";
    "carrier unknown": CLIENT, "upload = \"20Mbit\"" => "carrier = \"quic\"",
        "f.toml:23: [[link]] carrier: expected \"auto\", \"tcp\" or \"udp\", found \"quic\"; remedy: write \"auto\" for TCP if the network blocks UDP";
    "proxy without port": CLIENT, "upload = \"20Mbit\"" => "http_proxy = \"http://proxy\"",
        "f.toml:23: [[link]] http_proxy: expected an HTTP proxy, found \"http://proxy\"; remedy: write for example \"http://192.0.2.8:3128\"; http_proxy_user and http_proxy_password_file set user and password";
    "proxy user without password": CLIENT, "upload = \"20Mbit\"" => "http_proxy = \"proxy:1\"\nhttp_proxy_user = \"me\"",
        "f.toml:24: [[link]] http_proxy_user: the user requires a password, and the password a user; remedy: give http_proxy_user and http_proxy_password_file";
    "proxy password without proxy": CLIENT, "upload = \"20Mbit\"" => "http_proxy_password_file = \"good.key\"",
        "f.toml:23: [[link]] http_proxy_password_file: given without http_proxy; remedy: add http_proxy, or remove it";
    "authorities without a name": CLIENT, "upload = \"20Mbit\"" => "[carrier]\nca_file = \"ca.pem\"",
        "f.toml:23: [carrier] server_name: missing: ca_file requires the host name in the certificate; remedy: add server_name = \"NAME\" with this host name";
    "pin of another kind": CLIENT, "upload = \"20Mbit\"" => "[carrier]\ncertificate = \"ab:cd\"",
        "f.toml:24: [carrier] certificate: expected the SHA-256 of a certificate, 64 hexadecimal digits, found \"ab:cd\"; remedy: `openssl x509 -in FILE -noout -fingerprint -sha256` prints it";
    "certificate without key": GATEWAY, "nat = true" => "nat = true\n[carrier]\nlisten = \"[::]:443\"\ncertificate_file = \"web.pem\"",
        "f.toml:9: [carrier] key_file: missing beside certificate_file; remedy: add key_file = \"FILE\"";
    "control relative": CLIENT, "\"/run/pleach/pleach0.sock\"" => "\"pleach0.sock\"",
        "f.toml:6: [tunnel] control: expected an absolute path of at most 107 bytes, found \"pleach0.sock\"; remedy: write for example \"/run/pleach/pleach0.sock\"";
};

#[test]
fn each_mistake_yields_its_line() {
    let files = Files::new();
    let mut failures = Vec::new();
    for mistake in MISTAKES {
        let Mistake {
            kind,
            base,
            from,
            to,
            expected,
        } = mistake;
        assert_eq!(
            base.matches(from).count(),
            1,
            "{kind}: {from:?} is there once"
        );
        match files.load(&base.replace(from, to)) {
            Ok(_) => failures.push(format!("{kind}: accepted")),
            Err(line) if line != *expected => {
                failures.push(format!("{kind}:\n  {line}\n  expected\n  {expected}"))
            }
            Err(_) => {}
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_client_file_comes_out_typed() {
    let loaded = Files::new().load(CLIENT).expect("good file");
    let config = loaded.config;
    assert_eq!(config.name, "pleach0");
    assert_eq!(config.mtu, Some(1400));
    assert_eq!(config.scheduler, SchedulerConfig::default());
    assert_eq!(config.private_key.to_base64().as_str(), PRIVATE);
    assert_eq!(config.control, Path::new("/run/pleach/pleach0.sock"));
    let Role::Client(client) = config.role else {
        panic!("a client")
    };
    assert_eq!(
        keys::encode_public(&client.gateways[0].public_key),
        OTHER_PUBLIC
    );
    assert_eq!(client.gateways.len(), 1);
    assert_eq!(client.gateways[0].endpoints.len(), 2);
    assert_eq!(client.gateways[0].allowed_ips.len(), 2);
    assert_eq!(client.portal_check, Some(CheckUrl::default()));
    let [dsl, lte] = client.links.as_slice() else {
        panic!("two links")
    };
    assert_eq!(
        (dsl.cost, dsl.weight, dsl.upload),
        (Cost::Rank(0), 64, None)
    );
    assert_eq!((lte.cost, lte.weight), (Cost::Standby, 1));
    assert_eq!(lte.upload, Some(Bitrate::from_mbps(20)));
    assert_eq!(loaded.device_places[1].line, Some(21));
}

#[test]
fn gateways_come_out_sorted_by_priority() {
    let files = Files::new();
    let loaded = files.load(TWO).expect("good file");
    let Role::Client(client) = loaded.config.role else {
        panic!("a client")
    };
    let [near, spare] = client.gateways.as_slice() else {
        panic!("two gateways")
    };
    assert_eq!((near.name.as_str(), near.priority), ("near", 0));
    assert_eq!((spare.name.as_str(), spare.priority), ("spare", 1));
    assert!(near.preshared_key.is_some() && spare.preshared_key.is_none());
    assert_eq!((spare.endpoints.len(), spare.names.len()), (1, 1));
    assert_eq!(client.gateway_return, Some(Duration::from_secs(30)));
    assert_eq!(client.allowed_ips().len(), 2, "each network once");
    assert_eq!(client.missing_networks(1), ["::/0"]);
    assert_eq!(client.missing_networks(0), [""; 0]);
    let url = client.portal_check.expect("a page");
    assert_eq!(url.to_string(), "http://check.example/204");
    // Only the gateway that does not lead to all networks is named.
    let notes = loaded.notes.iter().filter(|note| note.warning);
    let notes: Vec<_> = notes
        .filter(|note| note.text.contains("does not lead"))
        .collect();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].text.contains("\"spare\" does not lead to ::/0"));
    assert_eq!(notes[0].place.line, Some(8));
    for (from, to) in [
        ("30", "\"never\""),
        ("\"http://check.example/204\"", "\"off\""),
    ] {
        let Role::Client(client) = files
            .load(&TWO.replace(from, to))
            .expect("good")
            .config
            .role
        else {
            panic!("a client")
        };
        let is_off = client.gateway_return.is_none() || client.portal_check.is_none();
        assert!(is_off, "{to}");
    }
    // With a kill switch there is no check unless a page is given.
    for (check, expected) in [
        ("", None),
        (
            "portal_check = \"http://check.example/204\"",
            Some("http://check.example/204".to_owned()),
        ),
    ] {
        let with = format!("kill_switch = true\n{check}");
        let text = TWO.replace("portal_check = \"http://check.example/204\"", &with);
        let Role::Client(client) = files.load(&text).expect("good").config.role else {
            panic!("a client")
        };
        assert!(client.kill_switch);
        let found = client.portal_check.map(|url| url.to_string());
        assert_eq!(found, expected);
    }
    let many = "[[gateway]]\nname = \"x\"\n".repeat(7);
    let error = files.load(&format!("{TWO}{many}")).expect_err("nine");
    assert!(
        error.contains("too many gateways: at most 8 are allowed"),
        "{error}"
    );
}

#[test]
fn what_carries_links_comes_out_typed() {
    let files = Files::new();
    files.write("password", "secret: word\n", 0o600);
    let text = CLIENT.replace(
        "upload = \"20Mbit\"",
        "carrier = \"tcp\"\nhttp_proxy = \"http://[2001:db8::8]:3128/\"\nhttp_proxy_user = \"me\"\n\
         http_proxy_password_file = \"password\"\n[carrier]\nmode = \"udp\"\nserver_name = \"www.example.org\"\n\
         connections = 2",
    );
    let loaded = files.load(&text).expect("good");
    let Role::Client(client) = loaded.config.role else {
        panic!("a client");
    };
    assert_eq!(client.carrier.mode, Mode::Udp);
    assert_eq!(client.carrier.connections, 2);
    assert_eq!(
        client.carrier.server_name.as_deref(),
        Some("www.example.org")
    );
    assert_eq!(
        (client.links[0].carrier, &client.links[0].http_proxy),
        (None, &None)
    );
    assert_eq!(client.links[1].carrier, Some(Mode::Tcp));
    let proxy = client.links[1].http_proxy.as_ref().expect("given");
    assert_eq!((proxy.host.as_str(), proxy.port), ("2001:db8::8", 3128));
    let (user, password) = proxy.login.as_ref().expect("given");
    assert_eq!((user.as_str(), password.as_str()), ("me", "secret: word"));
    assert!(!format!("{proxy:?}").contains("secret"));
}

#[test]
fn classes_come_out_typed() {
    let text = format!(
        "{GATEWAY}[[class]]\nname = \"video\"\nprotocol = \"udp\"\nports = [5004, \"6000-6003\"]\n\
         dscp = [\"af41\", 0]\nto = [\"10.0.0.0/8\"]\nmax_rate = \"20Mbit\"\ndeadline = \"200ms\"\n\
         ordered = false\nduplicate = \"auto\"\nshare = 15\n[[class]]\nname = \"backup\"\nports = 22\n\
         links = \"dsl\"\n"
    );
    let loaded = Files::new().load(&text).expect("good file");
    let [video, backup] = loaded.config.classes.as_slice() else {
        panic!("two classes")
    };
    assert_eq!(video.name, "video");
    assert_eq!(video.matches.protocol, Some(17));
    assert_eq!(video.matches.ports, [5_004..=5_004, 6_000..=6_003]);
    assert_eq!(video.matches.dscp, [34, 0]);
    assert_eq!(video.matches.max_rate, Some(Bitrate::from_mbps(20)));
    let service = Service {
        deadline: Some(Duration::from_millis(200)),
        is_ordered: false,
        duplicate: Duplicate::Auto,
        share_percent: 15,
        ..Service::default()
    };
    assert_eq!(video.service, service);
    assert_eq!(backup.service.links, ["dsl"]);
    assert_eq!(backup.service.deadline, None);
    assert!(backup.service.is_ordered);
}

#[test]
fn rules_come_out_as_classes_in_their_order() {
    let text = format!(
        "{CLIENT}[[rule]]\napp = \"curl\"\nprotocol = \"tcp\"\nport = \"5000-6000\"\n\
         destination = \"192.0.2.7\"\nlink = \"dsl\"\nstrict = true\n\
         [[rule]]\nport = 25\naction = \"block\"\n[[rule]]\nlink = \"lte\"\n"
    );
    let config = Files::new().load(&text).expect("good file").config;
    let [first, second, third] = config.rules() else {
        panic!("three rules")
    };
    assert_eq!(first.name, "rule 1");
    assert_eq!(first.matches.app.as_deref(), Some("curl"));
    assert_eq!(first.matches.protocol, Some(6));
    assert_eq!(first.matches.ports, [5000..=6000]);
    let host: IpNet = "192.0.2.7/32".parse().expect("literal");
    assert_eq!(first.matches.to, [host]);
    let over = |link: &str, is_strict| Service {
        links: vec![link.to_owned()],
        is_strict,
        ..Service::default()
    };
    assert_eq!(first.service, over("dsl", true));
    assert!(second.service.is_blocked && second.service.links.is_empty());
    assert_eq!(third.matches, Match::default());
    assert_eq!(third.service, over("lte", false));
    let many = "[[rule]]\nlink = \"dsl\"\n".repeat(30);
    let error = Files::new()
        .load(&format!("{text}{many}"))
        .expect_err("33 rules");
    assert!(error.contains("at most 32 are allowed"), "{error}");
}

#[test]
fn a_gateway_file_comes_out_typed() {
    let loaded = Files::new().load(GATEWAY).expect("good file");
    let Role::Gateway(gateway) = loaded.config.role else {
        panic!("a gateway")
    };
    assert_eq!(gateway.listen.port(), 7700);
    assert_eq!(gateway.nat, Nat::Ipv4);
    assert!(gateway.isolate);
    assert_eq!(gateway.clients.len(), 2);
    assert_eq!(gateway.clients[0].scheduler, None);
    assert_eq!(gateway.clients[1].scheduler, Some(Policy::Flow {}.into()));
    assert_eq!(loaded.listen_place.and_then(|place| place.line), Some(6));
}

#[test]
fn optional_parts_may_be_left_out() {
    let files = Files::new();
    let (head, _) = CLIENT.split_once("[[link]]").expect("links");
    let short = head
        .replace("control = \"/run/pleach/pleach0.sock\"\nmtu = 1400\n", "")
        .replace("[scheduler]\npolicy = \"adaptive\"\n", "");
    let loaded = files.load(&short).expect("good file");
    assert_eq!(loaded.config.control, Path::new("/run/pleach/pleach0.sock"));
    assert_eq!(loaded.config.mtu, None);
    let Role::Client(client) = &loaded.config.role else {
        panic!("a client")
    };
    assert!(!client.kill_switch && loaded.config.confine);
    assert_eq!(loaded.config.scheduler, SchedulerConfig::default());
    assert_eq!(loaded.notes, []);
    let Role::Client(client) = loaded.config.role else {
        panic!("a client")
    };
    assert!(client.links.is_empty());
    for (nat, expected) in [
        ("true", Nat::Ipv4),
        ("false", Nat::Off),
        ("\"nat66\"", Nat::Ipv4AndIpv6),
    ] {
        let text = GATEWAY.replace("nat = true", &format!("nat = {nat}"));
        let Role::Gateway(gateway) = files.load(&text).expect("good file").config.role else {
            panic!("a gateway")
        };
        assert_eq!(gateway.nat, expected);
    }
}

#[test]
fn every_policy_is_accepted_under_its_name() {
    let files = Files::new();
    for policy in Policy::<String>::NAMES {
        let keys = if *policy == "single" {
            "link = \"lte\""
        } else {
            ""
        };
        let text = CLIENT.replace(
            "policy = \"adaptive\"",
            &format!("policy = \"{policy}\"\n{keys}"),
        );
        let loaded = files.load(&text).expect(policy);
        assert_eq!(loaded.config.scheduler.policy.name(), *policy);
        assert_eq!(loaded.notes, []);
    }
}

#[test]
fn all_keys_of_the_media_policies_reach_them() {
    use core::time::Duration;

    use pleach_core::sched::{Alpha, ConsnSettings, SrttWeightedSettings, Variant, Weights};

    let files = Files::new();
    let shared = "pdc = true\nalpha = 0.25\ndeadline = \"150ms\"\nin_order = false";
    let scheduler = |keys: &str| {
        let text = CLIENT.replace("policy = \"adaptive\"", &format!("{keys}\n{shared}"));
        files.load(&text).expect("good file").config.scheduler
    };
    let alpha = Alpha::new(0.25).expect("in range");
    let deadline = Duration::from_millis(150);
    let expected = ConsnSettings {
        variant: Variant::LastDescends,
        redundancy: true,
        alpha,
        pdc: true,
        deadline,
        in_order: false,
    };
    let keys = "policy = \"consn\"\nvariant = 2\nredundancy = true";
    assert_eq!(scheduler(keys), Policy::Consn(expected).into());
    let expected = SrttWeightedSettings {
        weights: Weights::Equal,
        alpha,
        pdc: true,
        deadline,
        in_order: false,
    };
    let keys = "policy = \"srtt-weighted\"\nweights = \"equal\"";
    assert_eq!(scheduler(keys), Policy::SrttWeighted(expected).into());
}

#[test]
fn all_keys_of_osia_reach_the_policy() {
    use core::time::Duration;

    use pleach_core::sched::osia::{Faucets, OsiaSettings};

    let files = Files::new();
    let keys = "policy = \"osia\"\nperiod = \"300ms\"\nmerge = \"0s\"\nfaucets = \"random\"";
    let text = CLIENT.replace("policy = \"adaptive\"", keys);
    let expected = OsiaSettings {
        period: Duration::from_millis(300),
        merge: Duration::ZERO,
        faucets: Faucets::Random,
    };
    let loaded = files.load(&text).expect("good file");
    assert_eq!(loaded.config.scheduler, Policy::Osia(expected).into());
}

#[test]
fn all_keys_of_awi_reach_the_policy_at_either_end() {
    use core::time::Duration;

    use pleach_core::sched::{AwiSettings, Count, Dwd, Gain, LossSource, Wrr};

    let keys = r#"policy = "awi"
fixed = "lte"
k = 1
t_dwd = "1s"
w_fixed = 20
w_mobile_max = 50
t_report = "20ms"
t_lto = "80ms"
dwd = "literal"
loss = "both"
count = "bytes"
wrr = "smooth"
"#;
    let expected: SchedulerConfig = Policy::Awi(AwiSettings {
        fixed: Some("lte".to_owned()),
        k: Gain::new(1.0).expect("valid"),
        t_dwd: Duration::from_secs(1),
        w_fixed: 20,
        w_mobile_max: 50,
        t_report: Duration::from_millis(20),
        t_lto: Duration::from_millis(80),
        dwd: Dwd::Literal,
        loss: LossSource::Both,
        count: Count::Bytes,
        wrr: Wrr::Smooth,
    })
    .into();
    let files = Files::new();
    let client = CLIENT.replace("policy = \"adaptive\"", keys);
    assert_eq!(
        files.load(&client).expect("good file").config.scheduler,
        expected
    );
    let gateway = GATEWAY.replace("policy = \"flow\"", keys);
    let Role::Gateway(gateway) = files.load(&gateway).expect("good file").config.role else {
        panic!("a gateway")
    };
    assert_eq!(gateway.clients[1].scheduler, Some(expected));
}

#[test]
fn keys_of_adaptive_come_out_typed() {
    let keys = "policy = \"adaptive\"\ntarget_delay = \"20ms\"\nyield = \"dsl\"\nhold = [\"lte\"]\nshare = 70";
    let text = CLIENT.replace("policy = \"adaptive\"", keys);
    let loaded = Files::new().load(&text).expect("good file");
    assert_eq!(loaded.notes.len(), 0);
    let expected = AdaptiveSettings {
        target_delay: Some(Duration::from_millis(20)),
        yields: vec!["dsl".to_owned()],
        holds: vec!["lte".to_owned()],
        share: 70,
    };
    assert_eq!(loaded.config.scheduler, Policy::Adaptive(expected).into());
}

#[test]
fn parts_that_need_others_are_taken_with_these() {
    for keys in [
        "policy = \"osia\"\nlook_ahead = true",
        "policy = \"flow\"\nlook_ahead = false",
        "policy = \"awi\"\nsearch = true\npacing = true",
        "policy = \"single\"\nlink = \"dsl\"\nsearch = true",
        "policy = \"adaptive\"\npacing = false",
    ] {
        let text = CLIENT.replace("policy = \"adaptive\"", keys);
        assert!(Files::new().load(&text).is_ok(), "{keys}");
    }
}

#[test]
#[cfg(feature = "sim")]
fn parts_of_the_profile_and_rules_are_switched_off() {
    use pleach_core::profile::{Mechanism, Part, ProfileChange};

    let mut expected = ProfileChange::default();
    expected.set(Part::Repair, true);
    expected.set(Part::Pacing, false);
    expected.remove(Mechanism::LatePaths);
    let keys = "policy = \"flow\"\nrepair = true\npacing = false\nwithout = [\"late-paths\"]";
    let read = read_scheduler(format!("[scheduler]\n{keys}")).expect("good");
    assert_eq!((read.policy, read.change), (Policy::Flow {}, expected));
}

#[test]
#[cfg(feature = "sim")]
fn an_unknown_rule_is_refused_with_the_list_of_rules() {
    let text = "[scheduler]\npolicy = \"flow\"\nwithout = [\"magic\"]".to_owned();
    let problem = read_scheduler(text).expect_err("no such rule").problem();
    assert!(
        problem.contains("expected a known rule, found \"magic\""),
        "{problem}"
    );
    assert!(
        problem.contains("write a list of: ack-thinning, "),
        "{problem}"
    );
}

#[test]
fn a_gateway_without_clients_is_worth_a_warning() {
    let (head, _) = GATEWAY.split_once("[[client]]").expect("clients");
    let loaded = Files::new().load(head).expect("good file");
    assert!(
        loaded
            .notes
            .iter()
            .any(|note| note.warning && note.text.contains("[[client]]"))
    );
}

#[test]
fn a_gateway_with_invitations_needs_no_clients() {
    let (head, _) = GATEWAY.split_once("[[client]]").expect("clients");
    let table = "[invitations]\nstore = \"store\"\nendpoints = [\"203.0.113.5:7700\"]\n";
    let files = Files::new();
    let loaded = files.load(&format!("{head}{table}")).expect("good file");
    assert!(loaded.notes.iter().all(|note| !note.warning));
    let Role::Gateway(gateway) = loaded.config.role else {
        panic!("a gateway")
    };
    let invitations = gateway.invitations.expect("there");
    assert_eq!(invitations.store, Some(files.0.path().join("store")));
    assert_eq!(invitations.endpoints.len(), 1);
}

#[test]
fn a_gateway_with_a_store_needs_no_clients() {
    let (head, _) = GATEWAY.split_once("[[client]]").expect("clients");
    let files = Files::new();
    let load = |more: &str| {
        let table = "[clients]\nsource = \"sqlite\"\nstore = \"clients.db\"\n";
        let loaded = files.load(&format!("{head}{table}{more}"));
        let loaded = loaded.expect("good file");
        assert!(loaded.notes.iter().all(|note| !note.warning));
        let Role::Gateway(gateway) = loaded.config.role else {
            panic!("a gateway")
        };
        gateway
    };
    let gateway = load("");
    assert!(gateway.clients.is_empty() && gateway.invitations.is_none());
    let store = gateway.store.expect("there");
    let path = files.0.path().join("clients.db");
    assert_eq!(store.place, StorePlace::Sqlite(path));
    let own: Vec<_> = store.networks.iter().map(ToString::to_string).collect();
    assert_eq!(own, ["10.77.0.0/24", "fd77::/64"]);
    let more = "networks = [\"10.64.0.0/10\"]\nidle = \"1h\"\nwrite_every = \"30s\"\n\
                [invitations]\nendpoints = [\"203.0.113.5:7700\"]\n";
    let gateway = load(more);
    let store = gateway.store.expect("there");
    assert_eq!(store.networks.len(), 1);
    assert_eq!(store.idle, Duration::from_secs(3600));
    assert_eq!(gateway.invitations.expect("there").store, None);
}

#[test]
fn secrets_in_an_open_file_are_worth_one_warning() {
    let files = Files::new();
    let text = GATEWAY
        .replace("PRIVATE", PRIVATE)
        .replace("OTHER", OTHER_PUBLIC)
        .replace(
            "\"THIRD\"",
            &format!("\"{THIRD_PUBLIC}\"\npreshared_key = \"{PRIVATE}\""),
        );
    let path = files.write("f.toml", &text, 0o644);
    let loaded = load(&path).expect("good file");
    assert_eq!(loaded.notes.iter().filter(|note| note.warning).count(), 1);
}

#[test]
fn keys_come_from_files_beside_the_configuration() {
    let files = Files::new();
    let text = CLIENT.replace(
        "private_key = \"PRIVATE\"",
        "private_key_file = \"good.key\"",
    );
    let loaded = files.load(&text).expect("good file");
    assert_eq!(loaded.config.private_key.to_base64().as_str(), PRIVATE);
}

#[test]
fn the_files_that_a_configuration_names_are_found_in_all_tables() {
    let directory = TempDir::new().expect("directory");
    let file = directory.path().join("f.toml");
    let text = "mode = \"client\"\n[tunnel]\nprivate_key_file = \"a.key\"\n\
        [[link]]\nhttp_proxy_password_file = \"/etc/b\"\n[[link]]\nname = \"x_file\"\n";
    fs::write(&file, text).expect("written");
    let mut found = named_files(&file).expect("valid");
    found.sort();
    assert_eq!(
        found,
        [PathBuf::from("/etc/b"), directory.path().join("a.key")]
    );
}

#[test]
fn secrets_are_never_printed() {
    let files = Files::new();
    let text = CLIENT.replace(
        "endpoints",
        &format!("preshared_key = \"{PRIVATE}\"\nendpoints"),
    );
    let loaded = files.load(&text).expect("good file");
    let shown = format!("{loaded:?}");
    assert!(
        !shown.contains(PRIVATE) && !shown.contains("119, 7, 109"),
        "{shown}"
    );
    for broken in ["policy = \"x\"", "policy = 7", "policy"] {
        let line = files
            .load(&text.replace("policy = \"adaptive\"", broken))
            .expect_err("bad file");
        assert!(!line.contains(PRIVATE), "{line}");
    }
    let cut = &PRIVATE[..40];
    let line = files
        .load(&CLIENT.replace("PRIVATE", cut))
        .expect_err("bad key");
    assert!(!line.contains(cut), "{line}");
}

#[test]
fn files_that_cannot_be_read_say_so() {
    let files = Files::new();
    let directory = files.0.path();
    let missing = load(&directory.join("none.toml"))
        .expect_err("missing")
        .to_string();
    assert!(missing.ends_with(
        "none.toml: cannot be read: No such file or directory; remedy: give the path of an existing configuration file that you may read"
    ), "{missing}");
    let not_a_file = load(directory).expect_err("directory").to_string();
    assert!(
        not_a_file.contains("is a directory; remedy: "),
        "{not_a_file}"
    );
    let path = directory.join("latin1.toml");
    fs::write(&path, b"mode = \"\xe4\"").expect("write");
    let latin1 = load(&path).expect_err("no UTF-8").to_string();
    assert!(latin1.contains("is not UTF-8 text; remedy: "), "{latin1}");
}

#[test]
fn one_link_more_than_paths_is_refused() {
    use core::fmt::Write;
    let mut text = CLIENT.split_once("[[link]]").expect("links").0.to_owned();
    for i in 0..=pleach_core::ids::PathId::MAX {
        writeln!(text, "[[link]]\nname = \"l{i}\"\ndevice = \"d{i}\"").expect("string");
    }
    let line = Files::new().load(&text).expect_err("too many links");
    assert_eq!(
        line,
        "f.toml:62: [[link]]: too many links: at most 16 are allowed; remedy: remove links"
    );
}

#[test]
fn mangled_files_never_panic_and_yield_one_line() {
    let files = Files::new();
    let mut rng = pleach_core::rng::Rng::new(7);
    let pick = |rng: &mut pleach_core::rng::Rng, below: usize| {
        usize::try_from(rng.below(below as u64)).expect("small")
    };
    let junk = [
        "\"", "[", "]", "\n", "=", "0", "-1", "{", "\u{7f}", "\\u0000", "ü", "true", ".", "'''",
    ];
    for round in 0..2000 {
        let base = if round % 2 == 0 { CLIENT } else { GATEWAY };
        let mut text: Vec<char> = base.chars().collect();
        for _ in 0..=pick(&mut rng, 3) {
            let at = pick(&mut rng, text.len());
            let cut = pick(&mut rng, 12).min(text.len() - at);
            let new = junk[pick(&mut rng, junk.len())].chars();
            text.splice(at..at + cut, new);
        }
        let text: String = text.into_iter().collect();
        if let Err(line) = files.load(&text) {
            assert!(!line.contains(char::is_control), "{line:?}");
            assert!(
                line.starts_with("f.toml:") && line.contains("; remedy: "),
                "{line}"
            );
        }
    }
}

#[test]
fn packaged_examples_are_good() {
    let files = Files::new();
    files.write("client.key", PRIVATE, 0o600);
    files.write("gateway.key", PRIVATE, 0o600);
    for text in [
        include_str!("../../../../packaging/client.toml"),
        include_str!("../../../../packaging/gateway.toml"),
    ] {
        let loaded = files.load(text).expect("good file");
        assert_eq!(loaded.notes, []);
    }
}

#[test]
fn overlaps_are_found_as_a_slow_search_finds_them() {
    let mut rng = pleach_core::rng::Rng::new(11);
    let mut random_below = |bound: u64| u8::try_from(rng.below(bound)).expect("below 256");
    for _ in 0..500 {
        let prefixes: Vec<(usize, IpNet)> = (0..1 + random_below(8))
            .map(|_| {
                let (third, fourth) = (random_below(2), random_below(8) << 5);
                let addr = std::net::Ipv4Addr::new(10, 0, third, fourth);
                let net = IpNet::new(addr.into(), 22 + random_below(8)).expect("prefix");
                (usize::from(random_below(3)), net.trunc())
            })
            .collect();
        let overlaps = |(i, j): (usize, usize)| {
            let ((a, x), (b, y)) = (prefixes[i], prefixes[j]);
            a != b && (x.contains(&y) || y.contains(&x))
        };
        let exists = (0..prefixes.len()).any(|j| (0..j).any(|i| overlaps((i, j))));
        match network::overlap(&prefixes) {
            Some(found) => assert!(overlaps(found), "{prefixes:?} {found:?}"),
            None => assert!(!exists, "{prefixes:?}"),
        }
    }
}

const PROXY: &str = r#"mode = "proxy"
[proxy]
listen = "127.0.0.1:1080"
[[link]]
name = "wifi"
device = "wlan0"
[[link]]
name = "lte"
device = "wwan0"
cost = 1
weight = 3
source = ["192.0.2.7"]
[[rule]]
app = "skype"
port = "5000-6000"
destination = "*.example.com"
link = "lte"
strict = true
"#;

fn proxy_text(text: &str) -> Result<LoadedProxy, ConfigError> {
    let source = Source::new(Path::new("p.toml"), text.to_owned());
    let document = parse(&source)?;
    match load_document(&Table::root(&source, document.get_ref()))? {
        AnyLoaded::Proxy(loaded) => Ok(*loaded),
        AnyLoaded::Equalizer(_) | AnyLoaded::Tunnel(_) => panic!("another mode's file"),
    }
}

#[test]
fn a_proxy_comes_out_as_it_was_written() {
    use pleach_proxy::{daemon::Transparency, placer, sched, sticky::Stickiness};

    let config = proxy_text(PROXY).expect("good file").config;
    assert_eq!(config.placer.policy, sched::Policy::MaxThroughput);
    assert_eq!(config.placer.stickiness, Stickiness::Tls);
    assert_eq!(config.transparent, Transparency::Off);
    assert!(config.state.is_none() && !config.control_is_given);
    assert_eq!(config.control, Path::new("/run/pleach/proxy.sock"));
    assert_eq!(config.allow, None);
    let [wifi, lte] = &config.links[..] else {
        panic!("{:?}", config.links);
    };
    assert_eq!(
        (wifi.device.as_str(), wifi.settings.weight),
        ("wlan0", None)
    );
    assert_eq!(
        (lte.settings.cost, lte.settings.weight),
        (placer::Cost::Rank(1), Some(3))
    );
    assert_eq!(lte.source.len(), 1);
    let rule = &config.placer.rules[0];
    assert_eq!(
        (rule.link, rule.strict, rule.ports.clone()),
        (sched::LinkId(1), true, Some(5000..=6000))
    );

    let packaged = include_str!("../../../../packaging/proxy.toml");
    let packaged = proxy_text(packaged).expect("the example is good");
    assert_eq!(
        (
            packaged.config.links.len(),
            packaged.config.placer.rules.len()
        ),
        (2, 2)
    );
    assert!(proxy_text("mode = \"proxy\"\n[proxy]\nlisten = \"[::1]:1080\"\n").is_ok());
}

#[test]
fn a_proxys_mistakes_name_line_key_and_remedy() {
    let cases = [
        (
            "listen = \"127.0.0.1:1080\"",
            "listen = \"1080\"",
            "p.toml:3: [proxy] listen: expected ADDRESS:PORT",
        ),
        (
            "[proxy]",
            "[proxy]\nscheduler = \"fastest\"",
            "p.toml:3: [proxy] scheduler: expected a scheduler's name",
        ),
        (
            "[proxy]",
            "[proxy]\ntransparent = \"cgroups\"",
            "p.toml:3: [proxy] transparent: expected true, false or \"cgroup\"",
        ),
        (
            "[proxy]",
            "[proxy]\ncgroup = \"/sys/fs/cgroup\"",
            "p.toml:3: [proxy] cgroup: it has no effect unless transparent = \"cgroup\"",
        ),
        (
            "[proxy]",
            "[proxy]\ntransparent = \"cgroup\"\ncgroup = \"user.slice\"",
            "p.toml:4: [proxy] cgroup: expected an absolute path",
        ),
        (
            "[proxy]",
            "[proxy]\npeer_port = 77010",
            "[proxy] peer_port: expected a whole number from 0 to 65535",
        ),
        (
            "[proxy]",
            "[proxy]\nstriping = \"fast\"",
            "[proxy] striping: expected a scheduler's name",
        ),
        (
            "[proxy]",
            "[proxy]\nsticky = true",
            "p.toml:3: [proxy] sticky: expected",
        ),
        (
            "[proxy]",
            "[proxy]\nidle = \"0s\"",
            "p.toml:3: [proxy] idle: expected a time",
        ),
        (
            "[proxy]",
            "[proxy]\nlistn = 1",
            "the nearest known key is `listen`",
        ),
        (
            "link = \"lte\"",
            "link = \"dsl\"",
            "p.toml:17: [[rule]] link: expected the name of a [[link]]",
        ),
        (
            "\"5000-6000\"",
            "\"6000-5000\"",
            "[[rule]] port: expected a port from 1 to 65535",
        ),
        (
            "\"*.example.com\"",
            "\"a b\"",
            "[[rule]] destination: expected a domain",
        ),
        (
            "[\"192.0.2.7\"]",
            "[\"192.0.2.7\", \"192.0.2.8\"]",
            "two addresses of the same family",
        ),
        (
            "device = \"wwan0\"",
            "device = \"wlan0\"",
            "is already used on line 6",
        ),
        (
            "weight = 3",
            "budget = \"0B\"",
            "p.toml:11: [[link]] budget: expected a size above zero",
        ),
        (
            "weight = 3",
            "budget = 20",
            "p.toml:11: [[link]] budget: expected a size above zero",
        ),
        (
            "weight = 3",
            "billing_day = 5",
            "p.toml:11: [[link]] billing_day: it has no effect without a budget",
        ),
        (
            "weight = 3",
            "budget = \"20GB\"\nbilling_day = 32",
            "p.toml:12: [[link]] billing_day: expected a whole number from 1 to 31",
        ),
        (
            "weight = 3",
            "energy = -1",
            "p.toml:11: [[link]] energy: expected a whole number from 0 to 1000",
        ),
        (
            "[proxy]",
            "[proxy]\nprobe = [\"https://a.example/\"]",
            "p.toml:3: [proxy] probe: expected http://HOST[:PORT]/PATH",
        ),
        (
            "[proxy]",
            "[proxy]\nsave_energy = \"mains\"",
            "p.toml:3: [proxy] save_energy: expected true, false or \"battery\"",
        ),
        (
            "[proxy]",
            "[proxy]\nranges = \"no\"",
            "p.toml:3: [proxy] ranges: expected true or false",
        ),
        (
            "[proxy]",
            "[proxy]\nshort_queues = \"yes\"",
            "p.toml:3: [proxy] short_queues: expected true or false",
        ),
        (
            "mode = \"proxy\"",
            "mode = \"prox\"",
            "expected \"client\", \"gateway\", \"proxy\" or \"equalize\"",
        ),
    ];
    for (good, bad, expected) in cases {
        let error = proxy_text(&PROXY.replace(good, bad))
            .expect_err(bad)
            .to_string();
        assert!(error.contains(expected), "{bad}: {error}");
        assert!(error.contains("; remedy: "), "{error}");
    }
}

#[test]
fn budgets_and_energy_say_what_they_need() {
    use pleach_proxy::{budget::Budget, daemon::SaveEnergy};

    let with = |proxy: &str, link: &str| {
        let text = PROXY.replace("[proxy]", &format!("[proxy]\n{proxy}"));
        proxy_text(&text.replace("weight = 3", link)).expect("good file")
    };
    let loaded = with("", "budget = \"20GB\"\nenergy = 4");
    let lte = &loaded.config.links[1].settings;
    let budget = Budget {
        bytes: Bytes::new(20_000_000_000),
        billing_day: 1,
    };
    assert_eq!((lte.budget, lte.energy), (Some(budget), 4));
    let [forgotten, ignored] = &loaded.notes[..] else {
        panic!("{:?}", loaded.notes);
    };
    assert!(forgotten.text.contains("add state = "), "{forgotten:?}");
    assert!(ignored.text.contains("add save_energy = "), "{ignored:?}");
    let loaded = with(
        "save_energy = \"battery\"\nstate = \"/var/lib/pleach/apps.db\"",
        "budget = \"20GB\"\nbilling_day = 31\nenergy = 4",
    );
    assert_eq!(loaded.config.save_energy, SaveEnergy::OnBattery);
    let lte = &loaded.config.links[1].settings;
    assert_eq!(lte.budget.map(|budget| budget.billing_day), Some(31));
    assert!(loaded.notes.is_empty(), "{:?}", loaded.notes);
}

#[test]
fn striping_needs_keys_and_says_so() {
    use pleach_proxy::stripe::sched::Striping;

    let keys = "[proxy]\nstriping = \"round-robin\"\npeer_port = 7701";
    let with = |peer: &str| {
        let text = PROXY.replace("[proxy]", keys);
        proxy_text(&text.replace("[[rule]]", &format!("{peer}\n[[rule]]")))
    };
    let texts = |peer: &str| -> Vec<String> {
        let loaded = with(peer).expect("good file");
        assert!(loaded.config.stripe.is_none(), "{peer}");
        assert!(loaded.notes.iter().all(|note| note.warning));
        loaded.notes.into_iter().map(|note| note.text).collect()
    };
    let [text] = &texts("")[..] else { panic!() };
    assert!(text.contains("add [peer] private_key_file"), "{text}");
    let listen = "[peer]\nlisten = \"0.0.0.0:7701\"";
    assert_eq!(texts(listen).len(), 2, "no key, nobody known");

    let key = format!("private_key = \"{PRIVATE}\"\nallow = [\"10.0.0.0/8\"]");
    let known = |name: &str, key: &str| {
        format!("[[known_peer]]\nname = \"{name}\"\npublic_key = \"{key}\"\n")
    };
    let other = known("server", OTHER_PUBLIC);
    let loaded = with(&format!("{listen}\n{key}\n{other}")).expect("good file");
    let stripe = loaded.config.stripe.expect("there is a key");
    assert_eq!(stripe.striping, Striping::RoundRobin);
    assert_eq!((stripe.ask_port, stripe.known.len()), (7701, 1));
    assert_eq!(
        stripe.listen,
        Some("0.0.0.0:7701".parse().expect("literal"))
    );
    assert_eq!(stripe.allow.len(), 1);
    let third = known("server", THIRD_PUBLIC);
    let again = known("other", OTHER_PUBLIC);
    for (peers, expected) in [
        (format!("{other}{third}"), "[[known_peer]] name: used twice"),
        (
            format!("{other}networks = [\"10.0.0.0/8\"]\n"),
            "endpoint and networks are used only together",
        ),
        (
            format!("{other}{again}"),
            "[[known_peer]] public_key: used twice",
        ),
    ] {
        let error = with(&format!("{listen}\n{key}\n{peers}")).expect_err("wrong");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn cgroup_mode_says_which_rules_it_cannot_follow() {
    use pleach_proxy::daemon::Transparency;

    let with = |keys: &str| PROXY.replace("[proxy]", &format!("[proxy]\n{keys}"));
    let loaded = proxy_text(&with("transparent = \"cgroup\"")).expect("good file");
    assert_eq!(loaded.config.transparent, Transparency::Cgroup(None));
    let [note] = &loaded.notes[..] else {
        panic!("{:?}", loaded.notes);
    };
    assert!(note.warning && note.text.contains("clients that use the port"));
    let keys = "transparent = \"cgroup\"\ncgroup = \"/sys/fs/cgroup/user.slice\"";
    let config = proxy_text(&with(keys)).expect("good file").config;
    let path = Path::new("/sys/fs/cgroup/user.slice").to_owned();
    assert_eq!(config.transparent, Transparency::Cgroup(Some(path)));
    let config = proxy_text(&with("transparent = true"))
        .expect("good file")
        .config;
    assert_eq!(config.transparent, Transparency::Redirect { udp: false });
}

#[test]
fn files_of_other_modes_name_their_command() {
    let directory = TempDir::new().expect("temporary directory");
    let path = directory.path().join("p.toml");
    fs::write(&path, PROXY).expect("write");
    let error = load(&path).expect_err("a proxy's").to_string();
    assert!(error.contains("`pleach proxy FILE`"), "{error}");
    let tunnel = GATEWAY
        .replace("PRIVATE", PRIVATE)
        .replace("OTHER", OTHER_PUBLIC)
        .replace("THIRD", THIRD_PUBLIC);
    fs::write(&path, tunnel).expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    let error = load_proxy(&path).expect_err("a tunnel's").to_string();
    assert!(error.contains("`pleach up FILE`"), "{error}");
}

#[test]
fn a_key_file_of_another_user_is_never_read() {
    let files = Files::new();
    let path = files.write("theirs.key", PRIVATE, 0o600);
    match chown(&path, Some(4321), None) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            println!("skipped: only root can give a file away");
            return;
        }
        Err(error) => panic!("chown: {error}"),
    }
    let text = CLIENT.replace(
        "private_key = \"PRIVATE\"",
        "private_key_file = \"theirs.key\"",
    );
    let error = files.load(&text).expect_err("refused");
    assert!(
        error.contains("key file \"theirs.key\" belongs to user 4321, who may read and replace the key; remedy: chown"),
        "{error}"
    );
}
