//! What the user changes while a proxy runs.

use std::collections::BTreeMap;

use super::hub::Hub;
use crate::{
    placer::Placer,
    rules::Rule,
    sched::{LinkId, Policy},
};

/// A change. Connections that are there stay where they are; it counts for those that come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Connections that meet the conditions of the rule take the link of this name, before all rules of the file; `None`: no
    /// longer. Its own `link` is not used.
    Rule(Box<Rule>, Option<String>),
    /// Another scheduler.
    Scheduler(Policy),
    /// Weights of links by name, each at least 1; all or none.
    Weights(BTreeMap<String, u32>),
}

/// Applies `change`.
///
/// # Errors
/// In one line for the user; nothing has changed then.
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
