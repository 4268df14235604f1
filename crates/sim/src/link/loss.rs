//! Random loss and bit errors.
//!
//! [`Loss::Gilbert`] is the four-parameter Gilbert–Elliott model (Elliott 1963; naming of Hasslinger and Hohlfeld
//! 2008): a Markov chain of a good and a bad state that steps once per packet, then loses the packet with the
//! probability of its current state. Bit errors are independent. The distance to the next bit error is drawn in
//! advance (geometric distribution), so that a packet without an error costs one subtraction. [`BlockErrors`] affect
//! few packets, but many blocks of such a packet, as on a noisy radio link (Becke et al. 2013, section V-D).

use pleach_core::{rng::Rng, units::Bytes};

use crate::link::Corrupt;

/// A loss process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// No packet is lost.
    #[default]
    None,
    /// Each packet is lost with this probability, 0 to 1.
    Bernoulli(f64),
    /// Losses in bursts.
    Gilbert(Gilbert),
}

/// Parameters of the Gilbert–Elliott model; all are probabilities, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gilbert {
    /// Probability of a transition from good to bad, per packet.
    pub p: f64,
    /// Probability of a transition from bad to good, per packet. The mean length of a stay in the bad state is `1 /
    /// r` packets.
    pub r: f64,
    /// Loss probability in the good state.
    pub loss_good: f64,
    /// Loss probability in the bad state.
    pub loss_bad: f64,
}

impl Gilbert {
    /// Returns the long-run share of lost packets.
    #[must_use]
    pub fn mean_loss(&self) -> f64 {
        let bad = if self.p > 0.0 {
            self.p / (self.p + self.r)
        } else {
            0.0
        };
        bad * self.loss_bad + (1.0 - bad) * self.loss_good
    }
}

/// State of a loss process.
#[derive(Clone, Copy, Debug)]
pub struct LossState {
    loss: Loss,
    is_bad: bool,
}

impl LossState {
    /// Creates the process in its good state.
    #[must_use]
    pub fn new(loss: Loss) -> Self {
        Self {
            loss,
            is_bad: false,
        }
    }

    /// Whether the next packet is lost. Draws no random number if no loss is configured.
    pub fn is_lost(&mut self, rng: &mut Rng) -> bool {
        match self.loss {
            Loss::None => false,
            Loss::Bernoulli(probability) => rng.chance(probability),
            Loss::Gilbert(gilbert) => {
                let leave = if self.is_bad { gilbert.r } else { gilbert.p };
                self.is_bad ^= rng.chance(leave);
                let probability = if self.is_bad {
                    gilbert.loss_bad
                } else {
                    gilbert.loss_good
                };
                rng.chance(probability)
            }
        }
    }
}

/// Independent bit errors.
#[derive(Clone, Copy, Debug)]
pub struct BitErrors {
    probability: f64,
    /// Number of correct bits before the next inverted bit.
    good_bits: u64,
}

impl BitErrors {
    /// Creates bit errors with `probability` per bit.
    #[must_use]
    pub fn new(probability: f64, rng: &mut Rng) -> Self {
        let mut this = Self {
            probability,
            good_bits: u64::MAX,
        };
        if probability > 0.0 {
            this.good_bits = this.draw(rng);
        }
        this
    }

    /// Inverts the erroneous bits of `packet`. Returns whether there were any.
    pub fn corrupt(&mut self, rng: &mut Rng, len: Bytes, packet: &mut impl Corrupt) -> bool {
        if self.probability <= 0.0 {
            return false;
        }
        let bits = len.get() * 8;
        let mut at: u64 = 0;
        let mut hit = false;
        while self.good_bits < bits - at {
            at += self.good_bits;
            packet.flip_bit(at);
            hit = true;
            at += 1;
            self.good_bits = self.draw(rng);
        }
        self.good_bits -= bits - at;
        hit
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a ratio of two negative logarithms is not negative; the cast saturates"
    )]
    fn draw(&self, rng: &mut Rng) -> u64 {
        if self.probability >= 1.0 {
            return 0;
        }
        // 1 - U lies in (0, 1], so the logarithm is finite.
        let distance = (1.0 - rng.uniform()).ln() / (-self.probability).ln_1p();
        distance as u64
    }
}

/// Bit errors that are clustered in some packets and blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockErrors {
    /// Probability that a packet is affected.
    pub packet: f64,
    /// Probability that a block of [`BLOCK_BYTES`] bytes of an affected packet has an error.
    pub block: f64,
    /// Probability that an error inverts two bits of the block instead of one.
    pub two: f64,
}

