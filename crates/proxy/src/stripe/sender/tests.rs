//! What a sender keeps of what it sent.

use super::*;
use crate::stripe::WINDOW;

#[test]
fn what_others_delivered_for_a_suspect_lane_is_not_kept() {
    let mut sender = Sender::new(Striping::RoundRobin);
    let now = Instant::from_millis(1);
    let (stuck, works) = (LaneId(0), LaneId(1));
    sender.add_lane(now, stuck);
    sender.write(&[7; 3 * CHUNK]);
    for _ in 0..3 {
        sender.poll_chunk(now, stuck).expect("a chunk");
    }
    let now = Instant::from_millis(1000);
    sender.handle_timeout(now);
    sender.add_lane(now, works);
    for _ in 0..2 {
        sender.poll_chunk(now, works).expect("a chunk");
    }
    let delivered = 2 * CHUNK as u64;
    let counts = [(stuck, 0), (works, 2)];
    let acked = sender.handle_ack(now, delivered, WINDOW, &counts);
    assert_eq!(acked, Ok(()));
    assert_eq!(sender.kept_bytes(), CHUNK as u64);
    // Its places are: the count goes on.
    assert_eq!(
        sender.handle_ack(now, delivered, WINDOW, &[(stuck, 3)]),
        Ok(())
    );
    assert_eq!(sender.kept_bytes(), 0);
    assert!(sender.poll_chunk(now, works).is_none());
}

#[test]
fn a_peer_that_never_counts_gets_a_bounded_number_of_chunks() {
    let mut sender = Sender::new(Striping::RoundRobin);
    let now = Instant::from_millis(1);
    sender.add_lane(now, LaneId(0));
    let mut sent = 0;
    for _ in 0..MAX_CHUNKS * 2 {
        sender.write(b"x");
        if let Some(chunk) = sender.poll_chunk(now, LaneId(0)) {
            sent += 1;
            let acked = sender.handle_ack(now, chunk.end(), u64::MAX, &[]);
            assert_eq!(acked, Ok(()));
        }
    }
    assert_eq!(sent, MAX_CHUNKS);
}

#[test]
fn a_peer_that_grants_everything_and_takes_nothing_gets_a_window() {
    let mut sender = Sender::new(Striping::RoundRobin);
    let now = Instant::from_millis(1);
    sender.add_lane(now, LaneId(0));
    let granted = sender.handle_ack(now, 0, u64::MAX, &[]);
    assert_eq!(granted, Ok(()));
    for _ in 0..MAX_CHUNKS {
        sender.write(&[7; CHUNK]);
        sender.poll_chunk(now, LaneId(0));
    }
    assert_eq!(sender.room(), 0);
    assert_eq!(sender.kept_bytes(), WINDOW + MAX_PENDING as u64);
}

#[test]
fn what_waits_for_a_lane_that_takes_nothing_goes_over_another() {
    let mut sender = Sender::new(Striping::RoundRobin);
    let now = Instant::from_millis(1);
    let (stuck, works) = (LaneId(0), LaneId(1));
    sender.add_lane(now, stuck);
    sender.add_lane(now, works);
    sender.set_free(stuck, true);
    sender.write(&[7; 2 * CHUNK]);
    let first = sender.poll_chunk(now, works).expect("a chunk");
    assert_eq!(first.offset, CHUNK as u64, "the first waits");
    assert!(sender.has_staged(stuck) && sender.is_waiting());
    let counted = sender.handle_ack(now, 0, WINDOW, &[(works, 1)]);
    assert_eq!(counted, Ok(()));
    assert!(!sender.handle_timeout(Instant::from_millis(200)));
    let now = Instant::from_millis(1000);
    assert!(sender.handle_timeout(now));
    let second = sender.poll_chunk(now, works).expect("what waited");
    assert_eq!(second.offset, 0);
    // Nothing that could come late is under way on the other: when it takes something, it is as good as new.
    sender.set_free(works, false);
    sender.write(&[7; CHUNK]);
    assert!(sender.poll_chunk(now, stuck).is_some());
}

#[test]
fn a_lane_that_is_silent_where_others_get_on_waits_its_turn() {
    let (stuck, works) = (LaneId(0), LaneId(1));
    // Whether its link has a pulse, and how much later it is suspect, and given up.
    for (has_pulse, suspect_ms, hopeless_ms) in [(false, 251, 8_001), (true, 4_001, 60_001)] {
        let mut sender = Sender::new(Striping::RoundRobin);
        let now = Instant::from_millis(10_000);
        sender.add_lane(now, stuck);
        sender.add_lane(now, works);
        sender.write(&[7; CHUNK]);
        sender.poll_chunk(now, stuck).expect("a chunk");
        let (mut suspect, mut hopeless) = (None, None);
        for ms in 0..70_000 {
            let at = now + Duration::from_millis(ms);
            if has_pulse {
                sender.note_pulse(stuck, at);
            }
            if sender.handle_timeout(at) {
                suspect.get_or_insert(ms);
            }
            if sender.hopeless_lane(at).is_some() {
                hopeless.get_or_insert(ms);
            }
        }
        assert_eq!((suspect, hopeless), (Some(suspect_ms), Some(hopeless_ms)));
    }
}
