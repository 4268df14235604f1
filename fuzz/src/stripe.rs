//! Stripe frames: what parses is written again; and a peer that sends any frames to an association, whose memory stays bounded.

use core::time::Duration;

use arbitrary::Unstructured;
use pleach_core::time::Instant;
use pleach_proxy::stripe::{
    CHUNK, GROWTH,
    frame::{self, ConnId, FlowId, Frame, LaneId, Refusal, Wanted},
    mux::{Event, Mux, Side},
    sched::Striping,
};

use super::heap;

/// What an association may take here: its growth, the first windows of the connections, and what this end keeps.
const MOST_HEAP: i64 = 64 << 20;
const _: () = assert!(GROWTH <= 64 << 20);

/// `data`: which half, then a frame or operations.
pub fn run(data: &[u8]) {
    let Some((half, rest)) = data.split_first() else {
        return;
    };
    if half & 1 == 0 {
        if let Ok(parsed) = frame::decode(rest) {
            let mut out = Vec::new();
            parsed.encode(&mut out);
            assert_eq!(
                frame::decode(&out),
                Ok(parsed),
                "a frame changes when it is written"
            );
        }
        return;
    }
    let _ = liar(half >> 1, &mut Unstructured::new(rest));
}

fn liar(how: u8, input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let began_with = heap::live_bytes();
    let mut now = Instant::from_millis(1);
    let side = if how & 1 == 0 {
        Side::Answers
    } else {
        Side::Asks
    };
    let striping = Striping::ALL[usize::from(how >> 1) % Striping::ALL.len()];
    let mut mux = Mux::new(side, striping);
    for lane in 0..2 {
        assert!(mux.add_lane(now, LaneId(lane)));
    }
    let mut ours = Vec::new();
    let mut operations = 0;
    while !input.is_empty() && operations < 2000 {
        operations += 1;
        let lane = LaneId(input.int_in_range(0..=2)?);
        match input.int_in_range(0..=9_u8)? {
            0..=4 => {
                let chunk = [7; CHUNK];
                let built = frame_of(input, &chunk)?;
                let _ = mux.handle_frame(now, lane, built);
            }
            5 => {
                let len = input.int_in_range(0..=80_usize)?.min(input.len());
                if let Ok(parsed) = frame::decode(input.bytes(len)?) {
                    let _ = mux.handle_frame(now, lane, parsed);
                }
            }
            6 => {
                if side == Side::Asks && ours.len() < 40 {
                    let wanted = Wanted { ip: None, port: 80 };
                    ours.extend(mux.open(wanted, &[1; 100]));
                }
                let flow = match mux.open_flow() {
                    Some(flow) if mux.flow_count() < 8 => flow,
                    _ => FlowId(input.int_in_range(0..=9)?),
                };
                let wanted = (side == Side::Asks).then_some(Wanted { ip: None, port: 53 });
                let _ = mux.send_datagram(now, flow, wanted, &[3; 700]);
                let conn = ConnId(input.int_in_range(0..=9)?);
                let room = mux.room(conn);
                assert!(mux.write(conn, &[2; 3000]) <= room);
            }
            7 => {
                let conn = ConnId(input.int_in_range(0..=9)?);
                let ready = mux.peek(conn).len();
                mux.consume(conn, ready);
                if input.ratio(1, 4)? {
                    mux.finish(conn);
                    let refusal = (side == Side::Answers).then_some(Refusal::NotAllowed);
                    mux.close_flow(now, FlowId(conn.0), refusal);
                }
            }
            8 => {
                let mut out = Vec::new();
                for _ in 0..64 {
                    out.clear();
                    if !mux.poll_frame(now, lane, &mut out) {
                        break;
                    }
                    frame::decode(&out).expect("we send frames");
                }
            }
            _ => {
                now += Duration::from_millis(input.int_in_range(0..=500)?);
                mux.dispatch.handle_timeout(now);
                if input.ratio(1, 16)? {
                    mux.remove_lane(lane);
                    mux.add_lane(now, lane);
                }
            }
        }
        while let Some(event) = mux.poll_event() {
            if let Event::Incoming { conn, .. } = event {
                match input.int_in_range(0..=3_u8).unwrap_or(0) {
                    0..=2 => mux.accept(conn),
                    _ => mux.close(conn),
                }
            }
        }
        let _ = mux.take_changed();
        let live = heap::live_bytes() - began_with;
        assert!(live <= MOST_HEAP, "{live} bytes of heap");
    }
    Ok(())
}

fn frame_of<'a>(input: &mut Unstructured<'_>, chunk: &'a [u8]) -> arbitrary::Result<Frame<'a>> {
    let conn = ConnId(match input.int_in_range(0..=3_u8)? {
        0..=2 => input.int_in_range(0..=9)?,
        _ => input.arbitrary()?,
    });
    let offset = match input.int_in_range(0..=3_u8)? {
        0..=2 => input.int_in_range(0..=400_000)?,
        _ => input.arbitrary()?,
    };
    let data = &chunk[..input.int_in_range(1..=CHUNK)?];
    let flow = FlowId(conn.0);
    Ok(match input.int_in_range(0..=11_u8)? {
        0 => {
            let count = input.int_in_range(0..=3_u16)?;
            let mut lanes = Vec::new();
            for lane in 0..count {
                lanes.push((LaneId(lane), input.int_in_range(0..=50)?));
            }
            Frame::Ack { lanes }
        }
        1..=3 => Frame::Chunk { conn, offset, data },
        4 => Frame::End { conn, offset },
        5 => Frame::Gone {
            lane: LaneId(input.int_in_range(0..=3)?),
        },
        6 => Frame::Open {
            conn,
            wanted: Wanted { ip: None, port: 80 },
            data,
        },
        7 => Frame::Opened { conn },
        9 | 10 => Frame::Datagram {
            flow,
            wanted: input.ratio(1, 2)?.then_some(Wanted { ip: None, port: 53 }),
            data,
        },
        11 => Frame::FlowEnd {
            flow,
            refusal: input.ratio(1, 2)?.then_some(Refusal::Busy),
        },
        _ => Frame::Window {
            conn,
            delivered: input.int_in_range(0..=400_000)?,
            limit: offset,
        },
    })
}
