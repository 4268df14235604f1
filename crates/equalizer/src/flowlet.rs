//! What a turn is given to: every packet, a flowlet, or a whole flow.
//!
//! Packets of one flow on links of different delay arrive out of order, and TCP takes too much disorder for loss (the
//! paper's section IV.A). A *flowlet* is a run of a flow's packets without a pause longer than a gap. If the gap is no shorter
//! than the difference of the links' delays, a flow can change its link between two flowlets and still arrive in order.
//!
//! The table has [`MAX_FLOWS`] places, found by hash; a flow whose place another one takes starts a new flowlet.
//! The kernel's table is as large and forgets the flow that was silent longest. Flowlets are not in the paper (S. Sinha,
//! S. Kandula, D. Katabi, *Harnessing TCP's Burstiness with Flowlet Switching*, HotNets 2004).

use core::time::Duration;

use pleach_core::time::Instant;

/// What keeps its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// Nothing: each packet has a turn, as in the paper.
    #[default]
    Packet,
    /// A run of a flow's packets until a pause longer than this.
    Flowlet(Duration),
    /// A flow, as long as its link has weight and it is not silent for [`FLOW_MEMORY`].
    Flow,
}

impl Spread {
    /// The pause after which a flow may take another link; `None`: it need not wait.
    #[must_use]
    pub const fn gap(self) -> Option<Duration> {
        match self {
            Self::Packet => None,
            Self::Flowlet(gap) => Some(gap),
            Self::Flow => Some(FLOW_MEMORY),
        }
    }
}

/// Which link each flow had last.
#[derive(Clone, Debug, Default)]
pub struct FlowTable {
    /// [`MAX_FLOWS`] places once there is a flow.
    places: Vec<Option<Place>>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    flow: u32,
    link: u8,
    seen_at: Instant,
}

impl FlowTable {
    /// The link that a packet of `flow` must take at `now`, and notes that the flow was seen; `None`: it may take any.
    ///
    /// `flow`: hash of the five-tuple. `gap`: of [`Spread::gap`].
    pub fn kept(&mut self, now: Instant, flow: u32, gap: Duration) -> Option<usize> {
        let place = self.places.get_mut(index(flow))?.as_mut()?;
        if place.flow != flow || now.since(place.seen_at) > gap {
            return None;
        }
        place.seen_at = now;
        Some(place.link.into())
    }

    /// `flow` took `link` at `now`.
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

/// Flows that are remembered.
pub const MAX_FLOWS: usize = 1 << 14;

/// A flow that was silent for this long may change its link: longer than the keep-alives of programs.
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
