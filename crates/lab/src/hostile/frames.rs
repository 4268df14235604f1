//! Frames and packets with values near the interesting ones, drawn from bytes. The fuzzer finds bytes for them
//! (`fuzz/src/hostile_peer.rs`, which includes this file); the lab draws them at random.

use core::time::Duration;

use arbitrary::{Result, Unstructured};
use pleach_core::{
    ids::{PathId, Seq},
    path::train::{Dispersion, TrainPacket},
    sec::Code,
    units::Bitrate,
    wire::control::{
        Frame, FrameWriter, LinkInfo, LinkRole, LossReport, MissingWriter, Order, PathReport,
        Reception,
    },
};

use super::peer::{Data, Peer};

/// The body of a control datagram: a few frames, or one kind as often as it fits.
pub(super) fn body(input: &mut Unstructured<'_>, peer: &Peer) -> Result<Vec<u8>> {
    let mut bytes = [0; 1200];
    let mut writer = FrameWriter::new(&mut bytes);
    let fills = input.ratio(1, 4)?;
    for _ in 0..input.int_in_range(1..=6_u8)? {
        let before = writer.len();
        if !push(input, peer, &mut writer)? {
            break;
        }
        let len = writer.len() - before;
        if fills && len > 0 {
            // A copy of it, until the datagram is full.
            let end = writer.len();
            let mut full = bytes[..end].to_vec();
            while full.len() + len <= 1100 {
                full.extend_from_within(before..end);
            }
            return Ok(full);
        }
    }
    let len = writer.len();
    Ok(bytes[..len].to_vec())
}

/// Makes versions of descriptions, receptions and intervals in `body` higher by `time`: by writing the frames again.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the other frames have no version"
)]
pub(super) fn count_on(body: &mut Vec<u8>, time: u32) {
    if time == 0 {
        return;
    }
    let mut out = [0; 1300];
    let mut writer = FrameWriter::new(&mut out);
    let mut number = time.wrapping_mul(64);
    for mut frame in pleach_core::wire::control::Frames::new(body) {
        number = number.wrapping_add(1);
        match &mut frame {
            Frame::Link { version, .. } => *version = version.wrapping_add(number),
            Frame::Reception { version, reception } => {
                *version = version.wrapping_add(number);
                // The order changes each time.
                if number & 1 == 0 {
                    reception.order = match reception.order {
                        Order::Global => Order::PerFlow,
                        Order::PerFlow => Order::Global,
                    };
                }
            }
            Frame::Losses { report, .. } => report.interval = report.interval.wrapping_add(time),
            Frame::Report { report, .. } => report.received_pkts += u64::from(time),
            Frame::Tail {
                path_seq,
                global_seq,
            } => {
                *path_seq = path_seq.plus(time);
                *global_seq = global_seq.plus(time);
            }
            Frame::Template { number, .. } => *number = number.wrapping_add(1) % (1 << 14),
            _ => {}
        }
        if !writer.push(&frame) {
            break;
        }
    }
    let len = writer.len();
    body.clear();
    body.extend_from_slice(&out[..len]);
}

