//! The tables `[[class]]`: traffic with its own deadline, links or copies.

use core::{ops::RangeInclusive, time::Duration};

use pleach_core::{
    class::{Class, Duplicate, MAX_CLASSES, Match, Service},
    units::Bitrate,
};

use super::{
    network, rules,
    source::ConfigError,
    table::{Table, Value},
};

/// Reads all `[[class]]` of `root`. `links`: names that are permitted in a class's key `links`; `None` if the names of
/// the links are unknown here.
///
/// # Errors
/// The first mistake in the tables.
pub(super) fn read(root: &Table<'_>, links: Option<&[&str]>) -> Result<Vec<Class>, ConfigError> {
    let tables = root.tables("class", KEYS)?;
    if let Some(table) = tables.get(MOST) {
        let what = format!("more than {MOST} classes");
        return Err(table.wrong("name", what, "remove some of them"));
    }
    let mut classes: Vec<Class> = Vec::new();
    for table in &tables {
        let class = class(table, links)?;
        if classes.iter().any(|known| known.name == class.name) {
            let what = format!("there are two classes called \"{}\"", class.name);
            return Err(table.wrong("name", what, "give one of them another name"));
        }
        classes.push(class);
    }
    Ok(classes)
}

fn class(table: &Table<'_>, links: Option<&[&str]>) -> Result<Class, ConfigError> {
    let name = network::name(&table.required("name", "name = \"voice\"")?)?;
    if !table.present().iter().any(|key| MATCH_KEYS.contains(key)) {
        let what = "the class has no condition that packets could match";
        let remedy = format!("add one or more of: {}", MATCH_KEYS.join(", "));
        return Err(table.wrong("name", what, &remedy));
    }
    let service = service(table, links)?;
    Ok(Class {
        name,
        matches: matches(table)?,
        service,
    })
}

fn matches(table: &Table<'_>) -> Result<Match, ConfigError> {
    let protocol = table.optional("protocol");
    let max_size = table.optional("max_size").map(|value| {
        value.integer(
            20..=u16::MAX,
            "write the longest packet in bytes, such as 300",
        )
    });
    let max_rate = table.optional("max_rate").map(|value| {
        let what = "a rate with a unit";
        value.parse::<Bitrate>(what, "write for example \"2Mbit\"")
    });
    Ok(Match {
        app: None,
        dscp: one_or_more(table, "dscp", dscp)?,
        protocol: protocol.as_ref().map(self::protocol).transpose()?,
        ports: one_or_more(table, "ports", ports)?,
        from: networks(table, "from")?,
        to: networks(table, "to")?,
        max_size: max_size.transpose()?.map(usize::from),
        max_rate: max_rate.transpose()?,
    })
}

fn service(table: &Table<'_>, links: Option<&[&str]>) -> Result<Service, ConfigError> {
    let deadline = table.optional("deadline").map(|value| deadline(&value));
    let deadline = deadline.transpose()?;
    let is_ordered = table.optional("ordered").map(|value| {
        let remedy = "write false if the order of the packets does not matter, or remove it";
        value
            .as_bool()
            .ok_or_else(|| value.expected("true or false", remedy))
    });
    let duplicate = table.optional("duplicate").map(|value| duplicate(&value));
    let duplicate = duplicate.transpose()?.unwrap_or_default();
    if duplicate != Duplicate::Never && deadline.is_none() {
        let what = "copies are sent only of packets with a deadline";
        return Err(table.wrong("duplicate", what, "add for example deadline = \"200ms\""));
    }
    let share = table.optional("share").map(|value| {
        value.integer(
            0..=100,
            "write the upper limit of copies, in percent of the bytes of the class",
        )
    });
    if let (Some(_), Duplicate::Never) = (&share, duplicate) {
        let what = "has no effect without copies";
        return Err(table.wrong("share", what, "add duplicate = \"auto\", or remove it"));
    }
    Ok(Service {
        deadline,
        is_ordered: is_ordered.transpose()?.unwrap_or(true),
        duplicate,
        share_percent: share.transpose()?.unwrap_or(100),
        links: one_or_more(table, "links", |value| link(value, links))?,
        is_strict: false,
        is_blocked: false,
    })
}

