//! Reads a complete equalizer file.

use core::time::Duration;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use pleach_core::units::Bitrate;
use pleach_equalizer::{
    MAX_LINKS, auto::AutoSettings, daemon::LinkConfig, weights::Source as Weights,
};
use pleach_linux::equalize::{Backend, MAX_DESTINATIONS, Mode};

use super::{
    ConfigError, Note, Place, network,
    peers::Unique,
    table::{Table, Value},
    tunnel::{self, RUN_DIRECTORY},
    view::{self, ViewConfig},
};

/// An equalizer.
#[derive(Clone, Debug)]
pub(crate) struct EqualizerConfig {
    /// Destinations whose packets are spread; at least one network.
    pub(crate) destinations: Vec<IpNet>,
    /// Which mechanism chooses links; `None`: the best one available on this host.
    pub(crate) backend: Option<Backend>,
    /// How packets are spread.
    pub(crate) mode: Mode,
    /// Host that is pinged to measure the delay of each link; `None`: hosts with which this host has connections.
    pub(crate) probe: Option<IpAddr>,
    /// Automatic or fixed weights.
    pub(crate) weights: Weights,
    /// Interval between two readings of the counters.
    pub(crate) interval: Duration,
    /// Whether the paper's guideline reduces automatic weights of links with high loss or delay.
    pub(crate) guideline: bool,
    /// Control socket.
    pub(crate) control: PathBuf,
    /// Where dashboard and metrics of this equalizer listen.
    pub(crate) view: ViewConfig,
    /// Whether the daemon gives up rights that it does not need.
    pub(crate) confine: bool,
    /// 1 to [`MAX_LINKS`] links with distinct names and devices.
    pub(crate) links: Vec<LinkConfig>,
}

/// An equalizer's configuration with notes and positions for messages about it.
#[derive(Clone, Debug)]
pub(crate) struct LoadedEqualizer {
    /// The configuration.
    pub(crate) config: EqualizerConfig,
    /// Notes for the user.
    pub(crate) notes: Vec<Note>,
    /// Positions of the links' devices, in the order of the links.
    pub(crate) device_places: Vec<Place>,
}

/// Reads a file with `mode = "equalize"`.
///
/// # Errors
/// The first mistake in the file.
pub(super) fn equalizer(root: &Table<'_>) -> Result<LoadedEqualizer, ConfigError> {
    root.allow(&[
        "mode",
        "equalizer",
        "link",
        "dashboard",
        "metrics",
        "notices",
    ])?;
    let table = root.table(
        "equalizer",
        &[
            "destinations",
            "backend",
            "weights",
            "interval",
            "control",
            "confine",
            "spread",
            "probe",
            "interleave",
            "guideline",
        ],
    )?;
    let destinations_value = table.required("destinations", "destinations = [\"10.20.0.0/16\"]")?;
    let destinations = destinations(&destinations_value)?;
    let backend_value = table.optional("backend");
    let backend = backend_value.as_ref().map_or(Ok(None), backend)?;
    let weights = table
        .optional("weights")
        .as_ref()
        .map_or(Ok(Weights::Auto), weights)?;
    let interval = table.optional("interval").as_ref().map(interval);
    let spread_value = table.optional("spread");
    let spread = spread_value.as_ref().map_or(Ok(Spread::Packet), spread)?;
    if spread != Spread::Packet && backend == Some(Backend::Nft) {
        let text = if spread == Spread::Delay {
            "nftables cannot delay packets"
        } else {
            "nftables cannot keep the packets of a flow on one link"
        };
        let remedy = "write spread = \"packet\", or backend = \"bpf\"";
        return Err(table.wrong("spread", text, remedy));
    }
    let probe_value = table.optional("probe");
    let probe = probe_value
        .as_ref()
        .map(|value| probe(value, spread, &destinations))
        .transpose()?;
    let interleave = flag(&table, "interleave", false)?;
    let control = match table.optional("control") {
        Some(value) => tunnel::control(&value)?,
        None => Path::new(RUN_DIRECTORY).join("equalizer.sock"),
    };
    let mut notes = Vec::new();
    let (links, device_places) = links(root, weights, &mut notes)?;
    let has = |is_v6: bool| {
        links.iter().any(|link| {
            if is_v6 {
                link.v6.is_some()
            } else {
                link.v4.is_some()
            }
        })
    };
    for net in &destinations {
        if !has(net.addr().is_ipv6()) {
            notes.push(Note {
                place: destinations_value.place(),
                text: format!(
                    "packets to {net} are not spread: no link has a next_hop of this address family"
                ),
                warning: true,
            });
        }
    }
    Ok(LoadedEqualizer {
        config: EqualizerConfig {
            view: view::read(root)?,
            confine: flag(&table, "confine", true)?,
            destinations,
            backend,
            mode: Mode {
                by_packets: interleave,
                gap: match spread {
                    Spread::Packet | Spread::Delay => None,
                    Spread::Pause(gap) => Some(gap),
                },
                interleave,
                hold: spread == Spread::Delay,
            },
            probe,
            weights,
            interval: interval
                .transpose()?
                .unwrap_or(AutoSettings::default().interval),
            guideline: flag(&table, "guideline", true)?,
            control,
            links,
        },
        notes,
        device_places,
    })
}

