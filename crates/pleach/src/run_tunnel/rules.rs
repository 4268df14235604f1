//! Rules of a client: which link packets take, by program, protocol, port and destination, or whether they are dropped.
//!
//! A rule is a traffic class that precedes the classes of the user, so the engine marks, sends and counts packets of a
//! rule like packets of a class. `pleach set` adds rules that precede those of the file. They last until the daemon ends
//! or reads its file again.

use std::{collections::BTreeMap, sync::Arc};

use pleach_core::{
    class::{Class, Match},
    endpoint::Endpoint,
    time::Instant,
};

use super::{data_path::DataPath, programs::Programs};
use crate::{
    config::{
        Role, TunnelConfig,
        rules::{self, MAX_RULES},
    },
    control::{RuleStatus, StatusReport},
};

/// The rules that were set at run time, and the search for programs.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// Rules set at run time, in the order of their precedence: the latest is the first.
    live: Vec<Class>,
    /// Number of rules set so far, from which the next one gets its name.
    set: u64,
    /// Thread that finds programs. Without it, rules with `app` are refused.
    pub(super) programs: Option<Programs>,
}

impl Rules {
    /// Returns all rules in the order of their precedence.
    pub(super) fn all<'a>(&'a self, config: &'a TunnelConfig) -> impl Iterator<Item = &'a Class> {
        self.live.iter().chain(config.rules())
    }

    /// Returns all classes for the engine: the rules, then the classes of the user.
    pub(super) fn classes(&self, config: &TunnelConfig) -> Vec<Class> {
        self.all(config).chain(&config.classes).cloned().collect()
    }

    /// Forgets the rules that were set at run time.
    pub(super) fn forget_live(&mut self) {
        self.live.clear();
    }

    /// Whether programs are found, as far as `rules` need it.
    pub(super) fn may_follow(&self, rules: &[Class]) -> bool {
        self.programs.is_some() || !names_programs(rules)
    }

    /// Adds the rules to `status`, and removes them from its classes.
    pub(super) fn report(
        &self,
        config: &TunnelConfig,
        endpoint: &Endpoint,
        status: &mut StatusReport,
    ) {
        if self.all(config).next().is_none() {
            return;
        }
        let counts: Vec<_> = endpoint
            .status()
            .flat_map(|(_, status)| status.classes)
            .collect();
        for (index, rule) in self.all(config).enumerate() {
            let counts = counts.iter().find(|(name, _)| *name == rule.name);
            let counts = counts.map(|(_, counts)| *counts).unwrap_or_default();
            status.classes.remove(&rule.name);
            status.rules.push(RuleStatus {
                rule: rules::conditions(&rule.matches),
                link: rule.service.links.first().cloned(),
                strict: rule.service.is_strict,
                live: index < self.live.len(),
                packets: counts.packets,
                bytes: counts.bytes.get(),
                dropped: counts.dropped,
            });
        }
    }

    /// Adds `rule` before all other rules, in place of a rule that was set at run time with the same conditions. `in_file`:
    /// number of rules in the file.
    ///
    /// # Errors
    /// The rule cannot be followed, or there are too many rules. The text is one line for the user.
    fn add(&mut self, rule: Class, in_file: usize) -> Result<(), String> {
        if !self.may_follow(std::slice::from_ref(&rule)) {
            return Err("programs are not found, because no rule had app at the start or the process that finds them could not be started; write a [[rule]] with app into the file, and restart the daemon".to_owned());
        }
        let others = self.live.iter().filter(|live| live.matches != rule.matches);
        if others.count() + in_file >= MAX_RULES {
            return Err(format!(
                "there are {MAX_RULES} rules already; remove some of them, by link=auto or in the file"
            ));
        }
        self.live.retain(|live| live.matches != rule.matches);
        self.set += 1;
        let name = format!("set {}", self.set);
        self.live.insert(0, Class { name, ..rule });
        Ok(())
    }

    /// Removes the rule that was set at run time with the conditions `matches`.
    ///
    /// # Errors
    /// If there is no such rule.
    fn remove(&mut self, matches: &Match) -> Result<(), String> {
        let before = self.live.len();
        self.live.retain(|live| live.matches != *matches);
        if self.live.len() == before {
            return Err("no rule with these conditions was set; a rule of the file is removed there, then run `pleach reload`".to_owned());
        }
        Ok(())
    }
}

/// Whether one of `rules` names a program.
pub(super) fn names_programs(rules: &[Class]) -> bool {
    rules.iter().any(|rule| rule.matches.app.is_some())
}

impl DataPath {
    /// Changes the rules as `pleach set` asks.
    ///
    /// # Errors
    /// The change has a mistake, or this is a gateway. The text is one line for the user.
    pub(super) fn set_rule(
        &mut self,
        now: Instant,
        set: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let config = Arc::clone(&self.config);
        let Role::Client(client) = &config.role else {
            return Err("this is a gateway; rules are set at its clients".to_owned());
        };
        let links = self.link_names();
        let links: Vec<&str> = links.iter().map(String::as_str).collect();
        let standby: Vec<&str> = rules::standby(&client.links).collect();
        let links = rules::Links {
            names: Some(&links),
            standby: &standby,
        };
        let (matches, service) = rules::client_rule_of(set, links)?;
        match service {
            None => self.rules.remove(&matches)?,
            Some(service) => {
                let rule = Class {
                    name: String::new(),
                    matches,
                    service,
                };
                self.rules.add(rule, client.rules.len())?;
            }
        }
        tracing::info!(?set, "changed");
        self.end_handover(now);
        let classes = self.rules.classes(&config);
        let scheduler = &config.scheduler;
        self.endpoint
            .reconfigure(now, &classes, |_| scheduler.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pleach_core::class::Service;

    use super::*;

    fn rule(port: u16, link: &str) -> Class {
        Class {
            name: String::new(),
            matches: Match {
                ports: vec![port..=port],
                ..Match::default()
            },
            service: Service {
                links: vec![link.to_owned()],
                ..Service::default()
            },
        }
    }

    #[test]
    fn a_rule_replaces_the_one_with_the_same_conditions() {
        let mut rules = Rules::default();
        rules.add(rule(1, "dsl"), 0).expect("the first");
        rules.add(rule(2, "dsl"), 0).expect("another");
        rules.add(rule(1, "lte"), 0).expect("a replacement");
        let names: Vec<_> = rules.live.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["set 3", "set 2"]);
        assert_eq!(rules.live[0].service.links, ["lte"]);
        rules.remove(&rule(1, "any").matches).expect("it was set");
        rules.remove(&rule(1, "any").matches).expect_err("removed");
        assert_eq!(rules.live.len(), 1);
    }

    #[test]
    fn rules_that_cannot_be_followed_are_refused() {
        let mut rules = Rules::default();
        let mut of_curl = rule(1, "dsl");
        of_curl.matches.app = Some("curl".to_owned());
        let error = rules.add(of_curl, 0).expect_err("no search for programs");
        assert!(error.contains("restart"), "{error}");
        for port in 1..=30 {
            rules.add(rule(port, "dsl"), 2).expect("at most 32");
        }
        let error = rules.add(rule(31, "dsl"), 2).expect_err("one too many");
        assert!(error.contains("32 rules"), "{error}");
        rules.add(rule(30, "lte"), 2).expect("a replacement");
    }
}
