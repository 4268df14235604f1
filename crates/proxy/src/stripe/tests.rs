//! Two ends of an association, with different kinds of lanes between them, and a peer that violates the protocol.

mod flows;
mod liar;
mod pair;
mod random;
mod wire;

use core::time::Duration;

use super::{
    CHUNK, FIRST_WINDOW, MAX_AHEAD, MAX_CONNECTIONS, MAX_PENDING, MAX_URGENT, Violation, WINDOW,
    connections::State,
    frame::{Broken, ConnId, LaneId, Refusal},
    mux::Event,
    rate::LaneSample,
    sched::Striping,
};
use pair::{ANSWERS, ASKS, Pair, byte};

/// Returns a pair with two lanes and an open connection.
fn open_pair() -> (Pair, ConnId) {
    let mut pair = Pair::new(Striping::RoundRobin);
    pair.join();
    pair.join();
    let conn = pair.open(100).expect("room");
    pair.settle();
    (pair, conn)
}

#[test]
fn first_bytes_travel_with_the_request_and_nothing_else_before_the_answer() {
    let mut pair = Pair::new(Striping::Osia);
    pair.is_accepting = false;
    pair.join();
    let conn = pair.open(50_000).expect("room");
    pair.settle();
    assert_eq!(pair.asked, [conn]);
    assert_eq!(pair.ends[ANSWERS].peek(conn).len(), CHUNK);
    pair.ends[ANSWERS].accept(conn);
    pair.settle();
    assert!(pair.ends[ANSWERS].connection(conn).is_some_and(|found| {
        found.state() == State::Open && found.receiver.held_most_and_duplicate().0 == 0
    }));
    pair.read_all();
    pair.settle();
    pair.read_all();
    assert_eq!(pair.read[&(ANSWERS, conn)], 50_000);
}

#[test]
fn a_refusal_reaches_who_asked() {
    let mut pair = Pair::new(Striping::Osia);
    pair.is_accepting = false;
    pair.join();
    let conn = pair.open(10).expect("room");
    pair.settle();
    pair.ends[ANSWERS].refuse(conn, Refusal::Unreachable);
    pair.settle();
    let found = pair.ends[ASKS].connection(conn).expect("not closed");
    assert_eq!(found.state(), State::Refused(Refusal::Unreachable));
    pair.ends[ASKS].close(conn);
    pair.tick(20);
    pair.settle();
    assert!(pair.ends.iter().all(|end| end.is_idle()));
}

#[test]
fn a_reader_that_does_not_read_stops_its_sender_and_nobody_else() {
    let (mut pair, stuck) = open_pair();
    let other = pair.open(0).expect("room");
    pair.settle();
    pair.readers.insert((ANSWERS, stuck), false);
    let total = 3 * WINDOW;
    let before = pair.written[&(ASKS, stuck)];
    for _ in 0..2_000 {
        pair.write(ASKS, stuck, 60_000);
        pair.write(ASKS, other, 20_000);
        pair.settle();
        pair.read_all();
        pair.tick(1);
    }
    let sent = pair.written[&(ASKS, stuck)] - before;
    assert!(sent <= FIRST_WINDOW + MAX_PENDING as u64, "{sent}");
    assert!(pair.read[&(ANSWERS, other)] > total, "the lanes go on");
    // When the application reads, all bytes are there.
    pair.readers.insert((ANSWERS, stuck), true);
    for _ in 0..100 {
        pair.read_all();
        pair.settle();
    }
    assert_eq!(pair.read[&(ANSWERS, stuck)], pair.written[&(ASKS, stuck)]);
}

#[test]
fn connections_take_turns_and_a_new_one_is_first() {
    let mut pair = Pair::new(Striping::RoundRobin);
    pair.join();
    let large = pair.open(CHUNK).expect("room");
    let small = pair.open(0).expect("room");
    pair.settle();
    pair.read_all();
    pair.tick(20);
    pair.settle();
    pair.write(ASKS, large, MAX_PENDING);
    pair.send(0, ASKS, 1);
    pair.write(ASKS, small, 2 * CHUNK);
    // The first bytes of the large stream were sent with its request.
    pair.send(0, ASKS, 1);
    pair.receive(0, ANSWERS, 2);
    assert_eq!(pair.ends[ANSWERS].peek(small).len(), CHUNK);
    let chunks = |pair: &Pair, conn: ConnId| {
        let found = pair.ends[ANSWERS].connection(conn).expect("open");
        found.receiver.came() / CHUNK as u64
    };
    assert_eq!(chunks(&pair, large), 2);
    pair.send(0, ASKS, 2);
    pair.receive(0, ANSWERS, 2);
    assert_eq!([large, small].map(|conn| chunks(&pair, conn)), [3, 2]);
}

