//! Choice of the next link: smooth weighted round robin, as a sequence of slots for packets and as credit for bytes.
//!
//! **Slots.** The weights are converted to counts of at most [`SLOTS`] slots in total. If the sum of the weights
//! divided by their common factor is at most [`SLOTS`], the counts are these quotients, and packet shares are exact
//! over each round. Otherwise every link gets the floor of its part of [`SLOTS`], at least one slot, and the
//! remaining slots go to the links with the largest remainders. The error of a share is then less than one slot, that
//! is, less than `1 / SLOTS`. The order is that of smooth weighted round robin: in each slot, every link earns its
//! count, and the link with the most credit takes the slot and pays the sum of all counts. So the slots of a link are
//! spread evenly.
//!
//! **Credit.** With segmentation offload a packet at the kernel's hook may be 64 KiB long, so choosing links per packet
//! gives inexact shares of bytes. [`Credit`] uses the same rule with the packet's length as price: shares of bytes are
//! exact to one packet for each link, for all packet lengths. The BPF program does exactly this, separately for each
//! processor, and its results are identical to those of [`Credit`] (both get their input from [`shares`]).
//!
//! Sources: section II of the NATALIE paper, which assigns packets in turn by weight and does not define their order;
//! nginx for the order. Charging bytes is not in the paper.

use crate::MAX_LINKS;

/// Highest number of slots in a sequence.
pub const SLOTS: usize = 256;

/// One round of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    slots: Vec<u8>,
}

impl Sequence {
    /// Creates a sequence for `weights`, one weight for each link, at most [`MAX_LINKS`]. Links of weight 0 get no
    /// slots.
    ///
    /// `None` if no link has weight.
    #[must_use]
    pub fn new(weights: &[u32]) -> Option<Self> {
        let weights = &weights[..weights.len().min(MAX_LINKS)];
        let counts = counts(weights);
        let sum: i64 = counts.iter().sum();
        if sum == 0 {
            return None;
        }
        let mut credits = vec![0_i64; counts.len()];
        let slot = |_| {
            for (credit, count) in credits.iter_mut().zip(&counts) {
                *credit += count;
            }
            let richest = richest(
                credits
                    .iter()
                    .zip(&counts)
                    .map(|(credit, count)| (*credit, *count > 0)),
            );
            credits[richest] -= sum;
            u8::try_from(richest).unwrap_or(u8::MAX)
        };
        Some(Self {
            slots: (0..sum).map(slot).collect(),
        })
    }

    /// Returns the link of each slot, by its number. There are 1 to [`SLOTS`] slots.
    #[must_use]
    pub fn slots(&self) -> &[u8] {
        &self.slots
    }

    /// Returns the part of link `index` in all slots, 0 to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "both are small")]
    pub fn share(&self, index: usize) -> f64 {
        let own = self
            .slots
            .iter()
            .filter(|slot| usize::from(**slot) == index);
        own.count() as f64 / self.slots.len() as f64
    }
}

/// Credit of each link: smooth weighted round robin with a price for every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Credit of each link, in the price's unit scaled by 2^[`SHARE_BITS`].
    owed: [i64; MAX_LINKS],
}

impl Credit {
    /// Adds its part of `price` to the credit of each link and returns the link with the most credit, which pays
    /// `price`. Among equal links the first is chosen.
    ///
    /// `shares` is the result of [`shares`], with one entry for each link. Links without a share earn nothing, are not
    /// chosen, and keep their credit. At most [`MAX_PRICE`] is charged. `None` if no link has a share.
    pub fn charge(&mut self, shares: &[u32; MAX_LINKS], price: u32) -> Option<usize> {
        if shares.iter().all(|share| *share == 0) {
            return None;
        }
        let price = i64::from(price.min(MAX_PRICE));
        for (owed, share) in self.owed.iter_mut().zip(shares) {
            *owed += i64::from(*share) * price;
        }
        let chosen = richest(
            self.owed
                .iter()
                .zip(shares)
                .map(|(owed, share)| (*owed, *share > 0)),
        );
        self.owed[chosen] -= price << SHARE_BITS;
        Some(chosen)
    }

