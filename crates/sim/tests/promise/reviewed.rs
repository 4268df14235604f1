//! The pairs that are known to miss the promise: `reviewed.txt`.

use crate::share::{NO_REGRET, Share, flow_name};

/// A pair and flow that may miss the promise, down to a known share.
pub(crate) struct Entry {
    pair: String,
    flow: String,
    /// Lowest share that it reached at its review, truncated to two digits: with nine seeds, or with the seed tested.
    share: f64,
}

/// Parses the entries of `text`: one line each of pair, flow, share and reason. `#` begins a comment.
///
/// # Panics
/// Panics if a line is incomplete, or has a share that needs no entry.
pub(crate) fn parse(text: &str) -> Vec<Entry> {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let mut words = line.split_whitespace();
            let mut word = || words.next().unwrap_or_else(|| panic!("too short: {line}"));
            let (pair, flow) = (word().to_owned(), word().to_owned());
            let share = word()
                .parse()
                .unwrap_or_else(|error| panic!("{error}: {line}"));
            assert!(share < NO_REGRET, "needs no entry: {line}");
            assert!(words.next().is_some(), "without a reason: {line}");
            Entry { pair, flow, share }
        })
        .collect()
}

/// Whether `share` keeps the promise, or is at least the share of its entry.
pub(crate) fn is_accepted(share: &Share, entries: &[Entry]) -> bool {
    share.of_best() >= NO_REGRET
        || find(share, entries).is_some_and(|entry| share.of_best() >= entry.share)
}

/// Returns those `shares` that keep the promise although they have an entry, which can be removed.
pub(crate) fn needless<'a>(shares: &'a [Share], entries: &[Entry]) -> Vec<&'a Share> {
    let shares = shares.iter();
    shares
        .filter(|share| share.of_best() >= NO_REGRET && find(share, entries).is_some())
        .collect()
}

fn find<'a>(share: &Share, entries: &'a [Entry]) -> Option<&'a Entry> {
    let is_same =
        |entry: &&Entry| entry.pair == share.case.name && entry.flow == flow_name(share.flow);
    entries.iter().find(is_same)
}
