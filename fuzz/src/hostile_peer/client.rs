//! A client with a valid key that seals anything.

use std::collections::VecDeque;

use pleach_core::{
    ids::{PathId, Seq},
    session::{
        aead::Suite,
        cookie::CookieCache,
        handshake::{Initiator, NO_PSK, StaticKeys},
        keys::{Role, Session},
    },
    time::{Instant, saturating_nanos},
    wire::{
        Kind,
        control::{Frame, FrameWriter, Frames, LinkInfo, LinkRole, PathReport},
        handshake::{CAPABILITIES, Hello, KIND_COOKIE_REPLY, KIND_RESPONSE},
        header::{CONTROL_HEADER_LEN, COVERED, DataHeader, Header, TAG_LEN},
    },
};

use super::gateway::{GATEWAY_KEY, Gateway, HOSTILE_KEY};

/// Paths whose numbers are counted.
const PATHS: usize = PathId::MAX;

/// Where a datagram goes: a path, the address it claims to come from, and how many numbers are skipped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) path: u8,
    pub(super) source: u8,
    pub(super) skip: u64,
}

/// A data datagram.
#[derive(Clone, Debug)]
pub(super) struct Data {
    pub(super) global_seq: u32,
    pub(super) flow_step: u16,
    pub(super) path_step: i16,
    /// The lower three: flags; the upper four: how many packets a symbol covers, if it is one.
    pub(super) flags: u8,
    pub(super) is_symbol: bool,
    pub(super) body: Vec<u8>,
}

/// The client.
pub(super) struct Client {
    keys: StaticKeys,
    cookies: CookieCache,
    attempt: Option<(Initiator, Vec<u8>, u8)>,
    attempts: u8,
    association: u64,
    session: Option<Session>,
    /// The next number of each lane.
    counters: [u64; PathId::LANES],
    pub(super) global_seq: u32,
    /// Of the gateway's data: the highest number on each path, and how many came.
    pub(super) seen: [(u32, u64); PATHS],
    /// Whether it answers pings, reports what comes, and says that all before it has come.
    answers: bool,
    reports: bool,
    settles: bool,
    /// Latest datagrams.
    sent: VecDeque<(u8, Vec<u8>)>,
}

impl Client {
    pub(super) fn new() -> Self {
        let gateway = StaticKeys::from_private([GATEWAY_KEY; 32]);
        Self {
            keys: StaticKeys::from_private([HOSTILE_KEY; 32]),
            cookies: CookieCache::new(gateway.public()),
            attempt: None,
            attempts: 0,
            association: 1,
            session: None,
            counters: [0; PathId::LANES],
            global_seq: 0,
            seen: [(0, 0); PATHS],
            answers: true,
            reports: true,
            settles: true,
            sent: VecDeque::new(),
        }
    }

    /// Whether it has a session.
    pub(super) fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// Shakes hands from address `source`. `is_new`: as another association.
    pub(super) fn connect(&mut self, gateway: &mut Gateway, source: u8, is_new: bool) {
        self.attempts = self.attempts.saturating_add(1);
        self.association += u64::from(is_new);
        let public = *StaticKeys::from_private([GATEWAY_KEY; 32]).public();
        let hello = Hello {
            protocol_version: pleach_core::endpoint::PROTOCOL_VERSION,
            capabilities: CAPABILITIES,
            suites: Suite::offer(&[Suite::ChaCha20Poly1305]),
            association: self.association,
            // The gateway's clock counts from zero.
            time: Some(
                saturating_nanos(gateway.now.since(Instant::ZERO)) + u64::from(self.attempts),
            ),
        };
        let index = u32::from(self.attempts);
        let seed = [self.attempts; 32];
        let started = Initiator::new(&self.keys, &public, &NO_PSK, index, hello, seed);
        let (initiator, mut datagram) = started.expect("a key");
        if self.cookies.stamp(gateway.now, &mut datagram).is_ok() {
            self.attempt = Some((initiator, datagram.clone(), source));
            gateway.handle(source, datagram);
        }
    }