    /// Charges `price` to `link` for a packet that was sent on it without a choice, because its flow stays on its link.
    /// The debt of a link is limited to [`MAX_DEBT`], so that one long flow does not exclude other flows from its link
    /// forever.
    pub fn pay(&mut self, shares: &[u32; MAX_LINKS], link: usize, price: u32) {
        let price = i64::from(price.min(MAX_PRICE));
        for (owed, share) in self.owed.iter_mut().zip(shares) {
            *owed = (*owed + i64::from(*share) * price).min(MAX_DEBT);
        }
        let owed = &mut self.owed[link];
        *owed = (*owed - (price << SHARE_BITS)).max(-MAX_DEBT);
    }
}

/// Returns the shares of `weights`, of which at most [`MAX_LINKS`] count, in parts of 2^[`SHARE_BITS`]. Their sum is
/// exactly 2^[`SHARE_BITS`], or zero if no link has weight. A link with weight has at least one part.
#[must_use]
pub fn shares(weights: &[u32]) -> [u32; MAX_LINKS] {
    let mut shares = [0; MAX_LINKS];
    for (share, part) in shares.iter_mut().zip(parts(weights, 1 << SHARE_BITS)) {
        *share = u32::try_from(part).unwrap_or(0);
    }
    shares
}

/// Returns the index of the link with the most credit among those that may be chosen. Among equal links it is the
/// first. If no link may be chosen, the first link.
fn richest(links: impl Iterator<Item = (i64, bool)>) -> usize {
    let mut best: Option<(i64, usize)> = None;
    for (index, (credit, may_win)) in links.enumerate() {
        if may_win && best.is_none_or(|(most, _)| credit > most) {
            best = Some((credit, index));
        }
    }
    best.map_or(0, |(_, index)| index)
}

/// Returns the number of slots of each link.
fn counts(weights: &[u32]) -> Vec<i64> {
    let divisor = weights
        .iter()
        .fold(0, |divisor, weight| gcd(divisor, *weight))
        .max(1);
    let sum: u64 = weights
        .iter()
        .map(|weight| u64::from(weight / divisor))
        .sum();
    if sum <= SLOTS as u64 {
        return weights
            .iter()
            .map(|weight| i64::from(weight / divisor))
            .collect();
    }
    parts(weights, SLOTS as u64)
}

