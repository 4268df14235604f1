//! What a tunnel tells of itself.

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
    /// Memory that packets on their way take at this end, as it is counted for the peer's bound, in bytes.
    pub kept_bytes: u64,
    /// Datagrams and frames refused because the peer had made this end work too much.
    pub refused: u64,
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
