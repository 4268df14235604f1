//! Why the store of clients cannot be used.
//!
//! Reading and writing are apart: with a full disk, or while another program holds the lock for writing, the store can
//! still be read.

use std::time::Duration;

use pleach_core::time::Instant;

use crate::clients::StoreError;

/// The present failures of the store.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    reading: Option<String>,
    finding: Option<(String, Instant)>,
    writing: Option<String>,
}

impl Trouble {
    /// Whether the last attempt to read has failed.
    pub(super) const fn is_unreadable(&self) -> bool {
        self.reading.is_some()
    }

    /// Records an attempt to read, with its error. Returns whether this changes [`Self::text`].
    pub(super) fn on_read(&mut self, error: Option<&StoreError>) -> bool {
        let text = error.map(ToString::to_string);
        if text == self.reading {
            return false;
        }
        match &text {
            Some(text) => tracing::warn!(
                "the store of clients cannot be read: {text}; known clients are served, new ones are refused"
            ),
            None => {
                tracing::info!("the store of clients can be read again");
                // Look-ups have failed for the same reason.
                self.finding = None;
            }
        }
        self.reading = text;
        true
    }

    /// Records the look-up of one client, with its error, at a store that can be read otherwise. Returns whether this
    /// changes [`Self::text`]. The log names the client instead.
    pub(super) fn on_find(&mut self, now: Instant, error: Option<&StoreError>) -> bool {
        let before = self.text();
        self.finding = error.map(|error| (error.to_string(), now));
        self.text() != before
    }

    /// Forgets a look-up that failed long ago. Returns whether this changes [`Self::text`].
    pub(super) fn on_listed(&mut self, now: Instant) -> bool {
        let is_old = |(_, at): &(String, Instant)| now.since(*at) >= FIND_FOR;
        self.finding.as_ref().is_some_and(is_old) && self.on_find(now, None)
    }

    /// Records an attempt to write, with its error. Returns whether this changes [`Self::text`].
    pub(super) fn on_write(&mut self, error: Option<&StoreError>) -> bool {
        let text = error.map(ToString::to_string);
        if text == self.writing {
            return false;
        }
        match &text {
            Some(text) => tracing::warn!(
                "the bytes of clients cannot be written to the store: {text}; they are kept and written later"
            ),
            None => tracing::info!("the bytes of clients are written to the store again"),
        }
        self.writing = text;
        true
    }

    /// Returns the reason for the status. `None` if the store can be read and written.
    pub(super) fn text(&self) -> Option<String> {
        let writing = || {
            let text = self.writing.as_ref()?;
            Some(format!("the bytes of clients cannot be written: {text}"))
        };
        let finding = self.finding.as_ref().map(|(text, _)| text);
        let reading = self.reading.as_ref().or(finding);
        reading.cloned().or_else(writing)
    }
}

/// Time for which a failed look-up is reported, unless another one succeeds.
const FIND_FOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_can_be_read_but_not_written_stays_in_trouble() {
        let mut trouble = Trouble::default();
        let full = StoreError::Unavailable {
            place: "clients.db".to_owned(),
            what: "disk full".to_owned(),
        };
        assert!(trouble.on_write(Some(&full)) && !trouble.on_write(Some(&full)));
        assert!(!trouble.on_read(None) && !trouble.is_unreadable());
        assert!(trouble.text().is_some_and(|text| text.contains("written")));
        assert!(trouble.on_read(Some(&full)) && trouble.is_unreadable());
        assert!(trouble.on_read(None));
        assert!(trouble.text().is_some_and(|text| text.contains("written")));
        assert!(trouble.on_write(None));
        assert_eq!(trouble.text(), None);
    }

    #[test]
    fn a_failed_look_up_is_reported_until_one_succeeds_or_a_minute_has_passed() {
        let mut trouble = Trouble::default();
        let now = Instant::from_millis(0);
        let silent = StoreError::Unavailable {
            place: "http://127.0.0.1".to_owned(),
            what: "it does not answer".to_owned(),
        };
        assert!(trouble.on_find(now, Some(&silent)) && !trouble.is_unreadable());
        assert!(trouble.on_find(now, None) && trouble.text().is_none());
        assert!(trouble.on_find(now, Some(&silent)));
        assert!(!trouble.on_listed(now + FIND_FOR / 2));
        assert!(trouble.on_listed(now + FIND_FOR) && trouble.text().is_none());
        // The end of a longer trouble is that of its look-ups.
        assert!(trouble.on_find(now, Some(&silent)) && !trouble.on_find(now, Some(&silent)));
        assert!(trouble.on_read(Some(&silent)) && trouble.on_read(None));
        assert_eq!(trouble.text(), None);
    }
}
