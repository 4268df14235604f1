//! Reads a file with `mode = "proxy"`.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use pleach_proxy::{
    daemon::{KnownPeer, LinkConfig, Probe, SaveEnergy, Transparency, cgroup},
    placer::{self, LinkSettings, PlacerConfig},
    rules::Rule,
    sched::{LinkId, Policy},
    sticky::Stickiness,
    stripe::sched::Striping,
};

use super::{
    Cost, network, peers,
    rules::{self, PROXY_KEYS},
    secret,
    source::{ConfigError, Note, Place},
    table::{Table, Value},
    tunnel::{self, RUN_DIRECTORY},
    view::{self, ViewConfig},
};
use crate::keys::{self, SecretKey};

/// Settings of a proxy.
#[derive(Clone, Debug)]
pub(crate) struct ProxyConfig {
    /// Address on which clients connect.
    pub(crate) listen: SocketAddr,
    /// How connections of programs that do not support proxies are handled.
    pub(crate) transparent: Transparency,
    /// Path of the control socket.
    pub(crate) control: PathBuf,
    /// Whether the user has given `control`.
    pub(crate) control_is_given: bool,
    /// File in which learnt estimates are stored; `None`: they are not stored.
    pub(crate) state: Option<PathBuf>,
    /// Networks whose clients are served; `None`: this host, and private networks on devices that are not links.
    pub(crate) allow: Option<Vec<IpNet>>,
    /// Maximum number of simultaneous clients; `None`: as many as the limit on descriptors allows.
    pub(crate) max_connections: Option<u16>,
    /// Time after which a connection without traffic is closed.
    pub(crate) idle: Duration,
    /// Servers from which the capacity of links is measured.
    pub(crate) probes: Vec<Probe>,
    /// When links that take less energy are filled first.
    pub(crate) save_energy: SaveEnergy,
    pub(crate) short_queues: bool,
    pub(crate) ranges: bool,
    /// Scheduler, rules, stickiness.
    pub(crate) placer: PlacerConfig,
    /// The links; empty: every interface with a default route.
    pub(crate) links: Vec<LinkConfig>,
    /// Striping of connections to other proxies; `None` if this proxy has no key.
    pub(crate) stripe: Option<StripeConfig>,
    /// Where dashboard and metrics of this proxy listen.
    pub(crate) view: ViewConfig,
    /// Whether the daemon gives up rights that it does not need.
    pub(crate) confine: bool,
}

/// How connections to other proxies are striped, and which proxies may use this one.
#[derive(Clone, Debug)]
pub(crate) struct StripeConfig {
    /// Private key of this end.
    pub(crate) private_key: SecretKey,
    /// Peers to trust.
    pub(crate) known: Vec<KnownPeer>,
    /// Policy that chooses the lane, that is the TCP connection over one link, of each chunk.
    pub(crate) striping: Striping,
    /// Port on which other proxies are asked whether they support striping; 0: no host is asked.
    pub(crate) ask_port: u16,
    /// Address on which this proxy answers other proxies; `None`: it answers no other proxies.
    pub(crate) listen: Option<SocketAddr>,
    /// Destinations that peers may reach through this proxy, besides this host's own addresses.
    pub(crate) allow: Vec<IpNet>,
    /// Directory of invitations, and of peers that became known by an invitation.
    pub(crate) store: Option<PathBuf>,
    /// Addresses of this end that are written into invitations.
    pub(crate) endpoints: Vec<SocketAddr>,
}

/// A proxy's configuration with notes and positions for messages about it.
#[derive(Clone, Debug)]
pub(crate) struct LoadedProxy {
    /// The configuration.
    pub(crate) config: ProxyConfig,
    /// Notes for the user.
    pub(crate) notes: Vec<Note>,
    /// Position of `listen`.
    pub(crate) listen_place: Place,
    /// Positions of the links' devices, in the order of the links.
    pub(crate) device_places: Vec<Place>,
}

