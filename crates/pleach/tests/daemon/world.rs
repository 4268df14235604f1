//! Hosts and wires of a test; dropping [`World`] removes them.
//!
//! ```text
//!             l0          g0
//!  client ───────────────────── gateway ───────────── server
//!             l1          g1    203.0.113.5           10.99.0.2
//!                               2001:db8::5           fd99::2
//! ```
//!
//! Each wire has a subnet of its own, and the client has a default route over each. The server has no route back to the
//! wires. So a packet that the server answers has arrived through the tunnel.

use std::{cell::RefCell, fs, os::linux::fs::MetadataExt as _, thread, time::Duration};

use pleach_lab::netns::Netns;
use pleach_linux::{clock, requirement};
use tempfile::TempDir;

/// The hosts and files of a test.
pub(crate) struct World {
    pub(crate) client: Netns,
    pub(crate) gateway: Netns,
    pub(crate) server: Netns,
    others: RefCell<Vec<Netns>>,
    /// Directory of configuration files, logs and control sockets.
    pub(crate) dir: TempDir,
}

impl World {
    /// Builds a world with two wires. Returns `None`, and prints a message, if that is not permitted here.
    pub(crate) fn new() -> Option<Self> {
        let hosts = ["client", "gateway", "server"].map(Netns::new);
        let [Ok(client), Ok(gateway), Ok(server)] = hosts else {
            requirement::skip("cannot make network namespaces here; run as root with iproute2");
            return None;
        };
        for host in [&client, &gateway, &server] {
            // Switch duplicate address detection off: no other host has the addresses, and detection takes a second.
            let settings = [
                ("ipv6/conf/all/accept_dad", "0"),
                ("ipv6/conf/default/accept_dad", "0"),
            ];
            host.sysctl(&settings).expect("settings");
        }
        if let Err(error) = fs::File::open("/dev/net/tun") {
            requirement::skip(format_args!("cannot open /dev/net/tun: {error}"));
            return None;
        }
        let this = Self {
            client,
            gateway,
            server,
            others: RefCell::default(),
            dir: TempDir::new().expect("temporary directory"),
        };
        this.gateway
            .ip(&format!(
                "addr add 203.0.113.5/32 dev lo\n\
                 addr add 2001:db8::5/128 dev lo nodad\n\
                 link add plDs type veth peer name eth0 netns {}\n\
                 addr add 10.99.0.1/24 dev plDs\n\
                 addr add fd99::1/64 dev plDs nodad\n\
                 link set dev plDs up\n",
                this.server.path().display()
            ))
            .expect("gateway");
        this.server
            .ip("addr add 10.99.0.2/24 dev eth0\n\
                 addr add fd99::2/64 dev eth0 nodad\n\
                 link set dev eth0 up\n")
            .expect("server");
        this.plug(&this.client, 0);
        this.plug(&this.client, 1);
        until("the hosts settle", || {
            has_settled(&this.client) && has_settled(&this.gateway)
        });
        Some(this)
    }

    /// Makes a further host on wire `number`.
    pub(crate) fn another(&self, number: u16) -> Netns {
        let host = Netns::new("another").expect("namespace");
        self.plug(&host, number);
        self.others.borrow_mut().push(host.clone());
        host
    }

    /// Makes a further host on wire `number` + 1, and connects it to the server by a wire of its own: 10.98.`number`.0/24
    /// and fd98:`number`::/64, with the host at `1` and the server at `2`.
    pub(crate) fn another_gateway(&self, number: u8) -> Netns {
        let host = self.another(u16::from(number) + 1);
        host.ip(&format!(
            "link add b{number} type veth peer name b{number} netns {}\n\
             addr add 10.98.{number}.1/24 dev b{number}\n\
             addr add fd98:{number}::1/64 dev b{number} nodad\n\
             link set dev b{number} up\n",
            self.server.path().display()
        ))
        .expect("the gateway's end");
        self.server
            .ip(&format!(
                "addr add 10.98.{number}.2/24 dev b{number}\n\
                 addr add fd98:{number}::2/64 dev b{number} nodad\n\
                 link set dev b{number} up\n"
            ))
            .expect("the server's end");
        host
    }

    /// Limits the two wires to 30 and 12 Mbit/s, in both directions.
    pub(crate) fn slow(&self) {
        for (host, prefix) in [(&self.client, "l"), (&self.gateway, "g")] {
            for (number, rate) in [("0", "30mbit"), ("1", "12mbit")] {
                let line = format!(
                    "qdisc add dev {prefix}{number} root tbf rate {rate} burst 20000 latency 60ms"
                );
                run(host, "tc", &line.split(' ').collect::<Vec<_>>());
            }
        }
    }

    /// Connects device `lN` of `host` with `gN` of the gateway, both new.
    pub(crate) fn plug(&self, host: &Netns, number: u16) {
        let (n, v4) = (number, wire_v4(number));
        host.ip(&format!(
            "link add l{n} type veth peer name g{n} netns {}\n",
            self.gateway.path().display()
        ))
        .expect("wire");
        self.gateway
            .ip(&format!(
                "addr add {v4}.1/24 dev g{n}\n\
                 addr add fd01:{n}::1/64 dev g{n} nodad\n\
                 link set dev g{n} up\n"
            ))
            .expect("the gateway's end");
        host.ip(&format!("link set dev l{n} up\n"))
            .expect("the client's end");
        self.number(host, number, 2);
    }

