//! A peer that violates the protocol: bounds hold, violations are counted, and other connections continue.

use pleach_core::rng::Rng;

use super::pair::{ANSWERS, ASKS, Pair, WANTED};
use crate::stripe::{
    CHUNK, FIRST_WINDOW, GROWTH, MAX_AHEAD, MAX_CONNECTIONS, MAX_URGENT, Violation, WINDOW,
    connections::State,
    frame::{self, Broken, Bye, ConnId, Frame, LaneId, Refusal},
    mux::Event,
    sched::Striping,
};

/// Returns a pair with one lane and an open connection.
fn open_pair() -> (Pair, ConnId) {
    let mut pair = Pair::new(Striping::RoundRobin);
    pair.join();
    let conn = pair.open(100).expect("room");
    pair.settle();
    (pair, conn)
}

#[test]
fn a_frame_in_the_wrong_state_ends_its_connection_with_a_reason_and_no_other() {
    let (mut pair, victim) = open_pair();
    let other = pair.open(0).expect("room");
    pair.settle();
    let beyond = Frame::Chunk {
        conn: victim,
        offset: FIRST_WINDOW + 100,
        data: &[7],
    };
    let overlap = Frame::Chunk {
        conn: victim,
        offset: 50,
        data: &[7; CHUNK],
    };
    let unknown = Frame::Chunk {
        conn: ConnId(77),
        offset: 0,
        data: &[7],
    };
    for (frame, conn, violation) in [
        (beyond, victim, Violation::Credit),
        (overlap, victim, Violation::Overlap),
        (unknown, ConnId(77), Violation::Misplaced),
    ] {
        let (mut pair, _) = open_pair();
        pair.open(0).expect("room");
        pair.settle();
        let handled = pair.inject(ANSWERS, frame);
        assert_eq!(handled, Ok(()), "the lane lives");
        let event = pair.ends[ANSWERS].poll_event();
        assert_eq!(event, Some(Event::Refused(violation.reason())));
        if conn == victim {
            let why = Broken::Violated(violation);
            let by_peer = false;
            let state = pair.state(ANSWERS, victim);
            assert_eq!(state, Some(State::Broken { by_peer, why }));
            pair.settle();
            let by_peer = true;
            let state = pair.state(ASKS, victim);
            assert_eq!(state, Some(State::Broken { by_peer, why }));
        }
        pair.write(ASKS, other, 50_000);
        pair.settle();
        pair.read_all();
        assert_eq!(pair.read[&(ANSWERS, other)], 50_000);
    }
}

#[test]
fn chunks_before_the_answer_are_no_part_of_the_protocol() {
    let mut pair = Pair::new(Striping::RoundRobin);
    pair.is_accepting = false;
    pair.join();
    let conn = pair.open(0).expect("room");
    pair.settle();
    let chunk = Frame::Chunk {
        conn,
        offset: 0,
        data: &[7],
    };
    assert_eq!(pair.inject(ANSWERS, chunk), Ok(()));
    let reason = Violation::Misplaced.reason();
    assert_eq!(
        pair.ends[ANSWERS].poll_event(),
        Some(Event::Refused(reason))
    );
}

#[test]
fn what_belongs_to_no_connection_ends_its_lane() {
    let conn = ConnId(0);
    let lane = LaneId(5);
    let (token, link) = ([0; 16], String::new());
    let refusal = Refusal::Busy;
    let open = || Frame::Open {
        conn,
        wanted: WANTED,
        data: &[],
    };
    for (end, frame, violation) in [
        (ASKS, open(), Violation::Misplaced),
        (ANSWERS, Frame::Opened { conn }, Violation::Misplaced),
        (
            ANSWERS,
            Frame::Refused { conn, refusal },
            Violation::Misplaced,
        ),
        (
            ASKS,
            Frame::Opened { conn: ConnId(9) },
            Violation::Misplaced,
        ),
        (
            ASKS,
            Frame::Join {
                token,
                is_new: true,
                lane,
                link,
            },
            Violation::Misplaced,
        ),
        (
            ASKS,
            Frame::Ack {
                lanes: vec![(LaneId(0), 999)],
            },
            Violation::Acknowledged,
        ),
    ] {
        let (mut pair, _) = open_pair();
        assert_eq!(pair.inject(end, frame), Err(violation));
    }
}

