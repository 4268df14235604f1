//! A host with two links on which a client's daemon runs, flaps its links, and is killed and restarted.

use core::time::Duration;
use std::{net::Ipv4Addr, path::Path};

use anyhow::{Context as _, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use pleach_core::time::Instant;
use pleach_linux::clock;

use crate::{
    crowd::{
        gateway::{Keys, World},
        member::PORT,
        numbering::{GATEWAY, inner},
    },
    daemon::Daemon,
    netns::Netns,
};

/// The host.
pub(super) struct Host {
    netns: Netns,
    daemon: Daemon,
    before: Vec<String>,
    /// The link that is down.
    down: Option<u8>,
    next_flap: Instant,
    next_restart: Instant,
    flap: Duration,
    restart: Duration,
    pub(super) flaps: u32,
    pub(super) kills: u32,
    pub(super) stops: u32,
}

impl Host {
    /// Builds the host and its links to the gateway, without starting the daemon. `time`: duration of the run.
    ///
    /// # Errors
    /// Fails if namespaces or devices cannot be made.
    pub(super) fn build(
        world: &World,
        binary: &Path,
        dir: &Path,
        time: Duration,
    ) -> anyhow::Result<Self> {
        let (flap, restart) = (FLAP.min(time / 24), RESTART.min(time / 6));
        let netns = Netns::new("client")?;
        for host in [&netns, &world.gateway] {
            host.sysctl(&[
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
                // Addresses of IPv6 come late, and links that flap change them.
                ("ipv6/conf/all/disable_ipv6", "1"),
                ("ipv6/conf/default/disable_ipv6", "1"),
            ])?;
        }
        for link in LINKS {
            world.gateway.ip(&format!(
                "link add soak{link} type veth peer name eth{link} netns {}\n\
                 addr add {}/30 dev soak{link}\n\
                 link set dev soak{link} up\n",
                netns.path().display(),
                router(link),
            ))?;
            netns.ip(&format!("addr add {}/30 dev eth{link}\n", own(link)))?;
            raise(&netns, link)?;
        }
        let now = clock::now();
        Ok(Self {
            before: picture(&netns)?,
            netns,
            daemon: Daemon::new("client", "up", binary, dir),
            down: None,
            next_flap: now + flap,
            next_restart: now + restart,
            flap,
            restart,
            flaps: 0,
            kills: 0,
            stops: 0,
        })
    }

    /// Configures and starts the daemon: client number `client` of the gateway with the key `gateway`.
    ///
    /// # Errors
    /// Fails if the daemon cannot be started.
    pub(super) fn start(
        &mut self,
        keys: &Keys,
        gateway: &[u8; 32],
        client: u32,
    ) -> anyhow::Result<()> {
        self.daemon.configure(&format!(
            "mode = \"client\"\n\n[tunnel]\nname = \"pleach0\"\naddress = [\"{}/10\"]\n\
             private_key = \"{}\"\ncontrol = {:?}\nportal_check = \"off\"\n\n\
             [gateway]\npublic_key = \"{}\"\nendpoints = [\"{GATEWAY}:{PORT}\"]\nallowed_ips = [\"100.64.0.0/10\"]\n\n\
             [[link]]\nname = \"l0\"\ndevice = \"eth0\"\n\n[[link]]\nname = \"l1\"\ndevice = \"eth1\"\n",
            inner(client),
            STANDARD.encode(keys.private().expose()),
            self.daemon.control,
            STANDARD.encode(gateway),
        ))?;
        self.daemon.launch(&self.netns)
    }

    /// Lets links go down and up again, and restarts the daemon, when it is time. `may_restart`: whether a daemon that
    /// starts could write its state.
    ///
    /// # Errors
    /// Fails if the daemon has ended, or does not end when it should.
    pub(super) fn trouble(&mut self, now: Instant, may_restart: bool) -> anyhow::Result<()> {
        self.daemon.check()?;
        if now >= self.next_flap {
            self.next_flap = now + self.flap;
            if let Some(link) = self.down.take() {
                raise(&self.netns, link)?;
            } else {
                let link = LINKS[usize::from(self.flaps % 2 == 1)];
                self.netns.ip(&format!("link set dev eth{link} down\n"))?;
                self.down = Some(link);
                self.flaps += 1;
            }
        }
        if now >= self.next_restart && may_restart {
            self.next_restart = now + self.restart;
            if self.kills > self.stops {
                self.daemon.stop()?;
                self.stops += 1;
            } else {
                self.kills += 1;
            }
            self.daemon.kill();
            self.daemon.launch(&self.netns)?;
        }
        Ok(())
    }

    /// Whether the tunnel is up. `None` if the daemon does not answer.
    pub(super) fn is_up(&self) -> Option<bool> {
        let status = self.daemon.status()?;
        let state = |link: &serde_json::Value| link.get("state")?.as_str().map(str::to_owned);
        let links = status.get("links")?.as_array()?;
        Some(links.iter().filter_map(state).any(|state| state == "up"))
    }

    /// Ends the daemon, and returns what it has left on the host: lines of rules, routes, nftables and sysctls that
    /// were not there before, or no longer are. The host and its links remain until the value is dropped.
    ///
    /// # Errors
    /// Fails if the daemon does not end.
    pub(super) fn finish(&mut self) -> anyhow::Result<Vec<String>> {
        if let Some(link) = self.down.take() {
            raise(&self.netns, link)?;
        }
        self.daemon.stop()?;
        Ok(differences(&self.before, &picture(&self.netns)?))
    }
}

/// Returns the lines that one of two pictures has more often than the other.
pub(super) fn differences(before: &[String], after: &[String]) -> Vec<String> {
    let only = |one: &[String], other: &[String], sign: &str| -> Vec<String> {
        let mut rest = other.to_vec();
        let is_missing = |line: &&String| {
            let at = rest.iter().position(|other| other == *line);
            at.map(|at| rest.swap_remove(at)).is_none()
        };
        let missing = one.iter().filter(is_missing);
        missing.map(|line| format!("{sign} {line}")).collect()
    };
    let mut lines = only(before, after, "-");
    lines.extend(only(after, before, "+"));
    lines
}

/// Returns rules, routes, nftables and sysctls of a host, one a line.
///
/// # Errors
/// Fails if a program cannot be run.
pub(super) fn picture(host: &Netns) -> anyhow::Result<Vec<String>> {
    let script =
        "set -e; for what in rule '-6 rule' 'route show table all'; do ip $what; done; nft list ruleset;
        grep -r '' /proc/sys/net/ipv4/conf /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf 2>/dev/null || true";
    let output = host.command("sh").args(["-c", script]).output();
    let output = output.context("sh, ip and nft")?;
    if !output.status.success() {
        bail!(
            "the state of {} cannot be read: {}",
            host.name(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(|line| line.trim().to_owned()).collect())
}

fn raise(host: &Netns, link: u8) -> anyhow::Result<()> {
    host.ip(&format!(
        "link set dev eth{link} up\nroute add default via {} dev eth{link} metric 10{link}\n",
        router(link)
    ))
}

fn router(link: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 4 * link + 1)
}

fn own(link: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 4 * link + 2)
}

const LINKS: [u8; 2] = [0, 1];
/// Interval at which a link goes down, or comes back, in a long run.
const FLAP: Duration = Duration::from_secs(3);
/// Interval at which the daemon is restarted, in a long run: killed, or ended.
const RESTART: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_one_picture_lacks_are_differences() {
        let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
        assert!(differences(&lines("a\nb"), &lines("b\na")).is_empty());
        let found = differences(&lines("a\nb"), &lines("b\nc"));
        assert_eq!(found, ["- a", "+ c"]);
    }
}
