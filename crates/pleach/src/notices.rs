//! Notices: the daemon runs a program when something needs attention, and when it is in order again.
//!
//! ```text
//!  status, once a second ──▶ Judge ──▶ Messenger ──pipe──▶ another process ──▶ the program of [notices]
//! ```
//!
//! | kind | states | a notice is sent |
//! | --- | --- | --- |
//! | `link` | `down`, `ok` | when a link is silent, down, absent or behind a captive portal, or is no longer so |
//! | `tunnel` | `down`, `up` | when a client has no session over any link, or has one again |
//! | `budget` | `80-percent`, `spent` | when a link has used so much of its budget |
//! | `gateway` | name of the gateway | when a client uses another gateway |
//! | `client` | `away`, `connected` | when a client of a gateway with at most [`MAX_CLIENTS`] clients goes or comes |
//!
//! A state is told when it has lasted for `after`, and differs from the state that was told before. A link that flaps
//! faster is never told. Each subject, such as a link, has [`BURST`] notices at once and one more every [`REFILL`]; a
//! notice that was held back is sent later if its state still lasts. A link that does not help at present because its
//! delay is too long is no subject of notices: this changes with the traffic.

mod messenger;

use core::time::Duration;
use std::collections::BTreeMap;

use pleach_core::time::Instant;
use serde::Serialize;

use crate::{
    control::{BudgetStatus, ClientStatus, GatewayStatus, LinkState, LinkStatus, StatusReport},
    reasons,
};

pub(crate) use messenger::{Messenger, serve, start, started};

/// What a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Byte budget of a link.
    Budget,
    /// Client of a gateway.
    Client,
    /// Gateway that a client uses.
    Gateway,
    /// Link of this end.
    Link,
    /// The whole tunnel of a client.
    Tunnel,
}

/// A change of state that the user is told of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Notice {
    pub(crate) kind: Kind,
    /// Name of the link, tunnel or client.
    pub(crate) subject: String,
    /// State in one word; see the module.
    pub(crate) state: String,
    /// One or two sentences for the user.
    pub(crate) text: String,
}

/// Decides which changes of the status become notices.
#[derive(Debug)]
pub(crate) struct Judge {
    after: Duration,
    subjects: BTreeMap<(Kind, String), Subject>,
}

/// What is known of a link, budget, gateway, tunnel or client.
#[derive(Debug)]
struct Subject {
    /// State that the user knows.
    told: String,
    /// State that was observed last, and since when.
    observed: (String, Instant),
    /// Number of notices that may be sent now.
    tokens: u32,
    /// Time at which `tokens` was last increased, or was full.
    refilled_at: Instant,
}

/// A state that the status shows.
struct Observation {
    kind: Kind,
    subject: String,
    state: String,
    /// State that the user expects before anything was told. `None`: the first state that is observed.
    expected: Option<&'static str>,
    /// Sentences of the notice. `None`: the state needs no notice.
    text: Option<String>,
}

impl Judge {
    /// `after`: time for which a state must last.
    pub(crate) const fn new(after: Duration) -> Self {
        Self {
            after,
            subjects: BTreeMap::new(),
        }
    }

    /// Returns the notices that follow from `status` at `now`.
    pub(crate) fn take(&mut self, now: Instant, status: &StatusReport) -> Vec<Notice> {
        let mut seen = observations(status);
        self.add_absent(now, &mut seen);
        let take = |seen: Observation| {
            let key = (seen.kind, seen.subject.clone());
            let subject = self.subjects.entry(key).or_insert_with(|| Subject {
                told: seen
                    .expected
                    .map_or_else(|| seen.state.clone(), str::to_owned),
                observed: (seen.state.clone(), now),
                tokens: BURST,
                refilled_at: now,
            });
            let is_told = subject.tells(now, self.after, &seen.state, seen.text.is_some());
            seen.text.filter(|_| is_told).map(|text| Notice {
                kind: seen.kind,
                subject: seen.subject,
                state: seen.state,
                text,
            })
        };
        seen.into_iter().filter_map(take).collect()
    }

    /// Adds the links that the status does not contain any more, because their devices are gone. Forgets what has been
    /// absent for [`FORGET`], other absent subjects at once.
    fn add_absent(&mut self, now: Instant, seen: &mut Vec<Observation>) {
        let mut absent = Vec::new();
        self.subjects.retain(|(kind, name), subject| {
            let is_seen = |seen: &Observation| seen.kind == *kind && seen.subject == *name;
            if seen.iter().any(is_seen) {
                return true;
            }
            let is_kept = *kind == Kind::Link
                && (subject.observed.0 != DOWN || now.since(subject.observed.1) < FORGET);
            if is_kept {
                absent.push(name.clone());
            }
            is_kept
        });
        seen.extend(absent.into_iter().map(|name| Observation {
            kind: Kind::Link,
            text: Some(format!("{name} is down: it is not there any more.")),
            subject: name,
            state: DOWN.to_owned(),
            expected: Some(OK),
        }));
    }
}

