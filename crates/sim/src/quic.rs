//! A QUIC connection that carries one stream in one direction, limited to the properties that matter for a bonded link.
//!
//! A [`Connection`] is one endpoint; its input and output are datagrams. It is modelled after the stack that the lab
//! uses, quinn 0.11 with its defaults:
//!
//! - loss detection of RFC 9002: a packet threshold of three and a time threshold of 9/8 of an RTT, which *never* adapt
//!   to reordering; probe timeouts; persistent congestion;
//! - CUBIC in bytes without `HyStart`, and pacing by a token bucket;
//! - acknowledgement of every second packet, and at once if a packet is out of order;
//! - a stream window of 1.25 MB;
//! - packets that are 129 or more behind the newest are dropped.
//!
//! Not modelled: packet contents and keys (the handshake is two RTTs of full datagrams until the first byte arrives),
//! MTU discovery (its result applies from the start), migration, the idle timeout, segmentation offload, ECN, pruning
//! of acknowledged acknowledgements (with losses they are a few hundred bytes longer). Every acknowledgement carries
//! the flow control limit of the stream.

mod cubic;
mod pacer;
mod receiver;
mod rtt;
mod sender;
mod wire;

use core::time::Duration;

use pleach_core::time::Instant;

use self::{receiver::Receiver, rtt::RttEstimator, sender::Sender};

pub(crate) use self::wire::Packet;

/// Receive window in bytes beyond the data read: 100 ms at 100 Mbit/s.
const STREAM_WINDOW: u64 = 1_250_000;

/// Highest delay of the acknowledgement of a single packet, RFC 9000 section 18.2.
const MAX_ACK_DELAY: Duration = Duration::from_millis(25);

/// RTT assumed before the first sample, RFC 9002 section 6.2.2.
const INITIAL_RTT: Duration = Duration::from_millis(333);

/// UDP payload in bytes of the smallest datagram that QUIC permits, and of the first datagram in MTU discovery.
const MIN_PAYLOAD: u16 = 1_200;

/// UDP payload in bytes of the longest datagram that MTU discovery tries: 1500 minus the headers of IPv6 and UDP.
const MAX_PAYLOAD: u16 = 1_452;

/// Step in bytes below which MTU discovery ends.
const PAYLOAD_STEP: u16 = 20;

/// Counters of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuicStats {
    /// Congestion window in bytes.
    pub(crate) cwnd_bytes: u64,
    /// Packets considered lost. Their data is retransmitted.
    pub(crate) lost_pkts: u64,
    /// Reductions of the window.
    pub(crate) congestion_events: u64,
    /// Probe timeouts.
    pub(crate) timeouts: u64,
    /// Packets that arrived too late to be distinguished from duplicates.
    pub(crate) dropped_pkts: u64,
}

#[derive(Clone, Debug)]
enum Half {
    Receiver(Receiver),
    Sender(Box<Sender>),
}

/// A packet of the handshake that is repeated until it is answered.
#[derive(Clone, Copy, Debug)]
struct Asking {
    next_at: Instant,
    interval: Duration,
    sent_at: Option<Instant>,
}

/// One endpoint of a connection. One endpoint sends the stream, the other receives it.
///
/// After any `handle_*`, drain [`poll_transmit`](Self::poll_transmit), then wait until
/// [`poll_timeout`](Self::poll_timeout).
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    half: Half,
    /// The packet that the client repeats: the hello, then the request if the client receives the stream.
    asking: Option<Asking>,
    is_client: bool,
    is_established: bool,
    /// Time at which the server answered the only hello. `None` if there were several.
    answered_at: Option<Instant>,
    is_answer_due: bool,
}

impl Connection {
    /// Creates the endpoint that connects at `now`. `max_payload`: longest UDP payload on the path.
    pub(crate) fn connect(now: Instant, is_sender: bool, max_payload: u16) -> Self {
        Self {
            asking: Some(Asking::new(now, INITIAL_RTT * 3)),
            is_client: true,
            ..Self::listen(is_sender, max_payload)
        }
    }

    /// Creates the endpoint that waits for a connection.
    pub(crate) fn listen(is_sender: bool, max_payload: u16) -> Self {
        Self {
            half: if is_sender {
                Half::Sender(Box::new(Sender::new(found_payload(max_payload))))
            } else {
                Half::Receiver(Receiver::default())
            },
            asking: None,
            is_client: false,
            is_established: false,
            answered_at: None,
            is_answer_due: false,
        }
    }

