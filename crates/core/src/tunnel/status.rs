//! What a tunnel tells of itself.

use core::{net::SocketAddr, time::Duration};

use super::Tunnel;
use crate::{
    class::ClassCounts,
    ids::PathId,
    path::{Path, health::State},
    resequencer,
    sched::Scheduler,
    trace::IdleReason,
    units::{Bitrate, Bytes},
    wire::control::LinkRole,
};

/// State of one path.
#[derive(Clone, Debug)]
pub struct PathStatus {
    /// Which.
    pub id: PathId,
    /// The user's name of the link.
    pub name: String,
    /// Health of the sending direction.
    pub state: State,
    /// How it may be used.
    pub role: LinkRole,
    /// Where its datagrams go.
    pub remote: Option<SocketAddr>,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Option<Duration>,
    /// Queue delay in the sending direction.
    pub queue_delay: Duration,
    /// Largest delivery rate of late, in the sending direction.
    pub rate: Option<Bitrate>,
    /// Smoothed loss in the sending direction, in millionths.
    pub loss_ppm: Option<u32>,
    /// Bytes of data datagrams sent.
    pub tx_bytes: u64,
    /// Bytes of data datagrams received.
    pub rx_bytes: u64,
    /// Bytes sent and not yet reported.
    pub in_flight: Bytes,
    /// The weight the policy gives it now, if it has weights of its own (`awi`), else the user's.
    pub weight: u32,
    /// The user's rank.
    pub cost: u8,
    /// Why it has carried no packet of its own for a second; `None` if it has.
    pub idle: Option<IdleReason>,
    /// The longest inner packet that the sending direction takes, in bytes, as far as is known.
    pub mtu: usize,
}

/// What became of datagrams that came with wrong bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParityStatus {
    /// Mended, opened, and not counted as dropped.
    pub mended: u64,
    /// Arrivals of parity, or of what does not open, that were not tried with all there was: it would have cost too much.
    pub cut_short: u64,
}

/// State of one association.
#[derive(Clone, Debug)]
pub struct TunnelStatus {
    /// Whether data can flow.
    pub is_up: bool,
    /// One entry per path, by id.
    pub paths: Vec<PathStatus>,
    /// Packets held for their predecessors.
    pub held: usize,
    /// 95th percentile of the time packets are held.
    pub hold_p95: Duration,
    /// The resequencer's counters.
    pub resequencer: resequencer::Stats,
    /// Packets in the tunnel queue.
    pub queued: usize,
    /// Packets taken from the host, and sent; copies and re-injections count.
    pub packets_in: u64,
    /// See `packets_in`.
    pub packets_out: u64,
    /// Packets taken back from paths that were silent or had become slow.
    pub reinjected: u64,
    /// Repair symbols sent, and received.
    pub symbols: [u64; 2],
    /// Lost packets that were computed from repair symbols.
    pub recovered: u64,
    /// What became of damaged datagrams, if parity is in use.
    pub parity: Option<ParityStatus>,
    /// Classes of traffic by name, with what was sent of each.
    pub classes: Vec<(String, ClassCounts)>,
}

impl Tunnel {
    /// Why a path has carried no packet of its own for a second; `None` if it has.
    fn idle_reason(&self, path: &Path) -> Option<IdleReason> {
        if self.usage.is_used(path.id()) {
            return None;
        }
        let is_up = path.route().is_some() && path.health().state() == State::Up;
        Some(match path.link().role {
            LinkRole::Never => IdleReason::Never,
            LinkRole::Active | LinkRole::Standby if !is_up => match path.health().state() {
                State::Suspect if path.route().is_some() => IdleReason::Suspect,
                State::Down | State::Probing | State::Suspect | State::Up => IdleReason::Down,
            },
            LinkRole::Standby if !self.is_allowed(path) => IdleReason::Standby,
            LinkRole::Active | LinkRole::Standby if self.usage.is_quiet() => IdleReason::NoTraffic,
            LinkRole::Active | LinkRole::Standby => self.exclusion(path),
        })
    }

    /// Why a path that works and may be used is not.
    fn exclusion(&self, path: &Path) -> IdleReason {
        let views = &self.views;
        let Some(view) = views.iter().find(|view| view.id == path.id()) else {
            return IdleReason::NotNeeded;
        };
        let least = views.iter().filter(|view| view.usable);
        let least = least.map(|view| view.cost).min();
        if self.profile.ranks && least.is_some_and(|least| least < view.cost) {
            return IdleReason::Rank;
        }
        let reason = self.scheduler.exclusion(views, view);
        let waits = || (!view.ready).then_some(IdleReason::Paced);
        reason.or_else(waits).unwrap_or(IdleReason::NotNeeded)
    }

    /// A snapshot.
    #[must_use]
    pub fn status(&self) -> TunnelStatus {
        TunnelStatus {
            is_up: self.is_up(),
            paths: self
                .paths()
                .map(|path| PathStatus {
                    id: path.id(),
                    name: path.link().name.clone(),
                    state: path.health().state(),
                    role: path.link().role,
                    remote: path.route().map(|route| route.remote),
                    smoothed_rtt: path.rtt().smoothed(),
                    queue_delay: path.delay().queue_delay(),
                    rate: path.rate().max(),
                    loss_ppm: path.loss().smoothed_ppm(),
                    tx_bytes: path.sender().sent_bytes(),
                    rx_bytes: path.receiver().received_bytes(),
                    in_flight: path.sender().in_flight(),
                    weight: self
                        .scheduler
                        .weight(path.id())
                        .unwrap_or(path.link().weight),
                    cost: path.link().cost,
                    idle: self.idle_reason(path),
                    mtu: self.mtu_of(path),
                })
                .collect(),
            held: self.resequencer.held_len(),
            hold_p95: self.resequencer.hold_p95(),
            resequencer: *self.resequencer.stats(),
            queued: self.queue.len() + self.ahead.len() + self.lanes.len(),
            packets_in: self.counts.packets_in,
            packets_out: self.counts.packets_out,
            reinjected: self.counts.reinjected,
            symbols: [self.counts.symbols_out, self.counts.symbols_in],
            recovered: self.counts.recovered,
            parity: self.parity_status(),
            classes: {
                let counts = self.lanes.classifier.counts();
                counts
                    .map(|(name, counts)| (name.to_owned(), counts))
                    .collect()
            },
        }
    }
}
