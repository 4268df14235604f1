//! Video whose frames are sent at once, over paths too long for retransmission within the deadline.

use std::{collections::BTreeMap, time::Duration};

use pleach_core::{
    class::{Class, Match, Service},
    units::Bitrate,
};
use pleach_sim::link::loss::{Gilbert, Loss, LossState};

use crate::world::{PathModel, World, connected, number_of};

/// Number and interval of packets of a frame: 8 Mbit/s at thirty frames a second.
const PACKETS: u32 = 26;
const INTERVAL: Duration = Duration::from_micros(33_333);
const LEN: usize = 1_300;
/// RTP flags (RFC 3550 section 5.1) before a packet's number: version 2, payload type 96, and the marker.
const RTP: u32 = 0x8060_0000;
const MARKER: u32 = 0x0080_0000;

/// Result of a film.
#[derive(Debug)]
struct Film {
    frames: u32,
    /// Number of frames of which a packet was lost or late.
    broken: u32,
    /// Number of repair symbols per hundred packets.
    symbols_pct: f64,
    /// Percentage of packets that the paths lost.
    lost_pct: f64,
}

/// Sends a film of `frames` over paths of 25 Mbit/s and 60 ms with the given losses. The deadline is the delay of the
/// paths plus `slack`.
fn film(losses: &[Loss], slack: Duration, frames: u32) -> Film {
    let path = PathModel {
        rate: Some(Bitrate::from_mbps(25)),
        ..PathModel::with_delay(60)
    };
    let deadline = path.delay + slack;
    let class = Class {
        name: "film".to_owned(),
        matches: Match::default(),
        service: Service {
            deadline: Some(deadline),
            is_ordered: false,
            ..Service::default()
        },
    };
    let mut world = World::with_classes(&vec![path; losses.len()], vec![class], 5);
    world
        .run_until_true(Duration::from_secs(3), connected)
        .expect("connects");
    for (index, loss) in losses.iter().enumerate() {
        world.losses[index][0] = LossState::new(*loss);
    }
    // Number of frames in the first seconds, in which the paths are measured. They do not count.
    const LEARNING: u32 = 90;
    let mut sent_at = BTreeMap::new();
    for frame in 0..LEARNING + frames {
        for packet in 0..PACKETS {
            let number = frame * PACKETS + packet;
            let is_last = packet + 1 == PACKETS;
            let flags = RTP | if is_last { MARKER } else { 0 };
            // Numbers have 16 bits, as in RTP.
            world.send(1, 0, 2, flags | (number & 0xffff), LEN);
        }
        sent_at.insert(frame, world.now);
        world.run_for(INTERVAL);
    }
    world.run_for(Duration::from_secs(1));
    let mut whole = BTreeMap::<u32, u32>::new();
    // Numbers wrap. An arrived number is close to the expected number.
    let mut newest = 0_u32;
    for (at, packet) in &world.hosts[0].delivered {
        let (_, number) = number_of(packet);
        let step = (number as u16).wrapping_sub(newest as u16).cast_signed();
        let number = newest.wrapping_add_signed(step.into());
        newest = newest.max(number);
        let frame = number / PACKETS;
        if at.since(sent_at[&frame]) <= deadline {
            *whole.entry(frame).or_default() += 1;
        }
    }
    let is_broken = |frame: &u32| whole.get(frame) != Some(&PACKETS);
    let mut peers = world.hosts[1].endpoint.status();
    let (_, status) = peers.next().expect("a peer");
    let packets = f64::from((LEARNING + frames) * PACKETS);
    Film {
        frames,
        broken: (LEARNING..LEARNING + frames).filter(is_broken).count() as u32,
        symbols_pct: 100.0 * status.symbols[0] as f64 / packets,
        lost_pct: 100.0 * world.lost_data as f64 / packets,
    }
}

fn bursts(mean_pkts: f64, share: f64) -> Loss {
    let r = 1.0 / mean_pkts;
    Loss::Gilbert(Gilbert {
        p: r * share / (1.0 - share),
        r,
        loss_good: 0.0,
        loss_bad: 1.0,
    })
}

#[test]
fn symbols_behind_each_frame_save_nearly_all_of_them() {
    // One loss in a hundred packets affects a quarter of the frames, and there is no time for a retransmission.
    let lossy = [Loss::Bernoulli(0.01)];
    for slack_ms in [30, 100] {
        let film = film(&lossy, Duration::from_millis(slack_ms), 2_000);
        assert!(film.broken * 200 <= film.frames, "{slack_ms} ms: {film:?}");
        assert!(film.symbols_pct < 9.0 && film.lost_pct > 0.8, "{film:?}");
    }
    // Bursts of five packets are longer than an eighth of a frame. Some frames are lost, but the redundancy stays
    // within its share.
    let film = film(&[bursts(5.0, 0.01)], Duration::from_millis(100), 1_000);
    assert!(film.broken * 40 <= film.frames, "{film:?}");
    assert!(film.symbols_pct < 14.0, "{film:?}");
}
