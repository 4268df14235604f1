//! UDP flows beside connections, and frames of flows that do not belong where they arrive.

use super::pair::{ANSWERS, ASKS, Pair, WANTED};
use crate::stripe::{
    CHUNK, Violation,
    datagrams::{MAX_AGE, MAX_FLOWS},
    frame::{self, FlowId, Frame, LaneId, MAX_DATAGRAM, Refusal},
    mux::Event,
    rate::LaneSample,
    sched::Striping,
};

fn pair(lanes: usize) -> Pair {
    let mut pair = Pair::new(Striping::Osia);
    (0..lanes).for_each(|_| pair.join());
    pair
}

fn push(pair: &mut Pair, end: usize, flow: FlowId, data: &[u8]) {
    let wanted = (end == ASKS).then_some(WANTED);
    let now = pair.now();
    let sent = pair.ends[end].send_datagram(now, flow, wanted, data);
    assert_eq!(sent, Ok(()));
}

/// Returns the reasons for which `end` has refused frames.
fn refused(pair: &mut Pair, end: usize) -> Vec<&'static str> {
    core::iter::from_fn(|| pair.ends[end].poll_event())
        .filter_map(|event| {
            if let Event::Refused(reason) = event {
                Some(reason)
            } else {
                None
            }
        })
        .collect()
}

#[test]
fn datagrams_go_both_ways_and_a_flow_ends_at_both_ends() {
    let mut pair = pair(2);
    let flow = pair.ends[ASKS].open_flow().expect("room");
    assert_eq!(pair.ends[ANSWERS].open_flow(), None);
    assert!(!pair.ends[ASKS].is_idle());
    push(&mut pair, ASKS, flow, b"query");
    push(&mut pair, ASKS, flow, &[7; MAX_DATAGRAM]);
    pair.settle();
    push(&mut pair, ANSWERS, flow, b"");
    pair.settle();
    let mut came = pair.datagrams.clone();
    came.sort_by_key(|(end, _, data)| (*end, data.len()));
    assert_eq!(came[0], (ASKS, flow, Vec::new()));
    assert_eq!(came[1], (ANSWERS, flow, b"query".to_vec()));
    assert_eq!((came[2].2.len(), came.len()), (MAX_DATAGRAM, 3));
    let now = pair.now();
    pair.ends[ASKS].close_flow(now, flow, None);
    pair.settle();
    assert_eq!(pair.flow_ends, [(ANSWERS, flow, None)]);
    assert!(pair.ends.iter().all(|end| end.flow_count() == 0));
    // A late answer means nothing.
    let answer = Frame::Datagram {
        flow,
        wanted: None,
        data: b"late",
    };
    assert_eq!(pair.inject(ASKS, answer), Ok(()));
    assert_eq!(pair.ends[ASKS].poll_event(), None);
}

#[test]
fn datagrams_overtake_chunks_and_leave_connections_their_share() {
    let mut pair = pair(1);
    let conn = pair.open(0).expect("room");
    pair.settle();
    pair.write(ASKS, conn, 100_000);
    let flow = pair.ends[ASKS].open_flow().expect("room");
    for _ in 0..100 {
        push(&mut pair, ASKS, flow, &[1; 1200]);
    }
    let (mut datagrams, mut chunks) = (0, 0);
    let now = pair.now();
    for place in 0..60 {
        let mut out = Vec::new();
        assert!(pair.ends[ASKS].poll_frame(now, LaneId(0), &mut out));
        match frame::decode(&out) {
            Ok(Frame::Datagram { data, .. }) => datagrams += data.len(),
            Ok(Frame::Chunk { data, .. }) => chunks += data.len(),
            other => panic!("{other:?}"),
        }
        if place < 15 {
            assert_eq!(chunks, 0, "datagrams are first");
        }
    }
    let share = chunks as f64 / (chunks + datagrams) as f64;
    assert!(
        chunks >= 2 * CHUNK && (0.15..0.30).contains(&share),
        "{share}"
    );
}

