//! DBAS's "only one" scheduler: the first available link. This is the behaviour of operating systems, and the
//! baseline.

use super::{LinkId, LinkView};

pub(super) fn pick(links: &[LinkView]) -> Option<LinkId> {
    links.first().map(|link| link.id)
}
