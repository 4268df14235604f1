//! What all who look share: one status a second at most, the rates between two of them, and the last minutes.
//!
//! The data path is asked when somebody asks and the last answer is older than [`PERIOD`]; with nobody looking, never. Rates
//! are differences of the byte counters of consecutive samples; after a gap of [`MAX_GAP`] there are none for one sample.

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

/// What the parts of the API share.
pub(super) struct Hub {
    asker: Arc<Asker>,
    state: Mutex<State>,
    /// Event streams that may be.
    pub(super) streams: Arc<Semaphore>,
    /// What is kept over restarts, if anything. Whoever waits for it does so before taking a thread that may wait.
    pub(super) history: Option<Arc<Mutex<History>>>,
}

/// A status and what is known only from the one before.
pub(super) struct Sample {
    taken: Instant,
    /// The daemon's answer.
    pub(super) status: StatusReport,
    /// The same for the dashboard.
    pub(super) live: Live,
    /// [`Self::live`] as JSON, once for all streams.
    pub(super) json: String,
}

#[derive(Default)]
struct State {
    last: Option<Arc<Sample>>,
    /// Whether something was changed since the last sample.
    is_stale: bool,
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

    /// Takes `sample` into the history.
    ///
    /// # Errors
    /// Why it cannot be written.
    pub(super) async fn remember(&self, sample: &Arc<Sample>) -> Result<(), String> {
        let sample = Arc::clone(sample);
        self.with_history(move |history| history.take(&sample.live))
            .await
            .unwrap_or(Ok(()))
    }

    /// The history from `from` to `to`; `None` if none is kept.
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

    /// The newest sample, [`PERIOD`] old at most.
    ///
    /// # Errors
    /// Why the daemon does not answer.
    pub(super) async fn sample(&self) -> Result<Arc<Sample>, String> {
        let mut state = self.state.lock().await;
        if let Some(last) = &state.last
            && !state.is_stale
            && clock::now().since(last.taken) < PERIOD
        {
            return Ok(Arc::clone(last));
        }
        let status = self.run(|asker| asker.ask(ControlRequest::Status)).await?;
        state.is_stale = false;
        Ok(state.take(clock::now(), clock::unix_nanos() / 1_000_000, status))
    }

    /// How long until the data path may be asked again.
    pub(super) fn wait(sample: &Sample) -> Duration {
        PERIOD.saturating_sub(clock::now().since(sample.taken))
    }

    /// The samples of the last minutes in which somebody looked, oldest first.
    pub(super) async fn past(&self) -> Vec<Point> {
        self.state.lock().await.past.iter().cloned().collect()
    }

    /// Lets the data path change something.
    ///
    /// # Errors
    /// It refuses.
    pub(super) async fn change(
        &self,
        change: impl FnOnce(&Asker) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        self.run(change).await?;
        self.state.lock().await.is_stale = true;
        Ok(())
    }

    /// Waits for the data path on a thread that may wait.
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
    /// Takes in `status`, given at `now`, which is `at_ms` after 1970.
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
        let uplink = self.meter.take(&status);
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

/// Packets rebuilt or sent again elsewhere in a second, between two statuses `gap` apart; `None` if counters began anew.
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

/// Makes events of links that are used for another reason than before; of those alone that tell of trouble or its end.
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
    /// The rates of its links, of those that have any.
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

/// Least time between two questions to the data path.
const PERIOD: Duration = Duration::from_secs(1);

/// Rates over less would be of few packets: those before go on. It happens after a change.
const SHORTEST: Duration = Duration::from_millis(500);

/// Rates over more would be of another time.
const MAX_GAP: Duration = Duration::from_secs(5);

/// Samples kept: five minutes.
const MAX_PAST: usize = 300;

/// Links of which samples are kept: some 3 MB at most.
const MAX_PAST_LINKS: usize = 64;

/// Idle reasons that come and go with traffic.
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
