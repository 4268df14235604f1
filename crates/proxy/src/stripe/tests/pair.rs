//! Two ends of an association and the lanes between them, driven step by step.

use std::collections::{BTreeMap, VecDeque};

use pleach_core::time::Instant;

use crate::stripe::{
    GROWTH, MAX_CONNECTIONS, MAX_PENDING_ALL, Violation,
    connections::State,
    frame::{self, ConnId, FlowId, Frame, LaneId, Refusal, Wanted},
    mux::{Event, Mux, Side},
    sched::Striping,
};

pub(super) const ASKS: usize = 0;
pub(super) const ANSWERS: usize = 1;
pub(super) const WANTED: Wanted = Wanted { ip: None, port: 80 };

/// Returns the byte at position `offset` of the stream that `end` sends over `conn`.
pub(super) fn byte(end: usize, conn: ConnId, offset: u64) -> u8 {
    let seed = offset + u64::from(conn.0) * 0x1_0000_0001 + end as u64;
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56).to_le_bytes()[0]
}

pub(super) struct Wire {
    pub(super) id: LaneId,
    /// Frames in flight to each end.
    pub(super) queues: [VecDeque<Vec<u8>>; 2],
    /// Which ends still have the lane.
    pub(super) has: [bool; 2],
}

/// Two ends of an association and the lanes between them.
pub(super) struct Pair {
    pub(super) ends: [Mux; 2],
    pub(super) wires: Vec<Wire>,
    pub(super) now: u64,
    /// Number of bytes written and read, by end and connection.
    pub(super) written: BTreeMap<(usize, ConnId), u64>,
    pub(super) read: BTreeMap<(usize, ConnId), u64>,
    /// Whether the application at an end reads the connection.
    pub(super) readers: BTreeMap<(usize, ConnId), bool>,
    /// Connections requested from the answering end, each once.
    pub(super) asked: Vec<ConnId>,
    /// Datagrams that have arrived, by end.
    pub(super) datagrams: Vec<(usize, FlowId, Vec<u8>)>,
    /// Flows that have ended at the other end.
    pub(super) flow_ends: Vec<(usize, FlowId, Option<Refusal>)>,
    /// Whether the answering end accepts every connection.
    pub(super) is_accepting: bool,
}

impl Pair {
    pub(super) fn new(striping: Striping) -> Self {
        Self {
            ends: [Side::Asks, Side::Answers].map(|side| Mux::new(side, striping)),
            wires: Vec::new(),
            now: 1,
            written: BTreeMap::new(),
            read: BTreeMap::new(),
            readers: BTreeMap::new(),
            asked: Vec::new(),
            datagrams: Vec::new(),
            flow_ends: Vec::new(),
            is_accepting: true,
        }
    }

    pub(super) fn now(&self) -> Instant {
        Instant::from_millis(self.now)
    }

    pub(super) fn join(&mut self) {
        let id = LaneId(u16::try_from(self.wires.len()).expect("few"));
        let now = self.now();
        let added = [0, 1].map(|end: usize| self.ends[end].add_lane(now, id));
        let is_there = added == [true; 2];
        for (end, added) in added.into_iter().enumerate() {
            if added && !is_there {
                self.ends[end].remove_lane(id);
            }
        }
        self.wires.push(Wire {
            id,
            queues: Default::default(),
            has: [is_there; 2],
        });
    }

    /// Removes a lane at one end. Frames in flight are lost if `is_lost`, otherwise they still arrive.
    pub(super) fn kill(&mut self, index: usize, end: usize, is_lost: bool) {
        let wire = &mut self.wires[index];
        wire.has[end] = false;
        self.ends[end].remove_lane(wire.id);
        if is_lost {
            self.wires[index].queues = Default::default();
        }
    }

    pub(super) fn open(&mut self, first: usize) -> Option<ConnId> {
        let next = self.written.keys().filter(|(end, _)| *end == ASKS).count();
        let expected = ConnId(u32::try_from(next).expect("few"));
        let bytes: Vec<u8> = (0..first as u64)
            .map(|at| byte(ASKS, expected, at))
            .collect();
        let conn = self.ends[ASKS].open(WANTED, &bytes)?;
        assert_eq!(conn, expected);
        self.written.insert((ASKS, conn), first as u64);
        self.written.insert((ANSWERS, conn), 0);
        self.read.insert((ASKS, conn), 0);
        self.read.insert((ANSWERS, conn), 0);
        Some(conn)
    }

    pub(super) fn write(&mut self, end: usize, conn: ConnId, len: usize) {
        let at = self.written[&(end, conn)];
        let bytes: Vec<u8> = (at..at + len as u64)
            .map(|at| byte(end, conn, at))
            .collect();
        let taken = self.ends[end].write(conn, &bytes) as u64;
        self.written.insert((end, conn), at + taken);
    }

