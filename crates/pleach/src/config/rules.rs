//! The tables `[[rule]]` of a proxy and of a tunnel's client, and the same keys as `pleach set` passes them.
//!
//! Both modes have the same conditions. At a client, a rule is a traffic class that precedes the classes of the user.
//! Names of rules contain a space, so that no class of the user can have them.

use core::ops::RangeInclusive;
use std::{collections::BTreeMap, path::Path};

use pleach_core::class::{Class, Match, Service};
use pleach_linux::routes::Selector;
use pleach_proxy::rules::{Destination, Rule};

use super::{
    Cost, LinkConfig, classes, parse,
    source::{ConfigError, Source},
    table::{Table, Value},
};

/// The links that rules may name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Links<'a> {
    /// Their names; `None` if the names of the links are unknown here.
    pub(crate) names: Option<&'a [&'a str]>,
    /// The links that carry packets only while no other link works.
    pub(crate) standby: &'a [&'a str],
}

/// Reads all `[[rule]]` of a client: the rules for packets in the tunnel, and the packets that lead past it. `is_closed`:
/// whether there is a kill switch.
///
/// # Errors
/// The first mistake in the tables.
pub(super) fn of_client(
    root: &Table<'_>,
    links: Links<'_>,
    is_closed: bool,
) -> Result<(Vec<Class>, Vec<Selector>), ConfigError> {
    let tables = tables(root, CLIENT_KEYS, MAX_RULES)?;
    let (mut rules, mut past) = (Vec::new(), Vec::new());
    for (table, number) in tables.iter().zip(1_u32..) {
        let action = table.optional("action");
        if let Some(action) = action.filter(|action| action.as_text() == Some(DIRECT)) {
            if is_closed {
                let what = "a kill switch lets no packets past the tunnel";
                let remedy = "remove the rule, or [tunnel] kill_switch";
                return Err(action.wrong(what, remedy));
            }
            past.push(selector(table)?);
            continue;
        }
        rules.push(Class {
            name: format!("rule {number}"),
            matches: matches(table)?,
            service: service(table, links)?,
        });
    }
    Ok((rules, past))
}

/// Reads the conditions of a rule with `action = "direct"`.
fn selector(table: &Table<'_>) -> Result<Selector, ConfigError> {
    let mut others = ["app", "link", "strict"].into_iter();
    if let Some(key) = others.find(|key| table.optional(key).is_some()) {
        let what = "not used with action = \"direct\", for which the host's routes decide";
        return Err(table.wrong(key, what, "remove it"));
    }
    let matches = matches(table)?;
    if matches == Match::default() {
        let what = "the rule has no condition, so nothing would use the tunnel";
        return Err(table.wrong("action", what, "add destination, port or protocol"));
    }
    Ok(Selector {
        destination: matches.to.first().copied(),
        protocol: matches.protocol,
        ports: matches
            .ports
            .first()
            .map(|ports| (*ports.start(), *ports.end())),
    })
}

/// Returns the names of the links that carry packets only while no other link works.
pub(crate) fn standby<'a>(
    links: impl IntoIterator<Item = &'a LinkConfig>,
) -> impl Iterator<Item = &'a str> {
    let links = links.into_iter();
    links
        .filter(|link| link.cost == Cost::Standby)
        .map(|link| link.name.as_str())
}

/// Returns the tables `[[rule]]` of `root`, with `keys`.
///
/// # Errors
/// If a table has other keys, or if there are more than `max` tables.
pub(super) fn tables<'a>(
    root: &Table<'a>,
    keys: &[&str],
    max: usize,
) -> Result<Vec<Table<'a>>, ConfigError> {
    let tables = root.tables("rule", keys)?;
    match tables.get(max) {
        None => Ok(tables),
        Some(table) => Err(ConfigError::new(
            table.place(),
            "[[rule]]",
            format!("too many rules: at most {max} are allowed"),
            "remove rules",
        )),
    }
}

/// Reads a rule of a proxy. Its link is not set.
///
/// # Errors
/// The first mistake in the table.
pub(super) fn proxy_rule(table: &Table<'_>) -> Result<Rule, ConfigError> {
    Ok(Rule {
        app: table.optional("app").as_ref().map(app).transpose()?,
        ports: table.optional("port").as_ref().map(ports).transpose()?,
        destination: table
            .optional("destination")
            .as_ref()
            .map(destination)
            .transpose()?,
        strict: strict(table)?,
        ..Rule::default()
    })
}

/// Reads a rule of a proxy from the keys in `set`. Its link is not set.
///
/// # Errors
/// The first mistake, in one line for the user.
pub(crate) fn proxy_rule_of(set: &BTreeMap<String, String>) -> Result<Rule, String> {
    let keys = [PROXY_KEYS, &["scheduler"]].concat();
    read(set, |table| {
        table.allow(&keys)?;
        proxy_rule(table)
    })
}

