//! The resequencers against a simple model: any arrivals, on several paths, with losses, repairs and changes of order.
//!
//! The model only knows which packets came. Each leaves once, or is dropped as what came twice or too late; those of one flow leave in
//! order unless they were late; no more are held than may be; and once every deadline has passed nothing is held.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use arbitrary::Unstructured;
use pleach_core::{
    ids::{PathId, Seq},
    packet::PacketBuf,
    resequencer::{AnyResequencer, Arrival, MAX_HELD, Verdict, Way},
    time::Instant,
    wire::control::Order,
};

/// `data`: a first number, then operations.
pub fn run(data: &[u8]) {
    let _ = operations(&mut Unstructured::new(data));
}

struct Model {
    /// Serial numbers of arrivals that are neither delivered nor dropped.
    inside: BTreeSet<u64>,
    delivered: u64,
}

impl Model {
    fn take(&mut self, packets: impl IntoIterator<Item = PacketBuf>) {
        for packet in packets {
            let serial = packet
                .as_slice()
                .first_chunk()
                .map(|bytes| u64::from_be_bytes(*bytes));
            let is_inside = serial.is_some_and(|serial| self.inside.remove(&serial));
            assert!(is_inside, "a packet leaves twice");
            self.delivered += 1;
        }
    }
}

fn operations(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut resequencer = AnyResequencer::default();
    let mut now = Instant::from_millis(1);
    let mut model = Model {
        inside: BTreeSet::new(),
        delivered: 0,
    };
    let (mut out, mut dropped) = (VecDeque::new(), Vec::new());
    let mut next = 0_u32;
    let mut path_next = [0_u32; 4];
    let mut serial = 0;
    let mut steps = 0;
    let mut operations = 0_u64;
    while !input.is_empty() && operations < 3000 {
        operations += 1;
        match input.int_in_range(0..=11_u8)? {
            0..=7 => {
                let jump = match input.int_in_range(0..=9_u8)? {
                    0..=5 => 1,
                    6 => 0,
                    7 => input.int_in_range(2..=40)?,
                    8 => input.int_in_range(1000..=140_000)?,
                    _ => 0_u32.wrapping_sub(input.int_in_range(1..=2000)?),
                };
                next = next.wrapping_add(jump);
                let path = input.int_in_range(0..=3_u8)?;
                let of_path = &mut path_next[usize::from(path)];
                *of_path = of_path.wrapping_add(input.int_in_range(0..=3)?);
                let way = Way {
                    path: PathId(path),
                    path_seq: Seq(*of_path),
                    path_previous: input.arbitrary::<bool>()?.then(|| Seq(next).minus(2)),
                    is_out_of_turn: input.ratio(1, 8)?,
                };
                serial += 1;
                let arrival = Arrival {
                    seq: Seq(next),
                    flow_step: input.int_in_range(0..=4)?,
                    way: (!input.ratio(1, 8)?).then_some(way),
                    deadline: now + Duration::from_millis(input.int_in_range(0..=300)?),
                    repair: input
                        .arbitrary::<bool>()?
                        .then(|| Duration::from_millis(50)),
                    packet: PacketBuf::from(u64::to_be_bytes(serial).to_vec()),
                };
                model.inside.insert(serial);
                let verdict = resequencer.on_packet(now, arrival, &mut out, &mut dropped);
                let is_dropped = matches!(verdict, Verdict::Duplicate | Verdict::TooOld);
                assert_eq!(dropped.len(), usize::from(is_dropped));
                model.take(dropped.drain(..));
                let is_held = model.inside.contains(&serial)
                    && out
                        .iter()
                        .all(|packet| packet.as_slice() != serial.to_be_bytes());
                // What was held may leave at once, when a table or the number of packets is at its bound.
                assert!(
                    verdict != Verdict::Released || !is_held,
                    "released, and not there"
                );
            }
            8 => resequencer.on_empty(
                now,
                PathId(input.int_in_range(0..=3)?),
                Seq(input.arbitrary()?),
            ),
            9 => {
                let last = (
                    Seq(input.arbitrary()?),
                    Seq(next.wrapping_add(input.int_in_range(0..=9)?)),
                );
                resequencer.on_tail(now, PathId(input.int_in_range(0..=3)?), last, &mut out);
            }
            10 => {
                now += Duration::from_millis(input.int_in_range(0..=400)?);
                resequencer.on_timeout(now, &mut out);
                assert!(
                    resequencer.poll_timeout().is_none_or(|at| at > now),
                    "a deadline is not ahead"
                );
            }
            _ => {
                let order = if input.arbitrary()? {
                    Order::Global
                } else {
                    Order::PerFlow
                };
                let timeout = Duration::from_millis(input.int_in_range(0..=10_000)?);
                resequencer.set_order(now, order, timeout, &mut out);
            }
        }
        model.take(out.drain(..));
        let held = resequencer.held_len();
        assert!(
            held <= MAX_HELD && held == model.inside.len(),
            "{held} held"
        );
        steps += resequencer.take_steps();
        // 65 536 numbers of a table, twice, and each gap and held packet.
        assert!(steps <= operations * 700_000, "{steps} steps");
    }
    // Until all deadlines have passed.
    for _ in 0..4000 {
        let Some(at) = resequencer.poll_timeout() else {
            break;
        };
        now = now.max(at);
        resequencer.on_timeout(now, &mut out);
        model.take(out.drain(..));
    }
    assert_eq!(resequencer.held_len(), 0, "held for ever");
    assert!(model.inside.is_empty() && model.delivered == serial);
    let mut rest = Vec::new();
    resequencer.reset(&mut rest);
    assert!(rest.is_empty());
    Ok(())
}
