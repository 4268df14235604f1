//! The gateway under test: namespaces, configuration, and what its process uses.

use core::{fmt::Write as _, time::Duration};
use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use pleach_core::session::{handshake::StaticKeys, secret::Secret};
use pleach_linux::clock;

use super::{
    member::PORT,
    numbering::{GATEWAY, INNER_GATEWAY, ROUTER, inner},
};
use crate::{daemon::Daemon, netns::Netns, wait};

/// Longest time that the gateway may take to start.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// The hosts: the crowd's and the gateway's.
pub(crate) struct World {
    pub(crate) crowd: Netns,
    pub(crate) gateway: Netns,
}

impl World {
    /// Builds both namespaces and a network between them.
    pub(crate) fn build() -> anyhow::Result<Self> {
        let (crowd, gateway) = (Netns::new("crowd")?, Netns::new("gateway")?);
        for host in [&crowd, &gateway] {
            host.sysctl(&[
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
            ])?;
        }
        crowd.ip(&format!(
            "link add eth0 type veth peer name eth0 netns {}\n\
             addr add {ROUTER}/24 dev eth0\n\
             link set dev eth0 up\n\
             route add local 10.0.0.0/8 dev lo\n",
            gateway.path().display()
        ))?;
        gateway.ip(&format!(
            "addr add {GATEWAY}/24 dev eth0\n\
             link set dev eth0 up\n\
             route add 10.0.0.0/8 via {ROUTER}\n"
        ))?;
        Ok(Self { crowd, gateway })
    }
}

/// A gateway's key pair.
pub(crate) struct Keys {
    private: Secret,
    pub(crate) public: [u8; 32],
}

impl Keys {
    /// Draws a key pair.
    pub(crate) fn draw() -> anyhow::Result<Self> {
        let private = Secret::from(clock::entropy()?);
        let public = *StaticKeys::from_private(private.clone()).public();
        Ok(Self { private, public })
    }

    /// Returns the private key.
    pub(crate) const fn private(&self) -> &Secret {
        &self.private
    }

    /// Returns the key pair for handshakes.
    pub(crate) fn pair(&self) -> StaticKeys {
        StaticKeys::from_private(self.private.clone())
    }
}

/// How a gateway runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It writes a log, and no state.
    Plain,
    /// It writes its state, and a detailed log, which nobody reads.
    Soak,
}

/// The gateway's process.
pub(crate) struct Gateway {
    daemon: Daemon,
}

