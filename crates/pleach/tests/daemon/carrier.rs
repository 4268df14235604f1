//! Links that TCP carries where UDP is blocked.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use pleach_lab::netns::Netns;
use pleach_linux::requirement;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    process::{Client, Daemon, Gateway, Keys, link, state},
    traffic::{Target, tcp},
    world::{PATIENCE, World, ping, run, until, within},
};

const LISTEN: &str = "[carrier]\nlisten = \"[::]:443\"\n";

/// Longer than the promised 3 s, because the machine may be busy.
const SOON: Duration = Duration::from_secs(10);

fn carrier<'a>(status: &'a Value, name: &str) -> &'a str {
    link(status, name)
        .and_then(|link| link["carrier"].as_str())
        .unwrap_or_default()
}

fn error<'a>(status: &'a Value, name: &str) -> &'a str {
    link(status, name)
        .and_then(|link| link["carrier_error"].as_str())
        .unwrap_or_default()
}

/// Drops UDP packets that arrive at the gateway on `devices`, as many networks do.
fn drop_udp(world: &World, devices: &str) {
    let table = format!(
        "table inet plCarrier {{ chain c {{ type filter hook input priority 0; iifname {{ {devices} }} meta l4proto udp counter drop; }}; }}"
    );
    run(&world.gateway, "nft", &[&table]);
}

fn let_udp_pass(world: &World) {
    run(&world.gateway, "nft", &["delete table inet plCarrier"]);
}

fn gateway(world: &World) -> Daemon {
    let gateway = Gateway {
        more: LISTEN,
        ..Gateway::default()
    }
    .start(world);
    gateway.until_up();
    gateway
}

fn carried(daemon: &Daemon, names: &[&str]) {
    daemon.until_within(SOON, &format!("TCP carries {names:?}"), |status| {
        names
            .iter()
            .all(|name| state(status, name) == "up" && carrier(status, name) == "tcp")
    });
}

#[test]
fn tcp_carries_a_link_that_asks_for_it_over_both_families() {
    let Some(world) = World::new() else { return };
    let gateway = gateway(&world);
    drop_udp(&world, "g0, g1");
    for endpoint in ["203.0.113.5:7700", "[2001:db8::5]:7700"] {
        let mut client = Client {
            endpoint,
            more: "[carrier]\nmode = \"tcp\"\n",
            ..Client::default()
        }
        .start(&world, &world.client);
        carried(&client, &["l0", "l1"]);
        let server = Target::new(&world.server, "10.99.0.2");
        tcp(&world.client, &server, 5_000_000).expect("a transfer");
        let shown = gateway.until("the gateway shows it", |status| {
            let links = status["clients"][0]["links"].as_array();
            links.is_some_and(|links| {
                links.len() == 2 && links.iter().all(|l| l["carrier"] == "tcp")
            })
        });
        assert_eq!(shown["clients"][0]["up"], true, "{shown}");
        let text = String::from_utf8(client.command("status", &[]).stdout).expect("text");
        assert!(text.contains("up (tcp)"), "{text}");
        client.stop();
        gateway.until("the client says good-bye", |status| {
            status["clients"][0]["up"] == false
        });
    }
    let rules = run(&world.gateway, "nft", &["list table inet plCarrier"]);
    assert!(rules.contains("counter packets 0 "), "over UDP: {rules}");
}

#[test]
fn a_link_whose_udp_is_dropped_is_carried_by_itself() {
    let Some(world) = World::new() else { return };
    let _gateway = gateway(&world);
    let client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    assert_eq!(carrier(&client.until_up(), "l0"), "udp");
    // First one of two links uses TCP, then both, then both from the start of the client.
    drop_udp(&world, "g0");
    carried(&client, &["l0"]);
    assert_eq!(carrier(&client.until_up(), "l1"), "udp");
    let_udp_pass(&world);
    drop_udp(&world, "g0, g1");
    carried(&client, &["l0", "l1"]);
    let server = Target::new(&world.server, "10.99.0.2");
    tcp(&world.client, &server, 2_000_000).expect("a transfer");
    drop(client);
    let client = Client::default().start(&world, &world.client);
    carried(&client, &["l0", "l1"]);
    tcp(&world.client, &server, 2_000_000).expect("a transfer");
    // The first test of UDP takes place after 30 s.
    let_udp_pass(&world);
    client.until_within(Duration::from_secs(60), "UDP is used again", |status| {
        ["l0", "l1"]
            .iter()
            .all(|name| state(status, name) == "up" && carrier(status, name) == "udp")
    });
    tcp(&world.client, &server, 2_000_000).expect("a transfer");
}

