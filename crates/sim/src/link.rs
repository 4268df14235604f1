//! One direction of one link: the emulated path of a packet between two hosts.
//!
//! A packet passes these stages, in this order. A stage that is not configured has no cost.
//!
//! 1. **MTU**: a longer packet is dropped without notification.
//! 2. **Bottleneck** ([`queue::Bottleneck`]): a drop-tail queue in bytes, then serialisation at a constant rate, a
//!    recorded sequence of delivery opportunities, or a recorded rate. It may be followed by a second bottleneck that
//!    several links share ([`bundle::Bundle`]).
//! 3. **State**: a link that is a black hole drops every packet that leaves the bottleneck.
//! 4. **Loss** ([`loss::Loss`]) and **bit errors** ([`loss::BitErrors`]).
//! 5. **Line** ([`jitter::Line`]): propagation delay and jitter, in order or with overtaking.
//!
//! All times are computed on the virtual clock of the model. A caller that polls late gets its packets late, but later
//! packets do not shift. The same seed, inputs and input times give the same outputs.
//!
//! Bounds: the queue stores up to its configured number of bytes and [`queue::MAX_WAITING`] packets; the line stores up
//! to [`jitter::MAX_IN_FLIGHT`] packets. Further packets are dropped and counted.

pub mod bundle;
pub mod histogram;
pub mod jitter;
pub mod loss;
pub mod queue;
pub mod recorded;
pub mod trace;

use core::time::Duration;

use pleach_core::{rng::Rng, time::Instant, units::Bytes};

use crate::link::{
    histogram::Histogram,
    jitter::Line,
    loss::{BitErrors, BlockErrors, Loss, LossState},
    queue::Bottleneck,
    trace::Rate,
};

/// A packet whose bits can be flipped.
pub trait Corrupt {
    /// Inverts bit `bit`, counted from the most significant bit of the first byte. Does nothing if `bit` is out of
    /// range.
    fn flip_bit(&mut self, bit: u64);
}

impl Corrupt for Vec<u8> {
    fn flip_bit(&mut self, bit: u64) {
        if let Some(byte) = usize::try_from(bit / 8).ok().and_then(|i| self.get_mut(i)) {
            *byte ^= 0x80 >> (bit % 8);
        }
    }
}

/// Whether a direction of a link passes packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// Packets pass.
    #[default]
    Up,
    /// The link is disconnected: packets that are queued, in flight or sent now are lost. The ends can detect this.
    Down,
    /// Packets are accepted, serialised and lost. The ends cannot detect this.
    Blackhole,
}

/// Parameters of one direction of a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Serialisation rate.
    pub rate: Rate,
    /// Limit of the queue, not counting the packet in service.
    pub queue: Bytes,
    /// Propagation delay.
    pub delay: Duration,
    /// Upper end of a uniform extra delay drawn for each packet.
    pub jitter: Duration,
    /// Whether jitter lets packets overtake each other. Otherwise the order is preserved.
    pub reorder: bool,
    /// Random loss.
    pub loss: Loss,
    /// Probability that a bit arrives inverted, 0 to 1.
    pub bit_errors: f64,
    /// Bit errors that are clustered in some packets and blocks.
    pub block_errors: Option<BlockErrors>,
    /// Length of the longest packet that passes; longer packets are dropped. `None`: no limit.
    pub mtu: Option<Bytes>,
    /// Whether packets pass.
    pub state: LinkState,
}

impl Default for LinkConfig {
    /// Returns a perfect link without rate limit, delay or loss. If a rate is set, the queue has 128 KiB.
    fn default() -> Self {
        Self {
            rate: Rate::Unlimited,
            queue: Bytes::new(128 << 10),
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            reorder: false,
            loss: Loss::None,
            bit_errors: 0.0,
            block_errors: None,
            mtu: None,
            state: LinkState::Up,
        }
    }
}

/// A change of some parameters; `None` leaves a parameter as it is.
#[derive(Clone, Debug, Default)]
pub struct LinkChange {
    /// New serialisation rate. A trace begins at the position that it would have reached if it had been used since
    /// the start.
    pub rate: Option<Rate>,
    /// New limit of the queue. Packets already queued stay.
    pub queue: Option<Bytes>,
    /// New propagation delay, for packets that enter the line after the change.
    pub delay: Option<Duration>,
    /// New jitter.
    pub jitter: Option<Duration>,
    /// Whether packets may overtake each other after the change.
    pub reorder: Option<bool>,
    /// New loss process, starting in its good state.
    pub loss: Option<Loss>,
    /// New bit error probability.
    pub bit_errors: Option<f64>,
    /// New clustered bit errors.
    pub block_errors: Option<BlockErrors>,
    /// New length of the longest packet that passes.
    pub mtu: Option<Bytes>,
    /// New state.
    pub state: Option<LinkState>,
}

