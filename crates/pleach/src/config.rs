//! Configuration files: text to checked types.
//!
//! [`load`] reads a file, walks it with positions ([`table`]), and stops at the first mistake with one line that names
//! file, line, key, what is wrong and what to do ([`source::ConfigError`]). Keys are checked against the list of known
//! ones before anything else of their table, so that a typing mistake is reported as such. What depends on the host
//! (devices, ports) is not looked at here but in [`crate::check`].

mod budget;
mod carrier;
mod classes;
mod equalizer;
mod network;
mod peers;
mod proxy;
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
};

use ipnet::IpNet;
use pleach_carrier::{choice::Mode, http_proxy::HttpProxy};
use pleach_core::{class::Class, units::Bitrate};
use pleach_proxy::budget::Budget;
use toml::{Spanned, de::DeTable};

pub(crate) use budget::AtLimit;
pub(crate) use carrier::{ClientCarrier, GatewayCarrier, TrustConfig};
pub(crate) use equalizer::{EqualizerConfig, LoadedEqualizer};
pub(crate) use network::is_name;
pub(crate) use proxy::{LoadedProxy, ProxyConfig, StripeConfig};
pub(crate) use scheduler::SchedulerConfig;
pub(crate) use source::{ConfigError, Note, Place, plain};
pub(crate) use tunnel::RUN_DIRECTORY;
#[cfg(feature = "dashboard")]
pub(crate) use view::Listen;
#[cfg(all(test, feature = "dashboard"))]
pub(crate) use view::Token;
pub(crate) use view::ViewConfig;

use crate::{
    keys::{KEY_LEN, SecretKey},
    split_tcp::SplitTcp,
};
use source::Source;
use table::Table;

/// One end of a tunnel, client or gateway.
#[derive(Clone, Debug)]
pub(crate) struct TunnelConfig {
    /// Name of the TUN device, valid as such.
    pub(crate) name: String,
    /// Inner addresses of this end with their networks; at least one.
    pub(crate) addresses: Vec<IpNet>,
    /// This end's X25519 private key.
    pub(crate) private_key: SecretKey,
    /// Control socket; absolute, short enough for a socket address.
    pub(crate) control: PathBuf,
    /// Inner MTU in bytes, 1280..=9000; `None`: a client takes what its links' devices allow, a gateway 1414.
    pub(crate) mtu: Option<u16>,
    /// Whether the headers of inner packets are compressed on the way out.
    pub(crate) compression: bool,
    /// By which code parity of what this end sends is made, for damaged datagrams to be mended by; then it sends
    /// no UDP checksums to an end that knows parity.
    pub(crate) parity: Option<pleach_core::sec::Code>,
    /// Whether what links carry is kept for the next start.
    pub(crate) remember: bool,
    /// When a client ends TCP connections itself; whether a gateway serves such clients: unless `off`.
    pub(crate) split_tcp: SplitTcp,
    /// What rules the packets this end sends.
    pub(crate) scheduler: SchedulerConfig,
    /// Traffic that is served in its own way.
    pub(crate) classes: Vec<Class>,
    /// Where this end shows itself.
    pub(crate) view: ViewConfig,
    /// Which end.
    pub(crate) role: Role,
}

/// What the two ends do not share.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// The end with the links.
    Client(ClientConfig),
    /// The end that serves clients.
    Gateway(GatewayConfig),
}

/// The client's part.
#[derive(Clone, Debug)]
pub(crate) struct ClientConfig {
    /// The other end.
    pub(crate) gateway: GatewayPeer,
    /// The links to use, at most [`pleach_core::ids::PathId::MAX`], with distinct names and devices. Empty: every
    /// interface with a route to the gateway, hot-plugged ones too.
    pub(crate) links: Vec<LinkConfig>,
    /// What is routed into the tunnel goes no other way while the daemon is dead.
    pub(crate) kill_switch: bool,
    /// How datagrams travel where UDP does not get through.
    pub(crate) carrier: ClientCarrier,
    /// Resolvers of the host while the tunnel runs, at most three; none: those it has.
    pub(crate) dns: Vec<IpAddr>,
    /// Where it is kept what links have carried of their budgets; `None`: the usual place.
    pub(crate) state: Option<PathBuf>,
}

/// A name that stands for addresses of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostName {
    /// As a resolver is asked for it.
    pub(crate) name: String,
    /// Where the gateway listens there.
    pub(crate) port: u16,
}

/// The gateway as its client knows it.
#[derive(Clone, Debug)]
pub(crate) struct GatewayPeer {
    /// X25519 public key.
    pub(crate) public_key: [u8; KEY_LEN],
    /// Mixed into the handshake if both ends have it.
    pub(crate) preshared_key: Option<SecretKey>,
    /// Outer addresses, distinct.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Names of outer addresses, with ports; at least one if there is no address.
    pub(crate) names: Vec<HostName>,
    /// Destinations routed into the tunnel; at least one.
    pub(crate) allowed_ips: Vec<IpNet>,
}

