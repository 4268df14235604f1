//! DBAS's "only one" scheduler: what operating systems do, and the baseline. The first link that is there.

use super::{LinkId, LinkView};

pub(super) fn pick(links: &[LinkView]) -> Option<LinkId> {
    links.first().map(|link| link.id)
}
