//! Unit of spreading: every packet, a flowlet, or a whole flow.
//!
//! Packets of one flow on links of different delay arrive out of order, and TCP mistakes strong reordering for loss
//! (section IV.A of the NATALIE paper). A *flowlet* is a sequence of a flow's packets without a pause longer than a
//! gap. If the gap is at least the difference of the links' delays, a flow can change its link between two flowlets
//! and still arrive in order.
//!
//! The table has [`MAX_FLOWS`] entries, indexed by a hash. A flow whose entry is overwritten by another flow starts a
//! new flowlet. The kernel's table has the same size and removes the flow that was silent longest. Flowlets are not in
//! the paper (S. Sinha, S. Kandula, D. Katabi, *Harnessing TCP's Burstiness with Flowlet Switching*, HotNets 2004).

use core::time::Duration;

use pleach_core::time::Instant;

/// Unit that stays on its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// No unit: a link is chosen for each packet, as in the paper.
    #[default]
    Packet,
    /// A flowlet: a sequence of a flow's packets without a pause longer than this.
    Flowlet(Duration),
    /// A flow, as long as its link has weight and the flow is not silent for [`FLOW_MEMORY`].
    Flow,
}

impl Spread {
    /// Returns the pause after which a flow may take another link. `None`: a pause is not necessary.
    #[must_use]
    pub const fn gap(self) -> Option<Duration> {
        match self {
            Self::Packet => None,
            Self::Flowlet(gap) => Some(gap),
            Self::Flow => Some(FLOW_MEMORY),
        }
    }
}

/// The last link of each flow.
#[derive(Clone, Debug, Default)]
pub struct FlowTable {
    /// The entries. Empty before the first flow, afterwards [`MAX_FLOWS`] entries.
    places: Vec<Option<Place>>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    flow: u32,
    link: u8,
    seen_at: Instant,
}

impl FlowTable {
    /// Returns the link that a packet of `flow` must take at `now`, and records that the flow was seen. `None`: the
    /// packet may take any link.
    ///
    /// `flow` is a hash of the five-tuple. `gap` is the value of [`Spread::gap`].
    pub fn kept(&mut self, now: Instant, flow: u32, gap: Duration) -> Option<usize> {
        let place = self.places.get_mut(index(flow))?.as_mut()?;
        if place.flow != flow || now.since(place.seen_at) > gap {
            return None;
        }
        place.seen_at = now;
        Some(place.link.into())
    }

    /// Records that `flow` took `link` at `now`.
    pub fn note(&mut self, now: Instant, flow: u32, link: usize) {
        if self.places.is_empty() {
            self.places.resize(MAX_FLOWS, None);
        }
        let Ok(link) = u8::try_from(link) else { return };
        self.places[index(flow)] = Some(Place {
            flow,
            link,
            seen_at: now,
        });
    }
}

fn index(flow: u32) -> usize {
    flow as usize % MAX_FLOWS
}

/// Number of flows in the table.
pub const MAX_FLOWS: usize = 1 << 14;

/// Silence after which a flow may change its link, longer than the keep-alive intervals of programs.
pub const FLOW_MEMORY: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_keeps_its_link_until_a_pause_longer_than_the_gap() {
        let gap = Duration::from_millis(20);
        let mut table = FlowTable::default();
        let at = Instant::from_millis;
        assert_eq!(table.kept(at(0), 7, gap), None);
        table.note(at(0), 7, 1);
        assert_eq!(table.kept(at(20), 7, gap), Some(1));
        assert_eq!(
            table.kept(at(40), 7, gap),
            Some(1),
            "counted from its last packet"
        );
        assert_eq!(table.kept(at(61), 7, gap), None);
        let twin = 7 + u32::try_from(MAX_FLOWS).expect("small");
        assert_eq!(
            table.kept(at(41), twin, gap),
            None,
            "another flow in its place"
        );
    }
}