fn push(input: &mut Unstructured<'_>, peer: &Peer, writer: &mut FrameWriter<'_>) -> Result<bool> {
    let highest = if input.arbitrary()? { 1 } else { 15 };
    let path = PathId(input.int_in_range(0..=highest)?);
    let seen = Seq(peer.seen[path.index()].0);
    let frame = match input.int_in_range(0..=20_u8)? {
        0 => Frame::Ping {
            token: input.arbitrary()?,
            size: input.arbitrary()?,
        },
        1 => Frame::Pong {
            token: input.arbitrary()?,
            size: input.arbitrary()?,
        },
        2 | 3 => Frame::Report {
            path,
            report: report(input, peer, path)?,
        },
        4 => {
            const NAMES: [&str; 3] = ["x", "dsl", "a name of thirty-two bytes here."];
            let info = LinkInfo {
                name: NAMES[input.int_in_range(0..=2)?],
                cost: input.arbitrary()?,
                role: [LinkRole::Active, LinkRole::Standby, LinkRole::Never]
                    [input.int_in_range(0..=2)?],
                weight: input.int_in_range(1..=u32::MAX)?,
                download: input.arbitrary::<Option<u64>>()?.map(Bitrate::from_bps),
                mtu: input.arbitrary()?,
            };
            Frame::Link {
                path,
                version: input.int_in_range(0..=5000)?,
                info,
            }
        }
        5 => Frame::LinkAck {
            path,
            version: input.int_in_range(0..=3)?,
        },
        6 if input.ratio(1, 8)? => Frame::Close,
        6..=8 => {
            let reception = Reception {
                order: if input.arbitrary()? {
                    Order::Global
                } else {
                    Order::PerFlow
                },
                loss_timeout: Duration::from_millis(input.int_in_range(0..=20_000)?),
                report_interval: input
                    .arbitrary::<Option<u16>>()?
                    .map(|millis| Duration::from_millis(millis.into())),
            };
            Frame::Reception {
                version: input.int_in_range(0..=5000)?,
                reception,
            }
        }
        9 => Frame::ReceptionAck {
            version: input.int_in_range(0..=5)?,
        },
        10 => {
            let report = LossReport {
                interval: input.arbitrary()?,
                lost_pkts: input.arbitrary()?,
                lost_bytes: input.arbitrary()?,
                received_pkts: input.arbitrary()?,
                received_bytes: input.arbitrary()?,
                highest_seq: near(input, seen)?,
            };
            Frame::Losses { path, report }
        }
        11..=13 => {
            let mut ranges = MissingWriter::default();
            let first = near(input, seen)?;
            let count = input.int_in_range(1..=40_u32)?;
            let (len, stride) = (input.arbitrary::<u16>()?, jump(input)?);
            for number in 0..count {
                ranges.push(first.plus(stride.wrapping_mul(number)), len.into());
            }
            let Some(ranges) = ranges.ranges() else {
                return Ok(true);
            };
            let is_recovered = input.ratio(1, 3)?;
            return Ok(writer.push(&if is_recovered {
                Frame::Recovered { ranges }
            } else {
                Frame::Missing { path, ranges }
            }));
        }
        14 => {
            let len = input.int_in_range(0..=1400_u16)?;
            let code = if input.arbitrary()? {
                Code::Bch
            } else {
                Code::Hamming
            };
            let parity = vec![input.arbitrary()?; code.parity_len(len.into())];
            let path_seq = near(input, Seq(0))?;
            return Ok(writer.push(&Frame::Parity {
                code,
                path,
                path_seq,
                len,
                parity: &parity,
            }));
        }
        15 => Frame::TrainPacket(TrainPacket {
            train: input.arbitrary()?,
            place: input.int_in_range(0..=200)?,
            count: input.int_in_range(0..=200)?,
        }),
        16 => Frame::Train(Dispersion {
            train: input.arbitrary()?,
            bytes: input.arbitrary()?,
            time_us: input.arbitrary()?,
            longest_gap_us: input.arbitrary()?,
        }),
        17 => {
            let mut headers = packet(28, peer.inner, peer.beyond, input.int_in_range(0..=9)?);
            let at = input.int_in_range(0..=27_usize)?;
            headers[at] = input.arbitrary()?;
            let frame = Frame::Template {
                number: input.int_in_range(0..=1200)?,
                travelling: u128::from(input.arbitrary::<u32>()?) << input.int_in_range(0..=4)?,
                headers: &headers,
            };
            return Ok(writer.push(&frame));
        }
        18 => Frame::TemplateUnknown {
            number: input.int_in_range(0..=300)?,
        },
        19 => Frame::TemplateAck {
            number: input.int_in_range(0..=300)?,
        },
        _ => Frame::Tail {
            path_seq: near(input, Seq(0))?,
            global_seq: near(input, Seq(peer.global_seq))?,
        },
    };
    Ok(writer.push(&frame))
}

