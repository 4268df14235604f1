//! Scenarios between real namespaces, without daemons.

mod links;
mod media;

use std::{
    fs,
    sync::{
        Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use pleach_lab::{Options, netns};
use pleach_linux::{clock, requirement};
use pleach_sim::{results::Results, scenario::Scenario};
use tempfile::TempDir;

/// Number of attempts if the machine was too busy for a valid run.
const ATTEMPTS: usize = 6;

/// Lateness of a thread from which the machine is considered busy, even if its processors are idle: half of the
/// emulator's limit.
const LATE: Duration = Duration::from_millis(1);

/// Runs a scenario, no two at the same time, and repeats it if the emulator was late. Returns the results, and the
/// directory of its files. Prints a message and returns `None` if namespaces are not permitted, or if the emulator was
/// late each time on a busy machine.
pub(crate) fn run(text: &str) -> Option<(Results, TempDir)> {
    static MACHINE: Mutex<()> = Mutex::new(());
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = netns::Netns::new("probe") {
        requirement::skip(format_args!("{error:#}"));
        return None;
    }
    let scenario = Scenario::parse_alone("test.toml", text).expect("valid scenario");
    let options = Options {
        quiet: true,
        ..Options::default()
    };
    let mut was_busy = false;
    for _ in 0..ATTEMPTS {
        let before = processors();
        let out = TempDir::new().expect("a directory");
        let (results, lateness) = thread::scope(|scope| {
            let (stop, stopped) = mpsc::channel();
            let bystander = scope.spawn(move || lateness(&stopped));
            let results = pleach_lab::run(&scenario, out.path(), &options);
            drop(stop);
            (results, bystander.join().expect("it only sleeps"))
        });
        let results = results.expect("the scenario runs");
        let Some(refused) = &results.refused else {
            return Some((results, out));
        };
        eprintln!("once more: {refused}; a thread that only sleeps: {lateness:?} late");
        was_busy |= is_busy(before, processors()) || lateness > LATE;
    }
    assert!(
        was_busy,
        "the emulator was late each time on a machine that did little else"
    );
    // This does not count as a missing requirement: the load of the machine does not decide whether a test passes.
    eprintln!("NOT JUDGED: the machine was too busy in each of {ATTEMPTS} runs");
    None
}

/// Returns the 99th percentile of the lateness of a thread that repeatedly sleeps for a millisecond, until the other
/// end of `stopped` is dropped.
fn lateness(stopped: &Receiver<()>) -> Duration {
    let nap = Duration::from_millis(1);
    let mut late = Vec::new();
    let mut began = clock::now();
    while stopped.recv_timeout(nap) == Err(RecvTimeoutError::Timeout) {
        let woke = clock::now();
        late.push(woke.since(began).saturating_sub(nap));
        began = clock::now();
    }
    late.sort_unstable();
    late.get(late.len() * 99 / 100).copied().unwrap_or_default()
}

/// Returns the times of all processors so far, in ticks: total, idle, and used by the host (proc(5), `/proc/stat`).
fn processors() -> [u64; 3] {
    let text = fs::read_to_string("/proc/stat").expect("procfs");
    let line = text.lines().next().expect("a line");
    let ticks = line.split_whitespace().skip(1).take(8);
    let ticks: Vec<u64> = ticks.map(|tick| tick.parse().expect("a number")).collect();
    [ticks.iter().sum(), ticks[3], ticks[7]]
}

/// Whether other programs used much processor time, or the host used some of it. A counter may decrease slightly.
fn is_busy(before: [u64; 3], after: [u64; 3]) -> bool {
    let [all, idle, stolen] = core::array::from_fn(|at| after[at].saturating_sub(before[at]));
    idle * 100 < all * 80 || stolen * 1000 > all * 2
}
