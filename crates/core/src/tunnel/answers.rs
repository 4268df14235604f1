//! The paths on which the other end wants the packets of its flows.
//!
//! *Problem.* A rule of a client restricts a flow to a link. The packets of a download are sent by the gateway, which
//! does not know the client's rules.
//!
//! *Algorithm.* A data datagram may have the flag *answer path* ([`crate::wire::header`]). The receiver remembers the
//! path of the last such datagram for the flow of its packet. It marks the packets of the flow in the other direction
//! with this path ([`Mark::answer_on`]), and sends them on it while the path may carry data, unless their own class has
//! links or a deadline. A packet of the flow without the flag ends this: the rule was removed, or its link is down. The
//! path is also forgotten [`EXPIRY`] after the last packet of the flow in either direction. This rule is pleach's own.
//!
//! *Bounds.* [`PLACES`] flows in 32 KiB, which are allocated with the first flag and freed by
//! [`Answers::release_memory`].
//!
//! *Security.* The flag of a datagram is read after the datagram was authenticated and the packet's source address was
//! found to belong to the peer, and each tunnel has a table of its own. So a hostile client can steer only packets to
//! itself, and only to another of its own paths. It could slow them down as well by false reports. The queues that its
//! flags create are bounded ([`super::pinned`]).
//!
//! *Limits.* One path is remembered, not a set: if a class has several links, its answers follow the link of its last
//! packet. If both ends of a flow are silent for longer than [`EXPIRY`] and this end sends first, its packets use any
//! path until a packet of the other end arrives.
//!
//! [`Mark::answer_on`]: crate::mark::Mark::answer_on

use crate::{
    flows::{EXPIRY, FlowId, FlowTable, PLACES},
    ids::PathId,
    packet::PacketBuf,
    time::Instant,
};

/// The path that the other end wants for each flow.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The flows by place; empty until the first flag.
    places: Vec<Place>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u64,
    /// The path, and when the last packet of the flow passed.
    wanted: Option<(PathId, Instant)>,
}

impl Answers {
    /// Frees the memory, and forgets all paths.
    pub(super) fn release_memory(&mut self) {
        self.places = Vec::new();
    }

    /// Records a packet of the other end. `wanted` is the path of its datagram if the datagram has the flag. `flows`
    /// contains the flows that this end sends.
    pub(super) fn on_packet_in(
        &mut self,
        now: Instant,
        packet: &PacketBuf,
        wanted: Option<PathId>,
        flows: &mut FlowTable,
    ) {
        if wanted.is_none() && self.places.is_empty() {
            return;
        }
        let Ok(view) = packet.view() else {
            return;
        };
        let Some(path) = wanted else {
            if let Some(flow) = flows.find(&view)
                && let Some(place) = self.place_of(flow)
            {
                place.wanted = None;
            }
            return;
        };
        if self.places.is_empty() {
            self.places.resize(PLACES, Place::default());
        }
        let flow = flows.on_packet(now, &view);
        self.places[flow.index()] = Place {
            hash: flow.hash(),
            wanted: Some((path, now)),
        };
    }

    /// Returns the path that the other end wants for a packet of this end.
    pub(super) fn path_of(&mut self, now: Instant, flow: FlowId) -> Option<PathId> {
        let place = self.place_of(flow)?;
        let is_recent = |(_, seen_at): &(PathId, Instant)| now.since(*seen_at) <= EXPIRY;
        let (path, _) = place.wanted.filter(is_recent)?;
        place.wanted = Some((path, now));
        Some(path)
    }

    /// Returns the place of a flow, if the place does not belong to another flow.
    fn place_of(&mut self, flow: FlowId) -> Option<&mut Place> {
        let place = self.places.get_mut(flow.index());
        place.filter(|place| place.hash == flow.hash())
    }
}

// The bound of the module documentation.
const _: () = assert!(PLACES * size_of::<Place>() <= 32 << 10);

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::{flows::FlowKey, packet::tests::udp_v4};

    const OURS: [u8; 4] = [10, 0, 0, 1];
    const THEIRS: [u8; 4] = [10, 0, 0, 2];

    /// Returns a packet of the other end, and the flow of this end's packets with the same ports.
    fn packet_and_flow(port: u16, now: Instant, flows: &mut FlowTable) -> (PacketBuf, FlowId) {
        let theirs = PacketBuf::from(udp_v4(THEIRS, OURS, (port, 80), 100));
        let ours = PacketBuf::from(udp_v4(OURS, THEIRS, (80, port), 100));
        let view = ours.view().expect("a packet");
        (theirs, flows.on_packet(now, &view))
    }

    #[test]
    fn the_path_of_the_last_flag_is_wanted_until_a_packet_has_no_flag() {
        let (mut flows, mut answers) = (FlowTable::new(FlowKey::new(5)), Answers::default());
        let now = Instant::from_millis(1);
        let (packet, flow) = packet_and_flow(1_000, now, &mut flows);
        let (other, other_flow) = packet_and_flow(2_000, now, &mut flows);
        answers.on_packet_in(now, &packet, None, &mut flows);
        assert!(answers.places.is_empty(), "no memory without a flag");
        for path in [PathId(3), PathId(1)] {
            answers.on_packet_in(now, &packet, Some(path), &mut flows);
            assert_eq!(answers.path_of(now, flow), Some(path));
        }
        answers.on_packet_in(now, &other, None, &mut flows);
        assert_eq!(answers.path_of(now, other_flow), None);
        assert_eq!(answers.path_of(now, flow), Some(PathId(1)));
        answers.on_packet_in(now, &packet, None, &mut flows);
        assert_eq!(answers.path_of(now, flow), None);
        answers.on_packet_in(now, &packet, Some(PathId(1)), &mut flows);
        answers.release_memory();
        assert_eq!(answers.path_of(now, flow), None);
    }

    #[test]
    fn the_path_is_forgotten_when_the_flow_has_ended() {
        let (mut flows, mut answers) = (FlowTable::new(FlowKey::new(5)), Answers::default());
        let mut now = Instant::from_millis(1);
        let (packet, flow) = packet_and_flow(1_000, now, &mut flows);
        answers.on_packet_in(now, &packet, Some(PathId(2)), &mut flows);
        for _ in 0..5 {
            now += EXPIRY - Duration::from_millis(1);
            assert_eq!(answers.path_of(now, flow), Some(PathId(2)), "it sends");
        }
        now += EXPIRY + Duration::from_millis(1);
        assert_eq!(answers.path_of(now, flow), None);
    }
}