impl LinkChange {
    /// Writes the changed parameters into `config`.
    pub fn apply_to(&self, config: &mut LinkConfig) {
        fn set<T: Clone>(target: &mut T, value: Option<&T>) {
            if let Some(value) = value {
                target.clone_from(value);
            }
        }
        set(&mut config.rate, self.rate.as_ref());
        set(&mut config.queue, self.queue.as_ref());
        set(&mut config.delay, self.delay.as_ref());
        set(&mut config.jitter, self.jitter.as_ref());
        set(&mut config.reorder, self.reorder.as_ref());
        set(&mut config.loss, self.loss.as_ref());
        set(&mut config.bit_errors, self.bit_errors.as_ref());
        if self.block_errors.is_some() {
            config.block_errors = self.block_errors;
        }
        if self.mtu.is_some() {
            config.mtu = self.mtu;
        }
        set(&mut config.state, self.state.as_ref());
    }
}

/// Counters of one direction since its start. Every packet passed to the link is eventually delivered, counted as
/// dropped, in the queue, or on the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets passed to the link.
    pub offered_pkts: u64,
    /// Bytes passed to the link.
    pub offered_bytes: u64,
    /// Packets delivered at the other end.
    pub tx_pkts: u64,
    /// Bytes delivered at the other end.
    pub tx_bytes: u64,
    /// Packets dropped because a queue or the line was full.
    pub queue_drops: u64,
    /// Packets lost by the loss process.
    pub loss_drops: u64,
    /// Packets lost because the link was down or a black hole, or because the packets were longer than the link's MTU.
    pub state_drops: u64,
    /// Packets delivered with at least one inverted bit.
    pub corrupted_pkts: u64,
}

impl LinkStats {
    /// Returns the number of packets that were lost or dropped for any reason.
    #[must_use]
    pub fn lost_pkts(&self) -> u64 {
        self.queue_drops + self.loss_drops + self.state_drops
    }
}

/// One direction of one link. See the module's documentation for the stages.
///
/// After [`handle_packet`](Self::handle_packet) or [`apply`](Self::apply), drain
/// [`poll_output`](Self::poll_output), then wait until [`poll_timeout`](Self::poll_timeout).
#[derive(Clone, Debug)]
pub struct Link<P> {
    config: LinkConfig,
    bottleneck: Bottleneck<P>,
    loss: LossState,
    bit_errors: BitErrors,
    line: Line<P>,
    rng: Rng,
    stats: LinkStats,
    queue_delay: Histogram,
    longest_wait: Duration,
}

impl<P: Corrupt> Link<P> {
    /// Creates a link whose traces start at `now`. `seed` determines losses, bit errors and jitter.
    #[must_use]
    pub fn new(config: LinkConfig, seed: u64, now: Instant) -> Self {
        let mut rng = Rng::new(seed);
        let bit_errors = BitErrors::new(config.bit_errors, &mut rng);
        Self {
            bottleneck: Bottleneck::new(config.rate.clone(), config.queue, now),
            loss: LossState::new(config.loss),
            bit_errors,
            line: Line::new(config.delay, config.jitter, config.reorder),
            rng,
            stats: LinkStats::default(),
            queue_delay: Histogram::default(),
            longest_wait: Duration::ZERO,
            config,
        }
    }

    /// Restarts traces, counters and the delay histogram at `now`. Packets in flight remain.
    pub fn restart(&mut self, now: Instant) {
        self.advance(now);
        self.bottleneck.change(now, self.config.rate.clone(), now);
        self.stats = LinkStats::default();
        self.queue_delay = Histogram::default();
    }

    /// Accepts a packet of `len_bytes` that the sender passes at `now`.
    pub fn handle_packet(&mut self, now: Instant, len_bytes: usize, packet: P) {
        self.advance(now);
        self.enter(now, Bytes::of_len(len_bytes), packet);
    }

    /// Returns the next packet that has arrived at the other end by `now`.
    pub fn poll_output(&mut self, now: Instant) -> Option<P> {
        self.advance(now);
        self.leave(now).map(|(_, packet)| packet)
    }

