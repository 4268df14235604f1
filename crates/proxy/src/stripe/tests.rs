//! Two ends, lanes of all kinds between them, and an other end that lies.

use std::{collections::VecDeque, sync::Arc};

use pleach_core::{rng::Rng, session::handshake::StaticKeys, time::Instant};

use super::{
    CHUNK, Chunk, MAX_CHUNKS, MAX_PENDING, Violation, WINDOW,
    bundle::{Bundle, Event},
    channel::{self, ChannelError},
    frame::{self, Frame, LaneId},
    rate::LaneSample,
    receiver::Receiver,
    sched::Striping,
};

/// The byte at a place of the stream in one direction.
fn byte(direction: usize, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56).to_le_bytes()[0] ^ u8::from(direction == 1)
}

struct Wire {
    id: LaneId,
    /// Frames under way, to each end.
    queues: [VecDeque<Vec<u8>>; 2],
    /// Which ends still have it.
    has: [bool; 2],
}

/// Two bundles, and the lanes between them.
struct Pair {
    ends: [Bundle; 2],
    wires: Vec<Wire>,
    next_lane: u16,
    now: u64,
    written: [u64; 2],
    read: [u64; 2],
    totals: [u64; 2],
    rng: Rng,
}

impl Pair {
    fn new(striping: Striping, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut total = || rng.next_u64() >> (40 + rng.below(14));
        let totals = [total(), total()];
        Self {
            ends: [Bundle::new(striping), Bundle::new(striping)],
            wires: Vec::new(),
            next_lane: 0,
            now: 1,
            written: [0; 2],
            read: [0; 2],
            totals,
            rng,
        }
    }