/// Reads from the keys in `set` a change of the rules of a client with the links `links`: the conditions of a rule, and
/// what happens to packets that meet them. `None`: the rule with these conditions is removed.
///
/// # Errors
/// The first mistake, in one line for the user.
pub(crate) fn client_rule_of(
    set: &BTreeMap<String, String>,
    links: Links<'_>,
) -> Result<(Match, Option<Service>), String> {
    read(set, |table| {
        table.allow(CLIENT_KEYS)?;
        let matches = matches(table)?;
        if matches == Match::default() {
            return Err(ConfigError::new(
                table.place(),
                "rule",
                "it has no condition",
                "add app=NAME, protocol=P, port=N or destination=D",
            ));
        }
        let link = table.optional("link");
        let is_removed = link.is_some_and(|link| link.as_text() == Some(AUTOMATIC));
        let service = (!is_removed).then(|| service(table, links));
        Ok((matches, service.transpose()?))
    })
}

/// Returns the conditions of a client's rule as `pleach set` takes them, separated by spaces.
pub(crate) fn conditions(matches: &Match) -> String {
    let app = matches.app.as_ref().map(|app| format!("app={app}"));
    let protocol = matches.protocol.map(|protocol| match protocol {
        classes::TCP => "protocol=tcp".to_owned(),
        classes::UDP => "protocol=udp".to_owned(),
        other => format!("protocol={other}"),
    });
    let ports = matches.ports.iter().map(|ports| {
        if ports.start() == ports.end() {
            format!("port={}", ports.start())
        } else {
            format!("port={}-{}", ports.start(), ports.end())
        }
    });
    let to = matches.to.iter().map(|net| format!("destination={net}"));
    let parts = app.into_iter().chain(protocol).chain(ports).chain(to);
    parts.collect::<Vec<_>>().join(" ")
}

/// Reads `set` like a table of a file.
fn read<T>(
    set: &BTreeMap<String, String>,
    read: impl FnOnce(&Table<'_>) -> Result<T, ConfigError>,
) -> Result<T, String> {
    let value = |key: &str, text: &String| match (text.parse::<bool>(), text.parse::<i64>()) {
        (Ok(switch), _) if key == "strict" => toml::Value::Boolean(switch),
        (_, Ok(number)) if key == "protocol" => toml::Value::Integer(number),
        _ => toml::Value::String(text.clone()),
    };
    let table: toml::Table = set
        .iter()
        .map(|(key, text)| (key.clone(), value(key, text)))
        .collect();
    let text = toml::to_string(&table).map_err(|error| format!("set: {error}"))?;
    let source = Source::new(Path::new("set"), text);
    let result =
        parse(&source).and_then(|document| read(&Table::root(&source, document.get_ref())));
    result.map_err(|error| format!("set: {}", error.problem()))
}

fn matches(table: &Table<'_>) -> Result<Match, ConfigError> {
    let rule = proxy_rule(table)?;
    let to = match rule.destination {
        None => Vec::new(),
        Some(Destination::Network(net)) => vec![net],
        Some(Destination::Domain(_)) => {
            let what = "packets in a tunnel have addresses, no names";
            let remedy = "write an address or a network, or use a proxy, which knows names";
            return Err(table.wrong("destination", what, remedy));
        }
    };
    let protocol = table.optional("protocol");
    Ok(Match {
        app: rule.app,
        protocol: protocol.as_ref().map(classes::protocol).transpose()?,
        ports: rule.ports.into_iter().collect(),
        to,
        ..Match::default()
    })
}

/// Reads what happens to the packets of a client's rule.
fn service(table: &Table<'_>, links: Links<'_>) -> Result<Service, ConfigError> {
    let Some(action) = table.optional("action") else {
        let example = "link = \"lte\", the name of a [[link]], or action = \"block\"";
        let link = classes::link(&table.required("link", example)?, links.names)?;
        let is_strict = strict(table)?;
        if is_strict && links.standby.contains(&link.as_str()) {
            let what = format!(
                "\"{link}\" has cost = \"standby\", so it carries nothing while another link works"
            );
            let remedy = "remove strict, or give the link a number as its cost";
            return Err(table.wrong("strict", what, remedy));
        }
        return Ok(Service {
            links: vec![link],
            is_strict,
            ..Service::default()
        });
    };
    if action.as_text() == Some(DIRECT) {
        let remedy = "write the rule into the file, and run `pleach reload`";
        return Err(action.wrong("\"direct\" cannot be set at run time", remedy));
    }
    if action.as_text() != Some("block") {
        let remedy = "write \"block\" to drop the packets, \"direct\" to let them past the tunnel, or remove it and name a link";
        return Err(action.expected("\"block\" or \"direct\"", remedy));
    }
    let mut others = ["link", "strict"].into_iter();
    if let Some(key) = others.find(|key| table.optional(key).is_some()) {
        let what = "packets that are dropped take no link";
        return Err(table.wrong(key, what, "remove it, or remove action"));
    }
    Ok(Service {
        is_blocked: true,
        ..Service::default()
    })
}

fn strict(table: &Table<'_>) -> Result<bool, ConfigError> {
    let strict = table.optional("strict").map(|value| {
        let remedy = "write true to use no other link, even if this link is down";
        value
            .as_bool()
            .ok_or_else(|| value.expected("true or false", remedy))
    });
    Ok(strict.transpose()?.unwrap_or(false))
}

fn app(value: &Value<'_>) -> Result<String, ConfigError> {
    let what = "the name of a program of 1 to 15 bytes";
    let remedy =
        "write the name that `ps -e -o comm` shows; the kernel truncates names to 15 bytes";
    let text = value.text(what, remedy)?;
    if !(1..=15).contains(&text.len()) {
        return Err(value.expected(what, remedy));
    }
    Ok(text.to_owned())
}

fn ports(value: &Value<'_>) -> Result<RangeInclusive<u16>, ConfigError> {
    let port = |number: i64| u16::try_from(number).ok().filter(|port| *port > 0);
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (
            port(first.trim().parse().ok()?)?,
            port(last.trim().parse().ok()?)?,
        );
        (first <= last).then_some(first..=last)
    };
    let single = value.as_integer().and_then(port).map(|port| port..=port);
    single
        .or_else(|| value.as_text().and_then(range))
        .ok_or_else(|| {
            value.expected(
                "a port from 1 to 65535 or a range such as \"5000-6000\"",
                "write the destination's port",
            )
        })
}