/// Reads a file with `mode = "proxy"`.
///
/// # Errors
/// The first mistake in the file.
pub(super) fn proxy(root: &Table<'_>) -> Result<LoadedProxy, ConfigError> {
    root.allow(&[
        "mode",
        "proxy",
        "peer",
        "known_peer",
        "link",
        "rule",
        "dashboard",
        "metrics",
        "notices",
    ])?;
    let table = root.table(
        "proxy",
        &[
            "listen",
            "transparent",
            "transparent_udp",
            "cgroup",
            "scheduler",
            "striping",
            "peer_port",
            "state",
            "control",
            "confine",
            "allow",
            "max_connections",
            "idle",
            "sticky",
            "sticky_time",
            "save_energy",
            "short_queues",
            "ranges",
            "probe",
        ],
    )?;
    let mut notes = Vec::new();
    let listen_value = table.required("listen", "listen = \"127.0.0.1:1080\"")?;
    let listen = network::listen(&listen_value)?;
    let stripe = stripe(root, &table, &mut notes)?;
    let transparent = transparent(&table)?;
    let policy = table
        .optional("scheduler")
        .as_ref()
        .map_or(Ok(Policy::MaxThroughput), policy)?;
    let control = table.optional("control");
    let control_is_given = control.is_some();
    let control = match &control {
        Some(value) => tunnel::control(value)?,
        None => Path::new(RUN_DIRECTORY).join("proxy.sock"),
    };
    let state = table.optional("state").as_ref().map(state).transpose()?;
    let allow = table.optional("allow").as_ref().map(allow).transpose()?;
    let widest = allow.iter().flatten().find(|net| net.prefix_len() == 0);
    if let Some(net) = widest
        && !listen.ip().is_loopback()
    {
        notes.push(Note {
            place: table.place(),
            text: format!("allow = \"{net}\": every host that can reach {listen} may use the links of this host"),
            warning: true,
        });
    }
    let max_connections = table.optional("max_connections").map(|value| {
        value.integer(
            1..=50_000,
            "write the highest number of simultaneous clients, or remove it",
        )
    });
    let idle = table.optional("idle").as_ref().map(duration).transpose()?;
    let sticky_time = table
        .optional("sticky_time")
        .as_ref()
        .map(duration)
        .transpose()?;
    let stickiness = table
        .optional("sticky")
        .as_ref()
        .map_or(Ok(Stickiness::Tls), sticky)?;
    let (links, device_places) = links(root)?;
    let save_energy = table
        .optional("save_energy")
        .as_ref()
        .map_or(Ok(SaveEnergy::Never), save_energy)?;
    let switch = |key, is_default| {
        let Some(value) = table.optional(key) else {
            return Ok(is_default);
        };
        let remedy = if is_default {
            "write false, or remove it"
        } else {
            "write true, or remove it"
        };
        let given = value.as_bool();
        given.ok_or_else(|| value.expected("true or false", remedy))
    };
    let probes = table.optional("probe");
    let probes = probes.as_ref().map_or(Ok(Vec::new()), probes_of)?;
    let has_budget = links.iter().any(|link| link.settings.budget.is_some());
    if has_budget && state.is_none() {
        notes.push(Note {
            place: table.place(),
            text: "without a state file, the used part of each budget is lost when the proxy ends: add state = \"/var/lib/pleach/apps.db\"".to_owned(),
            warning: true,
        });
    }
    let has_energy = links.iter().any(|link| link.settings.energy > 0);
    if has_energy && save_energy == SaveEnergy::Never {
        notes.push(Note {
            place: table.place(),
            text: "`energy` of links has no effect: add save_energy = \"battery\" or true"
                .to_owned(),
            warning: true,
        });
    }
    let rules = own_rules(root, &links)?;
    if let Transparency::Cgroup(_) = transparent {
        unfit_rules(root, &rules, &mut notes)?;
    }
    Ok(LoadedProxy {
        config: ProxyConfig {
            listen,
            transparent,
            control,
            control_is_given,
            state,
            allow,
            max_connections: max_connections.transpose()?,
            idle: idle.unwrap_or(IDLE),
            probes,
            save_energy,
            short_queues: switch("short_queues", false)?,
            ranges: switch("ranges", true)?,
            placer: PlacerConfig {
                policy,
                stickiness,
                sticky_time: sticky_time.unwrap_or(STICKY_TIME),
                rules,
            },
            links,
            stripe,
            view: view::read(root)?,
            confine: tunnel::switch(&table, "confine", true)?,
        },
        notes,
        listen_place: listen_value.place(),
        device_places,
    })
}

