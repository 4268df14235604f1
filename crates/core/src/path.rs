//! What is known of one path, and how it is paced.
//!
//! [`Path`] joins the estimators; each has a file of its own.

use core::{net::IpAddr, time::Duration};
use std::collections::VecDeque;

use self::rtt::INITIAL_RTT;
use crate::{
    ids::PathId,
    role::Role,
    sched::Pacing,
    time::Instant,
    transmit::Route,
    units::{Bitrate, Bytes},
};

pub mod delay;
pub mod health;
pub mod holes;
pub mod link;
pub mod loss;
pub mod memory;
pub mod mtu;
pub mod on_wire;
pub mod pacer;
pub mod rate;
pub mod rate_control;
pub mod receiver;
pub mod report_age;
pub mod rtt;
pub mod sender;
pub mod tail;
pub mod train;
pub(crate) mod window;

/// One path: a link of the client, and the way over it to the other end.
#[derive(Debug)]
pub struct Path {
    /// Which.
    pub id: PathId,
    /// The user's settings.
    pub link: link::Link,
    /// What the other end knows of the settings.
    pub announced: Announced,
    /// Where its datagrams go; `None` while the link has no way out.
    pub route: Option<Route>,
    /// The local socket is full.
    pub is_blocked: bool,
    /// Whether it works.
    pub health: health::Health,
    /// Round-trip time, from probes that go and return on it.
    pub rtt: rtt::Rtt,
    /// One-way delay in the sending direction, from reports.
    pub delay: delay::OneWayDelay,
    /// What was sent and has come, as lines count it.
    pub on_wire: on_wire::OnWire,
    /// Delivery rate in the sending direction.
    pub rate: rate::DeliveryRate,
    /// Loss in the sending direction.
    pub loss: loss::Loss,
    /// How fast to send, from the two above.
    pub rate_control: rate_control::RateControl,
    /// A first guess at its rate: asked for, and answered.
    pub train_sender: train::TrainSender,
    /// See [`train_sender`](Self::train_sender).
    pub train_receiver: train::TrainReceiver,
    /// When to say that nothing follows the last data datagram.
    pub tail: tail::Tail,
    /// Whether no other is quicker.
    pub is_quickest: bool,
    /// When a packet last waited for the pacer.
    pub limited_at: Option<Instant>,
    /// When a packet may go.
    pub pacer: pacer::Pacer,
    /// How old packets usually are when their arrival is reported.
    pub report_age: report_age::ReportAge,
    /// What is under way.
    pub sender: sender::Sender,
    /// What has arrived.
    pub receiver: receiver::Receiver,
    /// Probes under way and answers owed.
    pub probes: Probes,
    /// The health the host was last told of.
    pub told: health::State,
    /// Highest data and control counters received: the newest datagram's address wins.
    pub newest: [Option<u64>; 2],
    /// Where its datagrams went when the host was last told of the path, and when that was.
    pub found: Option<(IpAddr, Instant)>,
    /// What of its losses is remembered.
    pub remembered_loss_ppm: u32,
    /// The longest datagram it takes, and what the host was last told of that.
    pub mtu: mtu::PathMtu,
    /// See [`mtu`](Self::mtu).
    pub told_mtu: Option<usize>,
}

/// What the other end knows of a link's settings.
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    /// Rises with every change.
    pub version: u32,
    /// When to tell the other end (again); `None` once it has acknowledged.
    pub due: Option<Instant>,
}

/// Probes under way and answers owed. Bounded: the oldest gives way.
#[derive(Debug, Default)]
pub struct Probes {
    next_token: u32,
    /// Tokens with their times, oldest first; at most [`MAX_PROBES`].
    sent: VecDeque<(u32, Instant)>,
    /// Tokens and sizes of pings to answer.
    owed: Vec<(u32, u16)>,
    /// Version of the link description to acknowledge.
    pub ack_link: Option<u32>,
}

impl Path {
    /// A path nothing is known of.
    #[must_use]
    pub fn new(now: Instant, id: PathId, link: link::Link) -> Self {
        Self {
            id,
            link,
            announced: Announced {
                version: 1,
                due: Some(now),
            },
            route: None,
            is_blocked: false,
            health: health::Health::new(now),
            rtt: rtt::Rtt::new(),
            delay: delay::OneWayDelay::new(),
            on_wire: on_wire::OnWire::default(),
            rate: rate::DeliveryRate::new(),
            loss: loss::Loss::new(),
            rate_control: rate_control::RateControl::default(),
            train_sender: train::TrainSender::default(),
            train_receiver: train::TrainReceiver::default(),
            tail: tail::Tail::default(),
            is_quickest: true,
            limited_at: None,
            pacer: pacer::Pacer::new(Bytes::new(1500)),
            report_age: report_age::ReportAge::default(),
            sender: sender::Sender::default(),
            receiver: receiver::Receiver::default(),
            probes: Probes::default(),
            told: health::State::Probing,
            newest: [None; 2],
            found: None,
            remembered_loss_ppm: 0,
            mtu: mtu::PathMtu::new(),
            told_mtu: None,
        }
    }

