//! Adds the parts of the status that further workers report to that of worker 0.

use crate::control::{ParityReport, RepairStatus, ResequencerStatus, StatusReport};

/// Adds `part`, the status of a further worker, to `status`.
pub(super) fn add(status: &mut StatusReport, part: StatusReport) {
    status.clients.extend(part.clients);
    status.workers.extend(part.workers);
    status.resequencer.held += part.resequencer.held;
    status.resequencer.released_late += part.resequencer.released_late;
    let hold = &mut status.resequencer.hold_p95_ms;
    *hold = hold.max(part.resequencer.hold_p95_ms);
    for (name, more) in part.classes {
        let class = status.classes.entry(name).or_default();
        class.packets += more.packets;
        class.bytes += more.bytes;
        class.copies += more.copies;
        class.copied_bytes += more.copied_bytes;
        class.expired += more.expired;
    }
    status.parity = match (status.parity, part.parity) {
        (Some(one), Some(other)) => Some(ParityReport {
            mended: one.mended + other.mended,
            cut_short: one.cut_short + other.cut_short,
        }),
        (one, other) => one.or(other),
    };
    if let (Some(bounds), Some(more)) = (&mut status.bounds, part.bounds) {
        bounds.kept_bytes += more.kept_bytes;
        bounds.limit_bytes += more.limit_bytes;
        bounds.peers.extend(more.peers);
    }
    if let (Some(repair), Some(more)) = (&mut status.repair, part.repair) {
        repair.queued += more.queued;
        repair.reinjected += more.reinjected;
        repair.symbols_sent += more.symbols_sent;
        repair.symbols_received += more.symbols_received;
        repair.recovered += more.recovered;
    }
    if let (Some(thread), Some(more)) = (&mut status.data_thread, part.data_thread) {
        // The lines of the log are those of the process, and are counted once.
        thread.pauses += more.pauses;
        thread.longest_pause_ms = thread.longest_pause_ms.max(more.longest_pause_ms);
    }
    for (reason, count) in part.drops {
        *status.drops.entry(reason).or_default() += count;
    }
}

/// Returns the counters of `part`, the status of a further worker: what stays true when the worker does not answer any more.
pub(super) fn counters(part: &StatusReport) -> StatusReport {
    StatusReport {
        resequencer: ResequencerStatus {
            released_late: part.resequencer.released_late,
            ..ResequencerStatus::default()
        },
        classes: part.classes.clone(),
        parity: part.parity,
        data_thread: part.data_thread.clone(),
        repair: part.repair.map(|repair| RepairStatus {
            queued: 0,
            ..repair
        }),
        drops: part.drops.clone(),
        ..StatusReport::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::control::{BoundsReport, ClientStatus, DataThreadStatus, WorkerStatus};

    fn part(name: &str, count: u64) -> StatusReport {
        StatusReport {
            clients: vec![ClientStatus {
                name: name.to_owned(),
                ..ClientStatus::default()
            }],
            workers: vec![WorkerStatus {
                clients: 1,
                ..WorkerStatus::default()
            }],
            bounds: Some(BoundsReport {
                limit_bytes: count,
                ..BoundsReport::default()
            }),
            data_thread: Some(DataThreadStatus {
                pauses: count,
                longest_pause_ms: 30.0,
                log_lines_dropped: 5,
            }),
            drops: BTreeMap::from([("no_route".to_owned(), count)]),
            ..StatusReport::default()
        }
    }

    #[test]
    fn the_status_has_the_clients_and_counters_of_all_workers() {
        let mut status = part("a", 2);
        add(&mut status, part("b", 3));
        let names: Vec<&str> = status.clients.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(status.workers.len(), 2);
        assert_eq!(status.drops["no_route"], 5);
        assert_eq!(status.bounds.map(|bounds| bounds.limit_bytes), Some(5));
        let thread = status.data_thread.expect("present");
        assert_eq!((thread.pauses, thread.log_lines_dropped), (5, 5));
    }
}
