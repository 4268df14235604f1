//! DBAS's maximum throughput scheduler as the paper has it, without what [`max_throughput`](super::max_throughput) adds.
//!
//! "Minimizing the time needed to finish the current system load in addition to the load introduced by the new
//! connection" (section II-D): with load `L_i` and rate `b_i` of each link and a demand `D` the choice is
//! `argmin_j max_i (L_i + [i = j] D) / b_i`. The paper does not say what decides between links for which this is the same,
//! as when one long download outlasts everything; here the connection's own end on the link, `(L_j + D) / b_j`.
//!
//! It does not look at round trips, and puts a page on a slow link while a download on the fast one takes longer still.

use pleach_core::units::Bytes;

use super::{LinkId, LinkView, all_done_us};

pub(super) fn pick(links: &[LinkView], demand: Bytes) -> Option<LinkId> {
    let by_makespan =
        |link: &&LinkView| (all_done_us(links, link, demand), link.all_done_us(demand));
    links.iter().min_by_key(by_makespan).map(|link| link.id)
}