    /// Takes note of a data datagram of `len` bytes of UDP payload that leaves now.
    pub fn on_sent(&mut self, now: Instant, len: Bytes) {
        self.mtu.on_sent(now, len);
        self.on_wire
            .on_sent(len + on_wire::headers(self.route.as_ref()));
        self.charge(now, len);
    }

    /// It was given longer datagrams than it takes: what it lost and carried meanwhile says nothing of it.
    pub fn on_narrowed(&mut self, now: Instant) {
        self.loss.forget(now, self.sender.unreported_pkts());
        self.rate = rate::DeliveryRate::new();
        self.rate_control.search_again();
        self.train_sender.on_up(now);
    }

    /// Charges the pacer for a datagram of `len` bytes of UDP payload.
    pub fn charge(&mut self, now: Instant, len: Bytes) {
        let len = len + on_wire::headers(self.route.as_ref());
        self.pacer.on_sent(now, len);
    }

    /// What is worth remembering of the network the path leads over now; `None` if it was not full there of late.
    #[must_use]
    pub fn memory(&self, now: Instant) -> Option<memory::PathMemory> {
        let (_, since) = self.found?;
        let filled_at = self.rate_control.filled_at(now)?;
        Some(memory::PathMemory {
            rate: self.rate.max().filter(|_| filled_at >= since + SETTLED)?,
            min_rtt: self.rtt.min()?,
            loss_ppm: self.loss.floor_ppm().unwrap_or(0),
        })
    }

    /// Takes what was remembered of the network the path leads over, unless what is known of the path is like it.
    pub fn recall(&mut self, now: Instant, memory: &memory::PathMemory) {
        let known = self.rate.max().filter(|_| self.rate_control.is_known(now));
        let is_like = |known: Bitrate| known.max(memory.rate) <= known.min(memory.rate).scale(2, 1);
        let is_needed = memory.rate > Bitrate::ZERO && !known.is_some_and(is_like);
        if is_needed && self.rate_control.recall(memory) {
            self.rate = rate::DeliveryRate::new();
            self.remembered_loss_ppm = memory.loss_ppm;
        }
    }

    /// What a policy is to take the path for that has delivered nothing yet, if that is remembered.
    #[must_use]
    pub fn remembered_rate(&self) -> Option<Bitrate> {
        self.rate_control.remembered(self.rtt.smoothed()?)
    }

    /// The interval of reports about this path: clamp(min RTT / 4, 5 ms, 25 ms), `docs/algorithms.md` section 3.1.
    #[must_use]
    pub fn feedback_interval(&self) -> Duration {
        let quarter = self.rtt.min().map_or(Duration::ZERO, |rtt| rtt / 4);
        quarter.clamp(Duration::from_millis(5), Duration::from_millis(25))
    }

    /// Paces what this end sends: never faster than the user allows, nor, but for [`Pacing::Limits`], much faster than the
    /// path carries.
    pub fn pace(&mut self, now: Instant, role: Role, pacing: Pacing) {
        self.rate_control.set_search(pacing == Pacing::Search);
        let limit = match role {
            Role::Client => self.link.upload,
            Role::Gateway => self.link.download,
        };
        let carried = self.rate_control.pace(
            now,
            self.rtt.smoothed().unwrap_or(INITIAL_RTT),
            self.is_quickest,
            &self.rate,
        );
        let carried = carried.filter(|_| pacing != Pacing::Limits);
        self.pacer.set_smooth(self.rate_control.is_shallow());
        self.pacer
            .set_rate(now, [limit, carried].into_iter().flatten().min());
    }

    /// How much longer than its least delay of late the path takes now: by the newest report, or less if a newer probe says so,
    /// since nothing is reported of a path that is avoided.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        let reported = self.delay.queue_delay();
        if self.rtt.sampled_at() <= self.delay.sampled_at() {
            return reported;
        }
        let probed = self.rtt.latest().zip(self.rtt.min());
        probed.map_or(reported, |(latest, least)| {
            reported.min(latest.saturating_sub(least))
        })
    }

    /// How long what is sent now waits in the path: what stood there by the last report less the time since, but no longer than
    /// what is under way takes, at half of what was delivered of late. For the last packets of a queue that has drained tell how
    /// long it was, and nothing is reported of a path that is avoided for it.
    #[must_use]
    pub fn queue_delay(&self, now: Instant) -> Duration {
        let reported = self.rate_control.queue(now);
        let (Some(latest), Some(under_way)) = (self.rate.latest(), self.sender.under_way()) else {
            return reported;
        };
        reported.min((under_way + FULL_PACKET) / latest.rate.scale(1, 2))
    }

    /// What the path will probably carry: the largest rate of late, and a quarter more while only the sender limits it,
    /// so that a path that is never filled is not taken for slow.
    #[must_use]
    pub fn likely_rate(&self) -> Option<Bitrate> {
        let is_lower_bound = self.rate.latest().is_some_and(|sample| sample.app_limited);
        let max = self.rate.max()?;
        Some(if is_lower_bound { max.scale(5, 4) } else { max })
    }
}

