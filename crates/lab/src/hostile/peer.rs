//! A client with a valid key that seals anything. Unlike the engine it has no timers and keeps no rule of the protocol
//! except that the gateway can decrypt its datagrams.
//!
//! `fuzz/src/hostile_peer.rs` includes this file.

use pleach_core::{
    ids::{PathId, Seq},
    session::{
        aead::Suite,
        cookie::CookieCache,
        handshake::{Initiator, NO_PSK, StaticKeys},
        keys::{Role, Session},
    },
    time::Instant,
    wire::{
        Kind,
        control::{Frame, FrameWriter, Frames, LinkInfo, LinkRole, PathReport},
        handshake::{CAPABILITIES, Hello, KIND_COOKIE_REPLY, KIND_RESPONSE},
        header::{CONTROL_HEADER_LEN, COVERED, DataHeader, Header, TAG_LEN},
    },
};

/// Number of paths whose numbers are counted.
const PATHS: usize = PathId::MAX;

/// Where a datagram goes: a path, and how many numbers of the path are skipped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) path: u8,
    pub(super) skip: u64,
}

impl Lane {
    /// Returns the lane of a path, without a skip.
    pub(super) const fn of(path: u8) -> Self {
        Self { path, skip: 0 }
    }
}

/// A data datagram.
#[derive(Clone, Debug)]
pub(super) struct Data {
    pub(super) global_seq: u32,
    pub(super) flow_step: u16,
    pub(super) path_step: i16,
    /// The lower three bits: flags. The upper four bits: how many packets a symbol covers, if it is one. The highest bit
    /// also asks for answers on the path.
    pub(super) flags: u8,
    pub(super) is_symbol: bool,
    pub(super) body: Vec<u8>,
}

/// How the client treats the gateway's datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// Whether it answers pings.
    pub(super) answers: bool,
    /// Whether it reports the datagrams that arrive.
    pub(super) reports: bool,
    /// Whether a report says that all datagrams before the highest one have arrived.
    pub(super) settles: bool,
}

/// The client.
pub(super) struct Peer {
    keys: StaticKeys,
    gateway: [u8; 32],
    cookies: CookieCache,
    attempt: Option<(Initiator, Vec<u8>, u8)>,
    attempts: u32,
    pub(super) association: u64,
    session: Option<Session>,
    /// The next number of each lane.
    counters: [u64; PathId::LANES],
    /// Inner addresses of the client and of a host behind the gateway.
    pub(super) inner: [u8; 4],
    pub(super) beyond: [u8; 4],
    pub(super) global_seq: u32,
    /// Of the gateway's data: the highest number on each path, and how many datagrams arrived.
    pub(super) seen: [(u32, u64); PATHS],
    pub(super) habits: Habits,
}

impl Peer {
    /// Returns a client without a session.
    pub(super) fn new(
        keys: StaticKeys,
        gateway: [u8; 32],
        inner: [u8; 4],
        beyond: [u8; 4],
    ) -> Self {
        Self {
            keys,
            gateway,
            cookies: CookieCache::new(&gateway),
            attempt: None,
            attempts: 0,
            association: 1,
            session: None,
            counters: [0; PathId::LANES],
            inner,
            beyond,
            global_seq: 0,
            seen: [(0, 0); PATHS],
            habits: Habits {
                answers: true,
                reports: true,
                settles: true,
            },
        }
    }

    /// Whether it has a session.
    pub(super) const fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// Returns the initiation of a new handshake from address number `source`. `time`: timestamp of the initiation, to
    /// which the number of attempts is added. `seed`: fresh random bytes.
    pub(super) fn initiation(
        &mut self,
        now: Instant,
        time: u64,
        source: u8,
        seed: [u8; 32],
    ) -> Option<Vec<u8>> {
        self.attempts = (self.attempts + 1) & 0xffff;
        let hello = Hello {
            protocol_version: pleach_core::endpoint::PROTOCOL_VERSION,
            capabilities: CAPABILITIES,
            suites: Suite::offer(&[Suite::ChaCha20Poly1305]),
            association: self.association,
            time: Some(time + u64::from(self.attempts)),
        };
        let index = self.attempts.max(1);
        let started = Initiator::new(&self.keys, &self.gateway, &NO_PSK, index, hello, seed);
        let (initiator, mut datagram) = started.ok()?;
        self.cookies.stamp(now, &mut datagram).ok()?;
        self.attempt = Some((initiator, datagram.clone(), source));
        Some(datagram)
    }