    /// Tells both ends of wire `number`, with `host`, the other one's Ethernet address. The kernel has a limit of neighbours that it
    /// has found itself (`gc_thresh3`, 1024 for each family), for the hosts of all namespaces together.
    pub(crate) fn introduce(&self, host: &Netns, number: u16) {
        let (n, v4) = (number, wire_v4(number));
        let [high, low] = number.to_be_bytes();
        let ethernet = |end: u8| format!("02:00:00:{end:02x}:{high:02x}:{low:02x}");
        for (at, device, own, other) in [(host, "l", 2, 1), (&self.gateway, "g", 1, 2)] {
            let (mine, lladdr) = (ethernet(own), ethernet(other));
            at.ip(&format!(
                "link set dev {device}{n} address {mine}\n\
                 neigh replace {v4}.{other} lladdr {lladdr} dev {device}{n} nud permanent\n\
                 neigh replace fd01:{n}::{other} lladdr {lladdr} dev {device}{n} nud permanent\n"
            ))
            .expect("neighbours");
        }
    }

    /// Gives device `lN` of `host` its addresses, which end in `last`, and the default routes.
    pub(crate) fn number(&self, host: &Netns, number: u16, last: u8) {
        let (n, v4) = (number, wire_v4(number));
        host.ip(&format!(
            "addr add {v4}.{last}/24 dev l{n}\n\
             addr add fd01:{n}::{last}/64 dev l{n} nodad\n\
             route replace default via {v4}.1 dev l{n} metric 10{n}\n\
             -6 route replace default via fd01:{n}::1 dev l{n} metric 10{n}\n"
        ))
        .expect("addresses");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The kernel reuses the numbers of namespaces, so remove files that killed daemons have left.
        let others = self.others.take();
        for host in [&self.client, &self.gateway, &self.server]
            .into_iter()
            .chain(&others)
        {
            if let Ok(metadata) = fs::metadata(host.path()) {
                let _ = fs::remove_dir_all(format!("/run/pleach/net-{}", metadata.st_ino()));
            }
        }
    }
}

/// Returns the first three numbers of the IPv4 addresses on wire `number`: 10.1.0 to 10.1.255, then 10.2.0 and so on.
fn wire_v4(number: u16) -> String {
    format!("10.{}.{}", 1 + number / 256, number % 256)
}

/// Whether the kernel has finished processing addresses. It processes IPv6 addresses in the background.
pub(crate) fn has_settled(host: &Netns) -> bool {
    let addresses = run(host, "ip", &["-o", "-6", "addr"]);
    let routes = run(host, "ip", &["-6", "route", "show", "table", "local"]);
    let is_taken_up = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (Some(device), Some("inet6"), Some(net)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return false;
        };
        let address = net.split('/').next().unwrap_or(net);
        let route = format!("local {address} dev {device} ");
        // Each device except the loopback has a link-local address as well.
        let link_local = format!(" {device} inet6 fe80");
        let mut others = addresses.lines().map(|other| {
            let words: Vec<&str> = other.split_whitespace().collect();
            format!(" {}", words.join(" "))
        });
        routes.contains(&route)
            && !line.contains("tentative")
            && (device == "lo" || others.any(|other| other.contains(&link_local)))
    };
    addresses.lines().all(is_taken_up)
}

/// Returns a snapshot of the host's network configuration in the kernel, as text to compare.
pub(crate) fn picture(host: &Netns) -> String {
    let script = "for what in rule '-6 rule' 'route show table all' '-6 route show table all' link addr; do
             echo \"== $what\"; ip $what | grep -v ^cache
         done
         echo == nft; nft list ruleset
         echo == sysctl; grep -r '' /proc/sys/net/core /proc/sys/net/ipv4 /proc/sys/net/ipv6 2>/dev/null
         true";
    run(host, "sh", &["-c", script])
}

/// Asserts that two snapshots of a host are equal. Prints only the lines that differ.
#[track_caller]
pub(crate) fn assert_same(what: &str, before: &str, after: &str) {
    let only = |one: &str, other: &str, sign: &str| -> Vec<String> {
        let missing = one
            .lines()
            .filter(|line| !other.lines().any(|known| known == *line));
        missing.map(|line| format!("{sign} {line}")).collect()
    };
    let mut differences = only(before, after, "-");
    differences.extend(only(after, before, "+"));
    assert!(
        before == after,
        "{what} differs:\n{}",
        differences.join("\n")
    );
}

/// Runs a program on the host and returns its output. Panics if the program fails.
#[track_caller]
pub(crate) fn run(host: &Netns, program: &str, arguments: &[&str]) -> String {
    let output = host.command(program).args(arguments).output();
    let output = output.expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?} in {}: {errors}",
        host.name()
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether a ping with `options` is answered within `patience`. Pings repeatedly.
pub(crate) fn ping(host: &Netns, options: &[&str], patience: Duration) -> bool {
    within(patience, || {
        let mut command = host.command("ping");
        command.args(["-c", "1", "-W", "1"]).args(options);
        command
            .output()
            .is_ok_and(|output| output.status.success())
            .then_some(())
    })
    .is_some()
}

/// Calls `ask` every few milliseconds until it returns a value or `patience` is over.
pub(crate) fn within<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = clock::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if clock::now() >= deadline {
            return None;
        }
        thread::park_timeout(Duration::from_millis(10));
    }
}

/// Panics with `what` unless `holds` becomes true within [`PATIENCE`].
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let happened = within(PATIENCE, || holds().then_some(()));
    assert!(happened.is_some(), "never happened: {what}");
}

/// Time to wait for a required event, long enough for a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Longest interruption that ends by itself: a busy machine takes seconds, keys last for minutes. The benches measure
/// how long interruptions really are.
pub(crate) const INTERRUPTION: Duration = Duration::from_secs(12);
