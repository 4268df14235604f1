//! `pleach proxy set`: parses `KEY=VALUE` pairs into a change of settings.

use std::collections::BTreeMap;

use pleach_proxy::{
    daemon::Change,
    rules::{Destination, Rule},
    sched::Policy,
};

/// Returns the change that `set` describes.
///
/// # Errors
/// A key is unknown, a value is invalid, or the combination of keys has no meaning. The text is one line for the user.
pub(super) fn change(set: &BTreeMap<String, String>) -> Result<Change, String> {
    const KEYS: [&str; 5] = ["app", "destination", "link", "port", "scheduler"];
    if let Some(unknown) = set.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!(
            "set: unknown key {unknown:?}; write one of: {}",
            KEYS.join(", ")
        ));
    }
    if let Some(name) = set.get("scheduler") {
        if set.len() > 1 {
            return Err("set: scheduler= stands alone".to_owned());
        }
        let names = || Policy::ALL.map(Policy::name).join(", ");
        let policy = Policy::named(name);
        return policy.map(Change::Scheduler).ok_or_else(|| {
            format!(
                "set: no scheduler is called {name:?}; write one of: {}",
                names()
            )
        });
    }
    let Some(link) = set.get("link") else {
        return Err(
            "set: write scheduler=NAME, or app=NAME, port=N or destination=D with link=NAME"
                .to_owned(),
        );
    };
    if set.len() == 1 {
        return Err("set: link= needs app=, port= or destination= beside it".to_owned());
    }
    if let Some(app) = set.get("app").filter(|app| !(1..=15).contains(&app.len())) {
        return Err(format!(
            "set: app={app:?}: expected the name of a program of 1 to 15 bytes, as `ps -e -o comm` shows it"
        ));
    }
    let port = set.get("port").map(|text| {
        let port = text.parse().ok().filter(|port: &u16| *port > 0);
        port.ok_or_else(|| format!("set: port={text:?}: expected 1 to 65535"))
    });
    let port = port.transpose()?;
    let destination = set.get("destination").map(|text| {
        Destination::parse(text).ok_or_else(|| {
            format!("set: destination={text:?}: expected a domain, an address or a network")
        })
    });
    let rule = Rule {
        app: set.get("app").cloned(),
        ports: port.map(|port| port..=port),
        destination: destination.transpose()?,
        ..Rule::default()
    };
    let link = (link != AUTOMATIC).then(|| link.clone());
    Ok(Change::Rule(Box::new(rule), link))
}

/// Value in place of a link's name that removes the assignment.
const AUTOMATIC: &str = "auto";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Change, String> {
        let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
        change(
            &pairs
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    #[test]
    fn lines_are_read_and_mistakes_told() {
        assert_eq!(
            read("scheduler=makespan"),
            Ok(Change::Scheduler(Policy::Makespan))
        );
        let Ok(Change::Rule(rule, link)) = read("app=curl port=80 link=dsl") else {
            panic!("a rule")
        };
        assert_eq!(
            (rule.app.as_deref(), rule.ports),
            (Some("curl"), Some(80..=80))
        );
        assert_eq!(link.as_deref(), Some("dsl"));
        assert!(matches!(
            read("app=curl link=auto"),
            Ok(Change::Rule(_, None))
        ));
        for (text, told) in [
            ("", "write scheduler=NAME"),
            ("scheduler=fastest", "max-throughput"),
            ("scheduler=makespan link=dsl", "alone"),
            ("link=dsl", "beside"),
            ("app=curl", "write scheduler=NAME"),
            ("app=a-name-longer-than-15 link=dsl", "15 bytes"),
            ("port=0 link=dsl", "65535"),
            ("destination=a..b/ link=dsl", "domain"),
            ("speed=1 link=dsl", "unknown key"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
