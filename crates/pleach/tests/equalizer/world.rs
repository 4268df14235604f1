//! A host with two links to a peer. The destinations are addresses of the peer's loopback device.

use std::{
    fs,
    io::{self, Read as _},
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    os::linux::fs::MetadataExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

use pleach_lab::netns::Netns;
use pleach_linux::{clock, requirement};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Destination that both links reach.
pub(crate) const FAR_V4: &str = "10.20.0.1";
pub(crate) const FAR_V6: &str = "fd20::1";
/// Fixed weights: 3 and 1 unless the test changes them.
pub(crate) const FIXED: &str = "weights = \"fixed\"\n";

pub(crate) struct World {
    pub(crate) host: Netns,
    pub(crate) peer: Netns,
    pub(crate) dir: TempDir,
}

impl World {
    /// Returns all data of the one TCP connection to port 7000 at the peer.
    pub(crate) fn receive_stream(&self) -> JoinHandle<io::Result<Vec<u8>>> {
        let listener = self
            .peer
            .run(|| Ok(TcpListener::bind((FAR_V4, 7000))?))
            .expect("server");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            let mut data = Vec::new();
            stream.read_to_end(&mut data)?;
            Ok(data)
        })
    }

    /// Builds a world. Returns `None`, and prints a message, if namespaces are not permitted.
    pub(crate) fn new() -> Option<Self> {
        let (host, peer) = match (Netns::new("host"), Netns::new("peer")) {
            (Ok(host), Ok(peer)) => (host, peer),
            (Err(error), _) | (_, Err(error)) => {
                requirement::skip(format_args!("{error:#}"));
                return None;
            }
        };
        let dir = TempDir::new().expect("temporary directory");
        let this = Self { host, peer, dir };
        for link in [0, 1] {
            this.add_link(link);
        }
        let far = format!("address add {FAR_V4}/32 dev lo\naddress add {FAR_V6}/128 dev lo\n");
        this.peer.ip(&far).expect("addresses");
        let loose = [
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/r0/rp_filter", "0"),
            ("ipv4/conf/r1/rp_filter", "0"),
        ];
        this.peer.sysctl(&loose).expect("settings");
        Some(this)
    }

    /// Makes link `number`, from `lN` of the host to `rN` of the peer.
    pub(crate) fn add_link(&self, number: u8) {
        let peer = self.peer.path();
        self.host
            .ip(&format!(
                "link add l{number} type veth peer name r{number}\n"
            ))
            .expect("veth");
        // Moved by a command of its own, because the namespace has a path and no name.
        let moved = self
            .host
            .command("ip")
            .args(["link", "set", &format!("r{number}"), "netns"])
            .arg(&peer)
            .status()
            .expect("ip");
        assert!(moved.success());
        for (end, device, last) in [(&self.host, "l", 1), (&self.peer, "r", 2)] {
            let device = format!("{device}{number}");
            end.ip(&format!(
                "address add 10.1{number}.0.{last}/24 dev {device}\n\
                 link set {device} addrgenmode none\n\
                 address add fe80::{last}/64 dev {device} nodad\n\
                 address add fd1{number}::{last}/64 dev {device} nodad\n\
                 link set {device} up\n"
            ))
            .expect("address");
        }
    }

    /// Starts the equalizer with the lines `more` in `[equalizer]`, and waits until both links are up.
    pub(crate) fn equalizer(&self, more: &str) -> Equalizer {
        let number = fs::read_dir(self.dir.path()).expect("directory").count();
        let path = |extension: &str| self.dir.path().join(format!("{number}.{extension}"));
        let (file, control, log) = (path("toml"), path("sock"), path("log"));
        let mut text = format!(
            "mode = \"equalize\"\n[equalizer]\ndestinations = [\"10.20.0.0/16\", \"fd20::/16\"]\ncontrol = \"{}\"\n{more}\n",
            control.display()
        );
        for (link, weight) in [(0, 3), (1, 1)] {
            text += &format!(
                "[[link]]\nname = \"l{link}\"\ndevice = \"l{link}\"\nnext_hop = [\"10.1{link}.0.2\", \"fd1{link}::2\"]\nrate = \"8Mbit\"\nweight = {weight}\n"
            );
        }
        fs::write(&file, text).expect("configuration");
        let child = self
            .host
            .command(env!("CARGO_BIN_EXE_pleach"))
            .arg("equalize")
            .arg(&file)
            .env(
                "RUST_LOG",
                "debug,rtnetlink=info,netlink_proto=info,netlink_packet_route=info",
            )
            .stderr(fs::File::create(&log).expect("log"))
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        let this = Equalizer {
            child,
            control,
            log,
        };
        this.until("both links are up", both_up);
        // Wait for routes of both address families: neighbour discovery may take a while.
        for far in [FAR_V4, FAR_V6] {
            let routed = within(PATIENCE, || {
                let output = self.host.command("ip").args(["route", "get", far]).output();
                output.expect("ip").status.success().then_some(())
            });
            assert!(routed.is_some(), "no route to {far}");
        }
        this
    }

    /// Sends `count` datagrams to `far` from one socket. Datagram `n` has a length of `len(n)` bytes.
    pub(crate) fn send(&self, far: &str, count: usize, len: impl Fn(usize) -> usize + Send + Sync) {
        let far: IpAddr = far.parse().expect("literal");
        let any = if far.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        self.host
            .run(|| {
                let socket = UdpSocket::bind(any)?;
                for number in 0..count {
                    // No program listens, so `send_to` may return the error of an ICMP message.
                    let data = vec![0; len(number)];
                    let _ = socket.send_to(&data, SocketAddr::new(far, 9));
                }
                Ok(())
            })
            .expect("sends");
    }

    /// Returns everything that could be left behind: rules, routes, firewall, offloading, filters.
    pub(crate) fn traces(&self) -> String {
        let shown = |program: &str, args: &[&str]| {
            let output = self.host.command(program).args(args).output();
            let text = output.expect("runs").stdout;
            format!("{program} {args:?}\n{}\n", String::from_utf8_lossy(&text))
        };
        let mut text = String::new();
        for args in [
            &["rule"][..],
            &["-6", "rule"],
            &["route", "show", "table", "all", "proto", "static"],
            &["-6", "route", "show", "table", "all", "proto", "static"],
        ] {
            text += &shown("ip", args);
        }
        text += &shown("nft", &["list", "ruleset"]);
        text += &shown("ip", &["-o", "link", "show", "type", "tun"]);
        for device in ["l0", "l1"] {
            text += &shown("tc", &["qdisc", "show", "dev", device]);
            text += &shown("tc", &["filter", "show", "dev", device, "egress"]);
            text += &shown(
                "cat",
                &[&format!("/proc/sys/net/ipv4/conf/{device}/rp_filter")],
            );
            let link = shown("ip", &["-d", "link", "show", device]);
            let mut words = link.split_whitespace();
            let segments = words.find(|word| *word == "gso_max_segs").and(words.next());
            text += &format!("{device} gso_max_segs {segments:?}\n");
        }
        text
    }
}