impl Subject {
    /// Notes that `state` is observed at `now`. Returns whether the user is told of it. `needs_notice`: otherwise, the
    /// user is taken to know it.
    fn tells(&mut self, now: Instant, after: Duration, state: &str, needs_notice: bool) -> bool {
        if self.observed.0 != state {
            self.observed = (state.to_owned(), now);
        }
        while self.tokens < BURST && now.since(self.refilled_at) >= REFILL {
            self.tokens += 1;
            self.refilled_at += REFILL;
        }
        if self.told == state || now.since(self.observed.1) < after {
            return false;
        }
        if !needs_notice {
            state.clone_into(&mut self.told);
            return false;
        }
        if self.tokens == 0 {
            return false;
        }
        if self.tokens == BURST {
            self.refilled_at = now;
        }
        self.tokens -= 1;
        state.clone_into(&mut self.told);
        true
    }
}

fn observations(status: &StatusReport) -> Vec<Observation> {
    let links = status.links.iter().map(of_link);
    let budgets = status
        .budgets
        .iter()
        .map(|(name, budget)| of_budget(name, budget));
    let used = status.gateways.iter().find(|gateway| gateway.used);
    let gateway = used.map(|gateway| of_gateway(&status.name, gateway));
    let tunnel = (status.mode == "client").then(|| Observation {
        kind: Kind::Tunnel,
        subject: status.name.clone(),
        state: if status.up { "up" } else { DOWN }.to_owned(),
        expected: Some("up"),
        text: Some(reasons::headline(status)),
    });
    let clients = (status.clients.len() <= MAX_CLIENTS).then(|| status.clients.iter());
    links
        .chain(budgets)
        .chain(gateway)
        .chain(tunnel)
        .chain(clients.into_iter().flatten().map(of_client))
        .collect()
}

fn of_link(link: &LinkStatus) -> Observation {
    let is_down = matches!(link.state, LinkState::Down | LinkState::Suspect)
        && link.idle_reason.as_deref() != Some(reasons::BUDGET);
    let text = if is_down {
        let why = link
            .why
            .clone()
            .unwrap_or_else(|| reasons::by_state(&link.name, link.state));
        let advice = link.idle_reason.as_deref().and_then(reasons::advice);
        match advice {
            Some(advice) => format!("{why}. {advice}"),
            None => format!("{why}."),
        }
    } else {
        format!("{} is no longer down.", link.name)
    };
    Observation {
        kind: Kind::Link,
        subject: link.name.clone(),
        state: if is_down { DOWN } else { OK }.to_owned(),
        expected: Some(OK),
        text: Some(text),
    }
}

fn of_budget(link: &str, budget: &BudgetStatus) -> Observation {
    let used_percent = u128::from(budget.used_bytes) * 100 / u128::from(budget.bytes.max(1));
    let (state, text) = if used_percent >= 100 {
        ("spent", Some(format!("{link} has used its budget.")))
    } else if used_percent >= WARN_PERCENT {
        let text = format!("{link} has used {WARN_PERCENT} % of its budget.");
        ("80-percent", Some(text))
    } else {
        (WITHIN, None)
    };
    Observation {
        kind: Kind::Budget,
        subject: link.to_owned(),
        state: state.to_owned(),
        expected: Some(WITHIN),
        text,
    }
}

fn of_gateway(tunnel: &str, gateway: &GatewayStatus) -> Observation {
    Observation {
        kind: Kind::Gateway,
        subject: tunnel.to_owned(),
        state: gateway.name.clone(),
        expected: None,
        text: Some(format!("{tunnel} uses the gateway {}.", gateway.name)),
    }
}

fn of_client(client: &ClientStatus) -> Observation {
    let (state, text) = if client.up {
        ("connected", "is connected")
    } else {
        ("away", "is not connected any more")
    };
    Observation {
        kind: Kind::Client,
        subject: client.name.clone(),
        state: state.to_owned(),
        expected: None,
        text: Some(format!("The client {} {text}.", client.name)),
    }
}

const DOWN: &str = "down";
const OK: &str = "ok";
const WITHIN: &str = "within";

/// Part of a budget at which the user is warned, in percent.
const WARN_PERCENT: u128 = 80;

/// Maximum number of clients of a gateway that tells of each. With more, metrics and their alerts serve better.
const MAX_CLIENTS: usize = 32;

/// Number of notices about one subject that may be sent at once.
const BURST: u32 = 4;

/// Interval at which one more notice about a subject may be sent.
const REFILL: Duration = Duration::from_secs(300);

/// Time after which a link that is not there any more is forgotten.
const FORGET: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests;