/// One uplink of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkConfig {
    /// Name towards the user and the gateway.
    pub(crate) name: String,
    /// Network device; may be absent at start.
    pub(crate) device: String,
    /// When it is used.
    pub(crate) cost: Cost,
    /// Share under proportional policies, 1..=1000.
    pub(crate) weight: u16,
    /// Never send faster; `None`: as fast as it goes.
    pub(crate) upload: Option<Bitrate>,
    /// Never let the gateway send faster.
    pub(crate) download: Option<Bitrate>,
    /// Whether TCP carries it; `None`: as `[carrier]` says.
    pub(crate) carrier: Option<Mode>,
    /// The proxy on its way.
    pub(crate) http_proxy: Option<HttpProxy>,
    /// What it may carry in a month.
    pub(crate) budget: Option<Budget>,
    /// What becomes of it when it has carried that; of tunnels only.
    pub(crate) at_limit: AtLimit,
}

/// When a link may carry packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// Always; lower ranks are filled first.
    Rank(u8),
    /// Only while no ranked link is up.
    Standby,
    /// Never; the link is only watched.
    Never,
}

/// The gateway's part.
#[derive(Clone, Debug)]
pub(crate) struct GatewayConfig {
    /// Outer address to listen on; the port is not zero.
    pub(crate) listen: SocketAddr,
    /// Where it listens for links that TCP carries, if it does.
    pub(crate) carrier: Option<GatewayCarrier>,
    /// What is masqueraded.
    pub(crate) nat: Nat,
    /// Clients do not reach each other.
    pub(crate) isolate: bool,
    /// Whether clients may measure their links, through the tunnel.
    pub(crate) speedtest: bool,
    /// Clients with distinct names and keys, and disjoint [`ClientPeer::allowed_ips`].
    pub(crate) clients: Vec<ClientPeer>,
    /// Whether and how other clients are enrolled.
    pub(crate) invitations: Option<InvitationsConfig>,
}

/// The gateway's `[invitations]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvitationsConfig {
    /// Directory of invitations and of clients that used one.
    pub(crate) store: PathBuf,
    /// Outer addresses of this gateway that tokens name; at least one, distinct.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Resolvers that invited clients use while their tunnel runs.
    pub(crate) dns: Vec<IpAddr>,
}

/// What a gateway masquerades of its clients' packets to the outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nat {
    /// `nat = false`: nothing.
    Off,
    /// `nat = true`: IPv4; IPv6 is routed.
    Ipv4,
    /// `nat = "nat66"`: IPv4 and IPv6.
    Ipv4AndIpv6,
}

/// A client as the gateway knows it.
#[derive(Clone, Debug)]
pub(crate) struct ClientPeer {
    /// Name towards the user.
    pub(crate) name: String,
    /// X25519 public key.
    pub(crate) public_key: [u8; KEY_LEN],
    /// Mixed into the handshake if both ends have it.
    pub(crate) preshared_key: Option<SecretKey>,
    /// Inner source addresses it may use, routed to it; at least one.
    pub(crate) allowed_ips: Vec<IpNet>,
    /// Replaces the gateway's scheduler towards this client.
    pub(crate) scheduler: Option<SchedulerConfig>,
}

/// A configuration with what is needed to talk about it.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// The configuration.
    pub(crate) config: TunnelConfig,
    /// What to tell the user.
    pub(crate) notes: Vec<Note>,
    /// Gateway: where `listen` stands.
    pub(crate) listen_place: Option<Place>,
    /// Client: where the device of each link stands, in the order of the links.
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
/// The first mistake in the file; it is another mode's.
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
/// The first mistake in the file; it is another mode's.
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
/// The first mistake in the file; it is another mode's.
pub(crate) fn load_equalizer(path: &Path) -> Result<LoadedEqualizer, ConfigError> {
    read(path, |root, loaded| match loaded {
        AnyLoaded::Equalizer(loaded) => Ok(*loaded),
        other @ (AnyLoaded::Proxy(_) | AnyLoaded::Tunnel(_)) => {
            Err(for_other_command(root, &other))
        }
    })
}

/// Reads and checks the configuration file `path` of whatever mode.
///
/// # Errors
/// The first mistake in the file.
pub(crate) fn load_any(path: &Path) -> Result<AnyLoaded, ConfigError> {
    read(path, |_, loaded| Ok(loaded))
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

/// The error that a file is for another command.
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

/// Reads the section `[scheduler]` from `text`, which has no other.
///
/// # Errors
/// The first mistake in it.
#[cfg(feature = "sim")]
pub(crate) fn read_scheduler(text: String) -> Result<SchedulerConfig, ConfigError> {
    let source = Source::new(Path::new("[scheduler]"), text);
    let document = parse(&source)?;
    scheduler::read(&Table::root(&source, document.get_ref()))
}

/// Reads the tables `[[class]]` from `text`, which has nothing else.
///
/// # Errors
/// The first mistake in them.
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
        ConfigError::new(
            place,
            "",
            format!("TOML syntax: {message}"),
            "correct the line",
        )
    })
}
