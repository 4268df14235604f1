//! DBAS's maximum throughput scheduler as in the paper, without the additions of
//! [`max_throughput`](super::max_throughput).
//!
//! "Minimizing the time needed to finish the current system load in addition to the load introduced by the new
//! connection" (section II-D): with load `L_i` and rate `b_i` of each link and a demand `D`, the choice is `argmin_j
//! max_i (L_i + [i = j] D) / b_i`. The paper does not say which of several links with the same maximum is chosen, for
//! example if one long download finishes last in any case. Here the link with the smallest `(L_j + D) / b_j` is chosen,
//! which is the time until the new connection's own link is finished.
//!
//! The scheduler ignores RTTs. It puts a web page on a slow link while a download on the fast link takes even longer.

use pleach_core::units::Bytes;

use super::{LinkId, LinkView, all_done_us};

pub(super) fn pick(links: &[LinkView], demand: Bytes) -> Option<LinkId> {
    let by_makespan =
        |link: &&LinkView| (all_done_us(links, link, demand), link.all_done_us(demand));
    links.iter().min_by_key(by_makespan).map(|link| link.id)
}
