//! Random interleavings of the operations of two ends, over lanes that die: all bytes arrive unchanged and in order.

use core::time::Duration;

use proptest::prelude::*;

use super::pair::{ANSWERS, ASKS, Pair};
use crate::stripe::{connections::State, frame::ConnId, rate::LaneSample, sched::Striping};

/// A random operation. Its numbers choose among the existing lanes and connections.
#[derive(Clone, Debug)]
enum Op {
    Join,
    Kill {
        lane: usize,
        end: usize,
        is_lost: bool,
    },
    Open {
        first: usize,
    },
    Write {
        end: usize,
        conn: usize,
        len: usize,
    },
    Finish {
        end: usize,
        conn: usize,
    },
    Read {
        end: usize,
        conn: usize,
        most: usize,
    },
    /// Closes a connection.
    Leave {
        end: usize,
        conn: usize,
    },
    Send {
        lane: usize,
        end: usize,
        most: usize,
    },
    Receive {
        lane: usize,
        end: usize,
        most: usize,
    },
    /// Reports TCP's statistics of a lane.
    Observe {
        lane: usize,
        end: usize,
        rtt_ms: u64,
        acked: u64,
    },
    Tick {
        ms: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let end = 0..2_usize;
    let which = 0..64_usize;
    prop_oneof![
        1 => Just(Op::Join),
        1 => (which.clone(), end.clone(), any::<bool>())
            .prop_map(|(lane, end, is_lost)| Op::Kill { lane, end, is_lost }),
        2 => (0..20_000_usize).prop_map(|first| Op::Open { first }),
        8 => (end.clone(), which.clone(), 0..60_000_usize)
            .prop_map(|(end, conn, len)| Op::Write { end, conn, len }),
        1 => (end.clone(), which.clone()).prop_map(|(end, conn)| Op::Finish { end, conn }),
        6 => (end.clone(), which.clone(), 0..60_000_usize)
            .prop_map(|(end, conn, most)| Op::Read { end, conn, most }),
        1 => (end.clone(), which.clone(), 0..8_u8).prop_map(|(end, conn, dice)| {
            if dice == 0 { Op::Leave { end, conn } } else { Op::Finish { end, conn } }
        }),
        10 => (which.clone(), end.clone(), 0..8_usize)
            .prop_map(|(lane, end, most)| Op::Send { lane, end, most }),
        10 => (which.clone(), end.clone(), 0..8_usize)
            .prop_map(|(lane, end, most)| Op::Receive { lane, end, most }),
        2 => (which, end, 1..200_u64, any::<u32>())
            .prop_map(|(lane, end, rtt_ms, acked)| Op::Observe { lane, end, rtt_ms, acked: acked.into() }),
        2 => (0..400_u64).prop_map(|ms| Op::Tick { ms }),
    ]
}

/// Operations on connections, in addition to the state in [`Pair`].
#[derive(Debug, Default)]
struct Ledger {
    opened: Vec<ConnId>,
    left: Vec<ConnId>,
    finished: Vec<(usize, ConnId)>,
}

impl Ledger {
    /// Returns one of the connections that were not closed.
    fn pick(&self, number: usize) -> Option<ConnId> {
        let alive: Vec<ConnId> = self
            .opened
            .iter()
            .copied()
            .filter(|conn| !self.left.contains(conn))
            .collect();
        (!alive.is_empty()).then(|| alive[number % alive.len()])
    }