/// One may be under way that nothing is known of.
const FULL_PACKET: Bytes = Bytes::new(1_500);
/// How long the largest rate delivered may still be of before the path led over its present network.
const SETTLED: Duration = Duration::from_secs(3);

impl Probes {
    /// Notes a probe sent now; returns its token.
    pub fn start(&mut self, now: Instant) -> u32 {
        let token = self.next_token;
        self.next_token = token.wrapping_add(1);
        if self.sent.len() == MAX_PROBES {
            self.sent.pop_front();
        }
        self.sent.push_back((token, now));
        token
    }

    /// The round-trip time of the probe `token`; `None` if it is not ours, or it or a later one was answered before.
    pub fn finish(&mut self, now: Instant, token: u32) -> Option<Duration> {
        let index = self.sent.iter().position(|(sent, _)| *sent == token)?;
        let (_, sent_at) = self.sent.drain(..=index).next_back()?;
        Some(now.since(sent_at))
    }

    /// Notes a ping to answer; more than eight at once are answered in part.
    pub fn owe(&mut self, token: u32, size: u16) {
        if self.owed.len() < 8 {
            self.owed.push((token, size));
        }
    }

    /// Takes one ping to answer.
    pub fn take_owed(&mut self) -> Option<(u32, u16)> {
        self.owed.pop()
    }
}

/// At one probe every 20 ms the answer may take 2.5 s: longer than any path that is worth using.
const MAX_PROBES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Pool;

    #[test]
    fn an_answer_that_takes_seconds_is_recognised_once() {
        let mut probes = Probes::default();
        let at = |probe: u64| Instant::from_millis(probe * 20);
        let tokens: Vec<u32> = (0..120).map(|probe| probes.start(at(probe))).collect();
        let finish = |probes: &mut Probes, token: usize| probes.finish(at(120), tokens[token]);
        assert_eq!(finish(&mut probes, 0), Some(Duration::from_millis(2400)));
        assert_eq!(finish(&mut probes, 0), None);
        assert_eq!(finish(&mut probes, 7), Some(Duration::from_millis(2260)));
        assert_eq!(finish(&mut probes, 5), None, "overtaken");
        assert_eq!(probes.finish(at(120), 999), None, "never sent");
    }

    #[test]
    fn a_queue_that_has_come_stands_no_longer() {
        let mut path = Path::new(Instant::ZERO, PathId(0), link::Link::named("lte"));
        let mut now = Instant::ZERO;
        // 20 Mbit/s; after a second without a queue each packet has waited 800 ms.
        for report in 1..=100_u64 {
            now = Instant::from_millis(report * 20);
            let waited = if report > 50 { 800_000 } else { 0 };
            let signals = rate_control::Signals {
                delay: delay::RelativeDelay(waited),
                rtt: Duration::from_millis(50),
                received: 40,
                lost: 0,
                disproved: 0,
                floor_ppm: Some(0),
                is_limited: false,
                sent_bytes: report * 50_000,
                received_bytes: report * 50_000,
                pace: None,
            };
            path.rate_control.on_report(now, &signals, &path.rate);
            let delivered = rate::Delivered {
                bytes: Bytes::new(report * 50_000),
                packets: report * 40,
                tx_us: now.wire_micros(),
                rx_us: now.wire_micros(),
            };
            path.rate.on_report(now, delivered, false);
        }
        assert_eq!(path.rate_control.queue(now), Duration::from_millis(800));
        let queue_ms = || path.queue_delay(now).as_millis();
        assert!(queue_ms() < 2, "nothing is under way: {}", queue_ms());
        let mut pool = Pool::new(1, 1);
        for _ in 0..100 {
            path.sender.on_sent(now, 1_250, None, None, &mut pool);
        }
        let queue_ms = path.queue_delay(now).as_millis();
        assert!((100..103).contains(&queue_ms), "{queue_ms}");
        for _ in 0..10_000 {
            path.sender.on_sent(now, 1_250, None, None, &mut pool);
        }
        assert_eq!(path.queue_delay(now), Duration::from_millis(800));
    }

    #[test]
    fn probes_without_an_answer_are_forgotten() {
        let mut probes = Probes::default();
        let first = probes.start(Instant::ZERO);
        for _ in 0..MAX_PROBES {
            probes.start(Instant::ZERO);
        }
        assert_eq!(probes.finish(Instant::ZERO, first), None);
        assert_eq!(probes.sent.len(), MAX_PROBES);
    }
}
