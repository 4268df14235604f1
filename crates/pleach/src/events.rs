//! The latest log messages of the daemon, for the API: a layer of `tracing` that stores [`CAPACITY`] events of level
//! INFO and above.
//!
//! Messages of these levels are meant for the user, are rare, and contain no secrets. An event costs memory for its
//! text and one lock, which is held only while an event is copied.

use core::fmt::{self, Write as _};
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pleach_linux::clock;
use serde::{Deserialize, Serialize};
use tracing::{
    Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

/// A log message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct Event {
    /// Number of the event; counted from 1.
    pub(crate) id: u64,
    /// Time of the event, in milliseconds since 1970-01-01 UTC.
    pub(crate) at_ms: u64,
    /// `info`, `warn` or `error`.
    pub(crate) level: String,
    /// Text of one line.
    pub(crate) text: String,
}

/// The latest events of this process, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EventLog(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    last: u64,
    events: VecDeque<Event>,
}

impl EventLog {
    const fn new() -> Self {
        Self(Mutex::new(Ring {
            last: 0,
            events: VecDeque::new(),
        }))
    }

    /// Adds an event. If the log is full, removes the oldest one.
    pub(crate) fn push(&self, level: &str, text: &str) {
        let mut ring = self.lock();
        ring.last += 1;
        let event = Event {
            id: ring.last,
            at_ms: clock::unix_nanos() / 1_000_000,
            level: level.to_owned(),
            text: text
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .take(MAX_TEXT_CHARS)
                .collect(),
        };
        if ring.events.len() == CAPACITY {
            ring.events.pop_front();
        }
        ring.events.push_back(event);
    }

    /// Returns the events after number `id`, oldest first.
    pub(crate) fn after(&self, id: u64) -> Vec<Event> {
        let ring = self.lock();
        ring.events
            .iter()
            .filter(|event| event.id > id)
            .cloned()
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Event log of this process.
pub(crate) static EVENTS: EventLog = EventLog::new();

/// The layer that fills [`EVENTS`].
pub(crate) struct Keep;

impl<S: Subscriber> Layer<S> for Keep {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::INFO || !event.metadata().target().starts_with("pleach") {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let level = match level {
            Level::ERROR => "error",
            Level::WARN => "warn",
            _ => "info",
        };
        EVENTS.push(level, &text.finish());
    }
}

/// Message and fields of an event.
#[derive(Default)]
struct Text {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Text {
    fn finish(self) -> String {
        let value = |name| {
            let mut fields = self.fields.iter();
            fields
                .find(|(field, _)| *field == name)
                .map(|(_, text)| text)
        };
        if self.message == "path"
            && let (Some(link), Some(state), Some(peer)) =
                (value("link"), value("state"), value("peer"))
        {
            return format!("{link} towards {peer} is {}", state.to_lowercase());
        }
        if let (true, Some(peer)) = (self.message.ends_with("connected"), value("peer")) {
            return format!("{peer} {}", self.message);
        }
        let mut text = self.message;
        for (at, (name, value)) in self.fields.iter().enumerate() {
            let before = if at == 0 { " (" } else { ", " };
            // Writing to a string cannot fail.
            let _ = write!(text, "{before}{name} {value}");
        }
        if !self.fields.is_empty() {
            text.push(')');
        }
        text
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.fields.push((field.name(), format!("{value:?}")));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.push((field.name(), value.to_owned()));
    }
}

/// Maximum number of events stored: more than anybody reads, and about 100 KB.
const CAPACITY: usize = 256;

/// Maximum length of a text in characters: longer than a line of a screen.
const MAX_TEXT_CHARS: usize = 400;

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn the_oldest_are_forgotten_and_lines_stay_lines() {
        let log = EventLog::new();
        for number in 0..CAPACITY + 3 {
            log.push("info", &format!("event\n{number}"));
        }
        let events = log.after(0);
        assert_eq!(events.len(), CAPACITY);
        assert_eq!((events[0].id, events[0].text.as_str()), (4, "event 3"));
        assert_eq!(log.after(CAPACITY as u64 + 2).len(), 1);
    }

    #[test]
    fn the_log_of_a_daemon_is_kept_in_words() {
        let subscriber = tracing_subscriber::registry().with(Keep);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "pleach::test", peer = "gw", link = "dsl", state = ?"Down", "path");
            tracing::warn!(target: "pleach::test", link = "dsl", mtu = 1400, "something else");
            tracing::debug!(target: "pleach::test", "not for users");
            tracing::info!(target: "elsewhere", "not ours");
        });
        let texts: Vec<String> = EVENTS
            .after(0)
            .into_iter()
            .map(|event| event.text)
            .collect();
        assert!(
            texts
                .iter()
                .any(|text| text == "dsl towards gw is \"down\""),
            "{texts:?}"
        );
        assert!(
            texts
                .iter()
                .any(|text| text == "something else (link dsl, mtu 1400)")
        );
        assert!(!texts.iter().any(|text| text.starts_with("not ")));
    }
}
