//! State shared by all clients of the API: at most one status a second, the rates between two statuses, and the last
//! minutes.
//!
//! The data path is asked only when a client, the history or the notices ask and the last answer is older than
//! [`PERIOD`]. At a client of a tunnel, an answer from before a change of a link's health counts as old after [`SOON`],
//! so that an encoder learns of a failed link at once. Rates are differences of the byte counters of consecutive
//! samples. After a gap of [`MAX_GAP`] or more, the next sample has no rates.

use core::time::Duration;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use pleach_core::time::Instant;
use pleach_linux::clock;
use tokio::sync::{Mutex, Semaphore};

use super::{
    history::{Excerpt, History},
    live::{Live, LiveLink, Point},
    uplink::UplinkMeter,
};
use crate::{
    control::{ControlRequest, LinkStatus, StatusReport, server::Asker},
    events::EVENTS,
    rates::{Key, Rates, rates},
};

/// State that the parts of the API share.
pub(super) struct Hub {
    asker: Arc<Asker>,
    state: Mutex<State>,
    /// Permits for event streams, which limit their number.
    pub(super) streams: Arc<Semaphore>,
    /// History that survives restarts; `None` if no history is stored. A task acquires the lock of the history before
    /// it occupies a thread for blocking calls.
    pub(super) history: Option<Arc<Mutex<History>>>,
}

/// A status, with values that follow from the difference to the previous status.
pub(super) struct Sample {
    taken: Instant,
    /// The daemon's answer.
    pub(super) status: StatusReport,
    /// The status as the dashboard shows it.
    pub(super) live: Live,
    /// [`Self::live`] as JSON, serialised once for all streams.
    pub(super) json: String,
}

#[derive(Default)]
struct State {
    last: Option<Arc<Sample>>,
    /// Whether a setting was changed since the last sample.
    is_stale: bool,
    /// [`Asker::link_changes`] at the last sample.
    link_changes: u64,
    past: VecDeque<Point>,
    meter: UplinkMeter,
}

impl Hub {
    pub(super) fn new(asker: Arc<Asker>, history: Option<History>) -> Self {
        Self {
            asker,
            state: Mutex::default(),
            streams: Arc::new(Semaphore::new(super::routes::MAX_STREAMS)),
            history: history.map(|history| Arc::new(Mutex::new(history))),
        }
    }

    /// Adds `sample` to the history.
    ///
    /// # Errors
    /// The reason why the history cannot be written.
    pub(super) async fn remember(&self, sample: &Arc<Sample>) -> Result<(), String> {
        let sample = Arc::clone(sample);
        self.with_history(move |history| history.take(&sample.live))
            .await
            .unwrap_or(Ok(()))
    }

    /// Returns the history from `from` to `to`; `None` if no history is stored.
    pub(super) async fn history(&self, from: i64, to: i64) -> Option<Result<Excerpt, String>> {
        let now = i64::try_from(clock::unix_seconds()).unwrap_or(i64::MAX);
        self.with_history(move |history| history.read(now, from, to))
            .await
    }

    async fn with_history<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut History) -> rusqlite::Result<T> + Send + 'static,
    ) -> Option<Result<T, String>> {
        let mut history = Arc::clone(self.history.as_ref()?).lock_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            work(&mut history).map_err(|error| error.to_string())
        });
        Some(
            done.await
                .unwrap_or_else(|_| Err("the daemon is stopping".to_owned())),
        )
    }

    /// Returns the newest sample, which is at most [`PERIOD`] old, and at a client at most [`SOON`] older than the last
    /// change of a link's health.
    ///
    /// # Errors
    /// The reason why the daemon does not answer.
    pub(super) async fn sample(&self) -> Result<Arc<Sample>, String> {
        let mut state = self.state.lock().await;
        // Read before the status, so that a later change leads to a further sample.
        let link_changes = self.asker.link_changes();
        if let Some(last) = &state.last
            && !state.is_stale
        {
            let is_changed = link_changes != state.link_changes && last.live.uplink.is_some();
            let valid = if is_changed { SOON } else { PERIOD };
            if clock::now().since(last.taken) < valid {
                return Ok(Arc::clone(last));
            }
        }
        let status = self.run(|asker| asker.ask(ControlRequest::Status)).await?;
        state.is_stale = false;
        state.link_changes = link_changes;
        Ok(state.take(clock::now(), clock::unix_nanos() / 1_000_000, status))
    }

    /// Returns how long to wait until the data path may be asked again.
    pub(super) fn wait(sample: &Sample) -> Duration {
        PERIOD.saturating_sub(clock::now().since(sample.taken))
    }

    /// Returns the samples of the last minutes, oldest first. Samples exist only for times at which a client asked for
    /// the status.
    pub(super) async fn past(&self) -> Vec<Point> {
        self.state.lock().await.past.iter().cloned().collect()
    }

    /// Changes a setting in the data path.
    ///
    /// # Errors
    /// If the data path refuses the change.
    pub(super) async fn change(
        &self,
        change: impl FnOnce(&Asker) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        self.run(change).await?;
        self.state.lock().await.is_stale = true;
        Ok(())
    }

    /// Waits for the data path on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Asker) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let asker = Arc::clone(&self.asker);
        let answer = tokio::task::spawn_blocking(move || ask(&asker)).await;
        answer.unwrap_or_else(|_| Err("the daemon is stopping".to_owned()))
    }
}

