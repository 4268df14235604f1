//! The daemons under test: keys, configuration, processes, logs.

use core::{fmt::Write as _, time::Duration};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{fs::OpenOptionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail};
use pleach_core::{sec::Code, time::Instant};
use pleach_linux::clock;
use pleach_sim::{
    addresses::{GATEWAY_V4, GATEWAY_V6},
    results::StatusSample,
    scenario::{Cost, DaemonAction, End, Family, LinkSpec, TunnelSpec},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::{netns::Netns, topology::Topology, wait};

const PORT: u16 = 7_700;
/// How long a daemon may take to end when asked to.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// How long the answer about the status may take.
const STATUS_PATIENCE: Duration = Duration::from_millis(300);
/// Longest path of a Unix socket (sun_path).
const MAX_SOCKET_PATH: usize = 107;

/// Client and gateway of a tunnel.
pub(super) struct Daemons {
    client: Daemon,
    gateway: Daemon,
}

/// A daemon under test.
pub(super) struct Daemon {
    pub(super) name: &'static str,
    command: &'static str,
    binary: PathBuf,
    config: PathBuf,
    log: PathBuf,
    pub(super) control: PathBuf,
    /// Where it writes what it decides, if it does.
    trace: Option<PathBuf>,
    process: Option<Child>,
}

impl Daemons {
    /// Writes keys and configuration into `dir` and starts both ends; with `trace` they write what they decide there, too.
    pub(super) fn start(
        world: &Topology,
        binary: &Path,
        dir: &Path,
        (tunnel, links): (&TunnelSpec, Vec<&LinkSpec>),
        trace: bool,
    ) -> anyhow::Result<Self> {
        let [client_key, gateway_key] = [KeyPair::new(binary)?, KeyPair::new(binary)?];
        let mut client = Daemon::new("client", "up", binary, dir);
        let mut gateway = Daemon::new("gateway", "up", binary, dir);
        if trace {
            for daemon in [&mut client, &mut gateway] {
                daemon.trace = Some(dir.join(format!("{}.trace.jsonl", daemon.name)));
            }
        }
        let scheduler = scheduler_section(tunnel)?;
        let mtu = tunnel
            .mtu
            .map_or_else(String::new, |mtu| format!("mtu = {mtu}\n"));
        let parity = match tunnel.parity {
            None => "",
            Some(Code::Bch) => "parity = \"bch\"\n",
            Some(Code::Hamming) => "parity = \"hamming\"\n",
        };
        let split_tcp = tunnel
            .split_tcp
            .as_ref()
            .map_or_else(String::new, |mode| format!("split_tcp = {mode:?}\n"));
        let tunnel_keys = format!(
            "{mtu}compression = {}\nremember = false\n{parity}{split_tcp}",
            tunnel.compression
        );
        client.configure(&format!(
            "mode = \"client\"\n\n[tunnel]\nname = \"pleach0\"\n\
             address = [\"10.77.0.2/24\", \"fd77::2/64\"]\nprivate_key = \"{}\"\ncontrol = {:?}\n\
             {tunnel_keys}\n{scheduler}\n[gateway]\npublic_key = \"{}\"\nendpoints = [\"{}\"]\n\
             allowed_ips = [\"0.0.0.0/0\", \"::/0\"]\n{}",
            client_key.private,
            client.control,
            gateway_key.public,
            match tunnel.outer {
                Family::V4 => format!("{GATEWAY_V4}:{PORT}"),
                Family::V6 => format!("[{GATEWAY_V6}]:{PORT}"),
            },
            link_sections(tunnel, &links),
        ))?;
        gateway.configure(&format!(
            "mode = \"gateway\"\n\n[tunnel]\nname = \"pleach0\"\n\
             address = [\"10.77.0.1/24\", \"fd77::1/64\"]\nprivate_key = \"{}\"\ncontrol = {:?}\n\
             listen = \"[::]:{PORT}\"\nnat = true\n{tunnel_keys}\n{scheduler}\n[[client]]\nname = \"lab\"\n\
             public_key = \"{}\"\nallowed_ips = [\"10.77.0.2/32\", \"fd77::2/128\"]\n",
            gateway_key.private, gateway.control, client_key.public,
        ))?;
        gateway.launch(&world.gateway)?;
        client.launch(&world.client)?;
        Ok(Self { client, gateway })
    }

    /// # Errors
    /// If a daemon has ended, with the end of its log.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.gateway.check()?;
        self.client.check()
    }

    pub(super) fn act(
        &mut self,
        world: &Topology,
        end: End,
        action: DaemonAction,
    ) -> anyhow::Result<()> {
        let (daemon, host) = match end {
            End::Client => (&mut self.client, &world.client),
            End::Gateway => (&mut self.gateway, &world.gateway),
        };
        daemon.kill();
        match action {
            DaemonAction::Kill => Ok(()),
            DaemonAction::Restart => daemon.launch(host),
        }
    }

    /// Asks both daemons for their status; one that does not answer in time is left out.
    pub(super) fn sample_status(&self, begin: Instant, samples: &mut Vec<StatusSample>) {
        for daemon in [&self.client, &self.gateway] {
            samples.extend(daemon.sample(begin));
        }
    }

    /// The weights of the links at the gateway, by name; none if it does not answer in time.
    pub(super) fn weights(&self) -> BTreeMap<String, f64> {
        let status = self.gateway.status().unwrap_or_default();
        let weight = |link: &serde_json::Value| {
            let name = link.get("name")?.as_str()?.to_owned();
            Some((name, link.get("weight")?.as_f64()?))
        };
        let links = status.pointer("/clients/0/links");
        let links = links.and_then(serde_json::Value::as_array);
        links.into_iter().flatten().filter_map(weight).collect()
    }

    /// Ends both.
    ///
    /// # Errors
    /// If one had ended before or does not end when asked to.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        self.client.stop()?;
        self.gateway.stop()
    }
}

