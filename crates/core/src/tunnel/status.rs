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
    /// Name that the user has given the link.
    pub name: String,
    /// Health of the sending direction.
    pub state: State,
    /// How the link may be used.
    pub role: LinkRole,
    /// Destination address of the path's datagrams.
    pub remote: Option<SocketAddr>,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Option<Duration>,
    /// Queue delay in the sending direction.
    pub queue_delay: Duration,
    /// Maximum recent delivery rate in the sending direction.
    pub rate: Option<Bitrate>,
    /// Smoothed loss in the sending direction, in millionths.
    pub loss_ppm: Option<u32>,
    /// Bytes of data datagrams sent.
    pub tx_bytes: u64,
    /// Bytes of data datagrams received.
    pub rx_bytes: u64,
    /// Bytes in flight: sent and not yet reported as received or lost.
    pub in_flight: Bytes,
    /// Weight of the path: the policy's weight if the policy computes weights (`awi`), else the user's.
    pub weight: u32,
    /// Rank that the user has given the link (`cost`).
    pub cost: u8,
    /// Reason why the path has carried no packet of its own in the last second; `None` if it has carried such a packet.
    /// Copies of packets that other paths carry do not count.
    pub idle: Option<IdleReason>,
    /// Length in bytes of the longest inner packet that the path is known to carry in the sending direction.
    pub mtu: usize,
}

/// The status of one association.
#[derive(Clone, Debug)]
pub struct TunnelStatus {
    /// Whether data can flow. At a gateway: whether the client counts as connected; its paths may be suspect for a moment.
    pub is_up: bool,
    /// Status of each path, in the order of their ids.
    pub paths: Vec<PathStatus>,
    /// Number of packets that wait for their predecessors in the resequencer.
    pub held: usize,
    /// 95th percentile of the time that packets wait in the resequencer.
    pub hold_p95: Duration,
    /// The resequencer's counters.
    pub resequencer: resequencer::Stats,
    /// Number of packets in the tunnel queue.
    pub queued: usize,
    /// Memory used by packets at this end, as counted against the peer's bound, in bytes.
    pub kept_bytes: u64,
    /// Number of datagrams and frames refused because the peer had caused too much work.
    pub refused: u64,
    /// Work that the peer has caused beyond the constant cost of each datagram, in steps of a few nanoseconds
    /// (`docs/wire.md`, section 10).
    pub steps: u64,
    /// Number of packets received from the host.
    pub packets_in: u64,
    /// Number of packets sent, including copies and retransmissions.
    pub packets_out: u64,
    /// Number of packets queued to be sent again on another path, because their path had become silent or slow.
    pub reinjected: u64,
    /// Number of repair symbols sent, and number of repair symbols received.
    pub symbols: [u64; 2],
    /// Number of lost packets recovered from repair symbols.
    pub recovered: u64,
    /// Counters of the correction of damaged datagrams, if parity is in use.
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
