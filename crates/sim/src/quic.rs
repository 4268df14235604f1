//! A QUIC connection that carries one stream one way: what matters of it to a bonded link.
//!
//! A [`Connection`] is one end; datagrams go in and come out. Modelled after the stack the lab runs, quinn 0.11 with its
//! defaults: loss detection of RFC 9002 (three packets, or 9/8 of a round trip, that *never* adapt to reordering; probe
//! timeouts; persistent congestion), CUBIC in bytes without `HyStart`, pacing by a token bucket, acknowledgements of every
//! second packet and at once when out of order, a stream window of 1.25 MB, packets 129 behind the newest dropped.
//!
//! Not modelled: packet contents and keys (the handshake is two round trips of full datagrams until the first byte
//! arrives), MTU discovery (its result holds from the start), migration, the idle timeout, segmentation offload, ECN,
//! pruning of acknowledged acknowledgements (with losses they are a few hundred bytes longer). Credit for the stream
//! travels in every acknowledgement.

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

/// Bytes beyond those read that the receiver takes: 100 ms at 100 Mbit/s.
const STREAM_WINDOW: u64 = 1_250_000;

/// What the acknowledgement of a single packet waits at most, RFC 9000 section 18.2.
const MAX_ACK_DELAY: Duration = Duration::from_millis(25);

/// Round trip assumed before there is one, RFC 9002 section 6.2.2.
const INITIAL_RTT: Duration = Duration::from_millis(333);

/// Smallest datagram QUIC works with, and first of the search for a longer one.
const MIN_PAYLOAD: u16 = 1_200;

/// Longest datagram looked for: 1500 less the headers of IPv6 and UDP.
const MAX_PAYLOAD: u16 = 1_452;

/// The search ends at steps below this.
const PAYLOAD_STEP: u16 = 20;

/// Counters of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuicStats {
    /// Bytes that may be in flight.
    pub(crate) cwnd_bytes: u64,
    /// Packets taken for lost; what they held is sent again.
    pub(crate) lost_pkts: u64,
    /// Reductions of the window.
    pub(crate) congestion_events: u64,
    /// Probe timeouts.
    pub(crate) timeouts: u64,
    /// Packets that came too late to be told from copies.
    pub(crate) dropped_pkts: u64,
}

#[derive(Clone, Debug)]
enum Half {
    Receiver(Receiver),
    Sender(Box<Sender>),
}

/// A packet of the handshake that is sent until it is answered.
#[derive(Clone, Copy, Debug)]
struct Asking {
    next_at: Instant,
    interval: Duration,
    sent_at: Option<Instant>,
}

/// One end of a connection; one end sends the stream, the other receives it.
///
/// After any `handle_*`, drain [`poll_transmit`](Self::poll_transmit), then wait until
/// [`poll_timeout`](Self::poll_timeout).
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    half: Half,
    /// The client's hello, then, if it receives, its request.
    asking: Option<Asking>,
    is_client: bool,
    is_established: bool,
    /// When the server answered the only hello; `None` if there were more.
    answered_at: Option<Instant>,
    is_answer_due: bool,
}

impl Connection {
    /// The end that connects at `now`. `max_payload`: of a UDP datagram on the path.
    pub(crate) fn connect(now: Instant, is_sender: bool, max_payload: u16) -> Self {
        Self {
            asking: Some(Asking::new(now, INITIAL_RTT * 3)),
            is_client: true,
            ..Self::listen(is_sender, max_payload)
        }
    }

    /// The end that waits.
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

    /// Takes a datagram's payload; what is no packet is ignored.
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

    /// Lets timers that are due at `now` act.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        match &mut self.half {
            Half::Receiver(receiver) => receiver.handle_timeout(now),
            Half::Sender(sender) => sender.handle_timeout(now),
        }
    }

    /// The next packet to send at `now`; call until `None`.
    pub(crate) fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        if core::mem::take(&mut self.is_answer_due) {
            // The answer to a second hello does not say which one was heard.
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

    /// When to call [`handle_timeout`](Self::handle_timeout) and [`poll_transmit`](Self::poll_transmit) next.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let asking = self.asking.map(|asking| asking.next_at);
        let half = match &self.half {
            Half::Receiver(receiver) => receiver.poll_timeout(),
            Half::Sender(sender) => sender.poll_timeout(),
        };
        crate::link::earliest(asking, half)
    }

    /// Bytes of the stream received in order.
    pub(crate) fn received(&self) -> u64 {
        match &self.half {
            Half::Receiver(receiver) => receiver.in_order_bytes(),
            Half::Sender(_) => 0,
        }
    }

    /// The sender's round trip.
    pub(crate) fn smoothed_rtt(&self) -> Option<Duration> {
        match &self.half {
            Half::Receiver(_) => None,
            Half::Sender(sender) => sender.smoothed_rtt(),
        }
    }

    /// Counters.
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

/// The payload that quinn's search finds on a path that carries `limit`: halves the rest until a step is short.
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
