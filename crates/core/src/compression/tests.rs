//! Tests compressor and expander together, over a simulated channel.

use core::time::Duration;

use super::*;
use crate::{flows::FlowId, packet::PacketBuf, rng::Rng, time::Instant};

const PATIENCE: Duration = Duration::from_millis(100);

/// Returns a flow that shares its place in the table with other flows.
fn flow(hash: u64) -> FlowId {
    FlowId::at(hash % 256).with_hash(hash)
}

/// Packets of one flow, as a kernel would send them.
#[derive(Clone)]
struct Flow {
    is_v6: bool,
    is_udp: bool,
    port: u16,
    sent: u32,
    bytes: u32,
}

impl Flow {
    fn new(is_v6: bool, is_udp: bool, port: u16) -> Self {
        Self {
            is_v6,
            is_udp,
            port,
            sent: 0,
            bytes: 0xff_f000,
        }
    }

    fn packet(&mut self, payload_len: usize, options_len: usize) -> Vec<u8> {
        self.sent += 1;
        let mut transport = Vec::new();
        transport.extend_from_slice(&self.port.to_be_bytes());
        transport.extend_from_slice(&443_u16.to_be_bytes());
        if self.is_udp {
            let len = u16::try_from(8 + payload_len).expect("short");
            transport.extend_from_slice(&len.to_be_bytes());
            transport.extend_from_slice(&self.sent.to_be_bytes()[2..]);
        } else {
            transport.extend_from_slice(&self.bytes.to_be_bytes());
            transport.extend_from_slice(&77_u32.to_be_bytes());
            let words = u8::try_from(5 + options_len / 4).expect("short");
            transport.extend_from_slice(&[words << 4, 0x10, 1, 0]);
            let checksum = self.sent.wrapping_mul(0x9e37).to_be_bytes();
            transport.extend_from_slice(&[checksum[2], checksum[3], 0, 0]);
            transport.extend((0..options_len).map(|i| u8::try_from(i).expect("short")));
        }
        self.bytes += u32::try_from(payload_len).expect("short");
        let payload_byte = u8::try_from(self.sent % 256).expect("below 256");
        transport.extend(core::iter::repeat_n(payload_byte, payload_len));
        let protocol = if self.is_udp { 17 } else { 6 };
        let len = transport.len();
        let mut packet = Vec::new();
        if self.is_v6 {
            packet.extend_from_slice(&[0x60, 0, 0, 0]);
            packet.extend_from_slice(&u16::try_from(len).expect("short").to_be_bytes());
            packet.extend_from_slice(&[protocol, 64]);
            packet.extend_from_slice(&[0xfd; 32]);
        } else {
            packet.extend_from_slice(&[0x45, 0]);
            packet.extend_from_slice(&u16::try_from(20 + len).expect("short").to_be_bytes());
            packet.extend_from_slice(&self.sent.to_be_bytes()[2..]);
            packet.extend_from_slice(&[0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let sum: u32 = packet
                .chunks_exact(2)
                .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
                .sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            let sum = !u16::try_from((folded & 0xffff) + (folded >> 16)).expect("folded");
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        packet.extend_from_slice(&transport);
        packet
    }
}

/// Both ends, and a channel that loses no templates.
#[derive(Default)]
struct Ends {
    compressor: Compressor,
    expander: Expander,
}

impl Ends {
    /// Returns `packet` as it is sent.
    fn compress(&mut self, now: Instant, hash: u64, packet: &[u8]) -> PacketBuf {
        let mut buf = PacketBuf::from(packet.to_vec());
        self.compressor.compress(now, flow(hash), &mut buf);
        buf
    }

    fn tell(&mut self, now: Instant) {
        let mut told = Vec::new();
        while let Some(definition) = self.compressor.poll_definition(now, PATIENCE) {
            let template = definition.template;
            let template = Template::from_wire(template.bytes(), template.travelling());
            self.expander
                .define(definition.number, template.expect("sound"));
            told.push(definition.number);
        }
        told.into_iter()
            .for_each(|number| self.compressor.on_acknowledged(number));
    }

    fn expand(&self, travelled: &PacketBuf) -> Vec<u8> {
        if !is_compressed(travelled.as_slice()) {
            return travelled.as_slice().to_vec();
        }
        let mut out = PacketBuf::from(vec![0xaa; 3]);
        self.expander
            .expand(travelled.as_slice(), &mut out)
            .expect("its template is known");
        out.as_slice().to_vec()
    }
}

/// Sends `count` packets 1 ms apart. Returns how many bytes shorter the last packet was.
fn gain_of(flow: &mut Flow, options_len: usize, count: u64) -> usize {
    let mut ends = Ends::default();
    let mut gain = 0;
    for i in 0..count {
        let now = Instant::from_millis(i);
        let packet = flow.packet(1_000, options_len);
        let travelled = ends.compress(now, 9, &packet);
        assert_eq!(ends.expand(&travelled), packet);
        gain = packet.len() - travelled.len();
        ends.tell(now);
    }
    gain
}

#[test]
fn a_download_sheds_most_of_its_headers() {
    // Of 40 header bytes, 8 are sent: identification 2, sequence number 4, checksum 2. The template's number adds 2.
    assert!(gain_of(&mut Flow::new(false, false, 1), 0, 1_000) >= 30);
    assert!(gain_of(&mut Flow::new(false, false, 1), 12, 1_000) >= 42);
    assert!(gain_of(&mut Flow::new(true, false, 1), 12, 1_000) >= 62);
    assert!(gain_of(&mut Flow::new(false, true, 1), 0, 1_000) >= 20);
    assert!(gain_of(&mut Flow::new(true, true, 1), 0, 1_000) >= 40);
}

#[test]
fn nothing_is_left_out_before_the_other_end_knows_it() {
    let mut ends = Ends::default();
    let mut flow = Flow::new(false, false, 1);
    for i in 0..200 {
        let now = Instant::from_millis(i);
        let packet = flow.packet(100, 0);
        let travelled = ends.compress(now, 9, &packet);
        assert_eq!(travelled.as_slice(), packet);
        // Definitions are sent but not acknowledged.
        while ends.compressor.poll_definition(now, PATIENCE).is_some() {}
    }
}

#[test]
fn an_end_that_never_answers_is_left_in_peace() {
    let mut ends = Ends::default();
    let mut flow = Flow::new(false, false, 1);
    let mut told = 0;
    for i in 0..50_000 {
        let now = Instant::from_millis(i);
        let packet = flow.packet(100, 0);
        ends.compress(now, 9, &packet);
        while ends.compressor.poll_definition(now, PATIENCE).is_some() {
            told += 1;
        }
    }
    assert!((3..=10).contains(&told), "{told}");
}

#[test]
fn what_cannot_be_put_together_again_travels_whole() {
    let mut ends = Ends::default();
    let mut flow = Flow::new(false, false, 1);
    for i in 0..100 {
        let now = Instant::from_millis(i);
        let packet = flow.packet(100, 0);
        ends.compress(now, 9, &packet);
        ends.tell(now);
    }
    let now = Instant::from_millis(100);
    let whole = flow.packet(100, 0);
    assert!(is_compressed(ends.compress(now, 9, &whole).as_slice()));
    let odd = |change: fn(&mut Vec<u8>)| {
        let mut packet = whole.clone();
        change(&mut packet);
        packet
    };
    for packet in [
        odd(|packet| packet[10] ^= 1),
        odd(|packet| packet[6] |= 0x20),
        odd(|packet| packet.push(0)),
        odd(|packet| packet[0] = 0x46),
        odd(|packet| packet[32] = 0x10),
        odd(|packet| packet.truncate(30)),
        odd(Vec::clear),
    ] {
        assert_eq!(ends.compress(now, 9, &packet).as_slice(), packet);
    }
}

#[test]
fn many_flows_lost_and_late_packets_and_changes_of_shape() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut ends = Ends::default();
        let mut flows: Vec<Flow> = (0..400)
            .map(|port| Flow::new(rng.chance(0.5), rng.chance(0.5), port))
            .collect();
        let mut under_way: Vec<(Vec<u8>, PacketBuf)> = Vec::new();
        let (mut compressed, mut sent) = (0, 0);
        for i in 0..20_000_u64 {
            let now = Instant::from_nanos(i * 200_000);
            // A few flows send most of the packets.
            let which = usize::try_from(rng.below(400)).expect("small");
            let which = if rng.chance(0.9) { which % 8 } else { which };
            let options_len = if rng.chance(0.05) { 12 } else { 0 };
            let payload_len = usize::try_from(rng.below(300)).expect("small");
            let packet = flows[which].packet(payload_len, options_len);
            let travelled = ends.compress(now, which as u64 * 7, &packet);
            sent += 1;
            compressed += u32::from(is_compressed(travelled.as_slice()));
            if rng.chance(0.9) {
                under_way.push((packet, travelled));
            }
            if rng.chance(0.02) {
                ends.tell(now);
            }
            if under_way.len() > 300 {
                let late = usize::try_from(rng.below(300)).expect("small");
                let (packet, travelled) = under_way.swap_remove(late);
                assert_eq!(ends.expand(&travelled), packet, "seed {seed}, packet {i}");
            }
        }
        assert!(compressed > sent / 3, "{compressed} of {sent}");
    }
}

#[test]
fn templates_that_are_lost_late_and_repeated_and_numbers_that_begin_anew() {
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let mut compressor = Compressor::starting_at(NUMBERS - 300);
        let mut expander = Expander::default();
        let mut flows: Vec<Flow> = (0..600)
            .map(|port| Flow::new(rng.chance(0.5), rng.chance(0.5), port))
            .collect();
        let mut templates: Vec<(u64, u16, Vec<u8>, u128)> = Vec::new();
        let mut under_way: Vec<(Vec<u8>, PacketBuf)> = Vec::new();
        let (mut compressed, mut unknown, mut defined) = (0, 0, 0);
        for i in 0..150_000_u64 {
            let now = Instant::from_nanos(i * 200_000);
            // The set of active flows changes, so that places in the table are reassigned again and again.
            let which = usize::try_from(rng.below(60) + i / 2_000 * 7 % 540).expect("small");
            let packet = flows[which].packet(usize::try_from(rng.below(200)).expect("small"), 0);
            let mut travelled = PacketBuf::from(packet.clone());
            compressor.compress(now, flow(which as u64 * 7), &mut travelled);
            compressed += u32::from(is_compressed(travelled.as_slice()));
            under_way.push((packet, travelled));
            while let Some(definition) = compressor.poll_definition(now, PATIENCE) {
                defined += 1;
                let template = definition.template;
                // A definition is lost, or arrives once or twice, up to 3 s later.
                for _ in 0..rng.below(3) {
                    let at = i + rng.below(15_000) / (1 + rng.below(100));
                    let bytes = template.bytes().to_vec();
                    templates.push((at, definition.number, bytes, template.travelling()));
                }
            }
            let due = templates.extract_if(.., |(at, ..)| *at <= i);
            for (_, number, bytes, travelling) in due.collect::<Vec<_>>() {
                let template = Template::from_wire(&bytes, travelling).expect("sound");
                if expander.define(number, template) && rng.chance(0.7) {
                    compressor.on_acknowledged(number);
                }
            }
            if under_way.len() > 200 {
                let late = usize::try_from(rng.below(200)).expect("small");
                let (packet, travelled) = under_way.swap_remove(late);
                if !is_compressed(travelled.as_slice()) {
                    continue;
                }
                let mut out = PacketBuf::default();
                match expander.expand(travelled.as_slice(), &mut out) {
                    Ok(()) => assert_eq!(out.as_slice(), packet, "seed {seed}, packet {i}"),
                    Err(ExpandError::UnknownTemplate(number)) => {
                        unknown += 1;
                        compressor.on_unknown(number);
                    }
                    Err(ExpandError::Malformed) => panic!("seed {seed}, packet {i}"),
                }
            }
        }
        assert!(defined > 1_200, "{defined} definitions");
        assert!(compressed > 50_000, "{compressed} compressed");
        assert!(unknown < 150, "{unknown} unknown");
    }
}

