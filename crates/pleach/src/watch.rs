//! `pleach status --watch`: prints the sentences of a status with the rates of the links once a second, until
//! interrupted.
//!
//! On a terminal, each output replaces the previous one. Otherwise the outputs are separated by an empty line.

use core::fmt::Write as _;
use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write as _},
    path::Path,
    thread,
    time::Duration,
};

use pleach_core::time::Instant;
use pleach_linux::clock;

use crate::{
    control::{self, StatusReport},
    rates::{Key, Rates, rates},
    reasons, status,
};

/// Shows the status of the daemon at `socket` repeatedly.
///
/// # Errors
/// If the daemon does not answer, or if the output is closed.
pub(crate) fn run(socket: &Path) -> anyhow::Result<()> {
    let is_terminal = io::stdout().is_terminal();
    let mut last: Option<(Instant, StatusReport)> = None;
    loop {
        let now = clock::now();
        let report = control::status(socket)?;
        let moved = last
            .as_ref()
            .map(|(at, before)| rates(before, &report, now.since(*at)));
        let text = render(&report, &moved.unwrap_or_default());
        let (before, after) = if is_terminal { (HOME, "") } else { ("", "\n") };
        let mut stdout = io::stdout().lock();
        stdout.write_all(format!("{before}{text}{after}").as_bytes())?;
        stdout.flush()?;
        drop(stdout);
        last = Some((now, report));
        thread::park_timeout(PERIOD);
    }
}

/// Renders `report` with the rates `moved` of the links since the previous status.
fn render(report: &StatusReport, moved: &BTreeMap<Key, Rates>) -> String {
    let mut text = reasons::headline(report).replace(char::is_control, "");
    let total = moved
        .values()
        .fold((0.0, 0.0), |sum, rates| (sum.0 + rates.0, sum.1 + rates.1));
    if !moved.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            " {} received, {} sent.",
            status::rate(total.1),
            status::rate(total.0)
        );
    }
    text.push('\n');
    status::push_sentences(&mut text, report, |link| {
        let (sent, received) = moved.get(&(String::new(), link.name.clone()))?;
        (sent + received > 0.0).then(|| {
            format!(
                "{} received, {} sent.",
                status::rate(*received),
                status::rate(*sent)
            )
        })
    });
    text
}

/// Interval between two requests.
const PERIOD: Duration = Duration::from_secs(1);

/// Escape sequences that clear the screen and move the cursor to its upper left corner (ECMA-48: CUP, ED).
const HOME: &str = "\u{1b}[H\u{1b}[2J";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{LinkState, LinkStatus};

    #[test]
    fn sentences_come_with_what_links_move() {
        let link = |name: &str| LinkStatus {
            state: LinkState::Up,
            ..LinkStatus::bare(name, "eth0")
        };
        let report = StatusReport {
            mode: "client".to_owned(),
            name: "pleach0".to_owned(),
            up: true,
            links: vec![link("dsl"), link("lte")],
            ..StatusReport::default()
        };
        let moved = BTreeMap::from([((String::new(), "dsl".to_owned()), (1.5, 20.0))]);
        assert_eq!(
            render(&report, &moved),
            "pleach0 is up over 2 of 2 links. 20.0 Mbit/s received, 1.5 Mbit/s sent.\n  \
             dsl is in use. 20.0 Mbit/s received, 1.5 Mbit/s sent.\n  \
             lte is in use.\n"
        );
        assert!(
            render(&report, &BTreeMap::new()).starts_with("pleach0 is up over 2 of 2 links.\n")
        );
    }
}
