//! Writes the engine's decisions into a file, as lines of JSON.
//!
//! Each line is one event ([`Event`]): the time in microseconds of the engine's clock, the peer's name, and the event
//! itself. One of [`PICK_EVERY`] decisions of the policy is written. After [`MOST_LINES`] lines of a peer, the trace of
//! this peer ends with a line that says so.

#[cfg(feature = "sim")]
use std::sync::{Arc, Mutex, PoisonError};
use std::{
    fs::File,
    io::{BufWriter, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::mpsc::{SyncSender, TrySendError, sync_channel},
    thread,
};

use anyhow::Context as _;
use pleach_core::{
    ids::PathId,
    path::health::State,
    time::Instant,
    trace::{Candidate, Choice, Event, Observer, Observers, RepairCause, Verdict},
};
use serde_json::{Value, json};

/// A file into which events are written.
#[derive(Clone, Debug)]
pub(crate) struct TraceFile(Sink);

/// How lines are written into the file.
#[derive(Clone, Debug)]
enum Sink {
    /// Directly: a simulation may wait for the disk.
    #[cfg(feature = "sim")]
    Direct(Arc<Mutex<BufWriter<File>>>),
    /// By a thread: the data path must not wait for the disk.
    Thread(SyncSender<String>),
}

impl TraceFile {
    /// Creates a file at `path`, which is written directly.
    ///
    /// # Errors
    /// If the file cannot be created.
    #[cfg(feature = "sim")]
    pub(crate) fn direct(path: &Path) -> anyhow::Result<Self> {
        let file = Arc::new(Mutex::new(create(path)?));
        Ok(Self(Sink::Direct(file)))
    }

    /// Creates a file at `path`, which is written by a thread. Lines are dropped if the disk is too slow.
    ///
    /// # Errors
    /// If the file or the thread cannot be created.
    pub(crate) fn threaded(path: &Path) -> anyhow::Result<Self> {
        let mut file = create(path)?;
        let (sender, lines) = sync_channel::<String>(QUEUED_LINES);
        let write = move || {
            for line in lines {
                if writeln!(file, "{line}")
                    .and_then(|()| file.flush())
                    .is_err()
                {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("trace".to_owned())
            .spawn(write)
            .context("cannot start the thread that writes the trace")?;
        Ok(Self(Sink::Thread(sender)))
    }
}

impl Observers for TraceFile {
    fn observer(&self, peer: &str) -> Box<dyn Observer> {
        Box::new(Writer {
            sink: self.0.clone(),
            peer: peer.to_owned(),
            lines: 0,
            picks: 0,
            is_over: false,
        })
    }
}

fn create(path: &Path) -> anyhow::Result<BufWriter<File>> {
    // Only the owner may read the file, because it shows which flows the clients have.
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(true);
    let file = file.mode(0o600).open(path);
    let file = file.with_context(|| format!("cannot write the trace {}", path.display()))?;
    Ok(BufWriter::new(file))
}

/// Writes the events of one tunnel.
#[derive(Debug)]
struct Writer {
    sink: Sink,
    peer: String,
    lines: u64,
    picks: u64,
    /// Whether the last line has been written.
    is_over: bool,
}

impl Observer for Writer {
    fn on_event(&mut self, now: Instant, event: &Event<'_>) {
        if let Event::Pick(_) = event {
            self.picks += 1;
            if self.picks % PICK_EVERY != 1 {
                return;
            }
        }
        if self.is_over {
            return;
        }
        let is_last = self.lines >= MOST_LINES;
        let mut line = if is_last {
            json!({ "event": "truncated" })
        } else {
            value(now, event)
        };
        line["t_us"] = (now.as_nanos() / 1_000).into();
        line["peer"] = self.peer.clone().into();
        let is_taken = self.sink.write(line.to_string());
        self.lines += 1;
        self.is_over = is_last && is_taken;
    }
}

impl Sink {
    /// Writes a line. Returns `false` if the thread's queue is full and the line was dropped.
    fn write(&self, line: String) -> bool {
        match self {
            #[cfg(feature = "sim")]
            Self::Direct(file) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                // A full disk stops the trace, but not the simulation.
                let _ = writeln!(file, "{line}");
                true
            }
            Self::Thread(sender) => match sender.try_send(line) {
                Ok(()) | Err(TrySendError::Disconnected(_)) => true,
                Err(TrySendError::Full(_)) => false,
            },
        }
    }
}

fn value(now: Instant, event: &Event<'_>) -> Value {
    match event {
        Event::Health { path, from, to } => {
            json!({ "event": "health", "path": path.0, "from": state(*from), "to": state(*to) })
        }
        Event::Pick(pick) => {
            let candidates = pick.candidates.iter();
            let candidates = candidates.map(|candidate| candidate_value(now, candidate));
            let (choice, paths) = choice(pick.choice);
            json!({
                "event": "pick",
                "flow": format!("{:016x}", pick.flow),
                "len": pick.len.get(),
                "backlog": pick.backlog.get(),
                "candidates": candidates.collect::<Vec<_>>(),
                "choice": choice,
                "paths": paths,
            })
        }
        Event::RateControl {
            path,
            from,
            to,
            pace,
        } => {
            let mbps = pace.map(|pace| pace.as_mbps());
            json!({ "event": "rate-control", "path": path.0, "from": from, "to": to, "pace_mbps": mbps })
        }
        Event::Congestion {
            path,
            is_limited,
            pace,
        } => {
            let mbps = pace.map(|pace| pace.as_mbps());
            json!({ "event": "congestion", "path": path.0, "limited": is_limited, "pace_mbps": mbps })
        }
        Event::Repair {
            path,
            cause,
            packets,
        } => {
            let cause = match cause {
                RepairCause::Nacked => "nacked",
                RepairCause::Overdue => "overdue",
                RepairCause::Silent => "silent",
            };
            json!({ "event": "repair", "path": path.0, "cause": cause, "packets": packets })
        }
    }
}

fn candidate_value(now: Instant, candidate: &Candidate) -> Value {
    let (verdict, why) = match candidate.verdict {
        Verdict::Awaited => ("awaited", None),
        Verdict::Busy => ("busy", None),
        Verdict::Excluded(reason) => ("excluded", Some(reason.word())),
        Verdict::Ready => ("ready", None),
        Verdict::ReadyBehind => ("ready-behind", None),
    };
    let arrival = candidate.arrival.map(|arrival| arrival.since(now));
    json!({
        "path": candidate.path.0,
        "verdict": verdict,
        "why": why,
        "arrival_ms": arrival.map(|arrival| (arrival.as_secs_f64() * 1e5).round() / 1e2),
    })
}

/// Returns the name of a decision, and the paths that it concerns.
fn choice(choice: Choice) -> (&'static str, Vec<u8>) {
    match choice {
        Choice::Behind(path) => ("behind", vec![path.0]),
        Choice::Copies(set) => {
            let paths = (0..PathId::MAX).filter(|id| set & 1 << id != 0);
            let paths = paths.filter_map(|id| u8::try_from(id).ok());
            ("copies", paths.collect())
        }
        Choice::One(path) => ("one", vec![path.0]),
        Choice::Wait => ("wait", Vec::new()),
    }
}

const fn state(state: State) -> &'static str {
    match state {
        State::Down => "down",
        State::Probing => "probing",
        State::Suspect => "suspect",
        State::Up => "up",
    }
}

/// Number of decisions of which one is written: at 100 Mbit/s more than a hundred lines a second.
const PICK_EVERY: u64 = 64;
/// Maximum number of lines of one tunnel: about 60 MB.
const MOST_LINES: u64 = 200_000;
/// Maximum number of lines that wait for the disk: some seconds of a busy tunnel.
const QUEUED_LINES: usize = 4_096;

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use pleach_core::{trace::PickEvent, units::Bytes};

    use super::*;

    fn pick(candidates: &[Candidate]) -> Event<'_> {
        Event::Pick(PickEvent {
            flow: 7,
            len: Bytes::new(1_500),
            backlog: Bytes::ZERO,
            candidates,
            choice: Choice::One(PathId(2)),
        })
    }

    #[test]
    fn the_line_that_tells_the_end_is_written_as_soon_as_there_is_room() {
        let (sender, lines) = sync_channel(1);
        let mut writer = Writer {
            sink: Sink::Thread(sender),
            peer: "client".to_owned(),
            lines: MOST_LINES - 1,
            picks: 0,
            is_over: false,
        };
        let event = Event::Repair {
            path: PathId(0),
            cause: RepairCause::Nacked,
            packets: 3,
        };
        let mut report = || writer.on_event(Instant::ZERO, &event);
        report();
        report();
        assert!(lines.recv().expect("a line").contains("repair"));
        report();
        assert!(lines.recv().expect("a line").contains("truncated"));
        report();
        assert!(lines.try_recv().is_err(), "it was the last");
    }

    #[test]
    fn nobody_else_reads_a_trace() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("trace.jsonl");
        let _file = TraceFile::threaded(&path).expect("writable");
        let mode = fs::metadata(&path)
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0);
    }

    #[test]
    fn events_are_lines_of_json_and_picks_are_sampled() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("trace.jsonl");
        let file = TraceFile::threaded(&path).expect("writable");
        let mut observer = file.observer("client");
        let now = Instant::from_millis(5);
        let candidates = [Candidate {
            path: PathId(2),
            arrival: Some(Instant::from_millis(9)),
            verdict: Verdict::Ready,
        }];
        for _ in 0..=PICK_EVERY {
            observer.on_event(now, &pick(&candidates));
        }
        let repair = Event::Repair {
            path: PathId(0),
            cause: RepairCause::Nacked,
            packets: 3,
        };
        observer.on_event(now, &repair);
        drop((observer, file));
        // The thread ends when all observers are dropped.
        let lines = loop {
            let text = fs::read_to_string(&path).expect("there");
            let lines: Vec<Value> = text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect();
            if lines.len() == 3 {
                break lines;
            }
            thread::yield_now();
        };
        let kinds: Vec<_> = lines.iter().map(|line| line["event"].as_str()).collect();
        assert_eq!(kinds, [Some("pick"), Some("pick"), Some("repair")]);
        assert_eq!(lines[0]["t_us"], 5_000);
        assert_eq!(lines[0]["candidates"][0]["arrival_ms"], 4.0);
        assert_eq!(lines[0]["paths"], json!([2]));
        assert_eq!(lines[2]["packets"], 3);
    }
}