    fn now(&self) -> Instant {
        Instant::from_millis(self.now)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).expect("small")
    }

    fn join(&mut self) {
        let id = LaneId(self.next_lane);
        self.next_lane += 1;
        let now = self.now();
        let added = [0, 1].map(|end: usize| self.ends[end].add_lane(now, id));
        let mut wire = Wire {
            id,
            queues: Default::default(),
            has: added,
        };
        for (end, has) in added.into_iter().enumerate() {
            if !has {
                self.ends[1 - end].remove_lane(id);
                wire.has = [false; 2];
            }
        }
        self.wires.push(wire);
    }

    /// One end has lost a lane: what is under way either way is lost, or it still comes.
    fn kill(&mut self, index: usize, end: usize) {
        let wire = &mut self.wires[index];
        wire.has[end] = false;
        self.ends[end].remove_lane(wire.id);
        if self.rng.chance(0.5) {
            self.wires[index].queues = Default::default();
        }
    }

    fn write(&mut self, end: usize, most: usize) {
        let left = usize::try_from(self.totals[end] - self.written[end]).expect("small");
        let len = self.below(most + 1).min(left);
        let bytes: Vec<u8> = (0..len as u64)
            .map(|i| byte(end, self.written[end] + i))
            .collect();
        self.written[end] += self.ends[end].sender.write(&bytes) as u64;
        if self.written[end] == self.totals[end] {
            self.ends[end].sender.finish();
        }
    }

    fn read(&mut self, end: usize, most: usize) {
        let mut left = self.below(most + 1);
        while left > 0 && !self.ends[end].receiver.peek().is_empty() {
            let bytes = self.ends[end].receiver.peek();
            let len = bytes.len().min(left);
            for (i, found) in bytes[..len].iter().enumerate() {
                let expected = byte(1 - end, self.read[end] + i as u64);
                assert_eq!(*found, expected, "place {}", self.read[end] + i as u64);
            }
            self.ends[end].consume(len);
            self.read[end] += len as u64;
            left -= len;
        }
    }

    /// Lane `index` of `end` sends up to `most` frames.
    fn send(&mut self, index: usize, end: usize, most: usize) {
        let now = self.now();
        let wire = &mut self.wires[index];
        for _ in 0..most {
            let mut out = Vec::new();
            if !wire.has[end] || !self.ends[end].poll_frame(now, wire.id, &mut out) {
                return;
            }
            assert!(out.len() <= frame::MAX_FRAME);
            if wire.has[1 - end] {
                wire.queues[1 - end].push_back(out);
            }
        }
        self.ends[end].sender.set_free(wire.id, false);
    }

    /// `end` gets up to `most` frames of lane `index`.
    fn receive(&mut self, index: usize, end: usize, most: usize) {
        for _ in 0..most {
            let now = self.now();
            let wire = &mut self.wires[index];
            let Some(bytes) = wire.queues[end].pop_front() else {
                if wire.has[end] && !wire.has[1 - end] {
                    // Nothing more comes: the other end is gone.
                    wire.has[end] = false;
                    let id = wire.id;
                    self.ends[end].remove_lane(id);
                }
                return;
            };
            if !wire.has[end] {
                continue;
            }
            let frame = frame::decode(&bytes).expect("we sent it");
            let event = self.ends[end].handle_frame(now, wire.id, frame);
            if let Event::LaneGone(id) = event.expect("an honest peer") {
                self.ends[end].remove_lane(id);
                if let Some(gone) = self.wires.iter_mut().find(|wire| wire.id == id) {
                    gone.has[end] = false;
                }
            }
        }
    }

    fn tick(&mut self, ms: u64) {
        self.now += ms;
        let now = self.now();
        for end in 0..2 {
            if self.rng.chance(0.5) {
                for index in 0..self.wires.len() {
                    let sample = LaneSample {
                        rtt: core::time::Duration::from_millis(self.rng.below(100)),
                        min_rtt: core::time::Duration::from_millis(self.rng.below(50)),
                        acked_bytes: self.rng.below(1 << 30),
                        window_bytes: self.rng.below(1 << 20),
                        unsent_bytes: self.rng.below(20_000),
                    };
                    let id = self.wires[index].id;
                    self.ends[end].sender.observe(now, id, sample);
                }
            }
            self.ends[end].sender.handle_timeout(now);
        }
    }

    fn check(&self) {
        for end in 0..2 {
            let bound = MAX_PENDING as u64 + WINDOW;
            assert!(self.ends[end].sender.kept_bytes() <= bound);
            assert!(self.ends[end].sender.knows_what_is_under_way());
            assert!(self.ends[end].receiver.kept_bytes() <= WINDOW);
            assert!(self.read[end] <= self.written[1 - end]);
        }
    }

    fn step(&mut self) {
        let end = self.below(2);
        match self.rng.below(20) {
            0 if self.wires.len() < 40 => self.join(),
            1 if !self.wires.is_empty() && self.wires.len() < 40 => {
                let index = self.below(self.wires.len());
                self.kill(index, end);
            }
            2 | 3 => {
                let ms = self.rng.below(400);
                self.tick(ms);
            }
            4..=7 => self.write(end, 40_000),
            8..=10 => self.read(end, 40_000),
            _ if self.wires.is_empty() => self.join(),
            kind => {
                let index = self.below(self.wires.len());
                let most = self.below(6);
                if kind < 15 {
                    self.send(index, end, most);
                } else {
                    self.receive(index, end, most);
                }
            }
        }
        self.check();
    }

    /// Everything works from now on.
    fn run_out(&mut self) {
        self.join();
        for _ in 0..20_000 {
            if self.ends.iter().all(Bundle::is_over) {
                return;
            }
            self.tick(11);
            if !self.wires.iter().any(|wire| wire.has == [true; 2]) {
                self.join();
            }
            for end in 0..2 {
                self.write(end, 100_000);
                self.read(end, 100_000);
                for index in 0..self.wires.len() {
                    self.send(index, end, 8);
                }
            }
            for end in 0..2 {
                for index in 0..self.wires.len() {
                    self.receive(index, end, usize::MAX);
                }
            }
        }
        panic!(
            "it never ends: {:?}",
            self.ends.each_ref().map(|end| &end.sender)
        );
    }
}

#[test]
fn whatever_lanes_do_all_arrives_once_and_in_order() {
    for seed in 0..60 {
        let striping = Striping::ALL[usize::try_from(seed).expect("small") % Striping::ALL.len()];
        let mut pair = Pair::new(striping, seed);
        for _ in 0..1500 {
            pair.step();
        }
        pair.run_out();
        assert_eq!(pair.read, [pair.totals[1], pair.totals[0]], "seed {seed}");
        assert_eq!(pair.written, pair.totals);
    }
}

#[test]
fn a_reader_that_does_not_read_stops_the_sender() {
    let mut pair = Pair::new(Striping::RoundRobin, 1);
    pair.totals = [20 << 20, 0];
    pair.join();
    for _ in 0..5_000 {
        pair.write(0, 60_000);
        pair.send(0, 0, 4);
        pair.receive(0, 1, 4);
        pair.send(0, 1, 4);
        pair.receive(0, 0, 4);
        pair.tick(1);
        pair.check();
    }
    assert!(pair.ends[1].receiver.kept_bytes() > WINDOW - CHUNK as u64);
    assert!(pair.written[0] <= WINDOW + MAX_PENDING as u64);
    pair.run_out();
    assert_eq!(pair.read[1], 20 << 20);
}