    /// Processes the payload of a datagram. Payloads that are not packets are ignored.
    pub(crate) fn handle_datagram(&mut self, now: Instant, payload: &[u8]) {
        let Some(packet) = Packet::parse(payload) else {
            return;
        };
        match packet {
            Packet::Hello if !self.is_client => {
                self.is_answer_due = true;
            }
            Packet::HelloAck if self.is_client && !self.is_established => {
                let sent_at = self.asking.take().and_then(|asking| asking.sent_at);
                let rtt = sent_at.map(|at| now.since(at));
                self.establish(now, rtt);
                if let Half::Receiver(_) = self.half {
                    let rtt = rtt.unwrap_or(INITIAL_RTT);
                    self.asking = Some(Asking::new(now, rtt * 3 + MAX_ACK_DELAY));
                }
            }
            Packet::Request if !self.is_client && !self.is_established => {
                self.establish(now, self.answered_at.map(|at| now.since(at)));
            }
            Packet::Data {
                number,
                offset,
                len,
            } => {
                if let Half::Receiver(receiver) = &mut self.half {
                    self.asking = None;
                    receiver.on_packet(now, number, offset..offset + len);
                }
            }
            Packet::Ack(ack) => {
                if let Half::Sender(sender) = &mut self.half {
                    sender.on_ack(now, &ack);
                }
            }
            Packet::Hello | Packet::HelloAck | Packet::Request => {}
        }
    }

    /// Runs the timers that are due at `now`.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        match &mut self.half {
            Half::Receiver(receiver) => receiver.handle_timeout(now),
            Half::Sender(sender) => sender.handle_timeout(now),
        }
    }

    /// Returns the next packet to send at `now`. Callers repeat the call until the result is `None`.
    pub(crate) fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        if core::mem::take(&mut self.is_answer_due) {
            // After a second answer, it is unknown to which answer the next packet responds, so no RTT is measured.
            self.answered_at = (self.answered_at.is_none()).then_some(now);
            return Some(Packet::HelloAck);
        }
        if let Some(asking) = &mut self.asking
            && asking.next_at <= now
        {
            asking.sent_at = asking.sent_at.is_none().then_some(now);
            asking.next_at = now + asking.interval;
            asking.interval = asking.interval.saturating_mul(2);
            return Some(if self.is_established {
                Packet::Request
            } else {
                Packet::Hello
            });
        }
        match &mut self.half {
            Half::Receiver(receiver) => receiver.poll_ack(now).map(Packet::Ack),
            Half::Sender(sender) => sender.poll_transmit(now),
        }
    }

    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout) and
    /// [`poll_transmit`](Self::poll_transmit) next.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let asking = self.asking.map(|asking| asking.next_at);
        let half = match &self.half {
            Half::Receiver(receiver) => receiver.poll_timeout(),
            Half::Sender(sender) => sender.poll_timeout(),
        };
        crate::link::earliest(asking, half)
    }

    /// Returns the number of stream bytes received in order.
    pub(crate) fn received(&self) -> u64 {
        match &self.half {
            Half::Receiver(receiver) => receiver.in_order_bytes(),
            Half::Sender(_) => 0,
        }
    }

    /// Returns the smoothed RTT of the sender.
    pub(crate) fn smoothed_rtt(&self) -> Option<Duration> {
        match &self.half {
            Half::Receiver(_) => None,
            Half::Sender(sender) => sender.smoothed_rtt(),
        }
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> QuicStats {
        match &self.half {
            Half::Receiver(receiver) => QuicStats {
                dropped_pkts: receiver.dropped_pkts(),
                ..QuicStats::default()
            },
            Half::Sender(sender) => sender.stats(),
        }
    }

    fn establish(&mut self, now: Instant, rtt: Option<Duration>) {
        self.is_established = true;
        if let Half::Sender(sender) = &mut self.half {
            let mut estimator = RttEstimator::default();
            if let Some(rtt) = rtt {
                estimator.on_sample(rtt, Duration::ZERO);
            }
            sender.start(now, estimator);
        }
    }
}

impl Asking {
    const fn new(next_at: Instant, interval: Duration) -> Self {
        Self {
            next_at,
            interval,
            sent_at: None,
        }
    }
}

/// Returns the payload that quinn's MTU discovery finds on a path that carries `limit`: a binary search that ends
/// when the step is below [`PAYLOAD_STEP`].
fn found_payload(limit: u16) -> u16 {
    let (mut low, mut high) = (MIN_PAYLOAD, MAX_PAYLOAD);
    let mut last = low;
    loop {
        let mut probe = u16::midpoint(low, high);
        if probe.abs_diff(last) < PAYLOAD_STEP {
            if high.saturating_sub(last) < PAYLOAD_STEP {
                return low;
            }
            probe = high;
        }
        last = probe;
        if probe <= limit {
            low = probe;
        } else {
            high = probe - 1;
        }
    }
}

#[cfg(test)]
mod tests;