impl State {
    /// Stores `status` as the newest sample. The daemon returned it at `now`, which is `at_ms` milliseconds after 1970.
    fn take(&mut self, now: Instant, at_ms: u64, status: StatusReport) -> Arc<Sample> {
        let last = self.last.take();
        let since = last.as_ref().map(|last| now.since(last.taken));
        let rates = match (&last, since) {
            (Some(last), Some(gap)) if gap < SHORTEST => last.live.rates(),
            (Some(last), Some(gap)) if gap < MAX_GAP => rates(&last.status, &status, gap),
            _ => BTreeMap::new(),
        };
        if let Some(last) = &last {
            tell_changes(&last.status.links, &status.links);
        }
        let uplink = self.meter.take(now, &status);
        let mut live = Live::new(at_ms, &status, &rates, uplink);
        live.repaired_per_s = match (&last, since) {
            (Some(last), Some(gap)) if gap < SHORTEST => last.live.repaired_per_s,
            (Some(last), Some(gap)) if gap < MAX_GAP => repaired(&last.status, &status, gap),
            _ => None,
        };
        if live.links.len() <= MAX_PAST_LINKS {
            if self.past.len() == MAX_PAST {
                self.past.pop_front();
            }
            self.past.push_back(Point::of(&live));
        }
        let json = serde_json::to_string(&live).unwrap_or_default();
        let sample = Arc::new(Sample {
            taken: now,
            status,
            live,
            json,
        });
        self.last = Some(Arc::clone(&sample));
        sample
    }
}

/// Returns the number of packets per second that were recovered from repair symbols or retransmitted on another path,
/// between two statuses that are `gap` apart. Returns `None` if the counters were reset.
fn repaired(before: &StatusReport, after: &StatusReport, gap: Duration) -> Option<f64> {
    let total = |status: &StatusReport| {
        status
            .repair
            .map(|repair| repair.recovered + repair.reinjected)
    };
    let packets = total(after)?.checked_sub(total(before)?)?;
    #[expect(clippy::cast_precision_loss, reason = "packets of a second")]
    let packets = packets as f64;
    Some(packets / gap.as_secs_f64())
}

/// Records an event for each link whose idle reason has changed, if the old or the new reason means trouble.
fn tell_changes(before: &[LinkStatus], after: &[LinkStatus]) {
    let is_trouble = |link: &LinkStatus| {
        let word = link.idle_reason.as_deref();
        word.filter(|word| !CALM.contains(word)).map(str::to_owned)
    };
    for link in after {
        let Some(was) = before.iter().find(|known| known.name == link.name) else {
            continue;
        };
        if is_trouble(was) != is_trouble(link)
            && let Some(why) = &link.why
        {
            let level = if is_trouble(link).is_some() {
                "warn"
            } else {
                "info"
            };
            EVENTS.push(level, why);
        }
    }
}

impl Live {
    /// Returns the rates of all links that have rates.
    fn rates(&self) -> BTreeMap<Key, Rates> {
        let rate = |client: &str, link: &LiveLink| {
            let rates = (link.tx_mbps?, link.rx_mbps?);
            Some(((client.to_owned(), link.status.name.clone()), rates))
        };
        let own = self.links.iter().filter_map(|link| rate("", link));
        let clients = self.clients.iter().flat_map(|client| {
            let links = client.links.iter();
            links.filter_map(|link| rate(&client.name, link))
        });
        own.chain(clients).collect()
    }
}