#[test]
fn what_a_silent_lane_had_is_sent_on_another_at_once() {
    let mut pair = Pair::new(Striping::RoundRobin, 1);
    pair.totals = [100_000, 0];
    pair.join();
    pair.join();
    pair.write(0, 200_000);
    while pair.written[0] < 100_000 {
        pair.write(0, 200_000);
    }
    pair.send(0, 0, 3);
    pair.send(1, 0, 100);
    pair.receive(1, 1, 100);
    pair.read(1, 1_000_000);
    assert!(pair.read[1] < 100_000, "the first lane has some");
    // TCP tells nothing of the first lane; the second is acknowledged.
    pair.now += 15;
    pair.send(1, 1, 10);
    pair.receive(1, 0, 10);
    pair.now += 300;
    let now = pair.now();
    assert!(pair.ends[0].sender.handle_timeout(now));
    pair.send(1, 0, 100);
    pair.receive(1, 1, 100);
    while pair.read[1] < 100_000 {
        pair.read(1, 1_000_000);
    }
    // What it had comes in the end, and is dropped.
    pair.receive(0, 1, 100);
    let (_, _, duplicate) = pair.ends[1].receiver.held_most_and_duplicate();
    assert!(duplicate >= 3 * CHUNK as u64 - 100_000 % CHUNK as u64);
    assert_eq!(pair.ends[1].receiver.peek(), b"");
}

#[test]
fn a_lane_that_moves_again_does_not_repeat_what_it_has_sent() {
    let mut pair = Pair::new(Striping::RoundRobin, 1);
    pair.totals = [100_000, 0];
    pair.join();
    while pair.written[0] < 100_000 {
        pair.write(0, 200_000);
    }
    pair.send(0, 0, 100);
    pair.now += 300;
    let now = pair.now();
    assert!(pair.ends[0].sender.handle_timeout(now));
    let moves = LaneSample {
        acked_bytes: 1,
        ..LaneSample::default()
    };
    pair.ends[0].sender.observe(now, LaneId(0), moves);
    pair.send(0, 0, 100);
    assert_eq!(pair.ends[0].sender.waiting_and_repeated(), (0, 0));
    // Another one may.
    pair.join();
    pair.send(1, 0, 100);
    assert_eq!(pair.ends[0].sender.waiting_and_repeated(), (0, 100_000));
}

#[test]
fn a_lying_peer_gets_an_error_and_no_memory() {
    let mut rng = Rng::new(5);
    let mut errors = 0;
    for _ in 0..300 {
        let mut bundle = Bundle::new(
            Striping::ALL[usize::try_from(rng.below(Striping::ALL.len() as u64)).expect("small")],
        );
        let now = Instant::from_millis(1);
        bundle.add_lane(now, LaneId(0));
        bundle.sender.write(&[1; 50_000]);
        let mut out = Vec::new();
        for _ in 0..rng.below(4) {
            bundle.poll_frame(now, LaneId(0), &mut out);
        }
        for _ in 0..400 {
            let mut number = || match rng.below(4) {
                0 => rng.below(4) * CHUNK as u64,
                1 => rng.below(WINDOW + 9000),
                2 => u64::MAX - rng.below(3),
                _ => rng.below(30_000),
            };
            let (first, second) = (number(), number());
            let data = vec![0; usize::try_from(1 + first % CHUNK as u64).expect("small")];
            let lane = LaneId(u16::try_from(second % 3).expect("small"));
            let frame = match rng.below(6) {
                0 => Frame::Ack {
                    delivered: first,
                    limit: second,
                    lanes: vec![(lane, first)],
                },
                1 => Frame::End { offset: second },
                2 => Frame::Gone { lane },
                3 => Frame::Opened,
                _ => Frame::Chunk {
                    offset: second,
                    data: &data,
                },
            };
            let len = bundle.receiver.peek().len();
            if rng.chance(0.3) {
                bundle.consume(len);
            }
            assert!(bundle.receiver.kept_bytes() <= WINDOW);
            let outcome = bundle.handle_frame(now, LaneId(0), frame);
            errors += u32::from(outcome.is_err());
            bundle.poll_frame(now, LaneId(0), &mut out);
            out.clear();
        }
    }
    assert!(errors > 10_000, "{errors}");
}

