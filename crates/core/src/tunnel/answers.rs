//! The paths on which the other end wants the packets of its flows.
//!
//! *Problem.* A rule of a client restricts a flow to a link. The packets of a download are sent by the gateway, which
//! does not know the client's rules.
//!
//! *Algorithm.* A data datagram may have the flag *answer path* ([`crate::wire::header`]). The receiver remembers the
//! path of such a datagram for the flow of its packet. It marks the packets of the flow in the other direction with this
//! path ([`Mark::answer_on`]), and sends them on it while the path may carry data, unless a class of the user gives them
//! links or a deadline. A packet of the flow without the flag ends this, and a flag on another path changes the path, but
//! only if the last flag on the remembered path is older than [`SETTLED`]. Otherwise the answers would change their path
//! with each packet that a short silence of the link sends on another one. The path is also forgotten [`EXPIRY`] after
//! the last packet of the flow in either direction. This rule is pleach's own.
//!
//! *Bounds.* [`PLACES`] flows in 32 KiB, which are allocated with the first flag and freed by
//! [`Answers::release_memory`].
//!
//! *Security.* The flag of a datagram is read after the datagram was authenticated and the packet's source address was
//! found to belong to the peer, and each tunnel has a table of its own. So a hostile client can steer only packets to
//! itself, and only to another of its own paths. It could slow them down as well by false reports. The queues that its
//! flags create are bounded ([`super::pinned`]).
//!
//! *Limits.* One path is remembered, not a set; the sender sets no flag for a class with several links. If two flows
//! share a place ([`crate::flows`]), only the path of the first of them is remembered. If both ends of a flow are silent for longer than [`EXPIRY`] and this end sends first, its packets use any
//! path until a packet of the other end arrives.
//!
//! [`Mark::answer_on`]: crate::mark::Mark::answer_on

use core::time::Duration;

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
    /// The wanted path; `None` if the place is free.
    path: Option<PathId>,
    /// When the last packet with the flag for this path arrived.
    flagged_at: Instant,
    /// When the last packet of the flow passed.
    used_at: Instant,
}

impl Place {
    /// Whether the place has a path of a flow that has not ended.
    fn is_in_use(&self, now: Instant) -> bool {
        self.path.is_some() && now.since(self.used_at) <= EXPIRY
    }

    /// Whether the flow's last flag for its path is so old that another wish counts.
    fn is_settled(&self, now: Instant) -> bool {
        now.since(self.flagged_at) > SETTLED
    }
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
        if self.places.is_empty() {
            self.places.resize(PLACES, Place::default());
        }
        let flow = flows.on_packet(now, &view);
        let place = &mut self.places[flow.index()];
        let is_of_flow = place.hash == flow.hash();
        let is_same = is_of_flow && wanted.is_some() && place.path == wanted;
        let is_open = is_of_flow && place.is_settled(now) || !place.is_in_use(now);
        match wanted {
            Some(_) if is_same || is_open => {
                *place = Place {
                    hash: flow.hash(),
                    path: wanted,
                    flagged_at: now,
                    used_at: now,
                };
            }
            None if is_of_flow && is_open => place.path = None,
            Some(_) | None => {}
        }
    }

    /// Returns the path that the other end wants for a packet of this end.
    pub(super) fn path_of(&mut self, now: Instant, flow: FlowId) -> Option<PathId> {
        let place = self.places.get_mut(flow.index())?;
        if place.hash != flow.hash() || !place.is_in_use(now) {
            return None;
        }
        place.used_at = now;
        place.path
    }

    /// Whether no path was wanted since the memory was last freed.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

/// Duration after a packet with the flag in which no other wish for its flow counts: longer than the silences after
/// which a sender uses another link for a moment, short compared with a user's patience.
const SETTLED: Duration = Duration::from_secs(1);

// The bound of the module documentation.
const _: () = assert!(PLACES * size_of::<Place>() <= 32 << 10);

#[cfg(test)]
mod tests {
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
    fn path_of_a_flag_is_wanted_until_other_packets_follow_for_a_second() {
        let (mut flows, mut answers) = (FlowTable::new(FlowKey::new(5)), Answers::default());
        let mut now = Instant::from_millis(1);
        let (packet, flow) = packet_and_flow(1_000, now, &mut flows);
        let (other, other_flow) = packet_and_flow(2_000, now, &mut flows);
        answers.on_packet_in(now, &packet, None, &mut flows);
        assert!(answers.places.is_empty(), "no memory without a flag");
        for (wanted, path) in [(Some(PathId(3)), None), (Some(PathId(1)), Some(PathId(3)))] {
            let mut put = |now| answers.on_packet_in(now, &packet, wanted, &mut flows);
            put(now);
            put(now + SETTLED);
            let path = path.or(wanted);
            assert_eq!(answers.path_of(now, flow), path, "a silence of the link");
            now += SETTLED * 2 + Duration::from_millis(1);
            answers.on_packet_in(now, &packet, wanted, &mut flows);
            assert_eq!(answers.path_of(now, flow), wanted);
        }
        answers.on_packet_in(now, &other, None, &mut flows);
        assert_eq!(answers.path_of(now, other_flow), None);
        assert_eq!(answers.path_of(now, flow), Some(PathId(1)));
        answers.on_packet_in(now + SETTLED, &packet, None, &mut flows);
        assert_eq!(answers.path_of(now, flow), Some(PathId(1)));
        now += SETTLED + Duration::from_millis(1);
        answers.on_packet_in(now, &packet, None, &mut flows);
        assert_eq!(answers.path_of(now, flow), None);
        answers.on_packet_in(now, &packet, Some(PathId(1)), &mut flows);
        assert_eq!(answers.path_of(now, flow), Some(PathId(1)), "at once");
        answers.release_memory();
        assert_eq!(answers.path_of(now, flow), None);
    }

    #[test]
    fn flow_that_shares_its_place_does_not_replace_the_path_of_the_first() {
        let (mut flows, mut answers) = (FlowTable::new(FlowKey::new(5)), Answers::default());
        let mut now = Instant::from_millis(1);
        // So many flows that some share a place.
        let packets: Vec<_> = (1..3_000)
            .map(|port| packet_and_flow(port, now, &mut flows))
            .collect();
        for (packet, flow) in &packets {
            let path = PathId(u8::from(flow.hash() % 2 == 0));
            answers.on_packet_in(now, packet, Some(path), &mut flows);
        }
        let mut taken = vec![false; PLACES];
        for (packet, flow) in &packets {
            let is_first = !core::mem::replace(&mut taken[flow.index()], true);
            let path = PathId(u8::from(flow.hash() % 2 == 0));
            let wanted = is_first.then_some(path);
            assert_eq!(answers.path_of(now, *flow), wanted);
            answers.on_packet_in(now, packet, None, &mut flows);
            assert_eq!(answers.path_of(now, *flow), wanted);
        }
        now += EXPIRY + Duration::from_millis(1);
        let (packet, flow) = &packets[2_998];
        answers.on_packet_in(now, packet, Some(PathId(4)), &mut flows);
        assert_eq!(answers.path_of(now, *flow), Some(PathId(4)), "it is free");
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
