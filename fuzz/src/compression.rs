//! Header compression: templates and compressed packets of a stranger; and packets that go through both ends unchanged.

use arbitrary::Unstructured;
use core::time::Duration;
use pleach_core::{
    compression::{Compressor, Expander, Template, is_compressed},
    flows::FlowId,
    packet::{PacketBuf, PacketView, Pool},
    time::Instant,
};

/// `data`: which half, then its operations.
pub fn run(data: &[u8]) {
    let Some((half, rest)) = data.split_first() else {
        return;
    };
    let mut input = Unstructured::new(rest);
    let _ = if half & 1 == 0 {
        hostile(&mut input)
    } else {
        both_ends(&mut input)
    };
}

fn hostile(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut expander = Expander::default();
    let mut out = PacketBuf::default();
    while !input.is_empty() {
        let number = input.int_in_range(0..=1023_u16)? * if input.arbitrary()? { 1 } else { 16 };
        if input.arbitrary()? {
            let travelling = input.arbitrary()?;
            let len = input.int_in_range(0..=120_usize)?.min(input.len());
            if let Some(template) = Template::from_wire(input.bytes(len)?, travelling) {
                assert!(template.bytes().len() == len);
                expander.define(number, template);
            }
            continue;
        }
        let len = input.int_in_range(0..=1600_usize)?.min(input.len());
        let mut packet = (0xc000 | number).to_be_bytes().to_vec();
        packet.extend_from_slice(input.bytes(len)?);
        assert!(is_compressed(&packet));
        if expander.expand(&packet, &mut out).is_ok() {
            assert!(out.len() <= packet.len() + 100);
            let view = PacketView::parse(out.as_slice());
            // The lengths that the packet states are its own.
            if let Ok(view) = view {
                assert!(view.bytes().len() <= out.len());
            }
        }
    }
    Ok(())
}

/// Packets of a few flows, with losses of definitions.
fn both_ends(input: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let (mut compressor, mut expander) = (Compressor::default(), Expander::default());
    let mut pool = Pool::new(4, 2048);
    let mut now = Instant::from_millis(1);
    let len = input.int_in_range(20..=80_usize)?.min(input.len());
    let mut packet = input.bytes(len)?.to_vec();
    for _ in 0..400 {
        if input.is_empty() {
            break;
        }
        now += Duration::from_millis(input.int_in_range(0..=20)?);
        let at = input.int_in_range(0..=packet.len().saturating_sub(1))?;
        if let Some(byte) = packet.get_mut(at) {
            *byte = input.arbitrary()?;
        }
        mend(&mut packet);
        let mut sent = pool.copy_of(&packet);
        compressor.compress(now, FlowId::of_hash(input.int_in_range(0..=3)?), &mut sent);
        if is_compressed(sent.as_slice()) && !is_compressed(&packet) {
            let mut out = PacketBuf::default();
            expander
                .expand(sent.as_slice(), &mut out)
                .expect("its template was acknowledged");
            assert_eq!(out.as_slice(), packet, "a packet changes on its way");
        }
        while let Some(definition) = compressor.poll_definition(now, Duration::from_millis(30)) {
            let number = definition.number;
            let template = definition.template;
            let wire = Template::from_wire(template.bytes(), template.travelling())
                .expect("what is defined is sound");
            if input.ratio(1, 4)? {
                continue;
            }
            assert!(expander.define(number, wire));
            compressor.on_acknowledged(number);
        }
        pool.recycle(sent);
    }
    Ok(())
}

/// Makes an IPv4 packet's length and checksum right, so that it can be compressed.
fn mend(packet: &mut [u8]) {
    let Ok(len) = u16::try_from(packet.len()) else {
        return;
    };
    let header = packet
        .first()
        .map_or(0, |first| usize::from(first & 15) * 4);
    if packet.first().is_some_and(|first| first >> 4 == 4) && header >= 20 && header <= packet.len()
    {
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[10..12].fill(0);
        let sum = packet[..header]
            .chunks(2)
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(0);
        packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
    }
}