fn links(
    root: &Table<'_>,
    weights: Weights,
    notes: &mut Vec<Note>,
) -> Result<(Vec<LinkConfig>, Vec<Place>), ConfigError> {
    let tables = root.tables("link", &["name", "device", "next_hop", "rate", "weight"])?;
    if tables.is_empty() {
        let example = "[[link]] with name, device and next_hop";
        root.required("link", example)?;
    }
    if let Some(table) = tables.get(MAX_LINKS) {
        return Err(ConfigError::new(
            table.place(),
            "[[link]]",
            format!("too many links: at most {MAX_LINKS} are allowed"),
            "remove links",
        ));
    }
    let (mut names, mut devices) = (Unique::default(), Unique::default());
    let mut links = Vec::new();
    let mut places = Vec::new();
    for table in &tables {
        let name_value = table.required("name", "name = \"l0\"")?;
        let name = network::name(&name_value)?;
        names.insert(&name, &name_value, "give every link its own name")?;
        let device_value = table.required("device", "device = \"eth0\"")?;
        let device = network::device(&device_value)?;
        devices.insert(&device, &device_value, "write every device once")?;
        let (v4, v6) = next_hop(&table.required("next_hop", "next_hop = \"10.10.0.2\"")?)?;
        let weight_value = table.optional("weight");
        if let (Some(value), Weights::Auto) = (&weight_value, weights) {
            notes.push(Note {
                place: value.place(),
                text: "a weight has no effect with weights = \"auto\"".to_owned(),
                warning: false,
            });
        }
        let weight = weight_value
            .map(|value| value.integer(1..=1000, "write the share of the link, such as 3"))
            .transpose()?;
        links.push(LinkConfig {
            name,
            device,
            v4,
            v6,
            rate: table.optional("rate").as_ref().map(rate).transpose()?,
            weight: weight.unwrap_or(1).into(),
        });
        places.push(device_value.place());
    }
    Ok((links, places))
}

fn destinations(value: &Value<'_>) -> Result<Vec<IpNet>, ConfigError> {
    let nets = network::allowed_ips(value)?;
    if nets.len() > MAX_DESTINATIONS {
        return Err(value.wrong(
            format!(
                "expected at most {MAX_DESTINATIONS} networks, found {}",
                nets.len()
            ),
            "combine networks into larger ones",
        ));
    }
    for (index, net) in nets.iter().enumerate() {
        if nets[..index].contains(net) {
            return Err(value.wrong(format!("{net} is given twice"), "remove one of the two"));
        }
    }
    Ok(nets)
}

/// Reads one address, or one of each address family.
fn next_hop(value: &Value<'_>) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>), ConfigError> {
    let what = "the address of the next router or host on the link";
    let remedy =
        "write next_hop = \"10.10.0.2\", or [\"10.10.0.2\", \"fd10::2\"] for both families";
    let items = if value.as_text().is_some() {
        vec![value.parse::<IpAddr>(what, remedy)?]
    } else {
        let items = value.list(2, remedy)?;
        let parsed: Result<Vec<IpAddr>, _> =
            items.iter().map(|item| item.parse(what, remedy)).collect();
        parsed?
    };
    let (mut v4, mut v6) = (None, None);
    for ip in items {
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
            return Err(value.expected(what, remedy));
        }
        let taken = match ip {
            IpAddr::V4(ip) => v4.replace(ip).is_some(),
            IpAddr::V6(ip) => v6.replace(ip).is_some(),
        };
        if taken {
            return Err(value.wrong("two addresses of the same family", "remove one of the two"));
        }
    }
    Ok((v4, v6))
}

fn backend(value: &Value<'_>) -> Result<Option<Backend>, ConfigError> {
    match value.as_text() {
        Some("auto") => Ok(None),
        Some("bpf") => Ok(Some(Backend::Bpf)),
        Some("clsact") => Ok(Some(Backend::Clsact)),
        Some("nft") => Ok(Some(Backend::Nft)),
        Some(_) | None => Err(value.expected(
            "\"auto\", \"bpf\", \"clsact\" or \"nft\"",
            "write \"auto\" for the best method that works on this host",
        )),
    }
}

