//! `pleach top`: a daemon's links on a screen of 80 × 24 and more, once a second.
//!
//! | key | what |
//! | --- | --- |
//! | arrows, `j`, `k` | choose a link: its sentence and its last minutes are below |
//! | `s` | sort by name, download, upload, delay |
//! | `+`, `-` | weight of the chosen link one more, one less |
//! | `q`, Escape, Ctrl-C | leave |
//!
//! It asks over the control socket as `pleach status` does. Of a gateway, its clients' links are listed. Cost and standby are
//! matters of the configuration: a running daemon does not take them.

mod draw;

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    time::Duration,
};

use pleach_core::time::Instant;
use pleach_linux::clock;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::{
    control::{self, LinkStatus, StatusReport, WEIGHTS},
    rates::{Key, Rates, links_of, rates},
};

/// Shows the daemon at `socket` until a key ends it.
///
/// # Errors
/// The daemon does not answer at the start, or there is no terminal.
pub(crate) fn run(socket: &Path) -> anyhow::Result<()> {
    let mut top = Top::default();
    top.take(clock::now(), control::status(socket)?);
    let mut terminal = ratatui::try_init()?;
    let result = follow(&mut terminal, &mut top, socket);
    ratatui::restore();
    result
}

fn follow(
    terminal: &mut ratatui::DefaultTerminal,
    top: &mut Top,
    socket: &Path,
) -> anyhow::Result<()> {
    let mut asked = clock::now();
    loop {
        terminal.draw(|frame| draw::draw(frame, top))?;
        let wait = PERIOD.saturating_sub(clock::now().since(asked));
        if event::poll(wait)? {
            let Event::Key(key) = event::read()? else {
                continue;
            };
            match top.press(key) {
                Wish::Leave => return Ok(()),
                Wish::Nothing => continue,
                Wish::Weight(name, weight) => {
                    let set =
                        control::set_weights(socket, BTreeMap::from([(name.clone(), weight)]));
                    top.message = match set {
                        Ok(()) => format!("The weight of {name} is {weight}."),
                        Err(error) => format!("{error:#}"),
                    };
                }
            }
        }
        asked = clock::now();
        match control::status(socket) {
            Ok(report) => top.take(asked, report),
            Err(error) => top.message = format!("{error:#}"),
        }
    }
}

/// What is on the screen.
#[derive(Default)]
struct Top {
    report: StatusReport,
    taken: Option<Instant>,
    moved: BTreeMap<Key, Rates>,
    past: BTreeMap<Key, VecDeque<Rates>>,
    sort: Sort,
    /// The chosen link.
    chosen: Option<Key>,
    message: String,
}

/// By what links are sorted.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Sort {
    #[default]
    Name,
    Download,
    Upload,
    Delay,
}

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Leave,
    Nothing,
    Weight(String, u32),
}

impl Top {
    /// Takes in a status of `now`.
    fn take(&mut self, now: Instant, report: StatusReport) {
        if let Some(taken) = self.taken {
            let gap = now.since(taken);
            if gap >= SHORTEST {
                self.moved = rates(&self.report, &report, gap);
                for (key, rates) in &self.moved {
                    let past = self.past.entry(key.clone()).or_default();
                    if past.len() == MAX_PAST {
                        past.pop_front();
                    }
                    past.push_back(*rates);
                }
                let moved = &self.moved;
                self.past.retain(|key, _| moved.contains_key(key));
                self.taken = Some(now);
            }
        } else {
            self.taken = Some(now);
        }
        self.report = report;
    }

    /// The links in the order of the screen.
    fn rows(&self) -> Vec<(Key, &LinkStatus)> {
        let mut rows: Vec<(Key, &LinkStatus)> = links_of(&self.report)
            .map(|(client, link)| ((client.to_owned(), link.name.clone()), link))
            .collect();
        let rate = |key: &Key| self.moved.get(key).copied().unwrap_or_default();
        match self.sort {
            // As configured.
            Sort::Name => {}
            Sort::Download => rows.sort_by(|(a, _), (b, _)| rate(b).1.total_cmp(&rate(a).1)),
            Sort::Upload => rows.sort_by(|(a, _), (b, _)| rate(b).0.total_cmp(&rate(a).0)),
            Sort::Delay => rows.sort_by(|(_, a), (_, b)| {
                let delay = |link: &LinkStatus| link.rtt_ms.unwrap_or(f64::INFINITY);
                delay(a).total_cmp(&delay(b))
            }),
        }
        rows
    }