#[test]
fn a_link_whose_udp_is_throttled_is_carried_if_that_is_faster() {
    let Some(world) = World::new() else { return };
    // The download needs both links. If l1 alone were fast enough, l0 could be left without the packets that show loss.
    world.slow();
    let _gateway = gateway(&world);
    let client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let mut command = world.server.command("iperf3");
    command
        .args(["-s", "-B", "10.99.0.2"])
        .stdout(Stdio::null());
    let Some(_server) = Program::start(command) else {
        return;
    };
    until("iperf3 listens", || {
        run(&world.server, "cat", &["/proc/net/tcp", "/proc/net/tcp6"]).contains(":1451 ")
    });
    let mut command = world.client.command("iperf3");
    command
        .args(["-c", "10.99.0.2", "-R", "-t", "60"])
        .stdout(Stdio::null());
    let _download = Program::start(command);
    client.until("both links carry the download", |status| {
        ["l0", "l1"].iter().all(|name| {
            link(status, name).is_some_and(|link| link["rx_bytes"].as_u64() > Some(1_000_000))
        })
    });
    // A policer of 1 Mbit/s.
    let table = "table inet plCarrier { chain c { type filter hook output priority 0; oifname g0 udp sport 7700 limit rate over 125 kbytes/second burst 10 kbytes drop; }; }";
    run(&world.gateway, "nft", &[table]);
    carried(&client, &["l0"]);
    // There is one trial. On a machine that is too busy for TCP to be twice as fast, it ends with UDP.
    until("TCP is compared", || client.log().contains("TCP tried"));
    let log = client.log();
    let told = log.lines().find(|line| line.contains("TCP tried"));
    let told = told.expect("there");
    let number = |key: &str| -> u64 {
        let (_, rest) = told.split_once(key).expect(key);
        let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok()).expect(told)
    };
    let is_faster = number("now_carried=") >= 2 * number("before=");
    let expected = if is_faster { "tcp" } else { "udp" };
    client.until("the faster one is used", |status| {
        carrier(status, "l0") == expected && carrier(status, "l1") == "udp"
    });
}

#[test]
fn a_dead_link_and_a_gateway_without_listener_change_nothing() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    drop_udp(&world, "g0");
    let client = Client::default().start(&world, &world.client);
    client.until_within(SOON, "it says why", |status| {
        state(status, "l1") == "up" && error(status, "l0").starts_with("unreachable: ")
    });
    let status = client.until_up();
    assert_eq!(
        (carrier(&status, "l0"), state(&status, "l0")),
        ("udp", "down")
    );
    let_udp_pass(&world);
    client.until_links_up(&["l0", "l1"]);
    client.until("nothing is wrong any more", |status| {
        error(status, "l0").is_empty()
    });
}

/// A program that is ended when the value is dropped.
struct Program(Child);

