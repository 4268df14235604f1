//! Sets one parameter in the table of a scenario file.
//!
//! A parameter is written `seed`, `duration`, `tunnel.KEY`, `tcp.KEY`, or `SECTION.NAME.KEY` where several sections of a
//! kind are distinguished by their names: `link.dsl.rate`, `link.dsl.up.rate`, `traffic.download.cc`. Equalizers are
//! distinguished by their end.

use super::{
    axis::Mistake,
    quantity::{BDP, Quantity, bdps, natural, span},
};

/// Shortest queue that a number of bandwidth-delay products stands for, in bytes: eight full packets.
const SHORTEST_QUEUE_BYTES: f64 = 8.0 * 1500.0;
/// What a key can begin with.
const ROOTS: &str = "a parameter is `seed`, `duration`, `tunnel.KEY`, `tcp.KEY`, `link.NAME.KEY`, `shared.NAME.KEY`, `traffic.NAME.KEY` or `equalizer.END.KEY`";

/// Sets `key` to `value` in `scenario`.
///
/// # Errors
/// Returns what is wrong if `scenario` has no such section, or if no parameter is called `key`.
pub(super) fn set(
    scenario: &mut toml::Table,
    key: &str,
    value: toml::Value,
) -> Result<(), Mistake> {
    let unknown = || ("no parameter has this name".to_owned(), ROOTS.to_owned());
    let words: Vec<&str> = key.split('.').collect();
    match words.as_slice() {
        ["seed" | "duration"] => {
            scenario.insert(key.to_owned(), value);
            Ok(())
        }
        [root @ ("tunnel" | "tcp"), keys @ ..] if !keys.is_empty() => {
            if *root == "tunnel" && !scenario.contains_key("tunnel") {
                return Err((
                    "the base scenario has no [tunnel]".to_owned(),
                    "add [tunnel] to the base scenario".to_owned(),
                ));
            }
            let section = scenario
                .entry(*root)
                .or_insert_with(|| toml::Value::Table(toml::Table::new()));
            nested(section, keys, value).ok_or_else(unknown)
        }
        [
            root @ ("link" | "shared" | "traffic" | "equalizer"),
            name,
            keys @ ..,
        ] if !keys.is_empty() => {
            let sections = scenario.get_mut(*root).and_then(toml::Value::as_array_mut);
            let sections = sections.map_or(&mut [][..], Vec::as_mut_slice);
            let id = if *root == "equalizer" { "end" } else { "name" };
            let name_of = |section: &toml::Value| Some(section.get(id)?.as_str()?.to_owned());
            let names: Vec<String> = sections.iter().filter_map(name_of).collect();
            let found = sections
                .iter_mut()
                .find(|section| name_of(section).as_deref() == Some(name));
            let Some(section) = found else {
                let remedy = if names.is_empty() {
                    format!("give the [[{root}]] section of the base scenario a `{id}`")
                } else {
                    format!("the base scenario has: {}", names.join(", "))
                };
                return Err((format!("there is no [[{root}]] called {name:?}"), remedy));
            };
            nested(section, keys, value).ok_or_else(unknown)
        }
        _ => Err(unknown()),
    }
}

/// Sets the key at the end of `keys`. `None` if a key before it is not a table.
fn nested(section: &mut toml::Value, keys: &[&str], value: toml::Value) -> Option<()> {
    let (last, way) = keys.split_last()?;
    let mut table = section.as_table_mut()?;
    for key in way {
        let next = table
            .entry(*key)
            .or_insert_with(|| toml::Value::Table(toml::Table::new()));
        table = next.as_table_mut()?;
    }
    table.insert((*last).to_owned(), value);
    Some(())
}

/// Converts the queue lengths of the links that are written as multiples of the bandwidth-delay product (`"1.5bdp"`) to
/// bytes. The product is that of the direction's rate and of the RTT: twice the delay, plus the jitter, whose mean each
/// way is half of its upper bound. The result is at least eight full packets. A length for both directions of a link becomes
/// a length for each, because their rates can differ.
///
/// # Errors
/// Returns what is wrong if a link has no rate or delay that can be read.
pub(super) fn queues(scenario: &mut toml::Table) -> Result<(), Mistake> {
    let links = scenario.get_mut("link").and_then(toml::Value::as_array_mut);
    for link in links.into_iter().flatten() {
        let Some(link) = link.as_table_mut() else {
            continue;
        };
        let is_in_bdps =
            |queue: &mut toml::Value| queue.as_str().is_some_and(|text| bdps(text).is_some());
        let shared = link.get_mut("queue").is_some_and(is_in_bdps);
        let shared = if shared { link.remove("queue") } else { None };
        let general = link.clone();
        for direction in ["down", "up"] {
            if let Some(length) = &shared {
                let own = link
                    .entry(direction)
                    .or_insert_with(|| toml::Value::Table(toml::Table::new()));
                if let Some(own) = own.as_table_mut() {
                    own.entry("queue").or_insert_with(|| length.clone());
                }
            }
            if let Some(own) = link.get_mut(direction).and_then(toml::Value::as_table_mut) {
                queue(own, &general)?;
            }
        }
    }
    Ok(())
}

