//! DBAS's connection-oriented round robin: links in rotation, whatever their load.

use super::{LinkId, LinkView};

/// Stores the link that was chosen last.
#[derive(Debug, Default)]
pub struct RoundRobin {
    last: Option<LinkId>,
}

impl RoundRobin {
    pub(super) fn pick(&mut self, links: &[LinkView]) -> Option<LinkId> {
        let next = links.iter().find(|link| Some(link.id) > self.last);
        let chosen = next.or(links.first())?.id;
        self.last = Some(chosen);
        Some(chosen)
    }
}