/// A report near the truth, or far from it.
fn report(input: &mut Unstructured<'_>, peer: &Peer, path: PathId) -> Result<PathReport> {
    let (highest, pkts) = peer.seen[path.index()];
    let is_wild = input.ratio(1, 4)?;
    let highest_seq = near(input, Seq(highest))?;
    Ok(PathReport {
        received_pkts: if is_wild { input.arbitrary()? } else { pkts },
        highest_seq,
        received_bytes: if is_wild {
            input.arbitrary()?
        } else {
            pkts * 1000
        },
        received_us: input.arbitrary()?,
        sent_us: input.arbitrary()?,
        ack_delay_us: if is_wild { input.arbitrary()? } else { 0 },
        min_owd_us: input.arbitrary()?,
        congested_pkts: if is_wild { input.arbitrary()? } else { 0 },
        settled_seq: match input.int_in_range(0..=2_u8)? {
            0 => None,
            1 => Some(highest_seq),
            _ => Some(near(input, Seq(highest))?),
        },
    })
}

/// A number near `base`, a jump away, or any.
fn near(input: &mut Unstructured<'_>, base: Seq) -> Result<Seq> {
    Ok(match input.int_in_range(0..=3_u8)? {
        0 => base,
        1 => base.plus(input.int_in_range(0..=300)?).minus(150),
        2 => base.plus(jump(input)?),
        _ => Seq(input.arbitrary()?),
    })
}

/// How far numbers jump: by little, by the size of a table, by half of all.
pub(super) fn jump(input: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match input.int_in_range(0..=7_u8)? {
        0..=2 => 1,
        3 => 0,
        4 => input.int_in_range(2..=300)?,
        5 => input.int_in_range(60_000..=70_000)?,
        6 => input.int_in_range(130_000..=132_000)?,
        _ => input.arbitrary()?,
    })
}

/// A data datagram: a packet of the client's, of another's, a compressed one, a symbol, or anything.
pub(super) fn data(input: &mut Unstructured<'_>, peer: &Peer) -> Result<Data> {
    let global_seq = match input.int_in_range(0..=3_u8)? {
        0..=2 => peer.global_seq,
        _ => near(input, Seq(peer.global_seq))?.0,
    };
    let body = match input.int_in_range(0..=7_u8)? {
        0..=3 => packet(
            input.int_in_range(20..=1500)?,
            peer.inner,
            peer.beyond,
            input.int_in_range(0..=9)?,
        ),
        4 => packet(
            input.int_in_range(1400..=60_000)?,
            peer.inner,
            peer.beyond,
            7,
        ),
        5 => packet(40, peer.beyond, peer.inner, 7),
        6 => {
            let number = 0xc000 | input.int_in_range(0..=1200_u16)?;
            let len = input.int_in_range(0..=100_usize)?.min(input.len());
            [&number.to_be_bytes(), input.bytes(len)?].concat()
        }
        _ => {
            let len = input.int_in_range(0..=200_usize)?.min(input.len());
            input.bytes(len)?.to_vec()
        }
    };
    let furthest = if input.arbitrary()? { 3 } else { u16::MAX };
    Ok(Data {
        global_seq,
        flow_step: input.int_in_range(0..=furthest)?,
        path_step: input.int_in_range(-3..=300)?,
        flags: input.arbitrary()?,
        is_symbol: input.ratio(1, 8)?,
        body,
    })
}

/// A UDP packet of `len` bytes, 28 at least.
pub(super) fn packet(len: u16, from: [u8; 4], to: [u8; 4], port: u16) -> Vec<u8> {
    let len = len.max(28);
    let mut packet = vec![0; usize::from(len)];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[8] = 64;
    packet[9] = 17;
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&to);
    packet[20..22].copy_from_slice(&port.to_be_bytes());
    packet[22..24].copy_from_slice(&port.to_be_bytes());
    packet[24..26].copy_from_slice(&(len - 20).to_be_bytes());
    packet
}