    /// Reads up to `most` bytes of a connection at `end`, and checks their values.
    pub(super) fn read(&mut self, end: usize, conn: ConnId, most: usize) {
        let mut left = most;
        while left > 0 {
            let bytes = self.ends[end].peek(conn);
            let len = bytes.len().min(left);
            if len == 0 {
                return;
            }
            let at = self.read[&(end, conn)];
            for (place, found) in (at..).zip(&bytes[..len]) {
                let expected = byte(1 - end, conn, place);
                assert_eq!(*found, expected, "{conn:?}, place {place}");
            }
            self.ends[end].consume(conn, len);
            self.read.insert((end, conn), at + len as u64);
            left -= len;
        }
    }

    pub(super) fn read_all(&mut self) {
        let all: Vec<(usize, ConnId)> = self.read.keys().copied().collect();
        for (end, conn) in all {
            if self.readers.get(&(end, conn)) != Some(&false) {
                self.read(end, conn, usize::MAX);
            }
        }
    }

    /// Sends up to `most` frames of `end` on lane `index`. Returns how many were sent.
    pub(super) fn send(&mut self, index: usize, end: usize, most: usize) -> usize {
        let now = self.now();
        let wire = &mut self.wires[index];
        for sent in 0..most {
            let mut out = Vec::new();
            if !wire.has[end] || !self.ends[end].poll_frame(now, wire.id, &mut out) {
                return sent;
            }
            assert!(out.len() <= frame::MAX_FRAME);
            if wire.has[1 - end] {
                wire.queues[1 - end].push_back(out);
            }
        }
        self.ends[end].dispatch.set_free(wire.id, false);
        most
    }

    /// Delivers up to `most` frames of lane `index` to `end`.
    pub(super) fn receive(&mut self, index: usize, end: usize, most: usize) {
        for _ in 0..most {
            let now = self.now();
            let wire = &mut self.wires[index];
            let Some(bytes) = wire.queues[end].pop_front() else {
                if wire.has[end] && !wire.has[1 - end] {
                    // The other end has closed the lane, and no more frames follow.
                    wire.has[end] = false;
                    let id = wire.id;
                    self.ends[end].remove_lane(id);
                }
                return;
            };
            if wire.has[end] {
                let frame = frame::decode(&bytes).expect("we sent it");
                let id = wire.id;
                let handled = self.ends[end].handle_frame(now, id, frame);
                handled.expect("an honest peer");
                self.handle_events(end);
            }
        }
    }

    /// Delivers a frame to `end` that its peer did not send.
    pub(super) fn inject(&mut self, end: usize, frame: Frame<'_>) -> Result<(), Violation> {
        let now = self.now();
        let lane = self.wires[0].id;
        self.ends[end].handle_frame(now, lane, frame)
    }

    /// Delivers all frames of both ends on all lanes, without advancing the time.
    pub(super) fn settle(&mut self) {
        loop {
            let mut sent = 0;
            for end in 0..2 {
                for index in 0..self.wires.len() {
                    sent += self.send(index, end, 64);
                    self.receive(index, 1 - end, usize::MAX);
                }
            }
            if sent == 0 {
                return;
            }
        }
    }

    pub(super) fn tick(&mut self, ms: u64) {
        self.now += ms;
        let now = self.now();
        for end in &mut self.ends {
            end.dispatch.handle_timeout(now);
        }
    }

    fn handle_events(&mut self, end: usize) {
        while let Some(event) = self.ends[end].poll_event() {
            match event {
                Event::Incoming { conn, wanted } => {
                    assert!(end == ANSWERS && wanted == WANTED);
                    assert!(!self.asked.contains(&conn), "once");
                    self.asked.push(conn);
                    if self.is_accepting {
                        self.ends[end].accept(conn);
                    }
                }
                Event::Datagram { flow, wanted, data } => {
                    assert_eq!(wanted, (end == ANSWERS).then_some(WANTED));
                    self.datagrams.push((end, flow, data));
                }
                Event::FlowEnd { flow, refusal } => self.flow_ends.push((end, flow, refusal)),
                Event::LaneGone(id) => {
                    self.ends[end].remove_lane(id);
                    if let Some(gone) = self.wires.iter_mut().find(|wire| wire.id == id) {
                        gone.has[end] = false;
                    }
                }
                Event::Bye(_) | Event::Refused(_) => panic!("{event:?} among honest ends"),
            }
        }
    }

    pub(super) fn state(&self, end: usize, conn: ConnId) -> Option<State> {
        self.ends[end].connection(conn).map(|found| found.state())
    }

    /// Checks the bounds that hold at any time.
    pub(super) fn check(&self) {
        for end in &self.ends {
            let (_, came) = end.kept_bytes();
            let first = crate::stripe::FIRST_WINDOW * MAX_CONNECTIONS as u64;
            assert!(came <= first + GROWTH);
            assert!(end.granted_bytes() <= GROWTH);
            let (waiting, _) = end.waiting_and_repeated();
            assert!(waiting <= MAX_PENDING_ALL as u64 + first + GROWTH);
            assert!(end.dispatch.knows_what_is_under_way());
        }
    }
}
