//! Daemons: keys, configuration files, processes.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
    thread,
    time::Duration,
};

use pleach_lab::netns::Netns;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::world::{PATIENCE, World, within};

/// Address of the gateway over IPv4.
pub(crate) const OUTER_V4: &str = "203.0.113.5:7700";
/// Address of the gateway over IPv6.
pub(crate) const OUTER_V6: &str = "[2001:db8::5]:7700";
/// Name of the tunnel's device at both ends.
pub(crate) const TUNNEL: &str = "plD0";

/// A private key and its public key.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) private: String,
    pub(crate) public: String,
}

impl Keys {
    /// Makes a new pair.
    pub(crate) fn new() -> Self {
        let private = pleach(&["genkey"], "");
        let public = pleach(&["pubkey"], &private);
        Self {
            private: private.trim().to_owned(),
            public: public.trim().to_owned(),
        }
    }

    /// Returns the gateway's keys.
    pub(crate) fn gateway() -> &'static Self {
        &Self::all()[0]
    }

    /// Returns the keys of the client whose inner addresses end in `host`, from 2 to 9.
    pub(crate) fn client(host: u8) -> &'static Self {
        &Self::all()[usize::from(host) - 1]
    }

    fn all() -> &'static [Self; 9] {
        static KEYS: OnceLock<[Keys; 9]> = OnceLock::new();
        KEYS.get_or_init(|| core::array::from_fn(|_| Self::new()))
    }
}

/// Contents of a client's file. The defaults suit most tests.
pub(crate) struct Client<'a> {
    pub(crate) tunnel: &'a str,
    /// Last part of the client's inner addresses.
    pub(crate) host: u8,
    /// Network of the inner addresses: `10.77.0` and `fd77` for 77.
    pub(crate) network: u8,
    pub(crate) keys: &'a Keys,
    pub(crate) gateway_key: &'a str,
    pub(crate) preshared_key: Option<&'a str>,
    pub(crate) endpoint: &'a str,
    pub(crate) allowed_ips: &'a str,
    pub(crate) policy: &'a str,
    /// Code of the client's parity.
    pub(crate) parity: Option<&'a str>,
    pub(crate) kill_switch: bool,
    pub(crate) split_tcp: Option<&'a str>,
    /// Tables `[[gateway]]` in place of `[gateway]`.
    pub(crate) gateways: Option<&'a str>,
    /// Further lines of `[tunnel]`.
    pub(crate) more_tunnel: &'a str,
    /// Names of links, which are also names of devices.
    pub(crate) links: &'a [&'a str],
    /// Further tables of the file.
    pub(crate) more: &'a str,
}

impl Default for Client<'_> {
    fn default() -> Self {
        Self {
            tunnel: TUNNEL,
            host: 2,
            network: 77,
            keys: Keys::client(2),
            gateway_key: &Keys::gateway().public,
            preshared_key: None,
            endpoint: OUTER_V4,
            allowed_ips: "\"0.0.0.0/0\", \"::/0\"",
            policy: "earliest-arrival",
            parity: None,
            kill_switch: false,
            split_tcp: None,
            gateways: None,
            more_tunnel: "",
            links: &["l0", "l1"],
            more: "",
        }
    }
}

impl Client<'_> {
    /// Writes the file and starts the daemon on `host`.
    pub(crate) fn start(&self, world: &World, host: &Netns) -> Daemon {
        Daemon::start(world, host, &self.text())
    }

    /// Only writes the file.
    pub(crate) fn write(&self, world: &World) -> PathBuf {
        let (file, _) = write(world, &self.text());
        file
    }

    fn text(&self) -> String {
        let one = format!(
            "[gateway]\npublic_key = \"{}\"\nendpoints = [\"{}\"]\nallowed_ips = [{}]\n",
            self.gateway_key, self.endpoint, self.allowed_ips
        );
        let mut text = format!(
            "mode = \"client\"\n{}{}",
            tunnel_table(self.tunnel, self.network, self.host, self.keys, self.policy),
            self.gateways.unwrap_or(&one)
        );
        text = text.replace("[scheduler]", &format!("{}[scheduler]", self.more_tunnel));
        if let Some(parity) = self.parity {
            let key = format!("parity = \"{parity}\"\n[scheduler]");
            text = text.replace("[scheduler]", &key);
        }
        if self.kill_switch {
            text = text.replace("[scheduler]", "kill_switch = true\n[scheduler]");
        }
        if let Some(mode) = self.split_tcp {
            let key = format!("split_tcp = \"{mode}\"\n[scheduler]");
            text = text.replace("[scheduler]", &key);
        }
        text.push_str(&preshared(self.preshared_key));
        text.push_str(self.more);
        for link in self.links {
            text.push_str(&format!(
                "[[link]]\nname = \"{link}\"\ndevice = \"{link}\"\n"
            ));
        }
        text
    }
}