fn weights(value: &Value<'_>) -> Result<Weights, ConfigError> {
    match value.as_text() {
        Some("auto") => Ok(Weights::Auto),
        Some("fixed") => Ok(Weights::Fixed),
        Some(_) | None => Err(value.expected(
            "\"auto\" or \"fixed\"",
            "write \"auto\" to follow the free capacity of the links, \"fixed\" for the weight of each [[link]]",
        )),
    }
}

/// The values of the key `spread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    /// Each packet is assigned to a link by itself.
    Packet,
    /// Each packet is assigned to a link by itself, and packets on links with a shorter delay are delayed to match the
    /// slower ones.
    Delay,
    /// A flow may change its link after a pause of this duration.
    Pause(Duration),
}

fn spread(value: &Value<'_>) -> Result<Spread, ConfigError> {
    let what = "\"packet\", \"delay\", \"flow\", or a pause such as \"20ms\"";
    let remedy = "write \"packet\" to choose a link for each packet, \"delay\" to delay packets on quick links as well, \"flow\" to keep each flow on one link, or the length of a pause after which a flow may change its link";
    match value.text(what, remedy)? {
        "packet" => Ok(Spread::Packet),
        "delay" => Ok(Spread::Delay),
        "flow" => Ok(Spread::Pause(pleach_equalizer::flowlet::FLOW_MEMORY)),
        text => {
            let pause = humantime::parse_duration(text).ok();
            let pause = pause.filter(|pause| (MIN_PAUSE..=MAX_PAUSE).contains(pause));
            pause
                .map(Spread::Pause)
                .ok_or_else(|| value.expected(what, remedy))
        }
    }
}

/// Reads the host that is pinged to measure the delay of each link. It must be within `destinations`.
fn probe(value: &Value<'_>, spread: Spread, destinations: &[IpNet]) -> Result<IpAddr, ConfigError> {
    let what = "the address of a host within `destinations` that answers pings";
    let remedy = "write for example probe = \"10.20.0.1\", or remove it to ping hosts to which this host has connections";
    let ip: IpAddr = value.parse(what, remedy)?;
    if !destinations.iter().any(|net| net.contains(&ip)) {
        return Err(value.expected(what, remedy));
    }
    if spread != Spread::Delay {
        return Err(value.wrong(
            "it has no effect unless spread = \"delay\"",
            "remove it, or write spread = \"delay\"",
        ));
    }
    Ok(ip)
}

fn interval(value: &Value<'_>) -> Result<Duration, ConfigError> {
    let what = "a time from \"10ms\" to \"60s\"";
    let remedy = "write for example \"50ms\"";
    let time = humantime::parse_duration(value.text(what, remedy)?).ok();
    time.filter(|time| (MIN_INTERVAL..=MAX_INTERVAL).contains(time))
        .ok_or_else(|| value.expected(what, remedy))
}

fn rate(value: &Value<'_>) -> Result<Bitrate, ConfigError> {
    let what = "a rate above zero such as \"10Mbit\" (bit, kbit, Mbit, Gbit)";
    let remedy = "write number and unit as a string, or remove it to use the rate that ethtool reports or that is measured";
    let rate: Bitrate = value.parse(what, remedy)?;
    if rate == Bitrate::ZERO {
        return Err(value.expected(what, remedy));
    }
    Ok(rate)
}

fn flag(table: &Table<'_>, key: &str, default: bool) -> Result<bool, ConfigError> {
    table.optional(key).map_or(Ok(default), |value| {
        value
            .as_bool()
            .ok_or_else(|| value.expected("true or false", "write true or false, or remove it"))
    })
}