impl Gateway {
    /// Writes the configuration of a gateway for `clients`, given by their public keys, and starts it. `workers`: number of
    /// its data threads; `None` lets it choose.
    pub(crate) fn start<'a>(
        host: &Netns,
        binary: &Path,
        dir: &Path,
        keys: &Keys,
        clients: impl Iterator<Item = &'a [u8; 32]>,
        manner: Manner,
        workers: Option<u8>,
    ) -> anyhow::Result<Self> {
        let mut daemon = Daemon::new("gateway", "up", binary, dir);
        daemon.is_log_stalled = manner == Manner::Soak;
        let remember = manner == Manner::Soak;
        let workers = workers.map_or_else(|| "\"auto\"".to_owned(), |count| count.to_string());
        let mut text = format!(
            "mode = \"gateway\"\n\n[tunnel]\nname = \"pleach0\"\naddress = [\"{INNER_GATEWAY}/10\"]\n\
             private_key = \"{}\"\ncontrol = {:?}\nlisten = \"{GATEWAY}:{PORT}\"\nnat = false\nremember = {remember}\nworkers = {workers}\n\n\
             [scheduler]\npolicy = \"adaptive\"\n",
            STANDARD.encode(keys.private.expose()),
            daemon.control,
        );
        for (number, key) in (0..).zip(clients) {
            let key = STANDARD.encode(key);
            let address = inner(number);
            // Writing to a `String` cannot fail.
            let _ = write!(
                text,
                "\n[[client]]\nname = \"c{number}\"\npublic_key = \"{key}\"\nallowed_ips = [\"{address}/32\"]\n"
            );
        }
        daemon.configure(&text)?;
        daemon.launch(host)?;
        Ok(Self { daemon })
    }

    /// Waits until the gateway is ready.
    ///
    /// # Errors
    /// Fails if the gateway ends or takes too long. The error contains the end of its log.
    pub(crate) fn wait(&mut self) -> anyhow::Result<()> {
        let deadline = clock::now() + START_PATIENCE;
        let mut failed = None;
        let is_ready = wait::for_condition(deadline, || {
            failed = self.daemon.check().err();
            failed.is_some() || self.daemon.is_answering()
        });
        failed.map_or(Ok(()), Err)?;
        ensure!(
            is_ready,
            "the gateway was not ready within {START_PATIENCE:?}: try fewer clients, or see its log in the directory of the run"
        );
        Ok(())
    }

    /// Checks that the gateway still runs.
    ///
    /// # Errors
    /// Fails if it has ended. The error contains the end of its log.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        self.daemon.check()
    }

    /// Kills the gateway and starts it again.
    pub(crate) fn restart(&mut self, host: &Netns) -> anyhow::Result<()> {
        self.daemon.kill();
        self.daemon.launch(host)
    }

    /// Whether the gateway's control socket accepts connections.
    pub(crate) fn is_answering(&self) -> bool {
        self.daemon.is_answering()
    }

    /// Ends the gateway.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        self.daemon.stop()
    }

    /// Returns the memory and processor time of the gateway's process.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of(&self.process()?)
    }

    /// Returns the directory of the gateway's process in procfs.
    pub(crate) fn process(&self) -> anyhow::Result<PathBuf> {
        let process = self.daemon.id().context("the gateway does not run")?;
        Ok(PathBuf::from(format!("/proc/{process}")))
    }

    /// Returns the path of the gateway's control socket.
    pub(crate) fn control(&self) -> &Path {
        &self.daemon.control
    }

    /// Returns the gateway's status. `None` if it does not answer in time.
    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        self.daemon.status()
    }
}

/// What a process uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Resident memory in bytes.
    pub(crate) resident: u64,
    /// Resident memory in bytes without the pages of files: heap and stacks.
    pub(crate) anonymous: u64,
    /// Processor time so far, of all threads in user mode and in the kernel.
    pub(crate) cpu: Duration,
}

impl Usage {
    /// Returns what this process uses.
    pub(crate) fn own() -> anyhow::Result<Self> {
        Self::of(Path::new("/proc/self"))
    }

    /// Returns what a process uses, given by its directory in procfs.
    pub(crate) fn of(process: &Path) -> anyhow::Result<Self> {
        let status = fs::read_to_string(process.join("status"))?;
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.map(|kib| kib << 10)
                .with_context(|| format!("procfs does not show the memory of processes ({name})"))
        };
        let stat = fs::read_to_string(process.join("stat"))?;
        // Fields 14 and 15 of proc(5); the second field, the name, may contain spaces and ends with a parenthesis.
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        let ticks: Vec<u64> = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse().ok())
            .collect();
        let [user, system] = ticks[..] else {
            bail!("procfs does not show the processor time of processes");
        };
        Ok(Self {
            resident: bytes("VmRSS:")?,
            anonymous: bytes("RssAnon:")?,
            cpu: Duration::from_secs(1) * u32::try_from(user + system)? / TICKS_PER_SECOND,
        })
    }
}

/// Unit of processor times in procfs: `sysconf(_SC_CLK_TCK)`, which is 100 on Linux.
const TICKS_PER_SECOND: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_uses_memory_and_time() {
        let before = Usage::own().expect("procfs");
        assert!(before.anonymous > 100 << 10);
        let until = clock::now() + Duration::from_millis(50);
        while clock::now() < until {}
        let after = Usage::own().expect("procfs");
        assert!(after.cpu > before.cpu, "{before:?} {after:?}");
    }
}
