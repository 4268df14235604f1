//! `pleach set` at a proxy: parses `KEY=VALUE` pairs into a change of settings.

use std::collections::BTreeMap;

use pleach_proxy::{daemon::Change, sched::Policy};

use crate::config::rules::{self, AUTOMATIC};

/// Returns the change that `set` describes.
///
/// # Errors
/// A key is unknown, a value is invalid, or the combination of keys has no meaning. The text is one line for the user.
pub(super) fn change(set: &BTreeMap<String, String>) -> Result<Change, String> {
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
    let rule = rules::proxy_rule_of(set)?;
    let Some(link) = set.get("link") else {
        return Err(
            "set: write scheduler=NAME, or app=NAME, port=N or destination=D with link=NAME"
                .to_owned(),
        );
    };
    if set
        .keys()
        .all(|key| ["link", "strict"].contains(&key.as_str()))
    {
        return Err("set: link= needs app=, port= or destination= beside it".to_owned());
    }
    let link = (link != AUTOMATIC).then(|| link.clone());
    Ok(Change::Rule(Box::new(rule), link))
}

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
        let Ok(Change::Rule(rule, _)) = read("port=5000-6000 link=dsl strict=true") else {
            panic!("a rule")
        };
        assert_eq!((rule.strict, &rule.ports), (true, &Some(5000..=6000)));
        assert!(matches!(
            read("app=curl link=auto"),
            Ok(Change::Rule(_, None))
        ));
        for (text, told) in [
            ("", "write scheduler=NAME"),
            ("scheduler=fastest", "max-throughput"),
            ("scheduler=makespan link=dsl", "alone"),
            ("link=dsl", "beside"),
            ("link=dsl strict=true", "beside"),
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
