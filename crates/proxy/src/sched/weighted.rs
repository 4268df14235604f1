//! DBAS's connection-oriented weighted round robin: links of higher rate get more connections.
//!
//! The rotation is smooth: for each connection every link earns its weight, and the link with most credit is chosen
//! and pays the sum of all weights. So links of weights 3 and 1 are chosen in the order A A B A and not A A A B. The
//! weights are the estimated rates, unless the user configured weights.

use super::{LinkId, LinkView};

/// Stores each link's credit, in kbit/s or the user's units.
#[derive(Debug, Default)]
pub struct Weighted {
    /// Credit by link id.
    credits: Vec<i128>,
}

impl Weighted {
    pub(super) fn pick(&mut self, links: &[LinkView]) -> Option<LinkId> {
        let highest = links.last()?.id.0;
        if self.credits.len() <= highest {
            self.credits.resize(highest + 1, 0);
        }
        // The user's weights apply only if all links have one, because rates and the user's units cannot be mixed.
        let by_user = links.iter().all(|link| link.weight.is_some());
        let weight = |link: &LinkView| {
            let by_rate = i128::from(link.rate.as_bps() / 1000).max(1);
            link.weight.filter(|_| by_user).map_or(by_rate, i128::from)
        };
        let sum: i128 = links.iter().map(weight).sum();
        for link in links {
            // Weights change with the estimates. The limit keeps credit earned under old weights from counting for
            // long.
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
