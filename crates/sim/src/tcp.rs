//! TCP endpoints as state machines, close enough to Linux's that results for a bonded link hold for real hosts.
//!
//! A [`Connection`] is one endpoint. It receives and returns [`Segment`]s; the payload is represented by its length
//! only. The model covers:
//!
//! - handshake, both directions of data, FIN, RST;
//! - delayed acknowledgements, SACK with DSACK, timestamps, window scale, ECN;
//! - loss detection by RACK-TLP or by counting, proportional rate reduction, undo of spurious reductions;
//! - `NewReno`, CUBIC with `HyStart`, Westwood+, and BBR with its pacing and delivery rates;
//! - application-limited and window-limited senders, Nagle, restart after idle, window probes.
//!
//! Not modelled: pacing of controllers other than BBR, segmentation offload and its bursts, receive window autotuning
//! (the window is fixed), compressed SACKs, keep-alive, PAWS (positions are 64-bit inside), simultaneous open, F-RTO's
//! extra new segments, urgent data, path MTU discovery.
//!
//! The model draws no random numbers; the caller chooses the initial sequence numbers. The same inputs give the same
//! segments.

mod congestion;
mod connection;
mod pacer;
mod prr;
mod rack;
mod ranges;
mod rate;
mod receiver;
mod rtt;
mod scoreboard;
mod segment;
mod sender;

use core::time::Duration;

pub(crate) use self::{congestion::cube_root, ranges::RangeSet};
pub use self::{
    congestion::{CongestionControl, UnknownCongestionControl},
    connection::{Connection, State},
    segment::{
        Flags, HEADER_LEN, MAX_SACK_BLOCKS, MAX_WINDOW_SCALE, ParseError, SackBlocks, Segment,
        Timestamps,
    },
};

/// Method of loss detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// A segment is lost if three segments above it are selectively acknowledged (RFC 6675), or after three duplicate
    /// acknowledgements (RFC 6582).
    DupAck,
    /// A segment is lost if a segment more than three above it is acknowledged (forward acknowledgement), as in Linux
    /// until 2.6.23.
    Forward,
    /// Time-based detection with a probe for tail losses: RACK-TLP (RFC 8985). Needs SACK. Without SACK it behaves like
    /// [`DupAck`](Self::DupAck).
    #[default]
    Rack,
}

/// Parameters of one endpoint. The defaults are Linux's.
#[derive(Clone, Copy, Debug)]
pub struct TcpConfig {
    /// Congestion control.
    pub cc: CongestionControl,
    /// Method of loss detection.
    pub recovery: Recovery,
    /// Maximum segment size that this endpoint announces, in bytes: MTU minus IP and TCP header without options.
    /// Timestamps take 12 bytes of it in each segment. Values are clamped to the range from 88 to 65 495.
    pub mss: usize,
    /// Receive window in bytes: data accepted beyond the acknowledged data. It does not change. At least two segments,
    /// at most 1 GiB.
    pub receive_window: u64,
    /// Initial congestion window in segments (RFC 6928).
    pub initial_window: u32,
    /// Whether acknowledgements are delayed until a second segment arrives.
    pub delayed_ack: bool,
    /// Whether SACK is offered.
    pub sack: bool,
    /// Whether timestamps are offered.
    pub timestamps: bool,
    /// Whether ECN is offered (RFC 3168).
    pub ecn: bool,
    /// Whether Nagle's algorithm is on: a second small segment waits for the acknowledgement of the first.
    pub nagle: bool,
    /// Highest reordering in segments that the sender learns to tolerate: Linux's `tcp_max_reordering`. Values below 3
    /// count as 3, which turns learning off.
    pub max_reordering: u32,
    /// Number of bytes to send from the start. `None`: unlimited. [`Connection::write`] adds bytes,
    /// [`Connection::close`] ends the stream.
    pub limit: Option<u64>,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            cc: CongestionControl::default(),
            recovery: Recovery::default(),
            mss: 1_460,
            receive_window: 6 << 20,
            initial_window: 10,
            delayed_ack: true,
            sack: true,
            timestamps: true,
            ecn: false,
            nagle: true,
            max_reordering: 300,
            limit: Some(0),
        }
    }
}

/// State and counters of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpStats {
    /// Congestion window in segments.
    pub cwnd_pkts: u32,
    /// Slow-start threshold in segments. `None` before the first reduction.
    pub ssthresh_pkts: Option<u32>,
    /// Segments estimated to be in the network.
    pub in_flight_pkts: u32,
    /// Smoothed RTT.
    pub smoothed_rtt: Option<Duration>,
    /// Smallest RTT of the last minutes.
    pub min_rtt: Option<Duration>,
    /// Retransmission timeout with back-off.
    pub rto: Duration,
    /// Payload bytes sent and cumulatively acknowledged.
    pub acked_bytes: u64,
    /// Payload bytes received in order.
    pub received_bytes: u64,
    /// Segments known to be delivered.
    pub delivered_pkts: u64,
    /// Segments considered lost.
    pub lost_pkts: u64,
    /// Retransmitted segments, including probes and the handshake.
    pub retransmits: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
    /// Recoveries entered without a timeout.
    pub recoveries: u64,
    /// Reductions of the window that were undone.
    pub undos: u64,
    /// DSACKs received.
    pub dsacks: u64,
    /// Tail loss probes sent.
    pub loss_probes: u64,
    /// Reordering tolerated, in segments.
    pub reordering_pkts: u32,
    /// Segments ignored because they were malformed, outside the window or out of place.
    pub ignored_segments: u64,
}

#[cfg(test)]
mod tests;
