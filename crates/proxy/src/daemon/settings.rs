//! What the user says about a proxy, checked.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use pleach_core::session::handshake::StaticKeys;

use super::known::{Enrolment, Known};
use crate::placer::{LinkSettings, PlacerConfig};
use crate::stripe::sched::Striping;
use crate::target::{Host, Target};

/// A proxy's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where clients come to.
    pub listen: SocketAddr,
    /// Which clients are served; `None`: this host, and private networks, but for what is on a link's side.
    pub allow: Option<Vec<IpNet>>,
    /// Most clients at a time; the next is closed at once.
    pub max_connections: usize,
    /// A connection that moved nothing for this long is closed.
    pub idle: Duration,
    /// Scheduler, rules, stickiness.
    pub placer: PlacerConfig,
    /// The links; empty: every interface with a default route.
    pub links: Vec<LinkConfig>,
    /// Striping of connections to other pleaches; `None`: this one has no key.
    pub stripe: Option<StripeSettings>,
    /// What is done with connections of programs that know no proxy.
    pub transparent: Transparency,
    /// Servers to ask what links carry, in turn; empty: none is asked.
    pub probes: Vec<Probe>,
    /// When links that take less energy are filled first.
    pub save_energy: SaveEnergy,
    /// Whether servers may send no more at a time than keeps links full.
    pub short_queues: bool,
    /// Whether answers to plain HTTP requests may come over several links, by ranges of their bytes.
    pub ranges: bool,
    /// For the record of what was changed in the host, normally [`pleach_linux::state::DEFAULT_STATE_DIR`].
    pub state_dir: PathBuf,
}

/// How connections to other pleaches are striped, and who may ask this one.
#[derive(Clone, Debug)]
pub struct StripeSettings {
    /// This end's keys.
    pub keys: Arc<StaticKeys>,
    /// Whom to trust.
    pub known: Known,
    /// How invited peers become known; `None`: no invitation is accepted.
    pub enrolment: Option<Enrolment>,
    /// Which lane a chunk takes, of what this end sends.
    pub striping: Striping,
    /// Where others answer; 0: nobody is asked.
    pub ask_port: u16,
    /// Where this one answers; `None`: it does not.
    pub listen: Option<SocketAddr>,
    /// Where others may go beside this host's own addresses.
    pub allow: Vec<IpNet>,
    /// Most striped connections at a time.
    pub max: usize,
}

/// Another pleach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPeer {
    /// Its name.
    pub name: String,
    /// Its public key.
    pub public_key: [u8; 32],
    /// Where it answers for hosts other than its own, and which; both or none.
    pub serves: Option<(SocketAddr, Vec<IpNet>)>,
}

/// How programs that know no proxy are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Transparency {
    /// Not at all.
    #[default]
    Off,
    /// Connections of this host, and those it forwards, are redirected to the proxy.
    Redirect,
    /// Sockets of this host's programs in a cgroup are bound to links by the kernel; `None`: the root, all programs.
    Cgroup(Option<PathBuf>),
}

/// A server that has something to download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Where it is.
    pub server: Target,
    /// What to ask for, from the `/` on.
    pub path: String,
}

impl Probe {
    /// Reads `http://HOST[:PORT][/PATH]`; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("http://")?;
        let (place, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_bare_v6 = place.ends_with(']');
        let (host, port) = match place.rsplit_once(':').filter(|_| !is_bare_v6) {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (place, 80),
        };
        let is_path = path.len() <= MAX_PATH && path.bytes().all(|byte| byte.is_ascii_graphic());
        is_path.then_some(())?;
        Some(Self {
            server: Target::new(Host::parse(host)?, port)?,
            path: if path.is_empty() { "/" } else { path }.to_owned(),
        })
    }
}

/// When links that take less energy are filled first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveEnergy {
    /// All the time.
    Always,
    /// Energy does not matter.
    #[default]
    Never,
    /// While the host runs on its battery.
    OnBattery,
}

/// A link and its device.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// What the placer knows of it.
    pub settings: LinkSettings,
    /// Network device; may be absent.
    pub device: String,
    /// Source addresses, at most one of a family; none: the kernel's choice.
    pub source: Vec<IpAddr>,
}

/// Networks that are private, this host's own among them.
pub(super) fn private_networks() -> Vec<IpNet> {
    let texts = [
        "127.0.0.0/8",
        "::1/128",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "fc00::/7",
        "fe80::/10",
    ];
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

const MAX_PATH: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_probes_are_read_and_others_refused() {
        let read = |text: &str| {
            let probe = Probe::parse(text)?;
            Some((probe.server.to_string(), probe.path))
        };
        let found = |server: &str, path: &str| Some((server.to_owned(), path.to_owned()));
        assert_eq!(read("http://a.example"), found("a.example:80", "/"));
        assert_eq!(
            read("http://a.example:8080/1M?x=1"),
            found("a.example:8080", "/1M?x=1")
        );
        assert_eq!(
            read("http://[2001:db8::1]/x"),
            found("[2001:db8::1]:80", "/x")
        );
        assert_eq!(
            read("http://[2001:db8::1]:81"),
            found("[2001:db8::1]:81", "/")
        );
        for text in [
            "https://a.example/",
            "a.example",
            "http://",
            "http://a.example:0/",
            "http://a.example:70000/",
            "http://a.example/a b",
            "http://a.example/\r\nX: y",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
