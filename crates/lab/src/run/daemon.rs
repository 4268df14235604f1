//! Client and gateway of a tunnel: keys and configuration.

use core::fmt::Write as _;
use std::{
    collections::BTreeMap,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};
use pleach_core::{sec::Code, time::Instant};
use pleach_sim::{
    addresses::{GATEWAY_V4, GATEWAY_V6},
    results::StatusSample,
    scenario::{Cost, DaemonAction, End, Family, LinkSpec, TunnelSpec},
};

use crate::{daemon::Daemon, topology::Topology};

const PORT: u16 = 7_700;

/// Client and gateway of a tunnel.
pub(super) struct Daemons {
    client: Daemon,
    gateway: Daemon,
}

impl Daemons {
    /// Writes keys and configuration into `dir` and starts both ends. If `trace` is set, both daemons also write
    /// their decisions there.
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
        let [client_carrier, gateway_carrier] = carrier_sections(tunnel);
        client.configure(&format!(
            "mode = \"client\"\n\n[tunnel]\nname = \"pleach0\"\n\
             address = [\"10.77.0.2/24\", \"fd77::2/64\"]\nprivate_key = \"{}\"\ncontrol = {:?}\n\
             {tunnel_keys}\n{scheduler}\n[gateway]\npublic_key = \"{}\"\nendpoints = [\"{}\"]\n\
             allowed_ips = [\"0.0.0.0/0\", \"::/0\"]\n{client_carrier}{}",
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
             public_key = \"{}\"\nallowed_ips = [\"10.77.0.2/32\", \"fd77::2/128\"]\n{gateway_carrier}",
            gateway_key.private, gateway.control, client_key.public,
        ))?;
        gateway.launch(&world.gateway)?;
        client.launch(&world.client)?;
        Ok(Self { client, gateway })
    }

    /// Checks that both daemons still run.
    ///
    /// # Errors
    /// Fails if a daemon has ended. The error contains the end of its log.
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

    /// Requests the status of both daemons. A daemon that does not answer in time is omitted.
    pub(super) fn sample_status(&self, begin: Instant, samples: &mut Vec<StatusSample>) {
        for daemon in [&self.client, &self.gateway] {
            samples.extend(daemon.sample(begin));
        }
    }

    /// Returns the weights of the links at the gateway, by name. Empty if the gateway does not answer in time.
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

    /// Ends both daemons.
    ///
    /// # Errors
    /// Fails if a daemon had ended before, or does not end after the request.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        self.client.stop()?;
        self.gateway.stop()
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

/// Returns the first line that a command prints.
fn output(command: &mut Command, input: &str) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command may ignore its input.
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

/// Returns `[carrier]` of the client and of the gateway.
fn carrier_sections(tunnel: &TunnelSpec) -> [String; 2] {
    let Some(mode) = &tunnel.carrier else {
        return [String::new(), String::new()];
    };
    [
        format!("\n[carrier]\nmode = {mode:?}\n"),
        "\n[carrier]\nlisten = \"[::]:443\"\n".to_owned(),
    ]
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