impl Daemon {
    /// Of the subcommand `command`; its files in `dir` are called `name`.
    pub(super) fn new(
        name: &'static str,
        command: &'static str,
        binary: &Path,
        dir: &Path,
    ) -> Self {
        let file = |extension: &str| dir.join(format!("{name}.{extension}"));
        let mut control = file("sock");
        if control.as_os_str().len() > MAX_SOCKET_PATH {
            let process = std::process::id();
            control = std::env::temp_dir().join(format!("pleach-lab-{process}-{name}.sock"));
        }
        Self {
            name,
            command,
            binary: binary.to_owned(),
            config: file("toml"),
            log: file("log"),
            control,
            trace: None,
            process: None,
        }
    }

    /// Writes the configuration, which may hold a key, readable for its owner only.
    pub(super) fn configure(&self, text: &str) -> anyhow::Result<()> {
        // The mode counts for new files only.
        let _ = fs::remove_file(&self.config);
        let _ = fs::remove_file(&self.log);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.config)
            .with_context(|| format!("cannot write {}", self.config.display()))?;
        Ok(file.write_all(text.as_bytes())?)
    }

    pub(super) fn launch(&mut self, host: &Netns) -> anyhow::Result<()> {
        let log = File::options()
            .append(true)
            .create(true)
            .open(&self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let process = host
            .command(&self.binary)
            .arg(self.command)
            .arg(&self.config)
            .args(
                self.trace
                    .iter()
                    .flat_map(|path| ["--trace".as_ref(), path.as_os_str()]),
            )
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        self.process = Some(process);
        Ok(())
    }

    /// # Errors
    /// If it has ended, with the end of its log.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        if let Some(status) = process.try_wait()? {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(5).collect();
            let tail = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
            bail!("the {} ended ({status}):\n{tail}", self.name);
        }
        Ok(())
    }

    /// What it says of itself; `None` if it does not answer in time.
    pub(super) fn status(&self) -> Option<serde_json::Value> {
        self.ask(&json!({ "command": "status" }))
    }

    /// The same with time and name.
    pub(super) fn sample(&self, begin: Instant) -> Option<StatusSample> {
        let status = self.status()?;
        Some(StatusSample {
            time_s: clock::now().since(begin).as_secs_f64(),
            node: self.name.to_owned(),
            status,
        })
    }

    /// Its answer to `request`; `None` if there is none in time.
    pub(super) fn ask(&self, request: &serde_json::Value) -> Option<serde_json::Value> {
        let socket = UnixStream::connect(&self.control).ok()?;
        socket.set_read_timeout(Some(STATUS_PATIENCE)).ok()?;
        (&socket)
            .write_all(format!("{request}\n").as_bytes())
            .ok()?;
        let mut answer = String::new();
        BufReader::new(&socket).read_line(&mut answer).ok()?;
        serde_json::from_str(&answer).ok()
    }

    /// Ends it.
    ///
    /// # Errors
    /// If it had ended before or does not end when asked to.
    pub(super) fn stop(&mut self) -> anyhow::Result<()> {
        self.check()?;
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        if let Some(pid) = i32::try_from(process.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)?;
        }
        let deadline = clock::now() + STOP_PATIENCE;
        let ended = wait::for_condition(deadline, || !matches!(process.try_wait(), Ok(None)));
        if !ended {
            bail!("the {} did not end within {STOP_PATIENCE:?}", self.name);
        }
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

struct KeyPair {
    private: String,
    public: String,
}

impl KeyPair {
    fn new(binary: &Path) -> anyhow::Result<Self> {
        let private = output(Command::new(binary).arg("genkey"), "")?;
        let public = output(Command::new(binary).arg("pubkey"), &private)?;
        Ok(Self { private, public })
    }
}

/// The first line a command prints.
fn output(command: &mut Command, input: &str) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its input is fine.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next() {
        Some(line) if output.status.success() => Ok(line.trim().to_owned()),
        Some(_) | None => bail!("{program} does not make keys: {}", output.status),
    }
}

fn scheduler_section(tunnel: &TunnelSpec) -> anyhow::Result<String> {
    let mut table = tunnel.policy_keys.clone();
    table.insert("policy".to_owned(), tunnel.policy.clone().into());
    let mut text = format!("[scheduler]\n{}", toml::to_string(&table)?);
    for class in &tunnel.classes {
        write!(text, "\n[[class]]\n{}", toml::to_string(class)?)?;
    }
    Ok(text)
}

fn link_sections(tunnel: &TunnelSpec, links: &[&LinkSpec]) -> String {
    let mut text = String::new();
    for link in links {
        let cost = match link.cost {
            Cost::Rank(rank) => rank.to_string(),
            Cost::Standby => "\"standby\"".to_owned(),
            Cost::Never => "\"never\"".to_owned(),
        };
        let name = &link.name;
        let section =
            format!("\n[[link]]\nname = \"{name}\"\ndevice = \"{name}\"\ncost = {cost}\n");
        text.push_str(&section);
        if link.weight != 1 || tunnel.policy == "weighted" {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "weight = {}", link.weight);
        }
    }
    text
}