/// Divides `whole` in proportion to `weights`. Each positive weight gets the floor of its part, but at least 1. The
/// rest goes to the largest remainders; among equal remainders, the first is preferred. `whole` is at least the
/// number of weights.
fn parts(weights: &[u32], whole: u64) -> Vec<i64> {
    let weights = &weights[..weights.len().min(MAX_LINKS)];
    let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    if sum == 0 {
        return vec![0; weights.len()];
    }
    let exact = |weight: u32| u64::from(weight) * whole;
    let mut parts: Vec<u64> = weights
        .iter()
        .map(|weight| (exact(*weight) / sum).max(u64::from(*weight > 0)))
        .collect();
    // Difference between the exact value and the assigned value, in parts of `sum`.
    let missing =
        |weight: u32, part: u64| i128::from(exact(weight)) - i128::from(part) * i128::from(sum);
    loop {
        let given: u64 = parts.iter().sum();
        let places = || (0..parts.len()).filter(|at| weights[*at] > 0);
        if given < whole {
            let most = places()
                .rev()
                .max_by_key(|at| missing(weights[*at], parts[*at]));
            parts[most.expect("the sum is not zero")] += 1;
        } else if given > whole {
            // The amount by which parts were raised to 1 is subtracted from the links whose parts exceed the exact
            // value most.
            let least = places()
                .filter(|at| parts[*at] > 1)
                .min_by_key(|at| missing(weights[*at], parts[*at]));
            parts[least.expect("there are fewer links than parts")] -= 1;
        } else {
            return parts.iter().map(|part| part.cast_signed()).collect();
        }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Number of bits of shares: they are fractions of 2^24, exact to one part in 16 million.
pub const SHARE_BITS: u32 = 24;

/// Largest credit or debt of a link: 16 MB, about a second of a fast access link.
pub const MAX_DEBT: i64 = (1 << 24) << SHARE_BITS;

/// Largest price of one packet, above the length of any packet, offloaded or not. Sums stay far below 2^63.
pub const MAX_PRICE: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use pleach_core::rng::Rng;

    use super::*;

    #[test]
    fn packet_shares_follow_weights_to_half_a_percent() {
        for weights in [
            &[3, 1][..],
            &[1, 1],
            &[1, 4],
            &[100, 7],
            &[64, 60],
            &[9_731, 2_004],
            &[1000, 1],
            &[5, 3, 2, 1, 0, 7],
        ] {
            let sequence = Sequence::new(weights).expect("there is weight");
            assert!(sequence.slots().len() <= SLOTS);
            let sum: u32 = weights.iter().sum();
            for (index, weight) in weights.iter().enumerate() {
                let wanted = f64::from(*weight) / f64::from(sum);
                let error = (sequence.share(index) - wanted).abs();
                assert!(
                    error < 0.005,
                    "{weights:?}: link {index} is wrong by {error}"
                );
                assert_eq!(sequence.share(index) > 0.0, *weight > 0);
            }
        }
        assert_eq!(
            Sequence::new(&[100, 7]).map(|found| found.slots().len()),
            Some(107)
        );
    }

    #[test]
    fn slots_of_a_link_are_spread_evenly() {
        let slots = |weights: &[u32]| Sequence::new(weights).expect("weight").slots().to_vec();
        assert_eq!(slots(&[3, 1]), [0, 0, 1, 0]);
        assert_eq!(slots(&[7, 7]), [0, 1]);
        let longest = |slots: &[u8]| slots.split(|slot| *slot == 1).map(<[u8]>::len).max();
        assert_eq!(longest(&slots(&[100, 7])), Some(15));
        assert_eq!(Sequence::new(&[0, 0]), None);
        assert_eq!(Sequence::new(&[]), None);
    }

    #[test]
    fn byte_shares_are_right_to_a_packet_whatever_the_lengths() {
        let mut rng = Rng::new(7);
        for weights in [&[3, 1][..], &[1, 4], &[100, 7], &[5, 0, 2, 1]] {
            let shares = shares(weights);
            let mut credit = Credit::default();
            let mut sent = vec![0_u64; weights.len()];
            for _ in 0..10_000 {
                let len = 60 + u32::try_from(rng.below(65_000)).expect("small");
                let link = credit.charge(&shares, len).expect("there is weight");
                sent[link] += u64::from(len);
            }
            let total: u64 = sent.iter().sum();
            let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
            for (sent, weight) in sent.iter().zip(weights) {
                let wanted = total * u64::from(*weight) / sum;
                assert!(
                    sent.abs_diff(wanted) < 2 * 65_536,
                    "{weights:?}: {sent} for {wanted}"
                );
            }
        }
    }

    #[test]
    fn credit_of_equal_prices_is_the_sequence() {
        for weights in [[3, 1], [1, 1], [2, 8]] {
            let sequence = Sequence::new(&weights).expect("weight");
            let mut credit = Credit::default();
            let shares = shares(&weights);
            for _ in 0..3 {
                for slot in sequence.slots() {
                    assert_eq!(
                        credit.charge(&shares, 1),
                        Some(usize::from(*slot)),
                        "{weights:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn shares_are_whole_and_nobody_with_weight_is_left_out() {
        let shares = shares(&[u32::MAX, 1, 0]);
        assert_eq!(shares.iter().sum::<u32>(), 1 << SHARE_BITS);
        assert_eq!((shares[1], shares[2]), (1, 0));
        assert_eq!(super::shares(&[0; 3]), [0; MAX_LINKS]);
        assert_eq!(Credit::default().charge(&[0; MAX_LINKS], 9), None);
    }
}
