//! Inner packets: parsing, five-tuple, MSS, ECN, fragments, "too big", TCP segments in place.

use pleach_core::packet::{PacketBuf, PacketView, Pool, fragments, mark_congested, too_big};

/// `data`: a length for the path, an acknowledgement, then a packet.
pub fn run(data: &[u8]) {
    let Some((head, packet)) = data.split_first_chunk::<6>() else {
        return;
    };
    let mtu = usize::from(u16::from_be_bytes([head[0], head[1]]));
    let ack = u32::from_be_bytes([head[2], head[3], head[4], head[5]]);
    let mut pool = Pool::new(64, 2048);
    let mut marked = packet.to_vec();
    mark_congested(&mut marked);
    assert_eq!(marked.len(), packet.len());

    if let Ok(view) = PacketView::parse(packet) {
        read(&view, ack);
        if let Some(answer) = too_big(&view, mtu, &mut pool) {
            PacketView::parse(answer.as_slice()).expect("we send packets");
            assert!(answer.len() <= 1280 && answer.len() < view.bytes().len() + 60);
        }
        if let Some(parts) = fragments(&view, mtu, &mut pool) {
            let mut payload = 0;
            for part in &parts {
                assert!(part.len() <= mtu, "a fragment of {} for {mtu}", part.len());
                let part = PacketView::parse(part.as_slice()).expect("we send packets");
                let header = usize::from(part.bytes()[0] & 15) * 4;
                payload += part.bytes().len() - header;
            }
            let header = usize::from(packet[0] & 15) * 4;
            assert_eq!(payload, view.bytes().len() - header, "fragments lose bytes");
        }
    }

    let mut buffer = PacketBuf::from(packet.to_vec());
    if let Ok(view) = buffer.view() {
        let len = view.bytes().len();
        assert!(len <= packet.len());
    }
    buffer.clamp_mss(mtu);
    assert_eq!(buffer.len(), packet.len());
    if let Some(mut segment) = buffer.segment_mut() {
        let _ = (segment.time(), segment.has_sack());
        segment.lower_ack(ack, 1000);
        segment.put_behind(ack.wrapping_add(1), Some(7));
    }
    let before = buffer.as_slice().to_vec();
    let has_ack = buffer
        .view()
        .is_ok_and(|view| view.segment().is_some_and(|segment| segment.ack.is_some()));
    if let Some(lone) = buffer.lone_ack(&mut pool) {
        let view = lone.view().expect("we send packets");
        assert!(view.is_pure_ack() || !has_ack);
        assert!(lone.len() <= before.len());
    }
    let _ = buffer.parse();
}

fn read(view: &PacketView<'_>, ack: u32) {
    assert_eq!(view.source().is_ipv6(), view.is_v6());
    let _ = (
        view.destination(),
        view.ports(),
        view.dscp(),
        view.ecn(),
        view.flow_hash(7),
    );
    let _ = (
        view.ends_frame(),
        view.is_fragment(),
        view.may_be_fragmented(),
    );
    let _ = view.tells_of_congestion();
    assert!(view.transport().len() <= view.bytes().len());
    let _ = (view.segment(), view.is_pure_ack(), view.acked_to(ack));
    assert!(!view.supersedes(view), "nothing supersedes itself");
}