/// Minimum interval between two requests to the data path, except after a change.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// Minimum interval between two requests to the data path while the health of links changes. It bounds the work for
/// links that fail and return all the time.
const SOON: Duration = Duration::from_millis(100);

/// Minimum interval for new rates. Over a shorter interval, which occurs after a change, too few packets are counted;
/// then the previous rates are shown.
const SHORTEST: Duration = Duration::from_millis(500);

/// Minimum interval between two samples for which no rates are computed, because the rates would describe the past.
const MAX_GAP: Duration = Duration::from_secs(5);

/// Maximum number of samples stored: five minutes.
const MAX_PAST: usize = 300;

/// Maximum number of links for which samples are stored: about 3 MB.
const MAX_PAST_LINKS: usize = 64;

/// Idle reasons that change with the traffic and mean no trouble.
const CALM: [&str; 4] = ["no-traffic", "not-needed", "paced", "rank"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{LinkState, RepairStatus};

    fn status(bytes: u64) -> StatusReport {
        let mut link = LinkStatus::bare("dsl", "eth1");
        link.state = LinkState::Up;
        link.tx_bytes = bytes;
        link.rx_bytes = bytes / 10;
        StatusReport {
            mode: "client".to_owned(),
            links: vec![link],
            repair: Some(RepairStatus {
                recovered: bytes / 500_000,
                reinjected: bytes / 1_000_000,
                ..RepairStatus::default()
            }),
            ..StatusReport::default()
        }
    }

    fn at(milliseconds: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + milliseconds * 1_000_000)
    }

    #[test]
    fn rates_are_those_between_two_samples() {
        let mut state = State::default();
        let first = state.take(at(0), 0, status(1_000_000));
        assert_eq!(first.live.links[0].tx_mbps, None);
        let second = state.take(at(2000), 2000, status(2_000_000));
        assert_eq!(second.live.links[0].tx_mbps, Some(4.0));
        let received = second.live.links[0].rx_mbps;
        assert!(received.is_some_and(|mbps| (mbps - 0.4).abs() < 1e-9));
        assert_eq!(second.live.tx_mbps, Some(4.0));
        assert_eq!(second.live.repaired_per_s, Some(1.5), "3 packets in 2 s");
        let soon = state.take(at(2100), 2100, status(2_000_000));
        assert_eq!(
            soon.live.links[0].tx_mbps,
            Some(4.0),
            "too soon for another"
        );
        let anew = state.take(at(3100), 3100, status(5));
        assert_eq!(anew.live.links[0].tx_mbps, None, "the counter began anew");
        let late = state.take(at(60_000), 60_000, status(10));
        assert_eq!(late.live.links[0].tx_mbps, None, "nobody looked");
        assert_eq!(state.past.len(), 5);
    }

    #[test]
    fn readers_of_the_history_leave_a_thread_for_the_status() {
        let directory = tempfile::tempdir().expect("directory");
        let (history, _) = History::open(&directory.path().join("h.db")).expect("opens");
        let hub = Arc::new(Hub::new(Arc::new(Asker::unheard()), Some(history)));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()
            .expect("runtime");
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        let answer = runtime.block_on(async {
            for _ in 0..4 {
                let (hub, ended) = (Arc::clone(&hub), Arc::clone(&ended));
                tokio::spawn(async move {
                    let wait = move |_: &mut History| {
                        let _ = ended.lock().map(|ended| ended.recv());
                        Ok(())
                    };
                    hub.with_history(wait).await
                });
            }
            tokio::task::yield_now().await;
            let answer = hub.run(|_| Ok(7));
            tokio::time::timeout(Duration::from_secs(5), answer).await
        });
        drop(end);
        assert_eq!(answer, Ok(Ok(7)));
    }

    #[test]
    fn the_past_is_bounded() {
        let mut state = State::default();
        for second in 0..400 {
            state.take(at(second * 1000), second * 1000, status(second));
        }
        assert_eq!(state.past.len(), MAX_PAST);
    }

    #[test]
    fn a_link_that_fails_makes_an_event_of_its_sentence() {
        let mut state = State::default();
        state.take(at(0), 0, status(0));
        let mut dead = status(0);
        dead.links[0].idle_reason = Some("down".to_owned());
        dead.links[0].why = Some("dsl is down: a test says so".to_owned());
        state.take(at(1000), 1000, dead);
        let events = EVENTS.after(0);
        let event = events
            .iter()
            .find(|event| event.text.contains("a test says so"));
        assert_eq!(event.map(|event| event.level.as_str()), Some("warn"));
    }
}
