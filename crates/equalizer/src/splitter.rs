//! The kernel's handling of a packet, in plain Rust: for the simulator, and as a reference for the BPF program.

use pleach_core::time::Instant;

use crate::{
    MAX_LINKS,
    flowlet::{FlowTable, Spread},
    sequence::{Credit, shares},
};

/// Price of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charge {
    /// The packet's bytes on the wire: shares apply to bytes, also with segmentation offload.
    #[default]
    Bytes,
    /// The number of packets on the wire: shares apply to packets, as in the NATALIE paper.
    Packets,
}

/// Chooses a link for each packet.
#[derive(Clone, Debug, Default)]
pub struct Splitter {
    charge: Charge,
    spread: Spread,
    shares: [u32; MAX_LINKS],
    credit: Credit,
    flows: FlowTable,
}

impl Splitter {
    /// Creates a splitter without weights, which chooses no link.
    #[must_use]
    pub fn new(charge: Charge, spread: Spread) -> Self {
        Self {
            charge,
            spread,
            ..Self::default()
        }
    }

    /// Sets the shares from the next packet on according to `weights`, one for each link. A link of weight 0 gets no
    /// more packets.
    pub fn set_weights(&mut self, weights: &[u32]) {
        self.shares = shares(weights);
    }

    /// Returns the link for a packet of `flow`, a hash of its five-tuple. The packet has `bytes` bytes on the wire and
    /// is not offloaded.
    ///
    /// `None` if no link has weight: the packet is left to the routing table.
    pub fn choose(&mut self, now: Instant, flow: u32, bytes: u32) -> Option<usize> {
        let price = match self.charge {
            Charge::Bytes => bytes,
            Charge::Packets => 1,
        };
        let Some(gap) = self.spread.gap() else {
            return self.credit.charge(&self.shares, price);
        };
        let kept = self.flows.kept(now, flow, gap);
        if let Some(link) = kept.filter(|link| self.shares[*link] > 0) {
            self.credit.pay(&self.shares, link, price);
            return Some(link);
        }
        let link = self.credit.charge(&self.shares, price)?;
        self.flows.note(now, flow, link);
        Some(link)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn sent(splitter: &mut Splitter, packets: u32, pause: Duration) -> [u32; 2] {
        let mut now = Instant::ZERO;
        let mut sent = [0; 2];
        for _ in 0..packets {
            now += pause;
            sent[splitter.choose(now, 1, 1500).expect("weights")] += 1;
        }
        sent
    }

    #[test]
    fn one_flow_takes_all_links_one_or_one_at_a_time() {
        let gap = Duration::from_millis(10);
        for (spread, pause, expected) in [
            (Spread::Packet, Duration::ZERO, [75, 25]),
            (Spread::Flowlet(gap), Duration::from_millis(9), [100, 0]),
            (Spread::Flowlet(gap), Duration::from_millis(11), [75, 25]),
            (Spread::Flow, Duration::from_millis(11), [100, 0]),
        ] {
            let mut splitter = Splitter::new(Charge::Bytes, spread);
            splitter.set_weights(&[3, 1]);
            assert_eq!(sent(&mut splitter, 100, pause), expected, "{spread:?}");
        }
    }

    #[test]
    fn many_flows_share_by_weight_though_each_keeps_its_link() {
        let mut splitter = Splitter::new(Charge::Bytes, Spread::Flow);
        splitter.set_weights(&[1, 4]);
        let mut sent = [0_u64; 2];
        for round in 0..50 {
            for flow in 0..200 {
                let link = splitter.choose(Instant::from_millis(round), flow, 1000);
                sent[link.expect("weights")] += 1;
            }
        }
        assert!((1_900..=2_100).contains(&sent[0]), "{sent:?}");
    }

    #[test]
    fn a_flow_leaves_a_link_that_lost_its_weight() {
        let mut splitter = Splitter::new(Charge::Packets, Spread::Flow);
        assert_eq!(splitter.choose(Instant::ZERO, 1, 100), None);
        splitter.set_weights(&[1, 0]);
        assert_eq!(splitter.choose(Instant::ZERO, 1, 100), Some(0));
        splitter.set_weights(&[0, 1]);
        assert_eq!(splitter.choose(Instant::ZERO, 1, 100), Some(1));
        splitter.set_weights(&[1, 1]);
        assert_eq!(splitter.choose(Instant::ZERO, 1, 100), Some(1));
    }
}