#[test]
fn a_request_too_far_ahead_is_refused_and_its_lane_lives() {
    let (mut pair, _) = open_pair();
    let conn = ConnId(MAX_AHEAD + 1);
    let open = Frame::Open {
        conn,
        wanted: WANTED,
        data: &[7; CHUNK],
    };
    let why = Broken::Ended;
    for frame in [open, Frame::Reset { conn, why }] {
        assert_eq!(pair.inject(ANSWERS, frame), Ok(()));
        let flood = Event::Refused(Violation::Flood.reason());
        assert_eq!(pair.ends[ANSWERS].poll_event(), Some(flood));
    }
    assert!(pair.ends[ANSWERS].connection(conn).is_none());
    let mut answer = Vec::new();
    loop {
        answer.clear();
        let now = pair.now();
        assert!(pair.ends[ANSWERS].poll_frame(now, LaneId(0), &mut answer));
        let found = frame::decode(&answer).expect("we made it");
        if !matches!(found, Frame::Ack { .. }) {
            let refusal = Refusal::Busy;
            assert_eq!(found, Frame::Refused { conn, refusal });
            break;
        }
    }
    // The number is not stored, and further connections are accepted.
    pair.open(0).expect("room");
    pair.settle();
    assert_eq!(pair.asked.len(), 2);
}

#[test]
fn who_asks_without_end_and_reads_nothing_is_stopped() {
    let mut pair = Pair::new(Striping::RoundRobin);
    pair.is_accepting = false;
    pair.join();
    let mut outcome = Ok(());
    let mut asked = 0;
    while outcome.is_ok() {
        assert!(asked < 20_000, "it never stops");
        let open = Frame::Open {
            conn: ConnId(asked),
            wanted: WANTED,
            data: &[],
        };
        outcome = pair.inject(ANSWERS, open);
        asked += 1;
        while pair.ends[ANSWERS].poll_event().is_some() {}
    }
    assert_eq!(outcome, Err(Violation::Flood));
    assert_eq!(pair.ends[ANSWERS].connections().count(), MAX_CONNECTIONS);
    assert_eq!(pair.ends[ANSWERS].urgent_count(), MAX_URGENT);
}

#[test]
fn what_no_reader_takes_is_bounded_whatever_comes() {
    let mut rng = Rng::new(5);
    let mut below = |bound: u64| rng.below(bound);
    let mut refused = 0;
    for _ in 0..60 {
        let striping = Striping::ALL[usize::try_from(below(5)).expect("small")];
        let mut pair = Pair::new(striping);
        pair.join();
        for _ in 0..4 {
            pair.open(100).expect("room");
        }
        pair.settle();
        for _ in 0..600 {
            let mut number = || match below(4) {
                0 => below(4) * CHUNK as u64,
                1 => below(WINDOW + 9000),
                2 => u64::MAX - below(3),
                _ => below(30_000),
            };
            let (offset, second) = (number(), number());
            let data = vec![0; usize::try_from(1 + second % CHUNK as u64).expect("small")];
            let conn = ConnId(u32::try_from(below(6)).expect("small"));
            let end = usize::from(below(2) == 0);
            let frame = match below(9) {
                0 => Frame::Ack {
                    lanes: vec![(LaneId(0), second)],
                },
                1 => Frame::End { conn, offset },
                2 => Frame::Window {
                    conn,
                    delivered: offset,
                    limit: second,
                },
                3 => Frame::Opened { conn },
                4 => Frame::Bye(Bye::Busy),
                _ => Frame::Chunk {
                    conn,
                    offset,
                    data: &data,
                },
            };
            refused += u32::from(pair.inject(end, frame).is_err());
            while let Some(event) = pair.ends[end].poll_event() {
                refused += u32::from(matches!(event, Event::Refused(_)));
            }
            let (_, came) = pair.ends[end].kept_bytes();
            assert!(came <= 6 * FIRST_WINDOW + GROWTH);
        }
    }
    assert!(refused > 3_000, "{refused}");
}