/// Converts the queue length in `table`. Keys that are not in `table` are those of `general`.
fn queue(table: &mut toml::Table, general: &toml::Table) -> Result<(), Mistake> {
    let length = table.get("queue").and_then(toml::Value::as_str);
    let Some(length) = length.and_then(bdps) else {
        return Ok(());
    };
    let key = |name: &str| table.get(name).or_else(|| general.get(name));
    let rate = key("rate").and_then(Quantity::read).map(|rate| rate.value);
    let rtt = span(key("delay"))
        .zip(span(key("jitter")))
        .map(|(delay, jitter)| 2.0 * delay.as_secs_f64() + jitter.as_secs_f64());
    let Some((rate_bps, rtt_s)) = rate.zip(rtt) else {
        return Err((
            format!("a queue in \"{BDP}\" needs a link with a constant `rate`"),
            "write the queue in bytes, such as \"130kB\"".to_owned(),
        ));
    };
    let bytes = (length * rate_bps * rtt_s / 8.0).max(SHORTEST_QUEUE_BYTES);
    let text = format!("{}B", natural(bytes));
    table.insert("queue".to_owned(), toml::Value::String(text));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> toml::Table {
        toml::from_str(
            "[[link]]\nname = \"dsl\"\nrate = \"10Mbit\"\ndelay = \"20ms\"\n\
             [[link]]\nname = \"lte\"\n[[equalizer]]\nend = \"client\"\n",
        )
        .expect("TOML")
    }

    fn text(value: &str) -> toml::Value {
        toml::Value::String(value.to_owned())
    }

    #[test]
    fn sections_are_found_by_name() {
        let mut table = base();
        set(&mut table, "link.lte.up.rate", text("2Mbit")).expect("a parameter");
        set(&mut table, "equalizer.client.spread", text("flow")).expect("a parameter");
        set(&mut table, "tcp.recovery", text("dupack")).expect("a parameter");
        assert_eq!(table["link"][1]["up"]["rate"], text("2Mbit"));
        assert_eq!(table["equalizer"][0]["spread"], text("flow"));
        assert_eq!(table["tcp"]["recovery"], text("dupack"));
    }

    #[test]
    fn unknown_names_are_mistakes() {
        for (key, problem) in [
            ("link.dls.rate", "there is no [[link]] called \"dls\""),
            ("link.dsl", "no parameter has this name"),
            ("link.dsl.rate.more", "no parameter has this name"),
            ("name", "no parameter has this name"),
            ("tunnel.policy", "the base scenario has no [tunnel]"),
            ("traffic.x.cc", "there is no [[traffic]] called \"x\""),
        ] {
            let mistake = set(&mut base(), key, text("1")).expect_err(key);
            assert_eq!(mistake.0, problem, "{key}");
        }
    }

    #[test]
    fn queues_in_bandwidth_delay_products_become_bytes() {
        let mut table = base();
        set(&mut table, "link.dsl.queue", text("1.5bdp")).expect("a parameter");
        set(&mut table, "link.dsl.up.rate", text("1Mbit")).expect("a parameter");
        set(&mut table, "link.dsl.up.queue", text("0.5bdp")).expect("a parameter");
        queues(&mut table).expect("a rate");
        // 10 Mbit/s × 40 ms = 50 kB.
        assert_eq!(table["link"][0]["down"]["queue"], text("75000B"));
        assert_eq!(table["link"][0]["up"]["queue"], text("12000B"));
        // A length for both directions follows the rate of each.
        let mut table = base();
        set(&mut table, "link.dsl.queue", text("2bdp")).expect("a parameter");
        set(&mut table, "link.dsl.up.rate", text("4Mbit")).expect("a parameter");
        queues(&mut table).expect("a rate");
        assert_eq!(table["link"][0]["down"]["queue"], text("100000B"));
        assert_eq!(table["link"][0]["up"]["queue"], text("40000B"));
        set(&mut table, "link.lte.queue", text("1bdp")).expect("a parameter");
        assert!(queues(&mut table).is_err(), "no rate");
    }
}
