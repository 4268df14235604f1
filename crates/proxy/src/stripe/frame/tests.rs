use pleach_core::rng::Rng;

use super::*;

#[test]
fn every_frame_comes_back() {
    let (lane, conn) = (LaneId(300), ConnId(70_000));
    let open = |ip: Option<&str>, data: &'static [u8]| Frame::Open {
        conn,
        wanted: Wanted {
            ip: ip.map(|ip| ip.parse().expect("literal")),
            port: 443,
        },
        data,
    };
    let refused = |refusal: Refusal| Frame::Refused { conn, refusal };
    let flow = FlowId(1 << 20);
    let datagram = |ip: Option<&str>, data: &'static [u8]| Frame::Datagram {
        flow,
        wanted: Some(Wanted {
            ip: ip.map(|ip| ip.parse().expect("literal")),
            port: 53,
        }),
        data,
    };
    let answer = |data: &'static [u8]| Frame::Datagram {
        flow,
        wanted: None,
        data,
    };
    let flow_end = |refusal: Option<Refusal>| Frame::FlowEnd { flow, refusal };
    let reset = |why: Broken| Frame::Reset { conn, why };
    for frame in [
        Frame::Ack {
            lanes: vec![(lane, 5), (LaneId(0), 0)],
        },
        Frame::Bye(Bye::Busy),
        Frame::Bye(Bye::Unknown),
        Frame::Chunk {
            conn,
            offset: 9,
            data: b"data",
        },
        Frame::End { conn, offset: 13 },
        datagram(None, b""),
        datagram(Some("192.0.2.1"), b"query"),
        datagram(Some("2001:db8::1"), &[7; MAX_DATAGRAM]),
        answer(b""),
        answer(&[7; MAX_DATAGRAM]),
        flow_end(None),
        flow_end(Some(Refusal::Busy)),
        flow_end(Some(Refusal::NotAllowed)),
        flow_end(Some(Refusal::Unreachable)),
        Frame::Gone { lane },
        Frame::Join {
            token: [7; 16],
            is_new: true,
            lane,
            link: "wifi".to_owned(),
        },
        Frame::Join {
            token: [7; 16],
            is_new: false,
            lane,
            link: String::new(),
        },
        open(None, b""),
        open(Some("192.0.2.1"), b"GET /"),
        open(Some("2001:db8::1"), &[7; CHUNK]),
        Frame::Opened { conn },
        refused(Refusal::Busy),
        refused(Refusal::NotAllowed),
        refused(Refusal::Unreachable),
        reset(Broken::Ended),
        reset(Broken::Violated(Violation::Acknowledged)),
        reset(Broken::Violated(Violation::Credit)),
        reset(Broken::Violated(Violation::Flood)),
        reset(Broken::Violated(Violation::Misplaced)),
        reset(Broken::Violated(Violation::Overlap)),
        Frame::Window {
            conn,
            delivered: 1,
            limit: u64::MAX,
        },
    ] {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        assert!(bytes.len() <= MAX_FRAME);
        assert_eq!(decode(&bytes).as_ref(), Ok(&frame));
        for len in 0..bytes.len() {
            // A truncated frame is invalid or a different frame, and never causes a panic.
            assert_ne!(decode(&bytes[..len]).as_ref(), Ok(&frame));
        }
    }
}

#[test]
fn garbage_is_no_frame_or_one_that_comes_back() {
    let mut rng = Rng::new(1);
    for _ in 0..200_000 {
        let len = usize::try_from(rng.below(60)).expect("small");
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.next_u64().to_le_bytes()[0]).collect();
        if let Some(first) = bytes.first_mut() {
            *first %= 16;
        }
        if let Ok(frame) = decode(&bytes) {
            let mut again = Vec::new();
            frame.encode(&mut again);
            assert_eq!(decode(&again), Ok(frame));
        }
    }
    for kind in [CHUNK_KIND, DATAGRAM, ANSWER] {
        let mut long = vec![kind];
        // A flow and a port; zeros are a request without an address.
        long.extend_from_slice(&[0, 0, 0, 1, 0, 53]);
        long.resize(MAX_FRAME + 1, 0);
        assert_eq!(decode(&long), Err(NotAFrame), "{kind}");
    }
    let to_port_zero = [DATAGRAM, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!(decode(&to_port_zero), Err(NotAFrame));
    assert_eq!(decode(&[FLOW_END, 0, 0, 0, 1, 4]), Err(NotAFrame));
}
