//! The datagrams of a hostile client with a valid key. Each mix aims at one budget of `docs/wire.md`, sections 9 and 10.

use core::time::Duration;

use arbitrary::Unstructured;
use pleach_core::{
    ids::{PathId, Seq},
    path::train::{Dispersion, TrainPacket},
    rng::Rng,
    sec::Code,
    time::Instant,
    wire::control::{Frame, FrameWriter, Frames, MissingWriter},
};
use pleach_linux::clock;

use super::{
    attack::Traffic,
    frames::{self, packet},
    peer::{Data, Lane, Peer},
};
use crate::crowd::packets::PORT;

/// A mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    /// Frames and data drawn as by the fuzzer, and bodies of random bytes.
    Random,
    /// Traffic that returns, all of which is reported as missing.
    Missing,
    /// Traffic that returns, whose arrival is never reported as complete, and data with gaps that the gateway holds to
    /// restore the order.
    Hoard,
    /// Traffic that returns, none of which is reported.
    Silent,
    /// Repair symbols over many packets, and parities.
    Repair,
    /// Data whose numbers jump by the size of the gateway's tables.
    Jumps,
    /// Packet trains, their results, and probes of the MTU.
    Trains,
}

impl Mix {
    /// All mixes.
    pub(super) const ALL: [Self; 7] = [
        Self::Random,
        Self::Missing,
        Self::Hoard,
        Self::Silent,
        Self::Repair,
        Self::Jumps,
        Self::Trains,
    ];

    /// Returns the name in the report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random frames",
            Self::Missing => "all reported missing",
            Self::Hoard => "nothing settled, gaps",
            Self::Silent => "nothing reported",
            Self::Repair => "repair symbols, parities",
            Self::Jumps => "jumping numbers",
            Self::Trains => "trains, probes",
        }
    }
}

/// A hostile client.
pub(super) struct Hostile {
    peer: Peer,
    mix: Mix,
    rng: Rng,
    next_attempt: Instant,
    is_up: bool,
    turn: u32,
    version: u32,
}

impl Hostile {
    /// Returns a client that connects and then sends `mix`.
    pub(super) fn new(mut peer: Peer, mix: Mix, seed: u64) -> Self {
        peer.habits.settles = mix != Mix::Hoard;
        peer.habits.reports = mix != Mix::Silent;
        Self {
            peer,
            mix,
            rng: Rng::new(seed),
            next_attempt: Instant::ZERO,
            is_up: false,
            turn: 0,
            version: 0,
        }
    }

    /// Returns a data datagram with a packet that the far end returns.
    fn returning(&mut self, now: Instant, path: u8) -> Option<Vec<u8>> {
        let body = packet(1_200, self.peer.inner, self.peer.beyond, PORT);
        let data = self.plain(body);
        self.peer.data(now, Lane::of(path), &data)
    }

    fn plain(&mut self, body: Vec<u8>) -> Data {
        self.peer.global_seq = self.peer.global_seq.wrapping_add(1);
        Data {
            global_seq: self.peer.global_seq,
            flow_step: 1,
            path_step: 0,
            flags: 0,
            is_symbol: false,
            body,
        }
    }

    fn path(&mut self) -> u8 {
        u8::try_from(self.rng.below(PATHS.into())).unwrap_or(0)
    }

