//! The log of a daemon, which keeps no thread of the daemon waiting.
//!
//! Lines go to standard error. Until [`in_background`] is called, each line is written by the thread that logs it. After
//! that, a thread of its own writes the lines, from a queue of [`MOST_LINES`]. If nobody reads the other end of standard
//! error (a pipe to a program that has stopped), the queue becomes full, and further lines are dropped and counted.
//! When somebody reads again, a line tells how many were dropped.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd as _,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

/// Maximum number of lines that wait to be written.
const MOST_LINES: usize = 1_024;
/// Longest time for which the end of the daemon waits for a line to be written.
const PATIENCE: Duration = Duration::from_millis(200);

static QUEUE: OnceLock<SyncSender<Entry>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);
static WRITTEN: AtomicU64 = AtomicU64::new(0);

enum Entry {
    Line(Vec<u8>),
    /// Asks for an answer when all earlier lines are written.
    Finish(SyncSender<()>),
}

/// Makes the writers of the log.
#[derive(Debug)]
pub(crate) struct Lines;

/// Writes one line.
#[derive(Debug)]
pub(crate) struct Line;

impl MakeWriter<'_> for Lines {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        Line
    }
}

impl Write for Line {
    /// Takes a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Some(queue) = QUEUE.get() else {
            io::stderr().write_all(line)?;
            return Ok(line.len());
        };
        offer(queue, line, &DROPPED);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lets a thread of its own write the log from now on. Call this function after the process has given up its rights,
/// which threads inherit. If the thread cannot be started, the log is written as before, and a warning says so.
pub(crate) fn in_background() {
    if let Err(error) = start() {
        tracing::warn!(%error, "the log may keep packets waiting");
    }
}

fn start() -> io::Result<()> {
    if QUEUE.get().is_some() {
        return Ok(());
    }
    // Another descriptor, so that the lock of standard error is free while the thread waits for a reader.
    let out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let (queue, entries) = sync_channel(MOST_LINES);
    thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || write_all(&entries, out, &DROPPED))?;
    // If two threads call this function, the queue of one of them is used.
    let _ = QUEUE.set(queue);
    Ok(())
}

/// Waits until the lines so far are written. Gives up if no line is written for 200 ms: then nobody reads the log.
pub(crate) fn finish() {
    let Some(queue) = QUEUE.get() else { return };
    let (done, is_done) = sync_channel(1);
    let mut written = WRITTEN.load(Ordering::Relaxed);
    let mut waits = false;
    loop {
        waits = waits || queue.try_send(Entry::Finish(done.clone())).is_ok();
        if is_done.recv_timeout(PATIENCE).is_ok() {
            return;
        }
        let now = WRITTEN.load(Ordering::Relaxed);
        if now == written {
            return;
        }
        written = now;
    }
}

/// Calls [`finish`] when it is dropped, also by a panic of the main thread.
#[derive(Debug)]
pub(crate) struct Finish;

impl Drop for Finish {
    fn drop(&mut self) {
        finish();
    }
}

/// Writes the last line of the process, which ends in an error. Does not wait for a reader that has stopped.
///
/// # Errors
/// If standard error cannot be written.
pub(crate) fn last(line: &str) -> io::Result<()> {
    Line.write_all(format!("{line}\n").as_bytes())?;
    finish();
    Ok(())
}

/// Returns the number of lines dropped so far.
pub(crate) fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

fn offer(queue: &SyncSender<Entry>, line: &[u8], dropped: &AtomicU64) {
    if queue.try_send(Entry::Line(line.to_vec())).is_err() {
        dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn write_all(entries: &Receiver<Entry>, mut out: impl Write, dropped: &AtomicU64) {
    let mut told = 0;
    while let Ok(entry) = entries.recv() {
        let mut next = Some(entry);
        while let Some(entry) = next {
            write(entry, &mut out);
            next = entries.try_recv().ok();
        }
        // The queue is empty: the lines that were dropped came after those that were written.
        let now = dropped.load(Ordering::Relaxed);
        if now > told {
            let lost = now - told;
            let _ = writeln!(
                out,
                "{lost} lines of the log were dropped, because nobody read them"
            );
            told = now;
        }
    }
}

fn write(entry: Entry, out: &mut impl Write) {
    match entry {
        Entry::Line(line) => {
            // A log that cannot be written cannot tell this to anybody.
            let _ = out.write_all(&line);
            WRITTEN.fetch_add(1, Ordering::Relaxed);
        }
        Entry::Finish(done) => {
            // Nobody waits any more.
            let _ = done.try_send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_stops_keeps_nobody_waiting_and_learns_what_it_missed() {
        let dropped = AtomicU64::new(0);
        let (queue, entries) = sync_channel(2);
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            offer(&queue, line.as_bytes(), &dropped);
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
        drop(queue);
        let mut out = Vec::new();
        write_all(&entries, &mut out, &dropped);
        let text = String::from_utf8(out).expect("UTF-8");
        assert_eq!(
            text,
            "one\ntwo\n2 lines of the log were dropped, because nobody read them\n"
        );
    }
}
