//! The buffers, counters and limits that an endpoint lends to its tunnels.

use std::collections::VecDeque;

use crate::{
    counters::Drops,
    packet::{PacketBuf, Pool},
    session::limiter::Bucket,
    tunnel::Shared,
};

/// The buffers, counters and limits of all tunnels; see [`Shared`].
#[derive(Debug)]
pub(super) struct Common {
    pub(super) pool: Pool,
    pub(super) delivered: VecDeque<PacketBuf>,
    pub(super) drops: Drops,
    train_starts: Bucket,
}

impl Common {
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            pool,
            delivered: VecDeque::new(),
            drops: Drops::default(),
            train_starts: Bucket::FULL,
        }
    }

    /// Lends them to a tunnel for one call.
    pub(super) fn shared(&mut self) -> Shared<'_> {
        Shared {
            pool: &mut self.pool,
            delivered: &mut self.delivered,
            drops: &mut self.drops,
            train_starts: &mut self.train_starts,
        }
    }
}
