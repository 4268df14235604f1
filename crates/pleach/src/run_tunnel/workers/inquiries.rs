//! The status of a gateway with several data threads: worker 0 asks all others for their parts at once.
//!
//! A worker that has not answered within [`PATIENCE`] is *silent*. The status then names it, and has of its part only the
//! counters of its last answer, so that no sum falls.
//! A silent worker is not asked again before an answer of it arrives. So a worker that hangs delays a status by [`PATIENCE`]
//! once, and the questions that wait for it are those of that time: the control socket bounds their number.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use pleach_core::time::Instant;

use super::merge;
use crate::control::StatusReport;

/// Statuses that are not complete yet. `P`: what a status is for.
#[derive(Debug)]
pub(super) struct Inquiries<P> {
    /// Number of workers, worker 0 included.
    workers: usize,
    /// By number, which is also the order in which their times are over.
    waiting: BTreeMap<u64, Waiting<P>>,
    next_number: u64,
    silent: BTreeSet<usize>,
    /// Counters in the last answer of each worker.
    counters: BTreeMap<usize, StatusReport>,
}

#[derive(Debug)]
struct Waiting<P> {
    status: StatusReport,
    purpose: P,
    /// Parts that have arrived, by worker.
    parts: BTreeMap<usize, Box<StatusReport>>,
    /// Workers whose parts have not arrived.
    missing: BTreeSet<usize>,
    due_at: Instant,
}

impl<P> Inquiries<P> {
    pub(super) const fn new(workers: usize) -> Self {
        Self {
            workers,
            waiting: BTreeMap::new(),
            next_number: 0,
            silent: BTreeSet::new(),
            counters: BTreeMap::new(),
        }
    }

    /// Begins a status with the part of worker 0. Returns its number, and the workers that are to be asked.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        status: StatusReport,
        purpose: P,
    ) -> (u64, BTreeSet<usize>) {
        let number = self.next_number;
        self.next_number += 1;
        let all = 1..self.workers;
        let asked: BTreeSet<usize> = all.filter(|worker| !self.silent.contains(worker)).collect();
        let waiting = Waiting {
            status,
            purpose,
            parts: BTreeMap::new(),
            missing: asked.clone(),
            due_at: now + PATIENCE,
        };
        self.waiting.insert(number, waiting);
        (number, asked)
    }

    /// Adds the part of a worker to the status `number`, unless its time is over.
    pub(super) fn on_part(&mut self, worker: usize, number: u64, part: Box<StatusReport>) {
        if self.silent.remove(&worker) {
            tracing::info!(worker, "the data thread answers again");
        }
        self.counters.insert(worker, merge::counters(&part));
        if let Some(waiting) = self.waiting.get_mut(&number)
            && waiting.missing.remove(&worker)
        {
            waiting.parts.insert(worker, part);
        }
    }

    /// Returns when [`Self::complete`] has something to do although no part arrives.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let (_, oldest) = self.waiting.first_key_value()?;
        Some(oldest.due_at)
    }

    /// Returns the next status to which all workers have added their parts, or whose time is over, and what it is for.
    pub(super) fn complete(&mut self, now: Instant) -> Option<(StatusReport, P)> {
        let is_over = |(_, waiting): &(&u64, &Waiting<P>)| {
            waiting.missing.is_empty() || waiting.due_at <= now
        };
        let number = *self.waiting.iter().find(is_over)?.0;
        let Waiting {
            mut status,
            purpose,
            parts,
            missing,
            ..
        } = self.waiting.remove(&number)?;
        for worker in missing {
            if self.silent.insert(worker) {
                tracing::warn!(
                    worker,
                    "a data thread does not answer: its clients are missing in the status"
                );
            }
        }
        for worker in (1..self.workers).filter(|worker| !parts.contains_key(worker)) {
            status.silent_workers.push(worker as u64);
            if let Some(counters) = self.counters.get(&worker) {
                merge::add(&mut status, counters.clone());
            }
        }
        for part in parts.into_values() {
            merge::add(&mut status, *part);
        }
        Some((status, purpose))
    }
}

/// Time within which a worker must answer: much longer than a round of a busy worker, and shorter than the patience of those
/// who ask for a status.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::WorkerStatus;

    const START: Instant = Instant::from_millis(50_000);

    fn part(number: u64) -> StatusReport {
        let worker = WorkerStatus {
            number,
            clients: 10 + number,
            ..WorkerStatus::default()
        };
        StatusReport {
            workers: vec![worker],
            drops: BTreeMap::from([("no_route".to_owned(), number)]),
            ..StatusReport::default()
        }
    }

    /// Lets a worker answer.
    fn answer(inquiries: &mut Inquiries<&str>, worker: u64, number: u64) {
        let at = usize::try_from(worker).expect("small");
        inquiries.on_part(at, number, Box::new(part(worker)));
    }

    fn numbers(status: &StatusReport) -> Vec<u64> {
        status.workers.iter().map(|worker| worker.number).collect()
    }

    #[test]
    fn a_status_has_the_parts_of_all_workers_in_their_order() {
        let mut inquiries = Inquiries::new(3);
        let (first, asked) = inquiries.begin(START, part(0), "first");
        assert_eq!(asked, BTreeSet::from([1, 2]));
        let (second, _) = inquiries.begin(START, part(0), "second");
        assert_eq!(inquiries.complete(START), None);
        for number in [second, first] {
            answer(&mut inquiries, 2, number);
            assert_eq!(inquiries.complete(START), None);
            answer(&mut inquiries, 1, number);
            let (status, purpose) = inquiries.complete(START).expect("complete");
            assert_eq!(purpose == "first", number == first);
            assert_eq!(numbers(&status), [0, 1, 2]);
            assert!(status.silent_workers.is_empty());
        }
        assert_eq!(
            (inquiries.complete(START), inquiries.next_at()),
            (None, None)
        );
    }

    #[test]
    fn a_silent_worker_delays_a_status_once_and_is_named() {
        let mut inquiries = Inquiries::new(3);
        let (late, _) = inquiries.begin(START, part(0), "first");
        answer(&mut inquiries, 1, late);
        let due = inquiries.next_at().expect("due");
        assert_eq!(due, START + PATIENCE);
        assert_eq!(inquiries.complete(due - Duration::from_millis(1)), None);
        let (status, _) = inquiries.complete(due).expect("the time is over");
        assert_eq!(
            (numbers(&status), status.silent_workers),
            (vec![0, 1], vec![2])
        );

        let (number, asked) = inquiries.begin(due, part(0), "second");
        assert_eq!(asked, BTreeSet::from([1]), "the silent one is not asked");
        answer(&mut inquiries, 1, number);
        let (status, _) = inquiries.complete(due).expect("at once");
        assert_eq!(
            (numbers(&status), status.silent_workers),
            (vec![0, 1], vec![2])
        );

        // Its late answer is used for nothing but the next question, and its counters.
        answer(&mut inquiries, 2, late);
        assert_eq!(inquiries.complete(due), None);
        let (number, asked) = inquiries.begin(due, part(0), "third");
        assert_eq!(asked, BTreeSet::from([1, 2]));
        answer(&mut inquiries, 1, number);
        let due = inquiries.next_at().expect("due");
        let (status, _) = inquiries.complete(due).expect("the time is over");
        assert_eq!(numbers(&status), [0, 1], "it is silent again");
        assert_eq!(status.drops["no_route"], 3, "no counter falls");
    }
}