    /// Returns datagrams that describe a link for each of the first `paths` paths, as an honest client does, so that
    /// the gateway may send on them.
    pub(super) fn bring_up(&mut self, now: Instant, paths: u8) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        for path in 0..paths {
            let mut body = [0; 200];
            let mut writer = FrameWriter::new(&mut body);
            let info = LinkInfo {
                name: "link",
                cost: 0,
                role: LinkRole::Active,
                weight: 1,
                download: None,
                mtu: 1400,
            };
            let link = Frame::Link {
                path: PathId(path),
                version: 1,
                info,
            };
            let is_written = writer.push(&Frame::Ping { token: 7, size: 0 }) && writer.push(&link);
            assert!(is_written, "two frames fit");
            let len = writer.len();
            datagrams.extend(self.control(now, Lane::of(path), &body[..len]));
        }
        datagrams
    }

    /// Reads a datagram of the gateway, and adds the client's answers to `answers`.
    pub(super) fn read(&mut self, now: Instant, datagram: &[u8], answers: &mut Vec<Vec<u8>>) {
        match datagram.first() {
            Some(&KIND_COOKIE_REPLY) => {
                if let Some((_, sent, 0)) = &mut self.attempt
                    && self.cookies.handle_reply(now, sent, datagram).is_ok()
                    && self.cookies.stamp(now, sent).is_ok()
                {
                    answers.push(sent.clone());
                }
            }
            Some(&KIND_RESPONSE) => {
                let Some((initiator, _, 0)) = &mut self.attempt else {
                    return;
                };
                if let Ok(established) = initiator.read_response(datagram) {
                    let index = initiator.local_index();
                    self.session = Some(Session::new(now, established, index, Role::Initiator));
                    self.attempt = None;
                    // The first datagram confirms the session.
                    answers.extend(self.frame(
                        now,
                        Lane::of(0),
                        &Frame::Ping { token: 1, size: 0 },
                    ));
                }
            }
            _ => self.read_sealed(now, datagram, answers),
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the client answers few of the frames"
    )]
    fn read_sealed(&mut self, now: Instant, datagram: &[u8], answers: &mut Vec<Vec<u8>>) {
        let Some((header, data)) = Header::parse(datagram) else {
            return;
        };
        if data.is_some() {
            let seen = &mut self.seen[header.path.index() % PATHS];
            *seen = (header.path_seq.0, seen.1 + 1);
            return;
        }
        let Some(session) = &mut self.session else {
            return;
        };
        if !self.habits.answers {
            return;
        }
        let mut body = datagram[CONTROL_HEADER_LEN..].to_vec();
        let lane = header.path.control_lane();
        let aad = &datagram[..CONTROL_HEADER_LEN];
        let Ok(opened) = session.open(lane, header.path_seq, aad, &mut body) else {
            return;
        };
        // All in one datagram, as a challenge of an address wants it.
        let mut out = [0; 1400];
        let mut writer = FrameWriter::new(&mut out);
        for frame in Frames::new(&body[..opened.len]) {
            let answer = match frame {
                Frame::Ping { token, size } => Frame::Pong { token, size },
                Frame::Reception { version, .. } => Frame::ReceptionAck { version },
                _ => continue,
            };
            if !writer.push(&answer) {
                break;
            }
        }
        let len = writer.len();
        if len > 0 {
            answers.extend(self.control(now, Lane::of(header.path.0), &out[..len]));
        }
    }

    /// Returns a datagram that reports what has come, or what the client says has come.
    pub(super) fn report(&mut self, now: Instant) -> Option<Vec<u8>> {
        if !self.habits.reports {
            return None;
        }
        let mut body = [0; 1100];
        let mut writer = FrameWriter::new(&mut body);
        for (path, (highest, pkts)) in (0..).zip(self.seen) {
            if pkts > 0 {
                let report = PathReport {
                    received_pkts: pkts,
                    highest_seq: Seq(highest),
                    received_bytes: pkts * 1000,
                    settled_seq: self.habits.settles.then_some(Seq(highest)),
                    ..PathReport::default()
                };
                if !writer.push(&Frame::Report {
                    path: PathId(path),
                    report,
                }) {
                    break;
                }
            }
        }
        let len = writer.len();
        self.control(now, Lane::of(0), &body[..len])
    }

    /// Returns a control datagram with one frame.
    pub(super) fn frame(&mut self, now: Instant, lane: Lane, frame: &Frame<'_>) -> Option<Vec<u8>> {
        let mut body = [0; 1400];
        let mut writer = FrameWriter::new(&mut body);
        if !writer.push(frame) {
            return None;
        }
        let len = writer.len();
        self.control(now, lane, &body[..len])
    }

    /// Returns a control datagram. `None` without a session.
    pub(super) fn control(&mut self, now: Instant, lane: Lane, body: &[u8]) -> Option<Vec<u8>> {
        self.seal(now, lane, Kind::Control, None, body)
    }

    /// Returns a data datagram. `None` without a session.
    pub(super) fn data(&mut self, now: Instant, lane: Lane, data: &Data) -> Option<Vec<u8>> {
        self.seal(now, lane, Kind::Data, Some(data), &data.body)
    }

    fn seal(
        &mut self,
        now: Instant,
        to: Lane,
        kind: Kind,
        data: Option<&Data>,
        body: &[u8],
    ) -> Option<Vec<u8>> {
        let session = self.session.as_mut()?;
        let path = PathId(to.path);
        let lane = match kind {
            Kind::Control => path.control_lane(),
            Kind::Data => path,
        };
        let counter = &mut self.counters[lane.index()];
        *counter += to.skip;
        let number = *counter;
        *counter += 1;
        let flags = data.map_or(0, |data| data.flags);
        let covered = data.filter(|data| data.is_symbol);
        let header = Header {
            kind,
            is_out_of_turn: flags & 1 != 0,
            is_copy: flags & 2 != 0,
            is_kept: flags & 4 != 0,
            is_answer_path: flags & 128 != 0,
            covered: covered.map_or(0, |data| COVERED[usize::from(data.flags >> 4)]),
            path,
            receiver_index: session.remote_index(),
            path_seq: Seq::of_counter(number),
            sent_us: now.wire_micros(),
        };
        let fields = data.map(|data| DataHeader {
            global_seq: Seq(data.global_seq),
            path_step: data.path_step,
            flow_step: data.flow_step,
        });
        let header_len = kind.header_len();
        let mut datagram = vec![0; header_len + body.len() + TAG_LEN];
        header.emit(fields.as_ref(), &mut datagram);
        let (header, rest) = datagram.split_at_mut(header_len);
        let (sealed, tag) = rest.split_at_mut(body.len());
        sealed.copy_from_slice(body);
        tag.copy_from_slice(&session.seal(lane, number, header, sealed));
        Some(datagram)
    }
}
