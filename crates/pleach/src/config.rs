//! Configuration files: from text to checked types.
//!
//! [`load`] reads a file, checks it with the position of each value ([`table`]), and stops at the first mistake. Its
//! message is one line that names file, line, key, mistake and remedy ([`source::ConfigError`]). The keys of a table
//! are compared with the list of known keys before anything else, so that a typing mistake is reported as such. Devices
//! and ports, which depend on the host, are checked in [`crate::check`].

mod budget;
mod carrier;
mod classes;
mod clients;
mod equalizer;
mod fleet;
mod gateways;
mod network;
#[cfg(feature = "dashboard")]
mod notices;
mod peers;
mod proxy;
pub(crate) mod rules;
mod scheduler;
mod secret;
mod source;
mod table;
#[cfg(test)]
mod tests;
mod tunnel;
#[cfg_attr(not(feature = "dashboard"), path = "config/no_view.rs")]
mod view;

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use pleach_carrier::{choice::Mode, http_proxy::HttpProxy};
use pleach_core::{class::Class, endpoint::accounts::Caps, units::Bitrate};
use pleach_linux::routes::Selector;
use pleach_proxy::budget::Budget;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

pub(crate) use budget::AtLimit;
pub(crate) use carrier::{ClientCarrier, GatewayCarrier, TrustConfig};
pub(crate) use clients::{HttpConfig, PostgresConfig, StorePlace};
pub(crate) use equalizer::{EqualizerConfig, LoadedEqualizer};
pub(crate) use network::is_name;
#[cfg(feature = "dashboard")]
pub(crate) use notices::NoticesConfig;
pub(crate) use proxy::{LoadedProxy, ProxyConfig, StripeConfig};
pub(crate) use scheduler::SchedulerConfig;
#[cfg(test)]
pub(crate) use secret::Password;
pub(crate) use source::{ConfigError, Note, Place, plain};
pub(crate) use tunnel::RUN_DIRECTORY;
#[cfg(feature = "dashboard")]
pub(crate) use view::Listen;
#[cfg(all(test, feature = "dashboard"))]
pub(crate) use view::Token;
pub(crate) use view::ViewConfig;

use crate::{
    keys::{KEY_LEN, SecretKey},
    portal::CheckUrl,
    split_tcp::SplitTcp,
};
use source::Source;
use table::Table;

/// One end of a tunnel, client or gateway.
#[derive(Clone, Debug)]
pub(crate) struct TunnelConfig {
    /// Name of the TUN device; a valid device name.
    pub(crate) name: String,
    /// Inner addresses of this end with their networks; at least one.
    pub(crate) addresses: Vec<IpNet>,
    /// This end's X25519 private key.
    pub(crate) private_key: SecretKey,
    /// Path of the control socket; absolute, and short enough for a socket address.
    pub(crate) control: PathBuf,
    /// Inner MTU in bytes, 1280..=9000. `None`: a client uses the MTU that its links' devices allow, a gateway 1414.
    pub(crate) mtu: Option<u16>,
    /// Whether the headers of inner packets are compressed when this end sends them.
    pub(crate) compression: bool,
    /// Code of the parity bits with which the peer can correct damaged datagrams of this end. If set, this end sends no
    /// UDP checksums to a peer that supports parity.
    pub(crate) parity: Option<pleach_core::sec::Code>,
    /// Whether the measured state of links is stored for the next start.
    pub(crate) remember: bool,
    /// At a client: when it terminates TCP connections itself. At a gateway: it serves such clients unless this is
    /// `off`.
    pub(crate) split_tcp: SplitTcp,
    /// Scheduler of the packets that this end sends.
    pub(crate) scheduler: SchedulerConfig,
    /// Traffic classes, each with its own deadline, links or copies.
    pub(crate) classes: Vec<Class>,
    /// Where dashboard and metrics of this end listen.
    pub(crate) view: ViewConfig,
    /// Whether the daemon gives up rights that it does not need.
    pub(crate) confine: bool,
    /// Client or gateway, with its own settings.
    pub(crate) role: Role,
}

impl TunnelConfig {
    /// Returns the rules of a client. A gateway has none.
    pub(crate) fn rules(&self) -> &[Class] {
        match &self.role {
            Role::Client(client) => &client.rules,
            Role::Gateway(_) => &[],
        }
    }
}

/// The settings that only a client or only a gateway has.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// The end with the links.
    Client(ClientConfig),
    /// The end that serves clients.
    Gateway(GatewayConfig),
}

