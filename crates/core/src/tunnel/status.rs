//! The status of a tunnel.

use core::{net::SocketAddr, time::Duration};

use super::{lengths::Lengths, path_set::PathSet, placement::Placement, sec::ParityStatus};
use crate::{
    class::ClassCounts,
    ids::PathId,
    path::{Path, health::State},
    resequencer,
    trace::IdleReason,
    units::{Bitrate, Bytes},
    wire::control::LinkRole,
};

/// The status of one path.
#[derive(Clone, Debug)]
pub struct PathStatus {
    /// The path's id.
    pub id: PathId,
    /// The user's name of the link.
    pub name: String,
    /// Health of the sending direction.
    pub state: State,
    /// How the link may be used.
    pub role: LinkRole,
    /// The destination of its datagrams.
    pub remote: Option<SocketAddr>,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Option<Duration>,
    /// Queue delay in the sending direction.
    pub queue_delay: Duration,
    /// The largest recent delivery rate in the sending direction.
    pub rate: Option<Bitrate>,
    /// Smoothed loss in the sending direction, in millionths.
    pub loss_ppm: Option<u32>,
    /// Bytes of data datagrams sent.
    pub tx_bytes: u64,
    /// Bytes of data datagrams received.
    pub rx_bytes: u64,
    /// Bytes in flight: sent and not yet reported as received or lost.
    pub in_flight: Bytes,
    /// The weight that the policy gives it now, if the policy has weights of its own (`awi`), else the user's.
    pub weight: u32,
    /// The user's rank.
    pub cost: u8,
    /// Why it has not been the only carrier of any packet for a second; `None` if it has been.
    pub idle: Option<IdleReason>,
    /// The longest inner packet that it can carry in the sending direction, in bytes, as far as is known.
    pub mtu: usize,
}

/// The status of one association.
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
    /// The memory used by packets at this end, as counted against the peer's bound, in bytes.
    pub kept_bytes: u64,
    /// The number of datagrams and frames refused because the peer had caused too much work.
    pub refused: u64,
    /// The work that the peer has caused beside its datagrams' own, in steps of some nanoseconds (`docs/wire.md`, section 10).
    pub steps: u64,
    /// Packets received from the host, and packets sent; copies and retransmissions count.
    pub packets_in: u64,
    /// See `packets_in`.
    pub packets_out: u64,
    /// The number of packets taken back from paths that were silent or had become slow.
    pub reinjected: u64,
    /// Repair symbols sent and received.
    pub symbols: [u64; 2],
    /// Lost packets recovered from repair symbols.
    pub recovered: u64,
    /// The number of damaged datagrams and what became of them, if parity is in use.
    pub parity: Option<ParityStatus>,
    /// The traffic classes by name, with their counters.
    pub classes: Vec<(String, ClassCounts)>,
}

impl PathStatus {
    pub(super) fn of(
        path: &Path,
        paths: &PathSet,
        placement: &Placement,
        lengths: &Lengths,
    ) -> Self {
        Self {
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
            weight: placement.weight(path),
            cost: path.link().cost,
            idle: placement.idle_reason(path, paths),
            mtu: lengths.mtu_of(path),
        }
    }
}