/// Applies `read` to each entry of a list, or to the value itself if it is no list. Returns an empty vector if the key
/// is missing.
pub(super) fn one_or_more<T>(
    table: &Table<'_>,
    key: &str,
    mut read: impl FnMut(&Value<'_>) -> Result<T, ConfigError>,
) -> Result<Vec<T>, ConfigError> {
    let Some(value) = table.optional(key) else {
        return Ok(Vec::new());
    };
    if !value.is_list() {
        return Ok(vec![read(&value)?]);
    }
    let items = value.list(MOST_ENTRIES, "give at least one value, or remove the key")?;
    items.iter().map(read).collect()
}

/// Reads a DSCP, by number or by its name in the RFCs.
fn dscp(value: &Value<'_>) -> Result<u8, ConfigError> {
    let named = value.as_text().and_then(|text| match text.as_bytes() {
        b"ef" => Some(46),
        b"va" => Some(44),
        [b'c', b's', class @ b'0'..=b'7'] => Some((class - b'0') * 8),
        [b'a', b'f', class @ b'1'..=b'4', drop @ b'1'..=b'3'] => {
            Some((class - b'0') * 8 + (drop - b'0') * 2)
        }
        _ => None,
    });
    let number = value
        .as_integer()
        .and_then(|number| u8::try_from(number).ok());
    let number = number.filter(|number| *number < 64);
    named.or(number).ok_or_else(|| {
        let what =
            "a code point: 0 to 63, \"ef\", \"va\", \"cs0\" to \"cs7\", or \"af11\" to \"af43\"";
        value.expected(what, "write for example \"ef\"")
    })
}

/// Reads the number of an IP protocol, or the name of TCP or UDP.
///
/// # Errors
/// If the value is neither.
pub(super) fn protocol(value: &Value<'_>) -> Result<u8, ConfigError> {
    let named = match value.as_text() {
        Some("tcp") => Some(TCP),
        Some("udp") => Some(UDP),
        _ => None,
    };
    let number = value
        .as_integer()
        .and_then(|number| u8::try_from(number).ok());
    let what = "\"tcp\", \"udp\" or the number of an IP protocol";
    named
        .or(number)
        .ok_or_else(|| value.expected(what, "write for example \"udp\""))
}

fn ports(value: &Value<'_>) -> Result<RangeInclusive<u16>, ConfigError> {
    let one = value
        .as_integer()
        .and_then(|number| u16::try_from(number).ok());
    let range = value.as_text().and_then(|text| {
        let (first, last) = text.split_once('-')?;
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    });
    let range = one.map(|port| port..=port).or(range);
    range
        .filter(|range| *range.start() > 0 && !range.is_empty())
        .ok_or_else(|| {
            let what = "a port, or a range of ports with the lower port first";
            value.expected(what, "write for example 5060, or \"16384-32767\"")
        })
}

fn networks(table: &Table<'_>, key: &str) -> Result<Vec<ipnet::IpNet>, ConfigError> {
    let networks = table
        .optional(key)
        .map(|value| network::allowed_ips(&value));
    Ok(networks.transpose()?.unwrap_or_default())
}

fn deadline(value: &Value<'_>) -> Result<Duration, ConfigError> {
    let what = "a duration from \"10ms\" to \"10s\"";
    let remedy = "write for example \"200ms\"";
    humantime::parse_duration(value.text(what, remedy)?)
        .ok()
        .filter(|time| (Duration::from_millis(10)..=Duration::from_secs(10)).contains(time))
        .ok_or_else(|| value.expected(what, remedy))
}

fn duplicate(value: &Value<'_>) -> Result<Duplicate, ConfigError> {
    match value.as_text() {
        Some("never") => Ok(Duplicate::Never),
        Some("auto") => Ok(Duplicate::Auto),
        Some("always") => Ok(Duplicate::Always),
        _ => Err(value.expected(
            "\"never\", \"auto\" or \"always\"",
            "write \"auto\" to send copies where they help, or remove it",
        )),
    }
}

/// Reads the name of a link. `links`: names that are permitted; `None` if the names of the links are unknown here.
///
/// # Errors
/// If no link can have the name, or if it is not permitted.
pub(super) fn link(value: &Value<'_>, links: Option<&[&str]>) -> Result<String, ConfigError> {
    let name = network::name(value)?;
    if let Some(links) = links
        && !links.contains(&name.as_str())
    {
        let remedy = format!("write the name of a [[link]]: {}", links.join(", "));
        return Err(value.wrong(format!("no link is called \"{name}\""), &remedy));
    }
    Ok(name)
}

/// Keys that say which packets belong to a class; a packet must match each key that is given.
const MATCH_KEYS: &[&str] = &[
    "dscp", "protocol", "ports", "from", "to", "max_size", "max_rate",
];
const KEYS: &[&str] = &[
    "name",
    "dscp",
    "protocol",
    "ports",
    "from",
    "to",
    "max_size",
    "max_rate",
    "deadline",
    "ordered",
    "duplicate",
    "share",
    "links",
];
/// Maximum number of classes. The other places are reserved for rules, and one for voice that no class describes.
const MOST: usize = MAX_CLASSES - rules::MAX_RULES - 1;
const MOST_ENTRIES: usize = 64;
/// Protocol number of TCP.
pub(super) const TCP: u8 = 6;
/// Protocol number of UDP.
pub(super) const UDP: u8 = 17;