#[test]
fn tiny_chunks_are_bounded_in_number() {
    let mut receiver = Receiver::default();
    let chunk = |offset: u64| Chunk {
        offset,
        data: Arc::new(vec![0]),
    };
    for offset in 1..=MAX_CHUNKS as u64 {
        let outcome = receiver.handle_chunk(LaneId(0), chunk(offset));
        assert_eq!(outcome, Ok(()), "{offset}");
    }
    let more = receiver.handle_chunk(LaneId(0), chunk(MAX_CHUNKS as u64 + 1));
    assert_eq!(more, Err(Violation::Credit));

    // An honest sender of small writes stops before.
    let mut bundle = Bundle::new(Striping::RoundRobin);
    let now = Instant::from_millis(1);
    bundle.add_lane(now, LaneId(0));
    let mut sent = 0;
    for _ in 0..MAX_CHUNKS * 2 {
        bundle.sender.write(b"x");
        sent += usize::from(bundle.sender.poll_chunk(now, LaneId(0)).is_some());
    }
    assert_eq!(sent, MAX_CHUNKS);
}

#[test]
fn channels_carry_frames_and_notice_every_change() {
    let alice = StaticKeys::from_private([3; 32]);
    let bob = StaticKeys::from_private([4; 32]);
    let greeting = channel::greeting(bob.public(), [9; 16]);
    let known = [[1; 32], *alice.public(), *bob.public()];
    assert_eq!(channel::recognise(&greeting, known.iter()), Some(2));
    assert_eq!(channel::recognise(&greeting, known[..2].iter()), None);
    let mut other = greeting;
    other[0] ^= 1;
    assert_eq!(channel::recognise(&other, known.iter()), None);

    let (initiator, first) = channel::initiate(&alice, bob.public(), [5; 32]).expect("keys");
    let len = channel::handshake_len([first[0], first[1]]).expect("short");
    assert_eq!(len, first.len() - 2);
    let incoming = channel::read_initiation(&bob, &first[2..]).expect("intact");
    assert_eq!(incoming.remote_static, *alice.public());
    let (mut sealer, _, second) = channel::respond(incoming, [6; 32]).expect("same version");
    let (_, mut opener) = channel::read_response(initiator, &second[2..]).expect("intact");

    let mut bytes = Vec::new();
    let frames: Vec<Vec<u8>> = [1, 100, frame::MAX_FRAME, 7]
        .iter()
        .map(|len| vec![u8::try_from(len % 251).expect("small"); *len])
        .collect();
    for frame in &frames {
        sealer.seal(frame, &mut bytes);
    }
    let mut rng = Rng::new(2);
    let mut found = Vec::new();
    let mut left = bytes.as_slice();
    while !left.is_empty() {
        let space = opener.space();
        let len = usize::try_from(1 + rng.below(5000)).expect("small");
        let len = len.min(left.len()).min(space.len());
        space[..len].copy_from_slice(&left[..len]);
        opener.on_filled(len);
        left = &left[len..];
        while let Some(frame) = opener.next_frame().expect("intact") {
            found.push(frame.to_vec());
        }
    }
    assert_eq!(found, frames);

    // Garbage, a replay, a record cut short and one too long.
    let mut feed = |bytes: &[u8]| {
        opener.space()[..bytes.len()].copy_from_slice(bytes);
        opener.on_filled(bytes.len());
        let outcome = opener.next_frame().map(|frame| frame.map(<[u8]>::to_vec));
        opener.on_filled(0);
        outcome
    };
    assert_eq!(feed(&bytes[..19]), Err(ChannelError::Seal));
    assert!(channel::handshake_len([0xff, 0xff]).is_err());
    for len in [0, 16, 0xffff_u16] {
        let (initiator, first) = channel::initiate(&alice, bob.public(), [5; 32]).expect("keys");
        let incoming = channel::read_initiation(&bob, &first[2..]).expect("intact");
        let (_, _, second) = channel::respond(incoming, [6; 32]).expect("same version");
        let (_, mut opener) = channel::read_response(initiator, &second[2..]).expect("intact");
        opener.space()[..2].copy_from_slice(&len.to_be_bytes());
        opener.on_filled(2);
        assert_eq!(opener.next_frame(), Err(ChannelError::Length(len.into())));
    }
    let mut wrong = first.clone();
    for _ in 0..500 {
        let at = usize::try_from(rng.below(wrong.len() as u64)).expect("small");
        wrong[at] ^= 1 << rng.below(8);
        // Whatever it is, no panic.
        let _ = channel::read_initiation(&bob, &wrong[2..]);
    }
}