/// Starts a gateway and its client with the policy `weighted`, and waits until both links are up.
pub(crate) fn weighted_pair(world: &World) -> (Daemon, Daemon) {
    let policy = "weighted";
    let gateway = Gateway {
        policy,
        ..Gateway::default()
    }
    .start(world);
    gateway.until_up();
    let client = Client {
        policy,
        ..Client::default()
    }
    .start(world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    (gateway, client)
}

/// A gateway and two clients: the world's client, with both links up, and another host with the link `l2`.
pub(crate) struct TwoClients {
    pub(crate) gateway: Daemon,
    _clients: [Daemon; 2],
    /// The host of the second client.
    pub(crate) other: Netns,
}

impl TwoClients {
    /// Starts gateway and clients. `isolate`: setting of the gateway.
    pub(crate) fn start(world: &World, isolate: bool) -> Self {
        let gateway = Gateway {
            clients: vec![(2, Keys::client(2), None), (3, Keys::client(3), None)],
            isolate,
            ..Gateway::default()
        }
        .start(world);
        gateway.until_up();
        let first = Client::default().start(world, &world.client);
        let other = world.another(2);
        let second = Client {
            host: 3,
            keys: Keys::client(3),
            links: &["l2"],
            ..Client::default()
        }
        .start(world, &other);
        first.until_links_up(&["l0", "l1"]);
        second.until_links_up(&["l2"]);
        Self {
            gateway,
            _clients: [first, second],
            other,
        }
    }
}

/// Contents of a gateway's file.
pub(crate) struct Gateway<'a> {
    pub(crate) tunnel: &'a str,
    pub(crate) network: u8,
    pub(crate) port: u16,
    pub(crate) nat: &'a str,
    pub(crate) isolate: bool,
    pub(crate) split_tcp: bool,
    pub(crate) policy: &'a str,
    /// For each client: last part of its inner addresses, keys, pre-shared key.
    pub(crate) clients: Vec<(u8, &'a Keys, Option<&'a str>)>,
    /// Further lines of `[tunnel]`.
    pub(crate) more_tunnel: &'a str,
    /// Further tables of the file.
    pub(crate) more: &'a str,
}

impl Default for Gateway<'_> {
    fn default() -> Self {
        Self {
            tunnel: TUNNEL,
            network: 77,
            port: 7700,
            nat: "true",
            isolate: true,
            split_tcp: false,
            policy: "earliest-arrival",
            clients: vec![(2, Keys::client(2), None)],
            more_tunnel: "",
            more: "",
        }
    }
}

impl Gateway<'_> {
    /// Writes the file and starts the daemon on the world's gateway.
    pub(crate) fn start(&self, world: &World) -> Daemon {
        self.start_on(world, &world.gateway, Keys::gateway())
    }

    /// Writes the file and starts the daemon on `host`, with the keys `keys`.
    pub(crate) fn start_on(&self, world: &World, host: &Netns, keys: &Keys) -> Daemon {
        let mut text = format!(
            "mode = \"gateway\"\n{}",
            tunnel_table(self.tunnel, self.network, 1, keys, self.policy).replace(
                "[scheduler]",
                &format!(
                    "listen = \"[::]:{}\"\nnat = {}\nisolate = {}\nsplit_tcp = \"{}\"\n{}[scheduler]",
                    self.port,
                    self.nat,
                    self.isolate,
                    if self.split_tcp { "on" } else { "off" },
                    self.more_tunnel
                )
            )
        );
        for (host, keys, preshared_key) in &self.clients {
            text.push_str(&format!(
                "[[client]]\nname = \"c{host}\"\npublic_key = \"{}\"\n\
                 allowed_ips = [\"10.{n}.0.{host}/32\", \"fd{n}::{host}/128\"]\n{}",
                keys.public,
                preshared(*preshared_key),
                n = self.network,
            ));
        }
        text.push_str(self.more);
        Daemon::start(world, host, &text)
    }
}

fn tunnel_table(name: &str, network: u8, host: u8, keys: &Keys, policy: &str) -> String {
    format!(
        "[tunnel]\nname = \"{name}\"\naddress = [\"10.{network}.0.{host}/24\", \"fd{network}::{host}/64\"]\n\
         private_key = \"{}\"\ncontrol = \"CONTROL\"\n[scheduler]\npolicy = \"{policy}\"\n",
        keys.private
    )
}

fn preshared(key: Option<&str>) -> String {
    key.map_or_else(String::new, |key| format!("preshared_key = \"{key}\"\n"))
}

/// A running daemon. It is killed when dropped, and its log is printed if the test fails.
pub(crate) struct Daemon {
    host: Netns,
    file: PathBuf,
    log: PathBuf,
    pub(crate) control: PathBuf,
    child: Child,
}

impl Daemon {
    fn start(world: &World, host: &Netns, text: &str) -> Self {
        let (file, control) = write(world, text);
        let log = file.with_extension("log");
        let child = launch(host, &file, &log);
        Self {
            host: host.clone(),
            file,
            log,
            control,
            child,
        }
    }