/// Returns the number of packets that `device` of `of` has received and sent.
pub(crate) fn packets(of: &Netns, device: &str) -> (u64, u64) {
    let table = of.run(|| Ok(fs::read_to_string("/proc/thread-self/net/dev")?));
    let table = table.expect("counters");
    let line = table
        .lines()
        .find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
    let fields: Vec<u64> = line
        .expect("such a device")
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    (fields[1], fields[9])
}

impl Drop for World {
    fn drop(&mut self) {
        // The kernel reuses the numbers of namespaces.
        if let Ok(metadata) = fs::metadata(self.host.path()) {
            let _ = fs::remove_dir_all(format!("/run/pleach/net-{}", metadata.st_ino()));
        }
    }
}

/// A running equalizer. It is killed when dropped, and its log is printed if the test fails.
pub(crate) struct Equalizer {
    child: Child,
    control: PathBuf,
    log: PathBuf,
}

impl Equalizer {
    /// Returns the output of `pleach status --json`; `None` if the equalizer does not answer.
    pub(crate) fn status(&self) -> Option<Value> {
        let output = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .args(["status", "--json", "--control"])
            .arg(&self.control)
            .output()
            .expect("starts");
        let text = output.status.success().then_some(output.stdout)?;
        Some(serde_json::from_slice(&text).expect("JSON"))
    }

    /// Waits until the equalizer's status fulfils `holds`.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = None;
        let found = within(PATIENCE, || {
            last = self.status();
            last.clone().filter(&holds)
        });
        found.unwrap_or_else(|| panic!("never happened: {what}; last status {last:?}"))
    }

    pub(crate) fn set_weights(&self, weights: &[&str]) {
        let status = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .args(["weights", "--control"])
            .arg(&self.control)
            .args(weights)
            .status();
        assert!(status.expect("starts").success());
    }

    /// Returns the share of link l0 in the traffic since the weights changed: `share_packets` or `share_bytes`.
    #[track_caller]
    pub(crate) fn share(&self, of: &str) -> f64 {
        let status = self.status().expect("it runs");
        status["splitter"]["links"]["l0"][of]
            .as_f64()
            .expect("something was sent")
    }

    /// Asks the equalizer to end, and asserts that it ends with success.
    #[track_caller]
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        let status = within(PATIENCE, || self.child.try_wait().expect("our child"));
        let status = status.expect("ends when asked");
        assert_eq!(status.code(), Some(0));
    }

    /// Returns the equalizer's log so far.
    /// Number of the equalizer's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("our child");
    }
}

impl Drop for Equalizer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("log of the equalizer:\n{}", self.log());
        }
    }
}

pub(crate) fn both_up(status: &Value) -> bool {
    let links = status["links"].as_array().expect("links");
    links.len() == 2 && links.iter().all(|link| link["state"] == "up")
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
        thread::park_timeout(Duration::from_millis(20));
    }
}

/// Time to wait for a required event, long enough for a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