    fn finish(&mut self, pair: &mut Pair, end: usize, conn: ConnId) {
        if pair.ends[end].connection(conn).is_some() && !self.finished.contains(&(end, conn)) {
            pair.ends[end].finish(conn);
            self.finished.push((end, conn));
        }
    }
}

fn apply(pair: &mut Pair, ledger: &mut Ledger, op: &Op) {
    let lane = |pair: &Pair, number: usize| {
        let count = pair.wires.len();
        (count > 0).then(|| number % count)
    };
    match *op {
        Op::Join if pair.wires.len() < 30 => pair.join(),
        Op::Join => {}
        Op::Kill {
            lane: number,
            end,
            is_lost,
        } => {
            if let Some(index) = lane(pair, number)
                && pair.wires[index].has[end]
            {
                pair.kill(index, end, is_lost);
            }
        }
        Op::Open { first } => {
            if ledger.opened.len() < 20
                && let Some(conn) = pair.open(first)
            {
                ledger.opened.push(conn);
            }
        }
        Op::Write { end, conn, len } => {
            if let Some(conn) = ledger.pick(conn)
                && pair.ends[end].connection(conn).is_some()
                && !ledger.finished.contains(&(end, conn))
            {
                pair.write(end, conn, len);
            }
        }
        Op::Finish { end, conn } => {
            if let Some(conn) = ledger.pick(conn) {
                ledger.finish(pair, end, conn);
            }
        }
        Op::Read { end, conn, most } => {
            if let Some(conn) = ledger.pick(conn) {
                pair.read(end, conn, most);
            }
        }
        Op::Leave { end, conn } => {
            if let Some(conn) = ledger.pick(conn)
                && pair.ends[end].connection(conn).is_some()
            {
                pair.ends[end].close(conn);
                ledger.left.push(conn);
            }
        }
        Op::Send {
            lane: number,
            end,
            most,
        } => {
            if let Some(index) = lane(pair, number) {
                pair.send(index, end, most);
            }
        }
        Op::Receive {
            lane: number,
            end,
            most,
        } => {
            if let Some(index) = lane(pair, number) {
                pair.receive(index, end, most);
            }
        }
        Op::Observe {
            lane: number,
            end,
            rtt_ms,
            acked,
        } => {
            if let Some(index) = lane(pair, number) {
                let sample = LaneSample {
                    rtt: Duration::from_millis(rtt_ms),
                    min_rtt: Duration::from_millis(rtt_ms / 2),
                    acked_bytes: acked,
                    window_bytes: acked % (1 << 20),
                    unsent_bytes: acked % 20_000,
                    is_in_flight: acked % 2 == 1,
                };
                let (id, now) = (pair.wires[index].id, pair.now());
                pair.ends[end].dispatch.observe(now, id, sample);
            }
        }
        Op::Tick { ms } => pair.tick(ms),
    }
}

/// Completes all connections without further faults: applications read, finish, and close once both streams are over.
fn run_out(pair: &mut Pair, ledger: &mut Ledger) {
    let all: Vec<ConnId> = ledger.opened.clone();
    for _ in 0..5_000 {
        if !pair.wires.iter().any(|wire| wire.has == [true; 2]) {
            pair.join();
        }
        pair.tick(15);
        for end in 0..2 {
            for conn in &all {
                ledger.finish(pair, end, *conn);
            }
        }
        for index in 0..pair.wires.len() {
            for end in 0..2 {
                pair.send(index, end, 64);
                pair.receive(index, 1 - end, usize::MAX);
            }
        }
        pair.read_all();
        let mut is_over = true;
        for end in 0..2 {
            for conn in &all {
                let Some(found) = pair.ends[end].connection(*conn) else {
                    continue;
                };
                let is_broken = matches!(found.state(), State::Broken { .. });
                if found.is_over() || is_broken || ledger.left.contains(conn) {
                    pair.ends[end].close(*conn);
                } else {
                    is_over = false;
                }
            }
        }
        if is_over && pair.ends.iter().all(|end| end.is_idle()) {
            return;
        }
    }
    let states: Vec<_> = all
        .iter()
        .map(|conn| (pair.state(ASKS, *conn), pair.state(ANSWERS, *conn)))
        .collect();
    panic!("it never ends: {states:?}");
}

fn check_all(striping: Striping, ops: &[Op]) {
    let mut pair = Pair::new(striping);
    let mut ledger = Ledger::default();
    for op in ops {
        apply(&mut pair, &mut ledger, op);
        pair.check();
    }
    run_out(&mut pair, &mut ledger);
    for conn in &ledger.opened {
        if !ledger.left.contains(conn) {
            for end in [ASKS, ANSWERS] {
                let (written, read) = (pair.written[&(end, *conn)], pair.read[&(1 - end, *conn)]);
                assert_eq!(read, written, "{conn:?} of end {end}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn whatever_lanes_do_all_streams_arrive_whole_and_in_order(
        striping in prop::sample::select(Striping::ALL.to_vec()),
        ops in prop::collection::vec(op(), 0..600),
    ) {
        check_all(striping, &ops);
    }
}
