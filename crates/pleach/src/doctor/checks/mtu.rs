//! Whether long packets are lost silently on a link: a path MTU black hole (RFC 2923 section 2.1).
//!
//! Echo requests as long as the device's MTU are sent unfragmented. Where path MTU discovery works, an ICMP message
//! tells the kernel the smaller MTU; the kernel fragments the next request, and that request is answered. So the link
//! has a black hole if such requests are not answered while short ones are answered. Limit: nothing is found if the
//! gateway's host answers no echo requests.

use crate::doctor::problem::Problem;

/// Facts about a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The device's MTU in bytes.
    pub(crate) device: u32,
    /// Whether a short request was answered.
    pub(crate) short: bool,
    /// Whether a request of the device's MTU was answered.
    pub(crate) full: bool,
    /// Length in bytes of the longest request that was answered.
    pub(crate) longest: Option<u32>,
}

pub(crate) fn verdict(device: &str, facts: Facts) -> Option<Problem> {
    let longest = facts.longest.filter(|_| facts.short && !facts.full)?;
    Some(Problem::new(
        "mtu-black-hole",
        format!(
            "packets longer than {longest} bytes are lost without an ICMP error, although the MTU of {device} is {}",
            facts.device
        ),
        format!(
            "run `ip link set dev {device} mtu {longest}`, and set this MTU in the configuration of the device too; or allow ICMP \"fragmentation needed\" in your firewalls"
        ),
    ))
}

/// Returns, by binary search, the longest length in bytes for which `passes` returns `true`. The length `least` is
/// known to pass, and `most` is known not to pass.
pub(crate) fn longest(least: u32, most: u32, mut passes: impl FnMut(u32) -> bool) -> u32 {
    let (mut good, mut bad) = (least, most);
    while bad.saturating_sub(good) > GRAIN {
        let middle = u32::midpoint(good, bad);
        if passes(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good
}

/// Precision of the search in bytes: each further request without an answer takes time.
const GRAIN: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_silence_after_a_short_answer_is_a_black_hole() {
        let found = |short, full, longest| {
            let facts = Facts {
                device: 1500,
                short,
                full,
                longest,
            };
            verdict("l0", facts).is_some()
        };
        assert!(found(true, false, Some(1200)));
        assert!(!found(true, true, Some(1500)));
        assert!(!found(false, false, Some(1200)) && !found(true, false, None));
    }

    #[test]
    fn the_search_ends_just_below_what_is_swallowed() {
        for limit in [600, 1200, 1280, 1492] {
            let mut asked = 0;
            let found = longest(576, 1500, |len| {
                asked += 1;
                len <= limit
            });
            assert!(
                found <= limit && limit - found <= GRAIN,
                "{found} of {limit}"
            );
            assert!(asked <= 8);
        }
    }
}