/// Settings of a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientConfig {
    /// The gateways, sorted by priority; at least one. One of them is the other end at a time.
    pub(crate) gateways: Vec<GatewayPeer>,
    /// Duration for which another gateway must have been better before it replaces a gateway that works. `None`: it
    /// never replaces it.
    pub(crate) gateway_return: Option<Duration>,
    /// The links to use, at most [`pleach_core::ids::PathId::MAX`], with distinct names and devices. Empty: every
    /// interface with a route to the gateway, hot-plugged ones too.
    pub(crate) links: Vec<LinkConfig>,
    /// Rules, in the order of their precedence, at most [`rules::MAX_RULES`]: classes that precede those of [`TunnelConfig`].
    pub(crate) rules: Vec<Class>,
    /// Packets that lead past the tunnel.
    pub(crate) past: Vec<Selector>,
    /// Whether traffic that is routed into the tunnel is blocked while the daemon is not running.
    pub(crate) kill_switch: bool,
    /// How datagrams travel where UDP is blocked.
    pub(crate) carrier: ClientCarrier,
    /// Resolvers of the host while the tunnel runs, at most three. Empty: the host keeps its own.
    pub(crate) dns: Vec<IpAddr>,
    /// Page that is requested over links on which no gateway answers, to find captive portals; `None`: none.
    pub(crate) portal_check: Option<CheckUrl>,
    /// File in which the bytes that links have used of their budgets are stored; `None`: the default file.
    pub(crate) state: Option<PathBuf>,
}

/// A name that resolves to addresses of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostName {
    /// Host name that a resolver is asked for.
    pub(crate) name: String,
    /// Port on which the gateway listens at those addresses.
    pub(crate) port: u16,
}

/// A gateway, as configured at its client.
#[derive(Clone, Debug)]
pub(crate) struct GatewayPeer {
    /// Name of the gateway, shown to the user; `gateway` if the client has only one.
    pub(crate) name: String,
    /// Rank of the gateway: of the gateways that answer, those with the lowest number are used.
    pub(crate) priority: u8,
    /// X25519 public key.
    pub(crate) public_key: [u8; KEY_LEN],
    /// Key that is mixed into the handshake; both ends must have it.
    pub(crate) preshared_key: Option<SecretKey>,
    /// Outer addresses, all different.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Names of outer addresses, with ports; at least one if `endpoints` is empty.
    pub(crate) names: Vec<HostName>,
    /// Destinations routed into the tunnel; at least one.
    pub(crate) allowed_ips: Vec<IpNet>,
}

/// One uplink of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkConfig {
    /// Name of the link, shown to the user and to the gateway.
    pub(crate) name: String,
    /// Network device; it may be absent at start.
    pub(crate) device: String,
    /// When the link is used.
    pub(crate) cost: Cost,
    /// Weight of the link under proportional policies, 1..=1000.
    pub(crate) weight: u16,
    /// Maximum sending rate; `None`: no limit.
    pub(crate) upload: Option<Bitrate>,
    /// Maximum rate at which the gateway may send; `None`: no limit.
    pub(crate) download: Option<Bitrate>,
    /// Whether TCP carries the link; `None`: the mode of `[carrier]`.
    pub(crate) carrier: Option<Mode>,
    /// HTTP proxy between this link and the gateway.
    pub(crate) http_proxy: Option<HttpProxy>,
    /// Number of bytes that the link may carry in a month.
    pub(crate) budget: Option<Budget>,
    /// How the link is used once its budget is spent; tunnels only.
    pub(crate) at_limit: AtLimit,
}

/// When a link may carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// Always; links with lower ranks are filled first.
    Rank(u8),
    /// Only while no ranked link is up.
    Standby,
    /// Never; only the state of the link is watched.
    Never,
}

/// Settings of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct GatewayConfig {
    /// Outer address to listen on; its port is not zero.
    pub(crate) listen: SocketAddr,
    /// Settings for links that TCP carries; `None`: the gateway does not serve such links.
    pub(crate) carrier: Option<GatewayCarrier>,
    /// Which packets are masqueraded.
    pub(crate) nat: Nat,
    /// Whether the gateway drops packets from one client to another client.
    pub(crate) isolate: bool,
    /// Whether clients may measure their links through the tunnel.
    pub(crate) speedtest: bool,
    /// Number of data threads, 1 to [`pleach_core::endpoint::workers::MAX_WORKERS`]. `None`: as many as suit the number of
    /// clients and processor cores.
    pub(crate) workers: Option<usize>,
    /// Clients with distinct names and keys, and disjoint [`ClientPeer::allowed_ips`].
    pub(crate) clients: Vec<ClientPeer>,
    /// Store that is asked about further clients; `None`: there are none, except by invitation.
    pub(crate) store: Option<StoreConfig>,
    /// How further clients are enrolled by invitation; `None`: no further clients are enrolled.
    pub(crate) invitations: Option<InvitationsConfig>,
    /// Place of this gateway among those that share a store; `None`: it sets no routes to single clients.
    pub(crate) fleet: Option<FleetConfig>,
}