    /// Returns the time of the next event. `None` while the link is idle.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        earliest(self.bottleneck.next_departure(), self.line.next_arrival())
    }

    /// Changes parameters at `now`.
    pub fn apply(&mut self, now: Instant, change: &LinkChange) {
        self.advance(now);
        change.apply_to(&mut self.config);
        if let Some(rate) = &change.rate {
            let epoch = self.bottleneck.epoch();
            self.bottleneck.change(now, rate.clone(), epoch);
        }
        self.bottleneck.set_limit(self.config.queue);
        self.line
            .set(self.config.delay, self.config.jitter, self.config.reorder);
        if let Some(loss) = change.loss {
            self.loss = LossState::new(loss);
        }
        if let Some(probability) = change.bit_errors {
            self.bit_errors = BitErrors::new(probability, &mut self.rng);
        }
        if change.state == Some(LinkState::Down) {
            let lost = self.bottleneck.clear() + self.line.clear(now);
            self.stats.state_drops += u64::try_from(lost).unwrap_or(u64::MAX);
        }
    }

    /// Returns the current parameters.
    #[must_use]
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> &LinkStats {
        &self.stats
    }

    /// Returns the number of bytes in the link's own queue, without the packet in service.
    #[must_use]
    pub fn queue_len(&self) -> Bytes {
        self.bottleneck.waiting()
    }

    /// Returns the number of bytes that the link's own rate could have carried from `from` to `to` with the current
    /// parameters. `None` if the rate is not limited. O(samples in between).
    #[must_use]
    pub fn capacity_between(&self, from: Instant, to: Instant) -> Option<Bytes> {
        if self.config.state != LinkState::Up {
            return Some(Bytes::ZERO);
        }
        self.bottleneck.capacity_between(from, to)
    }

    /// Returns the histogram of the time that packets spent in the queue and in serialisation.
    #[must_use]
    pub fn queue_delay(&self) -> &Histogram {
        &self.queue_delay
    }

    /// Returns the longest time in queue and serialisation since the last call. Zero if no packet left.
    pub fn take_longest_wait(&mut self) -> Duration {
        core::mem::take(&mut self.longest_wait)
    }

    fn advance(&mut self, now: Instant) {
        while let Some(departed) = self.bottleneck.poll(now) {
            self.record_sojourn(departed.at.since(departed.arrived_at));
            self.travel(departed.at, departed.len, departed.item);
        }
    }

    pub(crate) fn enter(&mut self, now: Instant, len: Bytes, packet: P) {
        self.count_offered(len);
        let is_too_long = self.config.mtu.is_some_and(|mtu| len > mtu);
        if self.config.state == LinkState::Down || is_too_long {
            self.stats.state_drops += 1;
        } else if matches!(self.config.rate, Rate::Unlimited) && self.bottleneck.is_empty() {
            self.travel(now, len, packet);
        } else if self.bottleneck.push(now, len, packet).is_err() {
            self.stats.queue_drops += 1;
        }
    }

    /// Passes a packet to loss and line. `at` is the time at which its last bit left the bottleneck.
    pub(crate) fn travel(&mut self, at: Instant, len: Bytes, mut packet: P) {
        if self.config.state != LinkState::Up {
            self.stats.state_drops += 1;
            return;
        }
        if self.loss.is_lost(&mut self.rng) {
            self.stats.loss_drops += 1;
            return;
        }
        let blocks = self.config.block_errors;
        let is_hit = blocks.is_some_and(|e| e.corrupt(&mut self.rng, len, &mut packet));
        if self.bit_errors.corrupt(&mut self.rng, len, &mut packet) || is_hit {
            self.stats.corrupted_pkts += 1;
        }
        if !self.line.push(at, len, packet, &mut self.rng) {
            self.stats.queue_drops += 1;
        }
    }

    pub(crate) fn leave(&mut self, now: Instant) -> Option<(Instant, P)> {
        let (at, len, packet) = self.line.poll(now)?;
        self.stats.tx_pkts += 1;
        self.stats.tx_bytes += len.get();
        Some((at, packet))
    }

    pub(crate) fn record_sojourn(&mut self, sojourn: Duration) {
        self.queue_delay.record(sojourn);
        self.longest_wait = self.longest_wait.max(sojourn);
    }

    pub(crate) fn count_offered(&mut self, len: Bytes) {
        self.stats.offered_pkts += 1;
        self.stats.offered_bytes += len.get();
    }

    pub(crate) fn count_queue_drop(&mut self) {
        self.stats.queue_drops += 1;
    }

    pub(crate) fn bottleneck_mut(&mut self) -> &mut Bottleneck<P> {
        &mut self.bottleneck
    }

    pub(crate) fn bottleneck(&self) -> &Bottleneck<P> {
        &self.bottleneck
    }

    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        self.line.next_arrival()
    }
}

/// Returns the earlier of two optional instants.
pub(crate) fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests;