fn destination(value: &Value<'_>) -> Result<Destination, ConfigError> {
    let what = "a domain, an address or a network";
    let remedy =
        "write for example \"example.com\" (which includes its subdomains) or \"10.0.0.0/8\"";
    let text = value.text(what, remedy)?;
    Destination::parse(text).ok_or_else(|| value.expected(what, remedy))
}

/// Maximum number of rules of a client, both those of the file and those set at run time.
pub(crate) const MAX_RULES: usize = 32;
/// Value in place of a link's name that removes a rule that was set at run time.
pub(crate) const AUTOMATIC: &str = "auto";
/// Value of `action` for packets that lead past the tunnel.
const DIRECT: &str = "direct";
/// Keys of a proxy's `[[rule]]`.
pub(super) const PROXY_KEYS: &[&str] = &["app", "port", "destination", "link", "strict"];
/// Keys of a client's `[[rule]]`.
const CLIENT_KEYS: &[&str] = &[
    "app",
    "protocol",
    "port",
    "destination",
    "link",
    "strict",
    "action",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn change(text: &str) -> Result<(Match, Option<Service>), String> {
        let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
        let set = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let links = Links {
            names: Some(&["dsl", "lte", "sat"]),
            standby: &["sat"],
        };
        client_rule_of(&set.collect(), links)
    }

    #[test]
    fn conditions_are_read_as_they_are_written() {
        for text in [
            "app=curl",
            "protocol=tcp",
            "app=7z protocol=udp port=443 destination=192.0.2.7/32",
            "protocol=47 destination=2001:db8::/32",
            "port=5000-6000",
        ] {
            let (matches, service) = change(&format!("{text} link=lte")).expect("a rule");
            assert_eq!(conditions(&matches), text);
            let service = service.expect("not removed");
            assert!(service.links == ["lte"] && !service.is_strict && !service.is_blocked);
        }
        assert_eq!(conditions(&Match::default()), "");
        let (_, service) = change("port=25 action=block").expect("a rule");
        assert!(service.is_some_and(|service| service.is_blocked && service.links.is_empty()));
        let (_, service) = change("port=25 strict=true link=dsl").expect("a rule");
        assert!(service.is_some_and(|service| service.is_strict));
        let (_, service) = change("port=25 link=sat").expect("a rule");
        assert!(service.is_some_and(|service| service.links == ["sat"]));
        let (_, service) = change("port=25 link=auto").expect("a rule");
        assert_eq!(service, None);
    }

    #[test]
    fn mistakes_in_a_change_are_named() {
        for (text, told) in [
            ("", "set: rule: it has no condition"),
            ("link=dsl", "set: rule: it has no condition"),
            ("app=curl", "set: link: missing required key"),
            ("app=curl link=umts", "no link is called \"umts\""),
            (
                "app=curl link=lte action=block",
                "set: link: packets that are dropped",
            ),
            ("app=curl action=allow", "set: action: expected \"block\""),
            (
                "port=25 action=direct",
                "set: action: \"direct\" cannot be set",
            ),
            (
                "app=curl link=lte strict=yes",
                "set: strict: expected true or false",
            ),
            (
                "app=curl link=sat strict=true",
                "set: strict: \"sat\" has cost = \"standby\"",
            ),
            (
                "port=0 link=lte",
                "set: port: expected a port from 1 to 65535",
            ),
            ("protocol=icmp link=lte", "set: protocol: expected \"tcp\""),
            ("destination=example.com link=lte", "addresses, no names"),
            ("prot=udp link=lte", "set: prot: unknown key"),
        ] {
            let error = change(text).expect_err(text);
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