/// The gateway's `[fleet]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FleetConfig {
    /// Name of this gateway in the store; unique in the fleet.
    pub(crate) name: String,
    /// Inner networks that lead to this gateway as a whole, each inside a network of the store.
    pub(crate) home: Vec<IpNet>,
}

/// The gateway's `[clients]` with a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreConfig {
    /// Where the store is.
    pub(crate) place: StorePlace,
    /// Networks that are routed into the tunnel. Clients with other addresses are refused.
    pub(crate) networks: Vec<IpNet>,
    /// Time after which the gateway asks again about a client that it knows.
    pub(crate) answer_life: Duration,
    /// Time without any datagram after which the gateway forgets a client.
    pub(crate) idle: Duration,
    /// Interval at which byte counters are written to the store.
    pub(crate) write_every: Duration,
}

/// The gateway's `[invitations]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvitationsConfig {
    /// Directory of invitations and of the clients that have used one; `None` if they are in the store of `[clients]`.
    pub(crate) store: Option<PathBuf>,
    /// Outer addresses of this gateway that tokens name; at least one, distinct.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Resolvers that invited clients use while their tunnel runs.
    pub(crate) dns: Vec<IpAddr>,
}

/// Which packets that clients send to the outside are masqueraded by a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nat {
    /// `nat = false`: no packets.
    Off,
    /// `nat = true`: IPv4; IPv6 is routed.
    Ipv4,
    /// `nat = "nat66"`: IPv4 and IPv6.
    Ipv4AndIpv6,
}

/// A client, as configured at its gateway.
#[derive(Clone, Debug)]
pub(crate) struct ClientPeer {
    /// Name of the client, shown to the user.
    pub(crate) name: String,
    /// X25519 public key.
    pub(crate) public_key: [u8; KEY_LEN],
    /// Key that is mixed into the handshake; both ends must have it.
    pub(crate) preshared_key: Option<SecretKey>,
    /// Inner source addresses that the client may use, and that are routed to it; at least one.
    pub(crate) allowed_ips: Vec<IpNet>,
    /// Scheduler towards this client, instead of the gateway's.
    pub(crate) scheduler: Option<SchedulerConfig>,
    /// Rate caps of the client.
    pub(crate) caps: Caps,
}

/// A configuration with notes and positions for messages about it.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// The configuration.
    pub(crate) config: TunnelConfig,
    /// Notes for the user.
    pub(crate) notes: Vec<Note>,
    /// Position of `listen`; gateway only.
    pub(crate) listen_place: Option<Place>,
    /// Position of each link's device, in the order of the links; client only.
    pub(crate) device_places: Vec<Place>,
}

/// A configuration of any mode.
#[derive(Clone, Debug)]
pub(crate) enum AnyLoaded {
    /// `mode = "equalize"`.
    Equalizer(Box<LoadedEqualizer>),
    /// `mode = "proxy"`.
    Proxy(Box<LoadedProxy>),
    /// `mode = "client"` or `"gateway"`.
    Tunnel(Box<Loaded>),
}

/// Reads and checks the configuration file `path` of a tunnel.
///
/// # Errors
/// The first mistake in the file, or that the file has another mode.
pub(crate) fn load(path: &Path) -> Result<Loaded, ConfigError> {
    read(path, |root, loaded| match loaded {
        AnyLoaded::Tunnel(loaded) => Ok(*loaded),
        other @ (AnyLoaded::Equalizer(_) | AnyLoaded::Proxy(_)) => {
            Err(for_other_command(root, &other))
        }
    })
}

/// Reads and checks the configuration file `path` of a proxy.
///
/// # Errors
/// The first mistake in the file, or that the file has another mode.
pub(crate) fn load_proxy(path: &Path) -> Result<LoadedProxy, ConfigError> {
    read(path, |root, loaded| match loaded {
        AnyLoaded::Proxy(loaded) => Ok(*loaded),
        other @ (AnyLoaded::Equalizer(_) | AnyLoaded::Tunnel(_)) => {
            Err(for_other_command(root, &other))
        }
    })
}

/// Reads and checks the configuration file `path` of an equalizer.
///
/// # Errors
/// The first mistake in the file, or that the file has another mode.
pub(crate) fn load_equalizer(path: &Path) -> Result<LoadedEqualizer, ConfigError> {
    read(path, |root, loaded| match loaded {
        AnyLoaded::Equalizer(loaded) => Ok(*loaded),
        other @ (AnyLoaded::Proxy(_) | AnyLoaded::Tunnel(_)) => {
            Err(for_other_command(root, &other))
        }
    })
}

