//! DBAS's maximum throughput scheduler with additions: it takes the link that minimises the time until the present load
//! and the new connection are finished.
//!
//! The paper gives no equation. Let link `i` have the load `L_i` and the rate `b_i`, and let the new connection have
//! the demand `D`. Connections on a link share its rate, so everything is finished after `max_i L_i / b_i`, whatever
//! the order. The choice is therefore `argmin_j max_i (L_i + [i = j] D) / b_i`. With one long download, this maximum is
//! the same for many choices. Then the finish time of the new connection's first answer decides: with processor sharing
//! and an answer of `A` bytes it is `(A + sum_k min(r_k, A)) / b_j`, where `r_k` is the number of bytes that connection
//! `k` on link `j` has left.
//!
//! This module adds two rules to the paper's rule. [`makespan`](super::makespan) is the paper's rule alone.
//!
//! - RTTs: on an idle host, a short transfer takes little more than its RTTs, but the paper's model has no RTTs. A link
//!   may finish later than the best link by as much as its answer starts earlier. Of all such links, the scheduler
//!   takes the link on which the first answer costs least: the time of the answer plus the time by which it delays the
//!   other connections on the link. So the first objects of a page use the link with the shortest RTT, and later
//!   objects use the other links.
//! - Maximum stretch: a link is excluded if the first answer would take more than [`MAX_STRETCH`] times as long on it
//!   as on the best link. Without this rule, a page would be put on a slow link because a download on the fast link
//!   takes even longer.

use pleach_core::units::Bytes;

use super::{LinkId, LinkView};

pub(super) fn pick(links: &[LinkView], demand: Bytes, answer: Bytes) -> Option<LinkId> {
    let least_us = links.iter().map(|link| link.own_finish_us(answer)).min()?;
    let bearable = |link: &&LinkView| link.own_finish_us(answer) <= least_us * MAX_STRETCH;
    let all_done_us = |chosen: &LinkView| super::all_done_us(links, chosen, demand);
    let by_makespan = |link: &&LinkView| (all_done_us(link), link.own_finish_us(answer));
    let best = links.iter().filter(bearable).min_by_key(by_makespan)?;
    let bound_us =
        |link: &LinkView| all_done_us(best) + best.start.saturating_sub(link.start).as_micros();
    let chosen = links
        .iter()
        .filter(bearable)
        .filter(|link| all_done_us(link) <= bound_us(link))
        .min_by_key(|link| (link.own_and_others_us(answer), all_done_us(link)))?;
    Some(chosen.id)
}

/// Maximum ratio between the time of the first answer on a link and on the best link. If the rates of the links differ
/// by less than this factor, the rule excludes no link on an idle host.
const MAX_STRETCH: u128 = 4;