    /// Starts `pleach up FILE` with an existing file, whose control socket is `control`.
    pub(crate) fn with_file(host: &Netns, file: PathBuf, control: PathBuf) -> Self {
        let log = file.with_extension("log");
        let child = launch(host, &file, &log);
        Self {
            host: host.clone(),
            file,
            log,
            control,
            child,
        }
    }

    /// Starts the daemon again; it must have ended.
    pub(crate) fn start_again(&mut self) {
        assert!(self.has_ended());
        self.child = launch(&self.host, &self.file, &self.log);
    }

    /// Starts a second process with the same file.
    pub(crate) fn start_twin(&self) -> Output {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_pleach"));
        command.arg("up").arg(&self.file).output().expect("starts")
    }

    /// The configuration file of the daemon.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Number of the daemon's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the daemon.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the daemon runs");
    }

    /// Asks the daemon to end, and asserts that it ends with success.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("the daemon runs");
        let status = within(PATIENCE, || self.child.try_wait().expect("our child"));
        let status = status.expect("ends when asked");
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }

    /// Kills the daemon.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_some()
    }

    /// Returns the output of `pleach status --json`; `None` if the daemon does not answer.
    pub(crate) fn status(&self) -> Option<Value> {
        let output = self.command("status", &["--json"]);
        let text = output.status.success().then_some(output.stdout)?;
        Some(serde_json::from_slice(&text).expect("JSON"))
    }

    /// Runs `pleach COMMAND --control … ARGUMENTS`.
    pub(crate) fn command(&self, command: &str, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_pleach"))
            .args([command, "--control"])
            .arg(&self.control)
            .args(arguments)
            .output()
            .expect("starts")
    }

    /// Waits until the daemon's status fulfils `holds`. Otherwise panics with `what` and the last status.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        self.until_within(PATIENCE, what, holds)
    }

    #[track_caller]
    pub(crate) fn until_within(
        &self,
        patience: Duration,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = None;
        let found = within(patience, || {
            last = self.status();
            last.clone().filter(&holds)
        });
        let last = last.map_or_else(|| "none".to_owned(), |last| last.to_string());
        found.unwrap_or_else(|| panic!("never happened: {what}; last status {last}"))
    }

    /// Waits until a client has a session, or until a gateway listens.
    #[track_caller]
    pub(crate) fn until_up(&self) -> Value {
        self.until("the tunnel comes up", |status| status["up"] == true)
    }

    /// Waits until each of `links` is up.
    #[track_caller]
    pub(crate) fn until_links_up(&self, links: &[&str]) {
        self.until(&format!("{links:?} come up"), |status| {
            links.iter().all(|name| state(status, name) == "up")
        });
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!(
                "--- {} {}\n{}",
                self.host.name(),
                self.file.display(),
                self.log()
            );
        }
    }
}

/// Returns the link called `name` in a client's status.
pub(crate) fn link<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    let links = status["links"].as_array()?;
    links.iter().find(|link| link["name"] == name)
}

/// Returns the state of the link called `name`; empty if there is no such link.
pub(crate) fn state<'a>(status: &'a Value, name: &str) -> &'a str {
    link(status, name)
        .and_then(|link| link["state"].as_str())
        .unwrap_or_default()
}

/// Returns the number of packets dropped for `reason`.
pub(crate) fn drops(status: &Value, reason: &str) -> u64 {
    status["drops"][reason].as_u64().expect("a known reason")
}

/// Writes a configuration. Returns its path, and the path of the future control socket.
fn write(world: &World, text: &str) -> (PathBuf, PathBuf) {
    let number = fs::read_dir(world.dir.path()).expect("directory").count();
    let path = |extension| world.dir.path().join(format!("{number}.{extension}"));
    let (file, control) = (path("toml"), path("sock"));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file)
        .and_then(|mut file| {
            let text = text.replace("CONTROL", &control.display().to_string());
            file.write_all(text.as_bytes())
        })
        .expect("configuration");
    (file, control)
}

fn launch(host: &Netns, file: &PathBuf, log: &PathBuf) -> Child {
    let log = File::options().create(true).append(true).open(log);
    host.command(env!("CARGO_BIN_EXE_pleach"))
        .arg("up")
        .arg(file)
        .env("RUST_LOG", "info")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.expect("log"))
        .spawn()
        .expect("the daemon starts")
}

fn pleach(arguments: &[&str], input: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
    command.args(arguments);
    String::from_utf8(feed(command, input).stdout).expect("text")
}

/// Runs `process` with `input`, and returns its output.
pub(crate) fn feed(mut process: Command, input: &str) -> Output {
    let mut child = process
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    // A command that does not read its input may have ended.
    let _ = child
        .stdin
        .take()
        .expect("piped")
        .write_all(input.as_bytes());
    child.wait_with_output().expect("ends")
}
