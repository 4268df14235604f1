//! Changes of settings while the proxy runs.

use std::collections::BTreeMap;

use super::hub::Hub;
use crate::{
    placer::Placer,
    rules::Rule,
    sched::{LinkId, Policy},
};

/// A change of settings. It applies to new connections only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Connections that meet the conditions of the rule take the link with this name. The rule precedes all rules of
    /// the configuration file. `None` removes the rule. The field `link` of the rule is not used.
    Rule(Box<Rule>, Option<String>),
    /// Changes the scheduler.
    Scheduler(Policy),
    /// Sets the weights of links by name. Each weight is at least 1.
    Weights(BTreeMap<String, u32>),
}

/// Applies `change`.
///
/// # Errors
/// A link does not exist, or a value is too large. The text is one line for the user. Nothing is changed in this case.
pub(super) fn apply(hub: &Hub, change: Change) -> Result<(), String> {
    let mut placer = hub.placer.borrow_mut();
    match change {
        Change::Rule(rule, link) => {
            let link = link.map(|name| find(&placer, &name)).transpose()?;
            placer.assign(*rule, link)
        }
        Change::Scheduler(policy) => {
            placer.set_policy(policy);
            Ok(())
        }
        Change::Weights(weights) => {
            let mut found = Vec::new();
            for (name, weight) in &weights {
                let weight = u16::try_from(*weight)
                    .map_err(|_| format!("weight {weight} of {name}: at most {}", u16::MAX))?;
                found.push((find(&placer, name)?, weight.max(1)));
            }
            for (link, weight) in found {
                if let Some(link) = placer.link_mut(link) {
                    link.settings.weight = Some(weight);
                }
            }
            Ok(())
        }
    }
}

fn find(placer: &Placer, name: &str) -> Result<LinkId, String> {
    let links = placer.links();
    let found = links.iter().position(|link| link.settings.name == name);
    found.map(LinkId).ok_or_else(|| {
        let names: Vec<&str> = links
            .iter()
            .map(|link| link.settings.name.as_str())
            .collect();
        format!(
            "no link is called {name:?}; there are: {}",
            names.join(", ")
        )
    })
}