/// Reads the settings of striping: `striping` and `peer_port`, `[peer]`, `[[known_peer]]`.
fn stripe(
    root: &Table<'_>,
    table: &Table<'_>,
    notes: &mut Vec<Note>,
) -> Result<Option<StripeConfig>, ConfigError> {
    let striping = match table.optional("striping") {
        Some(value) => striping(&value)?,
        None => Striping::Osia,
    };
    let asks = table.optional("peer_port");
    let remedy = "write the port on which peers listen, or 0 to contact no peers";
    let ask_port = asks
        .as_ref()
        .map_or(Ok(0), |value| value.integer(0..=u16::MAX, remedy))?;
    let known = known_peers(root)?;
    let peer = root
        .optional("peer")
        .map(|value| value.table("[peer]".to_owned(), PEER_KEYS))
        .transpose()?;
    let mut warn = |place: Place, text: &str| {
        notes.push(Note {
            place,
            text: text.to_owned(),
            warning: true,
        });
    };
    let Some(peer) = peer else {
        if let Some(value) = asks.filter(|_| ask_port > 0) {
            warn(
                value.place(),
                "without a key, no peer is contacted: add [peer] private_key_file, and [[known_peer]]",
            );
        }
        return Ok(None);
    };
    let listen_value = peer.optional("listen");
    let listen = listen_value.as_ref().map(network::listen).transpose()?;
    let allow = peer.optional("allow").as_ref().map(allow).transpose()?;
    let store = peer.optional("store").as_ref().map(store).transpose()?;
    let store = store.map(|path| root.source().directory().join(path));
    let endpoints = peer.optional("endpoints");
    let endpoints = endpoints.as_ref().map(peers::outer_addresses).transpose()?;
    if known.is_empty() && store.is_none() {
        warn(
            peer.place(),
            "without [[known_peer]], no peer is contacted or accepted: each connection uses one link",
        );
    }
    let key = secret::optional(&peer, "private_key", "private_key_file", notes)?;
    let Some(private_key) = key else {
        notes.push(Note {
            place: peer.place(),
            text: "without a key, no peer is contacted or accepted: add private_key_file = \"FILE\"; `pleach genkey` prints its content".to_owned(),
            warning: true,
        });
        return Ok(None);
    };
    let own = keys::public_of(&private_key);
    if known.iter().any(|known| known.public_key == own) {
        return Err(peer.wrong(
            "private_key",
            "a [[known_peer]] has the public key of this end itself",
            "write the public key of the other end there",
        ));
    }
    Ok(Some(StripeConfig {
        private_key,
        known,
        striping,
        ask_port,
        listen,
        allow: allow.unwrap_or_default(),
        store,
        endpoints: endpoints.unwrap_or_default(),
    }))
}

fn store(value: &Value<'_>) -> Result<PathBuf, ConfigError> {
    let path = value.text("a directory", "write a path as a string")?;
    if path.is_empty() || path.contains('\0') {
        return Err(value.expected("a directory", "write for example \"/var/lib/pleach/peer\""));
    }
    Ok(path.into())
}

fn striping(value: &Value<'_>) -> Result<Striping, ConfigError> {
    let names = Striping::ALL.map(Striping::name).join(", ");
    let found = value.as_text().and_then(Striping::named);
    found.ok_or_else(|| value.expected("a scheduler's name", &format!("write one of: {names}")))
}

fn known_peers(root: &Table<'_>) -> Result<Vec<KnownPeer>, ConfigError> {
    let mut known: Vec<KnownPeer> = Vec::new();
    for table in root.tables(
        "known_peer",
        &["name", "public_key", "endpoint", "networks"],
    )? {
        if known.len() == MAX_KNOWN {
            return Err(ConfigError::new(
                table.place(),
                "[[known_peer]]",
                format!("too many peers: at most {MAX_KNOWN} are allowed"),
                "remove peers",
            ));
        }
        let name_value = table.required("name", "name = \"server\"")?;
        let name = network::name(&name_value)?;
        let key_value = table.required(
            "public_key",
            "public_key = \"KEY\", the public key of the other end, as printed by `pleach pubkey`",
        )?;
        let public_key = secret::public(&key_value)?;
        if known.iter().any(|other| other.name == name) {
            return Err(name_value.wrong("used twice", "give every peer its own name"));
        }
        if known.iter().any(|other| other.public_key == public_key) {
            return Err(key_value.wrong("used twice", "write every peer once"));
        }
        let endpoint = table.optional("endpoint");
        let networks = table.optional("networks");
        let serves = match (&endpoint, &networks) {
            (Some(endpoint), Some(networks)) => {
                Some((network::endpoint(endpoint)?, allow(networks)?))
            }
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(table.wrong(
                    "endpoint",
                    "endpoint and networks are used only together",
                    "write both (the address on which the peer listens, and the networks to which it forwards connections), or neither",
                ));
            }
        };
        known.push(KnownPeer {
            name,
            public_key,
            serves,
        });
    }
    Ok(known)
}

