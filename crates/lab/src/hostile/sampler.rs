//! A thread that reads memory, descriptors and status of a daemon at an interval, so that waiting for an answer keeps
//! nobody from sending.

use core::time::Duration;
use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::bail;
use pleach_linux::clock;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{crowd::gateway::Usage, daemon, wait};

/// State of a daemon at one time.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Sample {
    /// Seconds since the sampler was started.
    pub(crate) at_s: f64,
    /// Memory of heap and stacks in bytes.
    pub(crate) anonymous_bytes: u64,
    /// Number of open descriptors.
    pub(crate) descriptors: u64,
    /// Bytes of packets of all peers.
    pub(crate) kept_bytes: u64,
    /// Largest number of bytes of packets of one peer.
    pub(crate) peer_kept_bytes: u64,
    /// Number of pauses of the data thread above 20 ms since its start.
    pub(crate) pauses: u64,
    /// Longest pause of the data thread since its start, in milliseconds.
    pub(crate) longest_pause_ms: f64,
}

/// A running sampler. It ends when the value is dropped.
pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Sample>>>,
}

impl Sampler {
    /// Starts to sample a daemon every `interval`. `process`: its directory in procfs. `control`: its control socket.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub(crate) fn start(
        process: PathBuf,
        control: PathBuf,
        interval: Duration,
    ) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || {
                let began_at = clock::now();
                let mut samples = Vec::new();
                while !until.load(Ordering::Relaxed) {
                    let now = clock::now();
                    let at_s = now.since(began_at).as_secs_f64();
                    let status = daemon::ask(&control, &json!({ "command": "status" }));
                    samples.extend(sample(&process, status.as_ref(), at_s));
                    let next = now + interval;
                    while clock::now() < next && !until.load(Ordering::Relaxed) {
                        wait::until(next.min(clock::now() + STEP));
                    }
                }
                samples
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the sampler, and returns its samples.
    ///
    /// # Errors
    /// Fails if there are none, because the daemon has never answered.
    pub(crate) fn finish(mut self) -> anyhow::Result<Vec<Sample>> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(samples)) if !samples.is_empty() => Ok(samples),
            Some(Ok(_)) => bail!("the gateway has never answered a request for its status"),
            Some(Err(_)) | None => bail!("the thread of the sampler panicked"),
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Only `finish` is interested in the samples.
            let _ = thread.join();
        }
    }
}

/// Returns the state of a daemon. `None` if it has ended or does not answer.
fn sample(process: &std::path::Path, status: Option<&Value>, at_s: f64) -> Option<Sample> {
    let status = status?;
    let number = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let peers = status.pointer("/bounds/peers").and_then(Value::as_object);
    let kept = peers.into_iter().flatten();
    let kept = kept.filter_map(|(_, peer)| peer.get("kept_bytes")?.as_u64());
    Some(Sample {
        at_s,
        anonymous_bytes: Usage::of(process).ok()?.anonymous,
        descriptors: fs::read_dir(process.join("fd")).ok()?.count() as u64,
        kept_bytes: number("/bounds/kept_bytes"),
        peer_kept_bytes: kept.max().unwrap_or(0),
        pauses: number("/data_thread/pauses"),
        longest_pause_ms: status
            .pointer("/data_thread/longest_pause_ms")
            .and_then(Value::as_f64)
            .unwrap_or(0.0),
    })
}

/// Longest time after which the sampler notices that it should end.
const STEP: Duration = Duration::from_millis(100);