#[test]
fn what_a_silent_lane_had_is_sent_on_another_at_once() {
    let (mut pair, conn) = open_pair();
    pair.write(ASKS, conn, 100_000);
    pair.send(0, ASKS, 3);
    pair.send(1, ASKS, 100);
    pair.receive(1, ANSWERS, 100);
    pair.read_all();
    assert!(pair.read[&(ANSWERS, conn)] < 100_000, "the first has some");
    // TCP reports no progress on the first lane; the items of the second lane are acknowledged.
    pair.tick(15);
    pair.send(1, ANSWERS, 10);
    pair.receive(1, ASKS, 10);
    pair.now += 300;
    let now = pair.now();
    assert!(pair.ends[ASKS].dispatch.handle_timeout(now));
    pair.send(1, ASKS, 100);
    pair.receive(1, ANSWERS, 100);
    pair.read_all();
    assert_eq!(pair.read[&(ANSWERS, conn)], 100_100);
    // The items of the slow lane arrive late and are dropped.
    pair.receive(0, ANSWERS, 100);
    let found = pair.ends[ANSWERS].connection(conn).expect("open");
    let (_, _, duplicate) = found.receiver.held_most_and_duplicate();
    assert!(duplicate >= 2 * CHUNK as u64, "{duplicate}");
    assert_eq!(pair.ends[ANSWERS].peek(conn), b"");
}

#[test]
fn a_lane_that_moves_again_does_not_repeat_what_it_has_sent() {
    let mut pair = Pair::new(Striping::RoundRobin);
    pair.join();
    let conn = pair.open(0).expect("room");
    pair.settle();
    pair.write(ASKS, conn, 100_000);
    pair.send(0, ASKS, 100);
    pair.now += 300;
    let now = pair.now();
    assert!(pair.ends[ASKS].dispatch.handle_timeout(now));
    let moves = LaneSample {
        acked_bytes: 1,
        ..LaneSample::default()
    };
    pair.ends[ASKS].dispatch.observe(now, LaneId(0), moves);
    pair.send(0, ASKS, 100);
    assert_eq!(pair.ends[ASKS].waiting_and_repeated(), (0, 0));
    // A different lane may send.
    pair.join();
    pair.send(1, ASKS, 100);
    assert_eq!(pair.ends[ASKS].waiting_and_repeated(), (0, 100_000));
}

#[test]
fn urgent_words_take_the_nearest_free_lane() {
    let (mut pair, _) = open_pair();
    let now = pair.now();
    for (lane, rtt) in [(0, 80), (1, 20)] {
        let sample = LaneSample {
            rtt: Duration::from_millis(rtt),
            min_rtt: Duration::from_millis(rtt),
            ..LaneSample::default()
        };
        pair.ends[ASKS].dispatch.observe(now, LaneId(lane), sample);
        pair.ends[ASKS].dispatch.set_free(LaneId(lane), true);
    }
    pair.open(0).expect("room");
    assert_eq!(pair.send(0, ASKS, 1), 0, "the other is free and nearer");
    assert_eq!(pair.send(1, ASKS, 1), 1);
    // A lane whose socket is full does not count as free.
    pair.open(0).expect("room");
    pair.ends[ASKS].dispatch.set_free(LaneId(1), false);
    assert_eq!(pair.send(0, ASKS, 1), 1);
}

#[test]
fn a_request_that_a_reset_overtook_means_nothing() {
    let mut pair = Pair::new(Striping::RoundRobin);
    pair.join();
    pair.join();
    let conn = pair.open(0).expect("room");
    assert_eq!(pair.send(0, ASKS, 1), 1);
    pair.ends[ASKS].close(conn);
    assert_eq!(pair.send(1, ASKS, 1), 1);
    pair.receive(1, ANSWERS, 1);
    pair.receive(0, ANSWERS, 1);
    assert_eq!(pair.asked, []);
    assert!(pair.ends[ANSWERS].connection(conn).is_none());
}

