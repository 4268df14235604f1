//! The user's settings of a proxy, after validation.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use pleach_core::session::handshake::StaticKeys;
use pleach_linux::owner::Finder;

use super::known::{Enrolment, Known};
use crate::placer::{LinkSettings, PlacerConfig};
use crate::stripe::sched::Striping;
use crate::target::{Host, Target};

/// A proxy's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address on which the proxy listens for clients.
    pub listen: SocketAddr,
    /// Networks whose clients are served. `None`: this host and private networks, except the networks on the links.
    pub allow: Option<Vec<IpNet>>,
    /// Maximum number of concurrent clients. Further clients are disconnected at once.
    pub max_connections: usize,
    /// Time without data after which a connection is closed.
    pub idle: Duration,
    /// Scheduler, rules and stickiness.
    pub placer: PlacerConfig,
    /// The links. If empty, every interface with a default route is a link.
    pub links: Vec<LinkConfig>,
    /// Striping of connections to other hosts that run pleach. `None` if this host has no key.
    pub stripe: Option<StripeSettings>,
    /// How connections of programs that do not know the proxy are served.
    pub transparent: Transparency,
    /// Servers for capacity probes, used in rotation. If empty, links are not probed.
    pub probes: Vec<Probe>,
    /// When links that need less energy are preferred.
    pub save_energy: SaveEnergy,
    /// Whether receive windows are limited so that links are full but their queues are short.
    pub short_queues: bool,
    /// Whether answers to plain HTTP requests may be fetched over several links, by byte ranges.
    pub ranges: bool,
    /// Directory for the record of changes to the host, normally [`pleach_linux::state::DEFAULT_STATE_DIR`].
    pub state_dir: PathBuf,
    /// Process that identifies the programs of clients. `None`: this process does.
    pub finder: Option<Arc<Finder>>,
}

/// How connections to other hosts that run pleach are striped, and which peers may connect to this host.
#[derive(Clone, Debug)]
pub struct StripeSettings {
    /// Keys of this end.
    pub keys: Arc<StaticKeys>,
    /// Peers that this end trusts.
    pub known: Known,
    /// How invited peers become known. `None`: invitations are not accepted.
    pub enrolment: Option<Enrolment>,
    /// Policy that assigns outgoing chunks to lanes.
    pub striping: Striping,
    /// Port at which other hosts are asked whether they are peers; 0: no host is asked.
    pub ask_port: u16,
    /// Address on which this host listens for peers. `None`: it does not listen.
    pub listen: Option<SocketAddr>,
    /// Destinations that peers may reach through this host, in addition to its own addresses.
    pub allow: Vec<IpNet>,
    /// Maximum number of concurrent striped connections.
    pub max: usize,
}

/// How programs that do not know the proxy are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Transparency {
    /// Such programs are not served.
    #[default]
    Off,
    /// Connections of this host, and connections that it forwards, are redirected to the proxy.
    Redirect {
        /// Whether UDP datagrams are redirected as well.
        udp: bool,
    },
    /// The kernel binds sockets of programs in this cgroup to links. `None`: the root cgroup, which contains all
    /// programs.
    Cgroup(Option<PathBuf>),
}

/// A server with a file to download for capacity probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Name or address, and port of the server.
    pub server: Target,
    /// Path of the file, beginning with `/`.
    pub path: String,
}

impl Probe {
    /// Reads `http://HOST[:PORT][/PATH]`. `None` for any other text.
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

/// When links that need less energy are preferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveEnergy {
    /// Always.
    Always,
    /// Never: energy does not matter.
    #[default]
    Never,
    /// While the host runs on battery.
    OnBattery,
}

/// A link and its device.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Properties that the placer uses.
    pub settings: LinkSettings,
    /// Name of the network device, which may be absent.
    pub device: String,
    /// Source addresses, at most one per address family. If empty, the kernel chooses.
    pub source: Vec<IpAddr>,
}

/// Returns the private networks, including the loopback networks.
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