/// Reads and checks the configuration file `path` of any mode.
///
/// # Errors
/// The first mistake in the file.
pub(crate) fn load_any(path: &Path) -> Result<AnyLoaded, ConfigError> {
    read(path, |_, loaded| Ok(loaded))
}

/// Returns the files that the configuration file `path` names under keys that end in `_file`, wherever they are in it.
///
/// # Errors
/// If the file cannot be read or is not TOML.
pub(crate) fn named_files(path: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    fn collect(table: &DeTable<'_>, found: &mut Vec<PathBuf>) {
        for (key, value) in table {
            if let Some(name) = value.get_ref().as_str()
                && key.get_ref().ends_with("_file")
            {
                found.push(PathBuf::from(name));
            }
            descend(value.get_ref(), found);
        }
    }
    fn descend(value: &DeValue<'_>, found: &mut Vec<PathBuf>) {
        if let Some(table) = value.as_table() {
            collect(table, found);
        }
        for value in value.as_array().into_iter().flatten() {
            descend(value.get_ref(), found);
        }
    }
    let source = Source::read(path)?;
    let mut names = Vec::new();
    collect(parse(&source)?.get_ref(), &mut names);
    Ok(names
        .iter()
        .map(|name| source.directory().join(name))
        .collect())
}

fn read<T>(
    path: &Path,
    finish: impl FnOnce(&Table<'_>, AnyLoaded) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let source = Source::read(path)?;
    let document = parse(&source)?;
    let root = Table::root(&source, document.get_ref());
    let loaded = load_document(&root)?;
    finish(&root, loaded)
}

fn load_document(root: &Table<'_>) -> Result<AnyLoaded, ConfigError> {
    let mode = root.required(
        "mode",
        "mode = \"client\", \"gateway\", \"proxy\" or \"equalize\"",
    )?;
    let remedy = "write mode = \"client\" (has the links), \"gateway\" (serves clients), \"proxy\" (needs no gateway) or \"equalize\" (spreads packets)";
    let what = "\"client\", \"gateway\", \"proxy\" or \"equalize\"";
    Ok(match mode.text(what, remedy)? {
        "client" => AnyLoaded::Tunnel(Box::new(tunnel::client(root)?)),
        "gateway" => AnyLoaded::Tunnel(Box::new(tunnel::gateway(root)?)),
        "equalize" => AnyLoaded::Equalizer(Box::new(equalizer::equalizer(root)?)),
        "proxy" => AnyLoaded::Proxy(Box::new(proxy::proxy(root)?)),
        _ => return Err(mode.expected(what, remedy)),
    })
}

/// Returns the error that the file is for another command.
fn for_other_command(root: &Table<'_>, loaded: &AnyLoaded) -> ConfigError {
    let (what, command) = match loaded {
        AnyLoaded::Equalizer(_) => ("an equalizer", "equalize"),
        AnyLoaded::Proxy(_) => ("a proxy", "proxy"),
        AnyLoaded::Tunnel(_) => ("a tunnel", "up"),
    };
    root.wrong(
        "mode",
        format!("this file describes {what}"),
        &format!("start it with `pleach {command} FILE`"),
    )
}

/// Reads the section `[scheduler]` from `text`, which has no other section.
///
/// # Errors
/// The first mistake in the section.
#[cfg(feature = "sim")]
pub(crate) fn read_scheduler(text: String) -> Result<SchedulerConfig, ConfigError> {
    let source = Source::new(Path::new("[scheduler]"), text);
    let document = parse(&source)?;
    scheduler::read(&Table::root(&source, document.get_ref()))
}

/// Reads the tables `[[class]]` from `text`, which contains nothing else.
///
/// # Errors
/// The first mistake in the tables.
#[cfg(feature = "sim")]
pub(crate) fn read_classes(text: String) -> Result<Vec<Class>, ConfigError> {
    let source = Source::new(Path::new("[[class]]"), text);
    let document = parse(&source)?;
    classes::read(&Table::root(&source, document.get_ref()), None)
}

fn parse(source: &Source) -> Result<Spanned<DeTable<'_>>, ConfigError> {
    DeTable::parse(source.text()).map_err(|error| {
        let place = error
            .span()
            .map_or_else(|| source.whole(), |span| source.place(span.start));
        let message = error.message().replace(char::is_control, " ");
        let lines = source.text().lines().map(str::trim_start);
        let has = |header| lines.clone().any(|line| line.starts_with(header));
        let remedy = if has("[gateway]") && has("[[gateway]]") {
            "write one table [gateway], or a table [[gateway]] for each of several gateways, but not both"
        } else {
            "correct the line"
        };
        ConfigError::new(place, "", format!("TOML syntax: {message}"), remedy)
    })
}