const MIN_INTERVAL: Duration = Duration::from_millis(10);
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Shortest permitted pause: pauses shorter than this occur within a burst.
const MIN_PAUSE: Duration = Duration::from_micros(100);
const MAX_PAUSE: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::{
        super::{AnyLoaded, load_document, parse, source::Source},
        *,
    };

    const FILE: &str = include_str!("../../../../packaging/equalizer.toml");

    fn load(text: &str) -> Result<LoadedEqualizer, ConfigError> {
        let source = Source::new(Path::new("f.toml"), text.to_owned());
        let document = parse(&source)?;
        match load_document(&Table::root(&source, document.get_ref()))? {
            AnyLoaded::Equalizer(loaded) => Ok(*loaded),
            AnyLoaded::Proxy(_) | AnyLoaded::Tunnel(_) => panic!("another mode's file"),
        }
    }

    #[test]
    fn the_packaged_file_is_understood() {
        let loaded = load(FILE).expect("good file");
        let config = loaded.config;
        assert_eq!((config.backend, config.weights), (None, Weights::Auto));
        assert_eq!(config.interval, Duration::from_millis(50));
        assert_eq!(config.links.len(), 2);
        assert_eq!(config.links[0].rate, Some(Bitrate::from_mbps(10)));
        assert_eq!((config.links[0].weight, config.links[1].weight), (3, 1));
        // The note says that a weight has no effect while weights are automatic.
        assert_eq!(loaded.notes.len(), 1);
    }

    #[test]
    fn mistakes_name_line_key_and_remedy() {
        for (from, to, told) in [
            (
                "backend = \"auto\"",
                "backend = \"ebpf\"",
                "[equalizer] backend: expected \"auto\", \"bpf\", \"clsact\" or \"nft\"",
            ),
            (
                "backend = \"auto\"",
                "backand = \"auto\"",
                "[equalizer] backand: unknown key; remedy: the nearest known key is `backend`",
            ),
            (
                "weights = \"auto\"",
                "weights = 3",
                "[equalizer] weights: expected \"auto\" or \"fixed\", found 3",
            ),
            (
                "spread = \"packet\"",
                "spread = \"packets\"",
                "[equalizer] spread: expected \"packet\", \"delay\", \"flow\", or a pause",
            ),
            (
                "spread = \"packet\"",
                "spread = \"1us\"",
                "[equalizer] spread: expected \"packet\", \"delay\", \"flow\", or a pause",
            ),
            (
                "#probe = \"10.20.0.1\"",
                "probe = \"10.20.0.1\"",
                "[equalizer] probe: it has no effect unless spread = \"delay\"",
            ),
            (
                "#probe = \"10.20.0.1\"",
                "probe = \"10.21.0.1\"",
                "[equalizer] probe: expected the address of a host within `destinations`",
            ),
            (
                "#interval = \"50ms\"",
                "interval = \"1ms\"",
                "[equalizer] interval: expected a time from \"10ms\" to \"60s\"",
            ),
            (
                "10.20.0.0/16",
                "10.20.0.1/16",
                "[equalizer] destinations: 10.20.0.1/16 has host bits set",
            ),
            (
                "[\"10.20.0.0/16\"]",
                "[]",
                "[equalizer] destinations: expected at least one entry",
            ),
            (
                "next_hop = \"10.11.0.2\"",
                "next_hop = \"10.11.0.0/24\"",
                "[[link]] next_hop: expected the address",
            ),
            (
                "next_hop = \"10.11.0.2\"",
                "next_hop = [\"10.11.0.2\", \"10.11.0.3\"]",
                "[[link]] next_hop: two addresses of the same family",
            ),
            (
                "next_hop = \"10.11.0.2\"",
                "",
                "[[link]] next_hop: missing required key",
            ),
            (
                "device = \"eth1\"",
                "device = \"eth0\"",
                "[[link]] device: \"eth0\" is already used on line",
            ),
            (
                "weight = 3",
                "weight = 0",
                "[[link]] weight: expected a whole number from 1 to 1000",
            ),
            (
                "\"10Mbit\"  ",
                "\"0Mbit\"  ",
                "[[link]] rate: expected a rate above zero",
            ),
        ] {
            assert!(FILE.contains(from), "{from}");
            let error = load(&FILE.replacen(from, to, 1)).expect_err(to).to_string();
            assert!(error.contains(told), "{to}: {error}");
            assert!(
                error.starts_with("f.toml:") && error.contains("; remedy: "),
                "{error}"
            );
        }
        let (head, _) = FILE.split_once("[[link]]\n").expect("links");
        let error = load(head).expect_err("no links").to_string();
        assert!(
            error.contains("link: missing required key; remedy: add [[link]]"),
            "{error}"
        );
    }

    #[test]
    fn what_the_back_end_cannot_do_is_refused_and_what_has_no_effect_is_said() {
        let text = FILE.replace("backend = \"auto\"", "backend = \"nft\"");
        assert!(load(&text).is_ok());
        let text = text.replace("spread = \"packet\"", "spread = \"flow\"");
        let error = load(&text).expect_err("nft keeps no flows").to_string();
        assert!(
            error.contains(
                "[equalizer] spread: nftables cannot keep the packets of a flow on one link"
            ),
            "{error}"
        );
        let text = FILE.replace("spread = \"packet\"", "spread = \"delay\"");
        let waiting = text.replace("#probe", "probe");
        let config = load(&waiting).expect("good file").config;
        assert!(config.mode.hold && config.probe == Some([10, 20, 0, 1].into()));
        let error = load(&text.replace("backend = \"auto\"", "backend = \"nft\""));
        let error = error.expect_err("nft holds nothing").to_string();
        assert!(
            error.contains("[equalizer] spread: nftables cannot delay packets"),
            "{error}"
        );
        let text = FILE.replace("[\"10.20.0.0/16\"]", "[\"fd20::/16\"]");
        let notes = load(&text).expect("allowed").notes;
        assert!(
            notes
                .iter()
                .any(|note| note.warning && note.text.contains("fd20::/16 are not spread"))
        );
    }
}
