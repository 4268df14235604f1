//! DBAS's connection-oriented weighted round robin: more connections for links that carry more.
//!
//! Smooth: each turn every link earns its weight, the richest is chosen and pays the sum, so that a link of weight 3
//! beside one of weight 1 gets A A B A and not A A A B. Weights are the estimated rates unless the user gave some.

use super::{LinkId, LinkView};

/// Remembers each link's credit, in kbit/s or the user's units.
#[derive(Debug, Default)]
pub struct Weighted {
    /// By link id.
    credits: Vec<i128>,
}

impl Weighted {
    pub(super) fn pick(&mut self, links: &[LinkView]) -> Option<LinkId> {
        let highest = links.last()?.id.0;
        if self.credits.len() <= highest {
            self.credits.resize(highest + 1, 0);
        }
        // Weights of the user count only if all have one: rates and shares do not mix.
        let by_user = links.iter().all(|link| link.weight.is_some());
        let weight = |link: &LinkView| {
            let by_rate = i128::from(link.rate.as_bps() / 1000).max(1);
            link.weight.filter(|_| by_user).map_or(by_rate, i128::from)
        };
        let sum: i128 = links.iter().map(weight).sum();
        for link in links {
            // Weights change with the estimates; what was earned under others must not count for long.
            let earned = self.credits[link.id.0] + weight(link);
            self.credits[link.id.0] = earned.clamp(-sum, sum);
        }
        let mut chosen = links.first()?;
        for link in links {
            if self.credits[link.id.0] > self.credits[chosen.id.0] {
                chosen = link;
            }
        }
        self.credits[chosen.id.0] -= sum;
        Some(chosen.id)
    }
}