#[test]
fn bytes_of_a_hostile_peer_make_errors() {
    let mut rng = Rng::new(5);
    let mut bytes = |len: usize| -> Vec<u8> {
        (0..len)
            .map(|_| u8::try_from(rng.below(256)).expect("below 256"))
            .collect()
    };
    let mut expander = Expander::default();
    let mut out = PacketBuf::default();
    let mut outcomes = [0_u32; 3];
    for round in 0..50_000_usize {
        let mut headers = bytes(round % 110);
        if let Some(first) = headers.first_mut() {
            *first = [0x45, 0x4f, 0x60, *first][round % 4];
        }
        let travelling = u128::from_be_bytes(bytes(16).try_into().expect("16 bytes"));
        let number = u16::try_from(round % usize::from(NUMBERS)).expect("14 bits");
        if let Some(template) = Template::from_wire(&headers, travelling & !1) {
            expander.define(number, template);
        }
        let mut packet = bytes(round % 90);
        if packet.len() > 1 && round % 3 > 0 {
            packet[..2].copy_from_slice(&(number | 0xc000).to_be_bytes());
        }
        outcomes[match expander.expand(&packet, &mut out) {
            Ok(()) => 0,
            Err(ExpandError::Malformed) => 1,
            Err(ExpandError::UnknownTemplate(_)) => 2,
        }] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 500), "{outcomes:?}");
    // The expanded packet would be longer than any IP packet.
    let template = Template::from_wire(&[0x45; 20], 0).expect("sound");
    expander.define(1, template);
    let mut long = vec![0; 65_600];
    long[..2].copy_from_slice(&0xc001_u16.to_be_bytes());
    assert_eq!(
        expander.expand(&long, &mut out),
        Err(ExpandError::Malformed)
    );
}