impl BlockErrors {
    /// Inverts bits of a packet of `len` at random, except in the first [`SPARED_BYTES`]. Returns whether any bit was
    /// inverted.
    pub fn corrupt<P: Corrupt>(&self, rng: &mut Rng, len: Bytes, packet: &mut P) -> bool {
        if !rng.chance(self.packet) {
            return false;
        }
        let mut hit = false;
        let mut begin = SPARED_BYTES;
        while begin < len.get() {
            let bits = 8 * BLOCK_BYTES.min(len.get() - begin);
            if rng.chance(self.block) {
                hit = true;
                let first = rng.below(bits);
                packet.flip_bit(8 * begin + first);
                if rng.chance(self.two) {
                    let other = (first + 1 + rng.below(bits - 1)) % bits;
                    packet.flip_bit(8 * begin + other);
                }
            }
            begin += BLOCK_BYTES;
        }
        hit
    }
}

/// Length of a block in bytes.
pub const BLOCK_BYTES: u64 = 15;
/// Length of the IPv4 and UDP headers in bytes, which remain correct: a packet with a damaged header would not be
/// delivered.
pub const SPARED_BYTES: u64 = 28;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    fn gilbert_losses_come_in_the_right_amount_and_bursts() {
        let gilbert = Gilbert {
            p: 0.02,
            r: 0.25,
            loss_good: 0.001,
            loss_bad: 0.8,
        };
        let mut state = LossState::new(Loss::Gilbert(gilbert));
        let mut rng = Rng::new(11);
        let (mut lost, mut bad_pkts, mut bad_runs, mut was_bad) = (0_u64, 0_u64, 0_u64, false);
        let total = 400_000;
        for _ in 0..total {
            lost += u64::from(state.is_lost(&mut rng));
            bad_pkts += u64::from(state.is_bad);
            bad_runs += u64::from(state.is_bad && !was_bad);
            was_bad = state.is_bad;
        }
        let share = lost as f64 / f64::from(total);
        // Ten standard errors of a process whose bad runs are about four packets long.
        assert!((share - gilbert.mean_loss()).abs() < 0.004, "{share}");
        let run = bad_pkts as f64 / bad_runs as f64;
        assert!((run - 4.0).abs() < 0.2, "{run}");
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    fn bit_errors_hit_independent_bits() {
        let mut rng = Rng::new(5);
        let mut errors = BitErrors::new(1e-3, &mut rng);
        let mut flipped = 0_u64;
        let packets = 2_000_u64;
        for _ in 0..packets {
            let mut packet = vec![0_u8; 1000];
            let hit = errors.corrupt(&mut rng, Bytes::new(1000), &mut packet);
            let ones: u64 = packet.iter().map(|b| u64::from(b.count_ones())).sum();
            assert_eq!(hit, ones > 0);
            flipped += ones;
        }
        let rate = flipped as f64 / (packets * 8000) as f64;
        assert!((rate - 1e-3).abs() < 5e-5, "{rate}");
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    fn block_errors_hit_blocks_of_some_packets() {
        let errors = BlockErrors {
            packet: 0.1,
            block: 0.05,
            two: 0.1,
        };
        let mut rng = Rng::new(9);
        let (mut packets, mut ones) = (0_u64, 0_u64);
        for _ in 0..20_000 {
            let mut packet = vec![0_u8; 1_000];
            let hit = errors.corrupt(&mut rng, Bytes::new(1_000), &mut packet);
            let flipped: u64 = packet.iter().map(|b| u64::from(b.count_ones())).sum();
            assert_eq!(hit, flipped > 0);
            assert!(packet[..28].iter().all(|byte| *byte == 0));
            packets += u64::from(hit);
            ones += flipped;
        }
        // With 65 blocks, 96.4 % of the affected packets have an error, with 1.1 bits each.
        assert!(
            (packets as f64 / 20_000.0 - 0.0964).abs() < 0.01,
            "{packets}"
        );
        assert!(
            (ones as f64 / 20_000.0 - 0.1 * 65.0 * 0.05 * 1.1).abs() < 0.04,
            "{ones}"
        );
    }

    #[test]
    fn certain_errors_flip_everything() {
        let mut rng = Rng::new(5);
        let mut packet = vec![0_u8; 3];
        assert!(BitErrors::new(1.0, &mut rng).corrupt(&mut rng, Bytes::new(3), &mut packet));
        assert_eq!(packet, [0xff; 3]);
    }
}