#[test]
fn a_request_that_is_given_up_before_it_is_sent_leaves_its_number_only() {
    let mut pair = Pair::new(Striping::RoundRobin);
    // One request waits for the first lane; the other request was lost with its lane.
    let unsent = pair.open(CHUNK).expect("room");
    pair.ends[ASKS].close(unsent);
    pair.join();
    let lost = pair.open(CHUNK).expect("room");
    pair.send(0, ASKS, 2);
    pair.kill(0, ASKS, true);
    pair.ends[ASKS].close(lost);
    assert_eq!(pair.ends[ASKS].kept_bytes(), (0, 0));
    pair.join();
    let next = pair.open(0).expect("room");
    pair.settle();
    assert_eq!(pair.asked, [next]);
    for number in 0..MAX_AHEAD {
        let conn = pair.open(0).expect("room");
        pair.settle();
        assert!(pair.state(ASKS, conn) == Some(State::Open), "{number}");
        pair.ends[ASKS].close(conn);
        pair.settle();
        pair.ends[ANSWERS].close(conn);
        // Time passes so that items are acknowledged.
        pair.tick(20);
    }
}

#[test]
fn an_end_whose_words_do_not_leave_asks_for_no_more() {
    let mut pair = Pair::new(Striping::RoundRobin);
    let mut asked = 0;
    while let Some(conn) = pair.open(0) {
        pair.ends[ASKS].close(conn);
        asked += 1;
        assert!(asked <= MAX_URGENT, "it never stops");
    }
    assert!(pair.ends[ASKS].urgent_count() <= MAX_URGENT - MAX_CONNECTIONS);
    // When a lane sends the items, the end requests connections again.
    pair.join();
    pair.settle();
    assert!(pair.open(0).is_some());
}

#[test]
fn windows_that_wait_for_a_lane_are_one_a_connection_and_the_latest() {
    let (mut pair, conn) = open_pair();
    for _ in 0..200 {
        pair.write(ASKS, conn, 60_000);
        for index in 0..2 {
            pair.send(index, ASKS, 64);
            pair.receive(index, ANSWERS, 64);
        }
        pair.read_all();
    }
    assert!(pair.read[&(ANSWERS, conn)] > FIRST_WINDOW / 2);
    assert_eq!(pair.ends[ANSWERS].urgent_count(), 0);
    let mut windows = Vec::new();
    let mut out = Vec::new();
    while pair.ends[ANSWERS].poll_frame(pair.now(), LaneId(0), &mut out) {
        let frame = super::frame::decode(&out).expect("we made it");
        if let super::frame::Frame::Window { delivered, .. } = frame {
            windows.push(delivered);
        }
        out.clear();
    }
    assert_eq!(windows, [pair.read[&(ANSWERS, conn)]]);
}

#[test]
fn who_leaves_is_missed_at_the_other_end() {
    let (mut pair, conn) = open_pair();
    pair.write(ANSWERS, conn, 30_000);
    pair.ends[ASKS].close(conn);
    pair.settle();
    let found = pair.ends[ANSWERS].connection(conn).expect("not closed");
    let why = Broken::Ended;
    let by_peer = true;
    assert_eq!(found.state(), State::Broken { by_peer, why });
}

#[test]
fn more_connections_than_there_are_for_a_peer_are_refused_one_by_one() {
    let mut pair = Pair::new(Striping::RoundRobin);
    pair.is_accepting = false;
    pair.join();
    for _ in 0..MAX_CONNECTIONS {
        pair.open(0).expect("room");
    }
    assert_eq!(pair.open(0), None);
    pair.settle();
    assert_eq!(pair.asked.len(), MAX_CONNECTIONS);
    // A dishonest peer requests more connections.
    let wanted = pair::WANTED;
    let conn = ConnId(u32::try_from(MAX_CONNECTIONS).expect("small"));
    let data = &[];
    pair.inject(ANSWERS, super::frame::Frame::Open { conn, wanted, data })
        .expect("the lane lives");
    let event = pair.ends[ANSWERS].poll_event();
    assert_eq!(event, Some(Event::Refused("too-many-peer-connections")));
    assert!(pair.ends[ANSWERS].connection(conn).is_none());
}

#[test]
fn the_stream_is_what_was_written() {
    let (mut pair, conn) = open_pair();
    pair.write(ANSWERS, conn, 20_000);
    pair.settle();
    let got = pair.ends[ASKS].peek(conn).to_vec();
    assert!(!got.is_empty());
    for (place, found) in (0..).zip(&got) {
        assert_eq!(*found, byte(ANSWERS, conn, place));
    }
}

#[test]
fn violations_have_names_of_their_own() {
    let all = [
        Violation::Acknowledged,
        Violation::Credit,
        Violation::Flood,
        Violation::Misplaced,
        Violation::Overlap,
    ];
    let names: std::collections::BTreeSet<&str> = all.map(Violation::reason).into();
    assert_eq!(names.len(), all.len());
}