fn links(root: &Table<'_>) -> Result<(Vec<LinkConfig>, Vec<Place>), ConfigError> {
    let own = ["source", "budget", "billing_day", "energy"];
    let keys: Vec<&str> = peers::LINK_KEYS.iter().copied().chain(own).collect();
    let tables = root.tables("link", &keys)?;
    let mut links = Vec::new();
    let mut places = Vec::new();
    for ((link, place), table) in peers::links_with(root, &keys)?.into_iter().zip(&tables) {
        let energy = table.optional("energy").map(|value| {
            value.integer(
                0..=1000,
                "write the energy per byte, relative to other links",
            )
        });
        let has_weight = table.optional("weight").is_some();
        links.push(LinkConfig {
            settings: LinkSettings {
                name: link.name,
                cost: match link.cost {
                    Cost::Rank(rank) => placer::Cost::Rank(rank),
                    Cost::Standby => placer::Cost::Standby,
                    Cost::Never => placer::Cost::Never,
                },
                weight: has_weight.then_some(link.weight),
                upload: link.upload,
                download: link.download,
                budget: link.budget,
                energy: energy.transpose()?.unwrap_or(0),
            },
            device: link.device,
            source: table
                .optional("source")
                .as_ref()
                .map_or(Ok(Vec::new()), source)?,
        });
        places.push(place);
    }
    Ok((links, places))
}

fn probes_of(value: &Value<'_>) -> Result<Vec<Probe>, ConfigError> {
    let remedy =
        "write for example [\"http://203.0.113.7/12MB\"], the URL of a large file, without TLS";
    let items = value.list(MAX_PROBES, remedy)?;
    let probe = |item: &Value<'_>| {
        let found = item.as_text().and_then(Probe::parse);
        found.ok_or_else(|| item.expected("http://HOST[:PORT]/PATH", remedy))
    };
    items.iter().map(probe).collect()
}

fn save_energy(value: &Value<'_>) -> Result<SaveEnergy, ConfigError> {
    match (value.as_bool(), value.as_text()) {
        (Some(true), _) => Ok(SaveEnergy::Always),
        (Some(false), _) => Ok(SaveEnergy::Never),
        (None, Some("battery")) => Ok(SaveEnergy::OnBattery),
        (None, _) => Err(value.expected(
            "true, false or \"battery\"",
            "write \"battery\" to prefer links that need less energy while the host runs on battery",
        )),
    }
}

fn own_rules(root: &Table<'_>, links: &[LinkConfig]) -> Result<Vec<Rule>, ConfigError> {
    let tables = rules::tables(root, PROXY_KEYS, MAX_RULES)?;
    tables.iter().map(|table| rule(table, links)).collect()
}

fn rule(table: &Table<'_>, links: &[LinkConfig]) -> Result<Rule, ConfigError> {
    let link = table.required("link", "link = \"wifi\", the name of a [[link]]")?;
    let names: Vec<&str> = links
        .iter()
        .map(|link| link.settings.name.as_str())
        .collect();
    let remedy = if names.is_empty() {
        "add [[link]] tables: a rule refers to the name of a link".to_owned()
    } else {
        format!("write the name of a [[link]]: {}", names.join(", "))
    };
    let name = link.text("the name of a [[link]]", &remedy)?;
    let Some(index) = names.iter().position(|known| *known == name) else {
        return Err(link.expected("the name of a [[link]]", &remedy));
    };
    Ok(Rule {
        link: LinkId(index),
        ..rules::proxy_rule(table)?
    })
}

fn source(value: &Value<'_>) -> Result<Vec<IpAddr>, ConfigError> {
    let remedy = "write for example [\"192.0.2.7\"], an address of the device";
    let mut found: Vec<IpAddr> = Vec::new();
    for item in value.list(2, remedy)? {
        let ip: IpAddr = item.parse("an address", remedy)?;
        if found.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
            return Err(item.wrong("two addresses of the same family", "remove one of the two"));
        }
        found.push(ip);
    }
    Ok(found)
}

fn allow(value: &Value<'_>) -> Result<Vec<IpNet>, ConfigError> {
    let remedy = "write for example [\"127.0.0.0/8\", \"192.168.1.0/24\"]";
    let items = value.list(MAX_ALLOWED, remedy)?;
    let net = |item: &Value<'_>| item.parse::<IpNet>("ADDRESS/PREFIX", remedy);
    items.iter().map(net).collect()
}