impl Program {
    fn start(mut command: Command) -> Option<Self> {
        match command.spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                requirement::skip(format_args!("cannot start {command:?}: {error}"));
                None
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // If killed, squid would leave its shared memory behind.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let has_ended = || self.0.try_wait().ok().flatten();
        if within(Duration::from_secs(5), has_ended).is_none() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Whether a program listens at `port` of `host`.
fn listens(host: &Netns, port: u16) -> bool {
    run(host, "cat", &["/proc/net/tcp"]).contains(&format!(":{port:04X} 00000000:0000 0A"))
}

/// Certificate files of a web server for `www.example.org`.
struct Certificate {
    authority: String,
    chain: String,
    key: String,
}

impl Certificate {
    fn make(world: &World) -> Option<Self> {
        let path = |name: &str| format!("{}/{name}", world.dir.path().display());
        let this = Self {
            authority: path("ca.crt"),
            chain: path("web.crt"),
            key: path("web.key"),
        };
        let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
        let made = [
            format!("{new} -subj /CN=authority -keyout {} -out {}", path("ca.key"), this.authority),
            format!(
                "{new} -subj /CN=www.example.org -CA {} -CAkey {} -addext basicConstraints=CA:FALSE \
                 -addext subjectAltName=DNS:www.example.org -keyout {} -out {}",
                this.authority,
                path("ca.key"),
                this.key,
                this.chain
            ),
        ]
        .iter()
        .all(|line| {
            let made = Command::new("openssl").args(line.split_whitespace()).output();
            made.is_ok_and(|made| made.status.success())
        });
        if !made {
            requirement::skip("openssl does not make a certificate");
        }
        made.then_some(this)
    }
}

/// Starts nginx at port 443 of the gateway; it forwards `/pleach` to port 8443.
fn nginx(world: &World, certificate: &Certificate) -> Option<Program> {
    let dir = world.dir.path().display();
    let (chain, key) = (&certificate.chain, &certificate.key);
    let text = format!(
        "daemon off; master_process off; user root; pid {dir}/nginx.pid; error_log {dir}/nginx.log;
         events {{ }}
         http {{
             access_log off;
             client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f;
             uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
             server {{
                 listen 443 ssl; ssl_certificate {chain}; ssl_certificate_key {key}; ssl_protocols TLSv1.3;
                 location / {{ return 200 'a web site'; }}
                 location /pleach {{
                     proxy_pass https://127.0.0.1:8443; proxy_ssl_protocols TLSv1.3; proxy_http_version 1.1;
                     proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
                     proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
                     proxy_buffering off; proxy_read_timeout 1h; proxy_send_timeout 1h;
                 }}
             }}
         }}"
    );
    let file = world.dir.path().join("nginx.conf");
    fs::write(&file, text).expect("writes");
    let mut command = world.gateway.command("nginx");
    command
        .arg("-c")
        .arg(&file)
        .args(["-e", &format!("{dir}/nginx.log")]);
    let started = Program::start(command)?;
    until("nginx listens", || listens(&world.gateway, 443));
    Some(started)
}

#[test]
fn nginx_shares_its_port() {
    let Some(world) = World::new() else { return };
    let Some(certificate) = Certificate::make(&world) else {
        return;
    };
    let Some(_nginx) = nginx(&world, &certificate) else {
        return;
    };
    let gateway = Gateway {
        more: "[carrier]\nlisten = \"127.0.0.1:8443\"\nproxies = [\"127.0.0.1\"]\n",
        ..Gateway::default()
    }
    .start(&world);
    gateway.until_up();
    drop_udp(&world, "g0, g1");
    let web = run(&world.client, "curl", &["-sk", "https://203.0.113.5/"]);
    assert_eq!(web, "a web site");
    let pin = run(
        &world.client,
        "openssl",
        &[
            "x509",
            "-in",
            &certificate.chain,
            "-noout",
            "-fingerprint",
            "-sha256",
        ],
    );
    let pin = pin.trim().rsplit('=').next().unwrap_or_default().to_owned();
    let server = Target::new(&world.server, "10.99.0.2");
    for trust in [
        format!("certificate = \"{pin}\""),
        format!("ca_file = \"{}\"", certificate.authority),
    ] {
        let mut client = Client {
            more: &format!("[carrier]\nserver_name = \"www.example.org\"\n{trust}\n"),
            ..Client::default()
        }
        .start(&world, &world.client);
        carried(&client, &["l0", "l1"]);
        tcp(&world.client, &server, 2_000_000).expect("a transfer");
        let shown = gateway.until_up();
        let endpoint = shown["clients"][0]["links"][0]["endpoint"]
            .as_str()
            .unwrap_or_default();
        assert!(
            endpoint.starts_with("10.1."),
            "the client's own address: {shown}"
        );
        client.stop();
    }
}

#[test]
fn a_foreign_certificate_is_refused_and_named() {
    let Some(world) = World::new() else { return };
    let Some(certificate) = Certificate::make(&world) else {
        return;
    };
    // Like an interceptor: nginx terminates TLS and forwards everything.
    let Some(_nginx) = nginx(&world, &certificate) else {
        return;
    };
    let gateway = Gateway {
        more: "[carrier]\nlisten = \"127.0.0.1:8443\"\n",
        ..Gateway::default()
    }
    .start(&world);
    gateway.until_up();
    drop_udp(&world, "g0");
    let client = Client::default().start(&world, &world.client);
    client.until_within(SOON, "it says why", |status| {
        error(status, "l0").starts_with("intercepted: ") && carrier(status, "l0") == "udp"
    });
    let mut doctor = world.client.command(env!("CARGO_BIN_EXE_pleach"));
    let output = doctor
        .arg("doctor")
        .arg(client.file())
        .output()
        .expect("starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("tls-intercepted, link l0"), "{text}");
    assert!(text.contains("TLS is intercepted"), "{text}");
}

/// Starts squid at port 3128 of the gateway's host. `login`: password that it requires.
fn squid(world: &World, login: Option<&str>) -> Option<Program> {
    let dir = world.dir.path().display();
    // squid reads the directory as a user of its own.
    run(&world.gateway, "chmod", &["755", &dir.to_string()]);
    let access = match login {
        None => "http_access allow all".to_owned(),
        Some(login) => {
            let file = world.dir.path().join("passwords");
            let hash = Command::new("openssl")
                .args(["passwd", "-apr1", login])
                .output();
            let hash = String::from_utf8(hash.expect("openssl").stdout).expect("text");
            fs::write(&file, format!("me:{hash}")).expect("writes");
            format!(
                "auth_param basic program /usr/lib/squid/basic_ncsa_auth {}
                 acl known proxy_auth REQUIRED\nhttp_access allow known\nhttp_access deny all",
                file.display()
            )
            .replace("\n                 ", "\n")
        }
    };
    let text = format!(
        "http_port 3128\n{access}\ncache deny all\naccess_log none\ncache_log /dev/null\npid_filename none\n\
         coredump_dir /tmp\nvisible_hostname proxy\npinger_enable off\nshutdown_lifetime 1 seconds\n"
    );
    let file = world.dir.path().join("squid.conf");
    fs::write(&file, text).expect("writes");
    let mut command = world.gateway.command("squid");
    // squid names its shared memory after the service name.
    let name = format!("pleach{}", std::process::id());
    command.args(["-N", "-n", &name]).arg("-f").arg(&file);
    let started = Program::start(command)?;
    until("squid listens", || {
        run(
            &world.gateway,
            "sh",
            &["-c", "cat /proc/net/tcp /proc/net/tcp6"],
        )
        .contains(":0C38 0")
    });
    Some(started)
}

#[test]
fn an_http_proxy_that_asks_for_a_password_is_passed() {
    let Some(world) = World::new() else { return };
    let Some(_squid) = squid(&world, Some("secret word")) else {
        return;
    };
    let _gateway = gateway(&world);
    // Only the proxy can be reached.
    let table = "table inet plOnly { chain c { type filter hook input priority 0; iifname { g0, g1 } tcp dport 3128 accept; iifname { g0, g1 } meta l4proto { tcp, udp } drop; }; }";
    run(&world.gateway, "nft", &[table]);
    let client = |login: &str| {
        let links: String = ["0", "1"]
            .map(|n| {
                format!(
                    "[[link]]\nname = \"l{n}\"\ndevice = \"l{n}\"\nhttp_proxy = \"http://10.1.{n}.1:3128\"\n{login}"
                )
            })
            .concat();
        Client {
            links: &[],
            more: &links,
            ..Client::default()
        }
        .start(&world, &world.client)
    };
    let mut without = client("");
    without.until_within(SOON, "it names the key", |status| {
        error(status, "l0").starts_with("proxy-password: ")
            && error(status, "l0").contains("http_proxy_password_file")
    });
    without.stop();
    let file = world.dir.path().join("password");
    fs::write(&file, "secret word\n").expect("writes");
    run(
        &world.client,
        "chmod",
        &["600", &file.display().to_string()],
    );
    let login = format!(
        "http_proxy_user = \"me\"\nhttp_proxy_password_file = \"{}\"\n",
        file.display()
    );
    let with = client(&login);
    carried(&with, &["l0", "l1"]);
    let server = Target::new(&world.server, "10.99.0.2");
    tcp(&world.client, &server, 2_000_000).expect("a transfer");
    assert!(!with.log().contains("secret word"));
}

#[test]
fn a_proxy_that_answers_nonsense_is_named() {
    let Some(world) = World::new() else { return };
    let _gateway = gateway(&world);
    drop_udp(&world, "g0, g1");
    let listener = world
        .gateway
        .run(|| Ok(TcpListener::bind("10.1.0.1:3128")?));
    let listener = listener.expect("a free port");
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(b"220 mail.example.org ESMTP\r\n");
        }
    });
    let client = Client {
        links: &[],
        more: "[[link]]\nname = \"l0\"\ndevice = \"l0\"\nhttp_proxy = \"10.1.0.1:3128\"\n",
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_within(SOON, "it is named", |status| {
        error(status, "l0").starts_with("proxy-refused: the HTTP proxy's answer is not HTTP")
    });
}

#[test]
fn strangers_get_the_answer_of_a_web_server() {
    let Some(world) = World::new() else { return };
    let _gateway = gateway(&world);
    let ask = |more: &[&str]| {
        let base = ["-sk", "--http1.1", "-o", "/dev/null", "-w", "%{http_code}"];
        let arguments = [&base[..], more, &["https://203.0.113.5/pleach"]].concat();
        run(&world.client, "curl", &arguments)
    };
    let upgrade = [
        "-H",
        "Connection: Upgrade",
        "-H",
        "Upgrade: websocket",
        "-H",
        "Sec-WebSocket-Version: 13",
        "-H",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    assert_eq!(ask(&[]), "404");
    assert_eq!(ask(&upgrade), "404");
    let wrong = [&upgrade[..], &["-H", "Authorization: Bearer AAAA"]].concat();
    assert_eq!(ask(&wrong), "404");
    // A client that expects another public key of the gateway is a stranger too.
    drop_udp(&world, "g0, g1");
    let client = Client {
        gateway_key: &Keys::client(3).public,
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_within(SOON, "it is told", |status| {
        error(status, "l0").starts_with("intercepted: ")
    });
    assert!(!ping(&world.client, &["10.77.0.1"], Duration::from_secs(1)));
    assert!(PATIENCE > SOON);
}