    /// Where the chosen link is among `rows`; the first if it is gone.
    fn at(&self, rows: &[(Key, &LinkStatus)]) -> usize {
        let found = rows
            .iter()
            .position(|(key, _)| Some(key) == self.chosen.as_ref());
        found.unwrap_or(0)
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "all other keys, of which there may be more, do nothing"
    )]
    fn press(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Leave,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Wish::Leave;
            }
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::Char('s') => {
                self.sort = match self.sort {
                    Sort::Name => Sort::Download,
                    Sort::Download => Sort::Upload,
                    Sort::Upload => Sort::Delay,
                    Sort::Delay => Sort::Name,
                };
            }
            KeyCode::Char('+' | '=') => return self.weigh(1),
            KeyCode::Char('-') => return self.weigh(-1),
            _ => {}
        }
        Wish::Nothing
    }

    fn choose(&mut self, step: isize) {
        let rows = self.rows();
        let at = self.at(&rows).saturating_add_signed(step);
        let chosen = rows.get(at.min(rows.len().saturating_sub(1)));
        self.chosen = chosen.map(|(key, _)| key.clone());
    }

    fn weigh(&mut self, step: i32) -> Wish {
        let rows = self.rows();
        let chosen = rows.get(self.at(&rows));
        let Some(((client, name), link)) = chosen else {
            return Wish::Nothing;
        };
        if !client.is_empty() {
            self.message = "A client's weights are set at the client.".to_owned();
            return Wish::Nothing;
        }
        let weight = link.weight.saturating_add_signed(step);
        Wish::Weight(name.clone(), weight.clamp(*WEIGHTS.start(), *WEIGHTS.end()))
    }
}

/// Between two questions.
const PERIOD: Duration = Duration::from_secs(1);

/// Rates over less are of few packets.
const SHORTEST: Duration = Duration::from_millis(500);

/// Seconds of the sparklines: wider than most screens.
const MAX_PAST: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::LinkState;

    pub(super) fn report(bytes: u64) -> StatusReport {
        let link = |name: &str, sent: u64, rtt| LinkStatus {
            state: LinkState::Up,
            rtt_ms: Some(rtt),
            capacity_mbps: Some(64.0),
            tx_bytes: sent,
            rx_bytes: sent * 4,
            weight: 5,
            ..LinkStatus::bare(name, "eth1")
        };
        StatusReport {
            mode: "client".to_owned(),
            name: "pleach0".to_owned(),
            up: true,
            links: vec![
                link("lte", bytes / 2, 48.0),
                LinkStatus {
                    why: Some("dsl carries packets".to_owned()),
                    ..link("dsl", bytes, 23.5)
                },
                LinkStatus {
                    state: LinkState::Down,
                    carrier: None,
                    carrier_error: None,
                    idle_reason: Some("down".to_owned()),
                    why: Some("sat is down: nothing comes back over it".to_owned()),
                    advice: Some("Check cable, modem or signal.".to_owned()),
                    ..LinkStatus::bare("sat", "eth2")
                },
            ],
            ..StatusReport::default()
        }
    }

    pub(super) fn top() -> Top {
        let mut top = Top::default();
        for second in 0..30_u64 {
            let at = Instant::from_nanos(second * 1_000_000_000);
            top.take(at, report(second * 1_000_000));
        }
        top
    }

    fn press(top: &mut Top, code: KeyCode) -> Wish {
        top.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_sort_choose_and_weigh() {
        let mut top = top();
        let order = |top: &Top| -> Vec<String> {
            top.rows().into_iter().map(|((_, name), _)| name).collect()
        };
        assert_eq!(order(&top), ["lte", "dsl", "sat"]);
        assert_eq!(press(&mut top, KeyCode::Char('s')), Wish::Nothing);
        assert_eq!(order(&top), ["dsl", "lte", "sat"], "by download");
        for _ in 0..3 {
            press(&mut top, KeyCode::Char('s'));
        }
        assert_eq!(order(&top), ["lte", "dsl", "sat"]);
        press(&mut top, KeyCode::Down);
        let wish = press(&mut top, KeyCode::Char('+'));
        assert_eq!(wish, Wish::Weight("dsl".to_owned(), 6));
        for _ in 0..5 {
            press(&mut top, KeyCode::Down);
        }
        let wish = press(&mut top, KeyCode::Char('-'));
        assert_eq!(wish, Wish::Weight("sat".to_owned(), 1), "not below 1");
        for _ in 0..5 {
            press(&mut top, KeyCode::Up);
        }
        assert_eq!(
            press(&mut top, KeyCode::Char('-')),
            Wish::Weight("lte".to_owned(), 4)
        );
        assert_eq!(press(&mut top, KeyCode::Esc), Wish::Leave);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(top.press(control_c), Wish::Leave);
    }

    #[test]
    fn a_daemon_without_links_takes_all_keys() {
        let mut top = Top::default();
        for code in ['s', 'j', 'k', '+', '-', 'x'].map(KeyCode::Char) {
            assert_eq!(press(&mut top, code), Wish::Nothing);
        }
    }
}