    /// Describes a link for each of some paths, as an honest client does, so that the gateway may send on them.
    pub(super) fn bring_up(&mut self, gateway: &mut Gateway) {
        for path in 0..4 {
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
            let lane = Lane {
                path,
                source: 0,
                skip: 0,
            };
            self.control(gateway, lane, &body[..len]);
        }
    }

    /// Reads a datagram of the gateway's, and answers as it likes.
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
                    answers.extend(self.seal_frame(now, 0, &Frame::Ping { token: 1, size: 0 }));
                }
            }
            _ => self.read_sealed(now, datagram, answers),
        }
    }

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
        if !self.answers {
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
            let lane = Lane {
                path: header.path.0,
                source: 0,
                skip: 0,
            };
            answers.extend(self.seal(now, lane, Kind::Control, None, &out[..len]));
        }
    }

    /// Reports what has come, or what it says has come.
    pub(super) fn report(&mut self, gateway: &mut Gateway) {
        if !self.reports {
            return;
        }
        let mut body = [0; 1100];
        let mut writer = FrameWriter::new(&mut body);
        for (path, (highest, pkts)) in (0..).zip(self.seen) {
            if pkts > 0 {
                let report = PathReport {
                    received_pkts: pkts,
                    highest_seq: Seq(highest),
                    received_bytes: pkts * 1000,
                    settled_seq: self.settles.then_some(Seq(highest)),
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
        let lane = Lane {
            path: 0,
            source: 0,
            skip: 0,
        };
        self.control(gateway, lane, &body[..len]);
    }

    /// Changes how it behaves.
    pub(super) fn change(&mut self, habits: u8, association: bool) {
        self.answers = habits & 1 == 0;
        self.reports = habits & 2 == 0;
        self.settles = habits & 4 == 0;
        self.association += u64::from(association);
    }

    fn seal_frame(&mut self, now: Instant, path: u8, frame: &Frame<'_>) -> Option<Vec<u8>> {
        let mut body = [0; 1400];
        let mut writer = FrameWriter::new(&mut body);
        if !writer.push(frame) {
            return None;
        }
        let len = writer.len();
        let lane = Lane {
            path,
            source: 0,
            skip: 0,
        };
        self.seal(now, lane, Kind::Control, None, &body[..len])
    }

    /// Sends a control datagram.
    pub(super) fn control(&mut self, gateway: &mut Gateway, lane: Lane, body: &[u8]) {
        let sealed = self.seal(gateway.now, lane, Kind::Control, None, body);
        self.send(gateway, lane.source, sealed);
    }

    /// Sends a data datagram.
    pub(super) fn data(&mut self, gateway: &mut Gateway, lane: Lane, data: &Data) {
        let sealed = self.seal(gateway.now, lane, Kind::Data, Some(data), &data.body);
        self.send(gateway, lane.source, sealed);
    }

    fn send(&mut self, gateway: &mut Gateway, source: u8, sealed: Option<Vec<u8>>) {
        let Some(datagram) = sealed else {
            return;
        };
        if self.sent.len() >= 64 {
            self.sent.pop_front();
        }
        self.sent.push_back((source, datagram.clone()));
        gateway.handle(source, datagram);
    }

    /// Sends an earlier datagram again.
    pub(super) fn replay(&mut self, gateway: &mut Gateway, which: usize) {
        if let Some((source, datagram)) = self.sent.get(which) {
            gateway.handle(*source, datagram.clone());
        }
    }

    /// Sends the last datagram again, with a wrong bit.
    pub(super) fn damage(&mut self, gateway: &mut Gateway, at: u16, bit: u8) {
        if let Some((source, datagram)) = self.sent.back() {
            let mut datagram = datagram.clone();
            let at = usize::from(at) % datagram.len();
            datagram[at] ^= 1 << (bit % 8);
            gateway.handle(*source, datagram);
        }
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