    /// Returns one random datagram, as the fuzzer makes them.
    fn random(&mut self, now: Instant) -> Option<Vec<u8>> {
        let mut bytes = [0; 640];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.rng.next_u64().to_le_bytes());
        }
        let lane = Lane::of(self.path());
        let mut input = Unstructured::new(&bytes);
        match self.turn % 4 {
            0 => self.peer.control(now, lane, &bytes[..600]),
            1 | 2 => {
                let mut body = frames::body(&mut input, &self.peer).ok()?;
                // A farewell would end the session.
                if Frames::new(&body).any(|frame| matches!(frame, Frame::Close)) {
                    return None;
                }
                self.version += 1;
                frames::count_on(&mut body, self.version);
                self.peer.control(now, lane, &body)
            }
            _ => {
                let data = frames::data(&mut input, &self.peer).ok()?;
                self.peer.global_seq = data.global_seq.wrapping_add(1);
                self.peer.data(now, lane, &data)
            }
        }
    }

    /// Reports the latest numbers of all kinds as missing.
    fn missing(&mut self, now: Instant) -> Option<Vec<u8>> {
        let path = self.path();
        let highest = Seq(self.peer.seen[usize::from(path)].0);
        let mut ranges = MissingWriter::default();
        for number in 0..40 {
            ranges.push(highest.minus(16_384 - 400 * number), 65_535);
        }
        let ranges = ranges.ranges()?;
        let path = PathId(path);
        self.peer
            .frame(now, Lane::of(path.0), &Frame::Missing { path, ranges })
    }

    fn repair(&mut self, now: Instant) -> Option<Vec<u8>> {
        let path = self.path();
        if self.turn % 8 == 7 {
            let len = 1_200;
            let code = if self.turn % 16 == 7 {
                Code::Bch
            } else {
                Code::Hamming
            };
            let parity = vec![0x5a; code.parity_len(len.into())];
            let frame = Frame::Parity {
                code,
                path: PathId(path),
                path_seq: Seq(self.turn),
                len,
                parity: &parity,
            };
            return self.peer.frame(now, Lane::of(path), &frame);
        }
        let mut data = self.plain(vec![0x5a; 1_200]);
        data.is_symbol = self.turn % 2 == 1;
        if data.is_symbol {
            data.flags = 0xf0;
        } else {
            // The gap before it could be repaired.
            self.peer.global_seq = self.peer.global_seq.wrapping_add(1);
        }
        self.peer.data(now, Lane::of(path), &data)
    }

    fn jump(&mut self, now: Instant) -> Option<Vec<u8>> {
        let body = packet(60, self.peer.inner, self.peer.beyond, 9);
        let mut data = self.plain(body);
        data.flow_step = [3, u16::MAX][usize::from(self.turn % 2 == 1)];
        data.path_step = 300;
        self.peer.global_seq = self.peer.global_seq.wrapping_add(65_000);
        let lane = Lane {
            skip: [300, 131_000][usize::from(self.turn % 3 == 2)],
            ..Lane::of(self.path())
        };
        self.peer.data(now, lane, &data)
    }

    fn train(&mut self, now: Instant) -> Option<Vec<u8>> {
        let path = self.path();
        let train = ((self.turn / 16) & 0xff).to_le_bytes()[0];
        let frame = match self.turn % 4 {
            0 => Frame::Ping {
                token: self.turn,
                size: 1_400,
            },
            1 => Frame::Train(Dispersion {
                train,
                bytes: u32::MAX,
                time_us: 1,
                longest_gap_us: 1,
            }),
            _ => Frame::TrainPacket(TrainPacket {
                train,
                place: u16::try_from(self.turn % 16).unwrap_or(0),
                count: 16,
            }),
        };
        let mut body = [0; 1_200];
        let mut writer = FrameWriter::new(&mut body);
        if !writer.push(&frame) {
            return None;
        }
        writer.pad_to(1_100);
        let len = writer.len();
        self.peer.control(now, Lane::of(path), &body[..len])
    }

    /// Returns data with a gap before each packet, which waits for the missing ones.
    fn gap(&mut self, now: Instant) -> Option<Vec<u8>> {
        let body = packet(1_200, self.peer.inner, self.peer.beyond, 9);
        let mut data = self.plain(body);
        data.flow_step = 2;
        self.peer.global_seq = self.peer.global_seq.wrapping_add(1);
        let lane = Lane {
            skip: 1,
            ..Lane::of(self.path())
        };
        self.peer.data(now, lane, &data)
    }
}

impl Traffic for Hostile {
    fn batch(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<usize> {
        if !self.is_up {
            return None;
        }
        // A draw may give nothing that can be sent.
        for _ in 0..8 {
            self.turn = self.turn.wrapping_add(1);
            let datagram = match self.mix {
                Mix::Random => self.random(now),
                Mix::Missing if self.turn.is_multiple_of(4) => self.missing(now),
                Mix::Hoard if self.turn.is_multiple_of(2) => self.gap(now),
                Mix::Missing | Mix::Hoard | Mix::Silent => {
                    let path = self.path();
                    self.returning(now, path)
                }
                Mix::Repair => self.repair(now),
                Mix::Jumps => self.jump(now),
                Mix::Trains => self.train(now),
            };
            if let Some(datagram) = datagram {
                out.extend_from_slice(&datagram);
                return Some(datagram.len());
            }
        }
        None
    }

    fn read(&mut self, now: Instant, datagram: &mut [u8], answers: &mut Vec<Vec<u8>>) {
        self.peer.read(now, datagram, answers);
        if self.peer.is_connected() && !self.is_up {
            self.is_up = true;
            answers.extend(self.peer.bring_up(now, PATHS));
        }
    }

    fn regular(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        if self.is_up {
            out.extend(self.peer.report(now));
        } else if now >= self.next_attempt {
            self.next_attempt = now + ATTEMPTS;
            // Without random bytes there is no attempt.
            let seed = clock::entropy().unwrap_or_default();
            out.extend(self.peer.initiation(now, clock::unix_nanos(), 0, seed));
        }
    }
}

/// Number of paths of a hostile client.
const PATHS: u8 = 4;
/// Interval of initiations until the client is connected.
const ATTEMPTS: Duration = Duration::from_millis(500);