fn transparent(table: &Table<'_>) -> Result<Transparency, ConfigError> {
    let value = table.optional("transparent");
    let transparent = match &value {
        None => Transparency::Off,
        Some(value) if value.as_text() == Some("cgroup") => Transparency::Cgroup(None),
        Some(value) => match value.as_bool() {
            Some(true) => Transparency::Redirect { udp: false },
            Some(false) => Transparency::Off,
            None => {
                return Err(value.expected(
                    "true, false or \"cgroup\"",
                    "write true to redirect all TCP connections to the proxy, \"cgroup\" to bind the sockets of programs to links",
                ));
            }
        },
    };
    let transparent = match (transparent, table.optional("transparent_udp")) {
        (transparent, None) => transparent,
        (Transparency::Redirect { .. }, Some(value)) => Transparency::Redirect {
            udp: value.as_bool().ok_or_else(|| {
                value.expected(
                    "true or false",
                    "write true to redirect UDP as well, or remove it",
                )
            })?,
        },
        (Transparency::Off | Transparency::Cgroup(_), Some(value)) => {
            return Err(value.wrong(
                "it has no effect unless transparent = true",
                "write transparent = true, or remove it",
            ));
        }
    };
    let Some(cgroup) = table.optional("cgroup") else {
        return Ok(transparent);
    };
    if !matches!(transparent, Transparency::Cgroup(_)) {
        return Err(cgroup.wrong(
            "it has no effect unless transparent = \"cgroup\"",
            "write transparent = \"cgroup\", or remove it",
        ));
    }
    let remedy = "write the directory of a cgroup, for example \"/sys/fs/cgroup/user.slice\"";
    let path = absolute(&cgroup, remedy)?;
    Ok(Transparency::Cgroup(Some(path)))
}

/// Adds a note for each rule that has no effect on sockets that the kernel binds (cgroup mode).
fn unfit_rules(root: &Table<'_>, rules: &[Rule], notes: &mut Vec<Note>) -> Result<(), ConfigError> {
    for (table, rule) in root.tables("rule", PROXY_KEYS)?.iter().zip(rules) {
        if !cgroup::is_place(rule) {
            notes.push(Note {
                place: table.place(),
                text: "with transparent = \"cgroup\", sockets of programs follow only rules for addresses and networks: this rule applies only to clients that use the port".to_owned(),
                warning: true,
            });
        }
    }
    Ok(())
}

fn policy(value: &Value<'_>) -> Result<Policy, ConfigError> {
    let names = Policy::ALL.map(Policy::name).join(", ");
    let remedy = format!("write one of: {names}");
    let text = value.text("a scheduler's name", &remedy)?;
    Policy::named(text).ok_or_else(|| value.expected("a scheduler's name", &remedy))
}

fn sticky(value: &Value<'_>) -> Result<Stickiness, ConfigError> {
    match value.as_text() {
        Some("always") => Ok(Stickiness::Always),
        Some("off") => Ok(Stickiness::Off),
        Some("tls") => Ok(Stickiness::Tls),
        Some(_) | None => Err(value.expected(
            "\"tls\", \"always\" or \"off\"",
            "write which connections use the same link as earlier connections to the same site",
        )),
    }
}

pub(super) fn state(value: &Value<'_>) -> Result<PathBuf, ConfigError> {
    absolute(value, "write for example \"/var/lib/pleach/apps.db\"")
}

fn absolute(value: &Value<'_>, remedy: &str) -> Result<PathBuf, ConfigError> {
    let text = value.text("an absolute path", remedy)?;
    if !text.starts_with('/') || text.ends_with('/') || text.contains('\0') {
        return Err(value.expected("an absolute path", remedy));
    }
    Ok(PathBuf::from(text))
}

fn duration(value: &Value<'_>) -> Result<Duration, ConfigError> {
    let what = "a time such as \"10m\", from 1 s to 30 days";
    let remedy = "write number and unit as a string";
    let text = value.text(what, remedy)?;
    humantime::parse_duration(text)
        .ok()
        .filter(|time| (Duration::from_secs(1)..=Duration::from_secs(30 * 86_400)).contains(time))
        .ok_or_else(|| value.expected(what, remedy))
}

/// Default idle time: the minimum that RFC 5382 (REQ-5) requires of NATs for established connections, which firewalls
/// follow too.
const IDLE: Duration = Duration::from_secs(7440);
/// Time for which a client keeps its link for a site: longer than it takes to fill in a form.
const STICKY_TIME: Duration = Duration::from_secs(1800);
const MAX_RULES: usize = 1000;
const MAX_PROBES: usize = 16;
const MAX_ALLOWED: usize = 1000;
/// Maximum number of known peers. A greeting is compared with the key of each known peer, which takes about a
/// millisecond for all peers together.
const MAX_KNOWN: usize = 256;
const PEER_KEYS: &[&str] = &[
    "listen",
    "private_key",
    "private_key_file",
    "allow",
    "store",
    "endpoints",
];