#[test]
fn a_lane_that_acknowledges_nothing_gets_no_datagrams_until_it_moves() {
    let mut pair = pair(2);
    let flow = pair.ends[ASKS].open_flow().expect("room");
    let sample = |acked_bytes: u64, is_in_flight: bool| LaneSample {
        acked_bytes,
        is_in_flight,
        ..LaneSample::default()
    };
    push(&mut pair, ASKS, flow, b"lost");
    assert_eq!(pair.send(0, ASKS, 9), 1);
    let observe = |pair: &mut Pair, sample: LaneSample| {
        let now = pair.now();
        pair.ends[ASKS].dispatch.observe(now, LaneId(0), sample);
    };
    observe(&mut pair, sample(0, true));
    pair.tick(1000);
    let is_suspect = |pair: &Pair| {
        let state = pair.ends[ASKS].dispatch.lane_state(LaneId(0));
        state.expect("there").is_suspect
    };
    assert!(is_suspect(&pair));
    for _ in 0..4 {
        push(&mut pair, ASKS, flow, b"other lane");
    }
    assert_eq!(pair.send(0, ASKS, 9), 0);
    assert_eq!(pair.send(1, ASKS, 9), 4);
    observe(&mut pair, sample(100, false));
    assert!(!is_suspect(&pair));
    pair.ends[ASKS].dispatch.set_free(LaneId(1), false);
    push(&mut pair, ASKS, flow, b"again");
    assert_eq!(pair.send(0, ASKS, 9), 1);
    // An end without lanes keeps no datagrams for later.
    pair.kill(0, ASKS, true);
    pair.kill(1, ASKS, true);
    push(&mut pair, ASKS, flow, b"too late");
    pair.now += u64::try_from(MAX_AGE.as_millis()).expect("short") + 1;
    pair.join();
    pair.send(2, ASKS, 9);
    assert_eq!(refused(&mut pair, ASKS), ["datagram-late"]);
    let sent = &pair.wires[2].queues[ANSWERS];
    assert!(!sent.iter().any(|bytes| frame::is_datagram(bytes)));
}

#[test]
fn frames_of_flows_that_do_not_belong_here_are_counted_and_disturb_nothing() {
    let mut pair = pair(2);
    let conn = pair.open(100).expect("room");
    pair.settle();
    let flow = pair.ends[ASKS].open_flow().expect("room");
    let datagram = |flow: FlowId, is_asked: bool| Frame::Datagram {
        flow,
        wanted: is_asked.then_some(WANTED),
        data: b"x",
    };
    let never = FlowId(77);
    let refusal = Some(Refusal::NotAllowed);
    // The answering end names no destinations, and the asking end always does. Flow 77 was never opened.
    for (end, frame) in [
        (ASKS, datagram(flow, true)),
        (ASKS, datagram(never, false)),
        (
            ASKS,
            Frame::FlowEnd {
                flow: never,
                refusal,
            },
        ),
        (ANSWERS, datagram(flow, false)),
    ] {
        assert_eq!(pair.inject(end, frame), Ok(()));
        assert_eq!(
            refused(&mut pair, end),
            [Violation::Misplaced.reason()],
            "end {end}"
        );
    }
    // More flows than an association may have: the peer is told so.
    let most = u32::try_from(MAX_FLOWS).expect("few");
    for number in 0..=most {
        assert_eq!(pair.inject(ANSWERS, datagram(FlowId(number), true)), Ok(()));
    }
    assert_eq!(refused(&mut pair, ANSWERS), ["too-many-peer-flows"]);
    assert_eq!(pair.ends[ANSWERS].flow_count(), MAX_FLOWS);
    // A flow that this end has refused does not begin again.
    let now = pair.now();
    pair.ends[ANSWERS].close_flow(now, FlowId(5), refusal);
    assert_eq!(pair.inject(ANSWERS, datagram(FlowId(5), true)), Ok(()));
    assert_eq!(pair.ends[ANSWERS].poll_event(), None);
    assert_eq!(pair.ends[ANSWERS].flow_count(), MAX_FLOWS - 1);
    // The connection works.
    pair.write(ASKS, conn, 50_000);
    pair.write(ANSWERS, conn, 50_000);
    for _ in 0..20 {
        for end in [ASKS, ANSWERS] {
            for index in 0..2 {
                pair.send(index, end, 64);
            }
        }
        // The refusals that the answering end has sent concern no flow of the asking end.
        for index in 0..2 {
            pair.receive(index, ANSWERS, usize::MAX);
            let id = pair.wires[index].id;
            while let Some(bytes) = pair.wires[index].queues[ASKS].pop_front() {
                let frame = frame::decode(&bytes).expect("we sent it");
                assert_eq!(pair.ends[ASKS].handle_frame(now, id, frame), Ok(()));
            }
        }
        pair.read_all();
        pair.tick(20);
    }
    assert_eq!(pair.read[&(ANSWERS, conn)], 50_100);
    assert_eq!(pair.read[&(ASKS, conn)], 50_000);
}
