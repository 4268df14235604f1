//! DBAS's maximum throughput scheduler: the link that minimises the time to finish the present load and the new
//! connection.
//!
//! The paper gives no equation. With load `L_i` and rate `b_i` of each link and a demand `D`, connections on a link
//! sharing its rate, everything is done after `max_i L_i / b_i`, whatever the order; so the choice is
//! `argmin_j max_i (L_i + [i = j] D) / b_i`. One long download makes this maximum the same for many choices; then the
//! connection's own finish decides, `(D + sum_k min(r_k, D)) / b_j` where `r_k` is what is left of the others on
//! link `j`: what processor sharing gives it.
//!
//! The paper's model has no round trips, but what begins on an idle host takes little else: of links whose round trips differ
//! (ours), one that is done later by no more than it begins earlier is as good as the best, and of those the connection takes
//! the one where its first answer takes least, of its own time and of that of the others on the link. So the first things of a
//! page come by the link that answers soonest, before there is anything to share out, and those that follow use the other.
//!
//! The paper's rule alone is [`makespan`](super::makespan). Ours beyond the paper, too: a link on which the first answer would take more than [`MAX_STRETCH`] times as long as on its
//! best one is no choice. The makespan alone would put a page on a slow link because a download on the fast one takes
//! longer still.

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

/// As long as links' rates differ by less than this, the paper's rule alone decides on an idle host.
const MAX_STRETCH: u128 = 4;
