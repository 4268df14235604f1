//! A hostile authenticated peer: a gateway with two clients, one of which holds a valid key and seals whatever the input says.
//!
//! The input is a program: control frames and data of any content, jumps of all numbers, repetitions, spoofed addresses, replays,
//! damage, new handshakes, time, and packets from the host that make the gateway send. After each step the gateway must keep
//! what `docs/wire.md` states in sections 9 and 10:
//!
//! - *work*: the steps that it counts are at most five million, twenty million a second, and what each data datagram has free;
//! - *bytes*: what it says it keeps is at most 48 MiB; what this thread has allocated, counted by the allocator, is at most 64 MiB
//!   more than at the beginning, beside the free buffers of the pool;
//! - *addresses*: an address that does not answer gets at most three times the bytes that were sent in its name;
//! - *invariants*: once drained, the next deadline lies ahead; delivered packets have the peer's source and at most the MTU; the
//!   tables of the status have their bounds; no panic.
//!
//! The committed corpus shows that the checks see: a gateway without its budget of work (`Effort::allows` always true) fails on
//! `program-0`, one without its budget of bytes (`Endpoint::bound_kept` drops nothing) on `keeps-silent`.

mod client;
#[path = "../../crates/lab/src/hostile/frames.rs"]
mod frames;
mod gateway;
#[path = "../../crates/lab/src/hostile/peer.rs"]
mod peer;

use arbitrary::Unstructured;
use core::time::Duration;

use client::Client;
use gateway::Gateway;
use peer::Lane;

/// Most steps of a program.
const MOST_STEPS: usize = 300;
/// Most datagrams of a program, with repetitions.
const MOST_DATAGRAMS: u32 = 40_000;

/// `data`: the program.
pub fn run(data: &[u8]) {
    let _ = program(&mut Unstructured::new(data));
}

fn program(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut gateway = Gateway::new();
    let mut client = Client::new();
    client.connect(&mut gateway, 0, false);
    gateway.drain(&mut client);
    assert!(client.peer.is_connected(), "no session to be hostile in");
    client.bring_up(&mut gateway);
    gateway.pass(&mut client, Duration::from_millis(500));
    let mut left = MOST_DATAGRAMS;
    for _ in 0..MOST_STEPS {
        if input.is_empty() || left == 0 {
            break;
        }
        step(input, &mut gateway, &mut client, &mut left)?;
        gateway.check();
    }
    gateway.pass(&mut client, Duration::from_secs(1));
    gateway.check();
    Ok(())
}

fn step(
    input: &mut Unstructured<'_>,
    gateway: &mut Gateway,
    client: &mut Client,
    left: &mut u32,
) -> arbitrary::Result<()> {
    let kind = input.int_in_range(0..=15_u8)?;
    match kind {
        // Frames, once or many times over with versions and numbers that go on.
        0..=4 => {
            let times = repetitions(input, left)?;
            let (source, lane) = lane(input)?;
            let body = frames::body(input, &client.peer)?;
            for time in 0..times {
                let mut body = body.clone();
                frames::count_on(&mut body, time);
                client.control(gateway, source, lane, &body);
            }
        }
        5..=8 => {
            let times = repetitions(input, left)?;
            let (source, lane) = lane(input)?;
            let mut data = frames::data(input, &client.peer)?;
            let stride = frames::jump(input)?;
            for _ in 0..times {
                client.data(gateway, source, lane, &data);
                data.global_seq = data.global_seq.wrapping_add(stride);
                gateway.deliver();
            }
            client.peer.global_seq = data.global_seq;
        }
        9 => {
            let len = input.int_in_range(0..=1200_usize)?.min(input.len());
            let (source, lane) = lane(input)?;
            let body = input.bytes(len)?;
            client.control(gateway, source, lane, body);
        }
        10 | 11 => {
            let time = match input.int_in_range(0..=3_u8)? {
                0 => Duration::from_micros(input.int_in_range(0..=3000)?),
                1 => Duration::from_millis(input.int_in_range(0..=100)?),
                2 => Duration::from_millis(input.int_in_range(100..=3000)?),
                _ => Duration::from_secs(input.int_in_range(3..=200)?),
            };
            gateway.pass(client, time);
        }
        12 | 13 => {
            let times = repetitions(input, left)?;
            let len = input.int_in_range(20..=1500_u16)?;
            let rounds = input.int_in_range(1..=8_u32)?;
            for _ in 0..rounds {
                gateway.host_sends(times / rounds, len);
                gateway.drain(client);
                client.report(gateway);
            }
        }
        14 => match input.int_in_range(0..=3_u8)? {
            0 => client.replay(gateway, input.int_in_range(0..=63)?),
            1 => client.damage(gateway, input.arbitrary()?, input.arbitrary()?),
            2 => {
                let is_new = input.arbitrary()?;
                client.connect(gateway, input.int_in_range(0..=2)?, is_new);
                gateway.drain(client);
            }
            _ => {
                let len = input.int_in_range(0..=1300_usize)?.min(input.len());
                let bytes = input.bytes(len)?.to_vec();
                gateway.handle(input.int_in_range(0..=2)?, bytes);
            }
        },
        _ => client.change(input.arbitrary()?, input.arbitrary()?),
    }
    Ok(())
}

/// Mostly once; now and then thousands of times, so that budgets are reached.
fn repetitions(input: &mut Unstructured<'_>, left: &mut u32) -> arbitrary::Result<u32> {
    let times = match input.int_in_range(0..=7_u8)? {
        0..=3 => 1,
        4 | 5 => input.int_in_range(1..=30)?,
        6 => input.int_in_range(30..=1000)?,
        _ => input.int_in_range(1000..=8000)?,
    };
    let times = times.min(*left);
    *left -= times;
    Ok(times)
}

/// The number of the source address, and the lane.
fn lane(input: &mut Unstructured<'_>) -> arbitrary::Result<(u8, Lane)> {
    let path = match input.int_in_range(0..=3_u8)? {
        0..=1 => 0,
        2 => input.int_in_range(0..=3)?,
        _ => input.int_in_range(0..=15)?,
    };
    let source = match input.int_in_range(0..=7_u8)? {
        0..=5 => 0,
        _ => input.int_in_range(0..=3)?,
    };
    let skip = match input.int_in_range(0..=7_u8)? {
        0..=5 => 0,
        6 => input.int_in_range(1..=300)?,
        _ => input.int_in_range(1..=200_000)?,
    };
    Ok((source, Lane { path, skip }))
}
