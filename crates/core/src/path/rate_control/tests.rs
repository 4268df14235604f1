//! The controller over a line of its own: what it sends at its pace, the line carries, queues, delays and loses.

use std::collections::VecDeque;

use super::*;
use crate::{
    path::{loss::Loss, rate::Delivered},
    rng::Rng,
};

const TICK: Duration = Duration::from_millis(1);
/// Reports come so often.
const INTERVAL: u64 = 10;
const RTT: Duration = Duration::from_millis(40);

/// A path as the tunnel has it, over a line. Time moves in ticks; delays have no propagation, and reports none but `told_after`.
struct Path {
    control: RateControl,
    meter: DeliveryRate,
    now: Instant,
    /// What the line carries, how much may wait before it, and what of it is lost on the way in parts per million.
    line: Bitrate,
    limit: Bytes,
    loss_ppm: u32,
    /// Extra delay of each report in microseconds, uniform up to this.
    jitter_us: u64,
    /// How much longer the path itself is while it is loaded.
    longer_us: f64,
    /// Never more than this is there to send.
    demand: Bitrate,
    /// What others send over the line, and what of it waits.
    foreign: Bitrate,
    others_waiting: f64,
    waiting: f64,
    sent: f64,
    received: f64,
    lost: f64,
    told: (u64, u64),
    /// Packets told missing that came after all.
    disproved: u64,
    /// How long reports take, and those under way: when they were written, what had come and was lost by then.
    told_after: Duration,
    reports: VecDeque<(Signals, Delivered, [u64; 2])>,
    /// What is told of the path's own losses, if that is not known beforehand.
    loss: Option<Loss>,
    rng: Rng,
}

impl Path {
    fn new(mbps: u64, limit: u64) -> Self {
        Self {
            control: RateControl::default(),
            meter: DeliveryRate::new(),
            now: Instant::from_millis(1_000),
            line: Bitrate::from_mbps(mbps),
            limit: Bytes::new(limit),
            loss_ppm: 0,
            jitter_us: 0,
            longer_us: 0.0,
            demand: Bitrate::from_mbps(1_000),
            foreign: Bitrate::ZERO,
            others_waiting: 0.0,
            waiting: 0.0,
            sent: 0.0,
            received: 0.0,
            lost: 0.0,
            told: (0, 0),
            disproved: 0,
            told_after: Duration::ZERO,
            reports: VecDeque::new(),
            loss: None,
            rng: Rng::new(5),
        }
    }

    fn pace(&self) -> Option<Bitrate> {
        self.control.pace(self.now, self.rtt(), true, &self.meter)
    }

    fn rtt(&self) -> Duration {
        if self.told_after.is_zero() {
            RTT
        } else {
            self.told_after
        }
    }

    fn floor_ppm(&self) -> Option<u32> {
        self.loss.as_ref()?.floor_ppm()
    }

    /// The queue in milliseconds.
    fn queue_ms(&self) -> f64 {
        (self.waiting + self.others_waiting) * 8e3 / self.line.as_bps() as f64
    }

    /// Lets `millis` pass; megabits per second that came, and the share of what was sent that was lost.
    fn run(&mut self, millis: u64) -> (f64, f64) {
        let (sent, received, lost) = (self.sent, self.received, self.lost);
        for tick in 1..=millis {
            self.now += TICK;
            let pace = self.pace().unwrap_or(self.demand).min(self.demand);
            let bytes = pace.as_bps() as f64 / 8e3;
            self.sent += bytes;
            let foreign = self.foreign.as_bps() as f64 / 8e3;
            self.waiting += bytes;
            self.others_waiting += foreign;
            let over = self.waiting + self.others_waiting - self.limit.get() as f64;
            let over_others = over.max(0.0) * foreign / (bytes + foreign);
            let over = over.max(0.0) - over_others;
            self.waiting -= over;
            self.others_waiting -= over_others;
            let all = self.waiting + self.others_waiting;
            let share = (self.line.as_bps() as f64 / 8e3 / all).min(1.0);
            let carried = self.waiting * share;
            self.waiting -= carried;
            self.others_waiting -= self.others_waiting * share;
            let noise = carried * f64::from(self.loss_ppm) / 1e6;
            self.received += carried - noise;
            self.lost += over + noise;
            if tick % INTERVAL == 0 {
                self.report(pace < self.demand);
            }
        }
        let received = (self.received - received) * 8e-3 / millis as f64;
        (received, (self.lost - lost) / (self.sent - sent).max(1.0))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "all are positive and far below what fits"
    )]
    fn report(&mut self, is_limited: bool) {
        let packets = |bytes: f64| (bytes / 1_000.0) as u64;
        let (received, lost) = (packets(self.received), packets(self.lost));
        let mut delay = self.queue_ms() * 1e3 + self.rng.below(self.jitter_us + 1) as f64;
        let few = packets(self.line.as_bps() as f64 * INTERVAL as f64 / 8e3 / 2.0);
        if received - self.told.0 > few {
            delay += self.longer_us;
        }
        let signals = Signals {
            delay: RelativeDelay(delay as u32),
            rtt: self.rtt(),
            received: received - self.told.0,
            lost: lost - self.told.1,
            disproved: self.disproved,
            floor_ppm: None,
            is_limited,
            sent_bytes: self.sent as u64,
            received_bytes: self.received as u64,
            pace: self.pace(),
        };
        self.told = (received, lost);
        let delivered = Delivered {
            bytes: Bytes::new(self.received as u64),
            packets: received,
            tx_us: self.now.wire_micros(),
            rx_us: self.now.wire_micros(),
        };
        self.reports
            .push_back((signals, delivered, [received, lost]));
        let is_here = |(_, delivered, _): &mut (_, Delivered, _)| {
            self.now.wire_micros().wrapping_sub(delivered.rx_us)
                >= u32::try_from(self.told_after.as_micros()).unwrap_or(u32::MAX)
        };
        if let Some((signals, delivered, totals)) = self.reports.pop_front_if(is_here) {
            self.hear(signals, delivered, totals);
        }
    }

    fn hear(&mut self, mut signals: Signals, delivered: Delivered, [received, lost]: [u64; 2]) {
        signals.floor_ppm = if let Some(loss) = &mut self.loss {
            loss.on_report(self.now, received + lost, received);
            loss.floor_ppm()
        } else {
            Some(self.loss_ppm)
        };
        self.control.on_report(self.now, &signals, &self.meter);
        if let Some(loss) = self.loss.as_mut().filter(|_| self.control.is_unqueued()) {
            loss.on_unqueued(self.now, signals.received, signals.lost);
        }
        self.meter.set_jitter(self.control.sampled_jitter());
        let app_limited = !self.control.is_full(&signals, &self.meter);
        if let Some(sample) = self.meter.on_report(self.now, delivered, app_limited) {
            self.control.on_sample(self.now, sample);
        }
    }
}

#[test]
fn a_path_is_found_out_and_filled_with_a_short_queue() {
    let mut path = Path::new(50, 1_500_000);
    assert!(path.control.is_searching());
    path.run(1_000);
    assert!(!path.control.is_searching());
    let (mbps, lost) = path.run(10_000);
    assert!((48.5..=50.0).contains(&mbps), "{mbps}");
    assert_eq!(lost, 0.0);
    let mut longest = 0_f64;
    for _ in 0..5_000 {
        path.run(1);
        longest = longest.max(path.queue_ms());
    }
    assert!(longest < 20.0, "{longest} ms");
}

#[test]
fn what_a_short_queue_overflows_with_is_not_taken_for_the_paths_own_loss() {
    for kilobytes in [12, 19, 25] {
        let mut path = Path::new(20, kilobytes * 1_000);
        path.loss = Some(Loss::new());
        path.run(10_000);
        let (mbps, lost) = path.run(10_000);
        let floor = path.floor_ppm().expect("windows");
        assert!(floor < 4_000, "{floor}, {kilobytes} kB");
        assert!(mbps > 18.8, "{mbps}, {kilobytes} kB");
        assert!(lost < 0.02, "{lost}, {kilobytes} kB");
    }
}

#[test]
fn a_path_that_begins_to_lose_is_soon_known_to() {
    let mut path = Path::new(30, 200_000);
    path.loss = Some(Loss::new());
    path.run(10_000);
    path.loss_ppm = 18_000;
    path.run(20_000);
    let ppm = path.floor_ppm();
    assert!(ppm > Some(14_000), "{ppm:?}");
}

#[test]
fn what_was_told_missing_and_comes_after_all_is_no_congestion() {
    // How many of them come, how much later, how many more are told missing meanwhile, and whether the verdict is taken back.
    for (come, later_ms, more, is_none) in [
        (20, INTERVAL, 0.0, false),
        (150, INTERVAL, 0.0, true),
        (150, INTERVAL, 150.0, false),
        (300, INTERVAL, 150.0, true),
        (150, 1_000, 0.0, false),
    ] {
        let mut path = Path::new(50, 1_500_000);
        path.demand = Bitrate::from_mbps(20);
        path.loss = Some(Loss::new());
        path.disproved = 500;
        path.run(200);
        assert!(path.control.is_searching());
        // Of the last packets a third is told missing.
        path.lost += path.sent / 3.0;
        path.run(INTERVAL);
        assert!(!path.control.is_searching() && path.control.is_shallow());
        path.lost += more * 1e3;
        path.run(later_ms - INTERVAL);
        path.disproved += come;
        path.run(INTERVAL);
        let what = format!("{come} after {later_ms} ms, {more} more");
        assert_eq!(path.control.is_searching(), is_none, "{what}");
        let is_known = path.control.filled_at(path.now).is_some();
        assert_eq!(is_known, !is_none, "{what}");
    }
}

#[test]
fn a_share_is_congestion_however_few_packets_it_is_of() {
    for (packets, lost, is_congested) in [
        (60, 9, false),
        (60, 10, true),
        (99, 14, false),
        (99, 15, true),
        (300, 45, false),
        (300, 46, true),
    ] {
        let window = LossWindow {
            packets,
            lost,
            rate: Bitrate::ZERO,
        };
        assert_eq!(
            window.is_congested(None),
            is_congested,
            "{lost} of {packets}"
        );
    }
}

#[test]
fn what_the_sender_does_not_fill_is_searched_on() {
    let mut path = Path::new(50, 1_500_000);
    path.demand = Bitrate::from_mbps(5);
    path.run(5_000);
    assert!(path.control.is_searching());
    assert!(path.pace() > Some(Bitrate::from_mbps(12)));
}

#[test]
fn a_queue_too_short_to_be_seen_is_not_overflown_for_long() {
    // Ten packets: 1.6 ms.
    let mut path = Path::new(50, 10_000);
    path.run(3_000);
    let (mbps, lost) = path.run(20_000);
    assert!(mbps > 46.0, "{mbps}");
    assert!(lost < 0.02, "{lost}");
}

#[test]
fn a_queue_that_has_overflowed_is_filled_slowly() {
    // 3.5 to 7 ms; told of at once, and later. (Of 3 ms 0.14 % is lost, 0.11 % before: less than counts as congestion.)
    let short = [22, 25, 31, 34].map(|kilobytes| (kilobytes, 0, 0.000_5));
    let told_later = short.map(|(kilobytes, _, most)| (kilobytes, 10, most));
    let far = [(43, 100, 0.002)];
    for (kilobytes, told_after, most) in [&short[..], &told_later, &far].concat() {
        let mut path = Path::new(50, kilobytes * 1_000);
        path.told_after = Duration::from_millis(told_after);
        path.run(5_000);
        let (mbps, lost) = path.run(20_000);
        let what = format!("{kilobytes} kB, told after {told_after} ms");
        assert!(mbps > 49.2, "{mbps}, {what}");
        assert!(lost < most, "{lost}, {what}");
    }
}

#[test]
fn a_short_queue_that_jitter_hides_is_not_overflown_for_ever() {
    for seed in 1..=5 {
        // 3 ms.
        let mut path = Path::new(20, 7_500);
        path.rng = Rng::new(seed);
        path.jitter_us = 10_000;
        path.told_after = Duration::from_millis(20);
        path.loss = Some(Loss::new());
        path.run(5_000);
        let (mbps, lost) = path.run(80_000);
        let floor = path.floor_ppm().expect("windows");

        assert!(
            lost < 0.03 && floor < 40_000,
            "{lost}, {floor}, seed {seed}"
        );
        assert!(mbps > 18.5, "{mbps}, seed {seed}");
    }
}

#[test]
fn a_line_that_is_faster_now_is_followed_though_its_queue_was_short() {
    let mut path = Path::new(50, 31_000);
    path.told_after = RTT;
    path.jitter_us = 5_000;
    path.loss = Some(Loss::new());
    path.run(20_000);
    path.line = Bitrate::from_mbps(200);
    path.limit = Bytes::new(2_000_000);
    path.run(3_000);
    let (mbps, _) = path.run(1_000);
    assert!(mbps > 180.0, "{mbps}");
}

#[test]
fn random_losses_do_not_slow_a_path_down() {
    let mut path = Path::new(50, 1_500_000);
    path.loss_ppm = 30_000;
    path.run(3_000);
    let (mbps, _) = path.run(10_000);
    assert!((47.0..=48.6).contains(&mbps), "{mbps}");
}

#[test]
fn jitter_is_no_queue() {
    let mut path = Path::new(50, 1_500_000);
    path.jitter_us = 20_000;
    path.run(3_000);
    let (mbps, _) = path.run(10_000);
    assert!(mbps > 45.0, "{mbps}");
}

#[test]
fn a_path_that_is_shorter_after_pauses_has_no_queue_for_that() {
    let mut path = Path::new(50, 1_500_000);
    path.longer_us = 30_000.0;
    path.run(3_000);
    let all: f64 = (0..20)
        .map(|_| {
            path.demand = Bitrate::from_mbps(1);
            path.run(60);
            path.demand = Bitrate::from_mbps(1_000);
            path.run(440).0
        })
        .sum();
    // Each of them made it be drained once: 40.
    assert!(all / 20.0 > 43.0, "{all}");
}

#[test]
fn a_longer_way_is_no_queue() {
    let mut path = Path::new(50, 1_500_000);
    path.run(3_000);
    // The path's own delay grows by 30 ms: reports cannot tell it from a queue, a drain can.
    let before = path.control.reference;
    path.control.reference =
        before.map(|RelativeDelay(delay)| RelativeDelay(delay.wrapping_sub(30_000)));
    path.run(3_000);
    let (mbps, _) = path.run(5_000);
    assert!(mbps > 46.0, "{mbps}");
}

#[test]
fn a_path_that_became_slower_or_faster_is_followed() {
    let mut path = Path::new(64, 2_000_000);
    path.run(3_000);
    path.line = Bitrate::from_mbps(8);
    path.run(6_000);
    let (mbps, _) = path.run(5_000);
    assert!(mbps > 7.0, "{mbps}");
    assert!(path.queue_ms() < 60.0, "{}", path.queue_ms());
    path.line = Bitrate::from_mbps(64);
    path.run(2_000);
    let (mbps, _) = path.run(2_000);
    assert!(mbps > 60.0, "{mbps}");
}

#[test]
fn a_path_long_unused_is_searched_anew() {
    let mut path = Path::new(50, 1_500_000);
    path.run(3_000);
    assert!(!path.control.is_searching());
    path.demand = Bitrate::from_mbps(1);
    path.run(62_000);
    assert!(path.control.is_searching());
}

#[test]
fn a_path_that_is_not_searched_is_paced_while_it_is_full_only() {
    let mut path = Path::new(50, 1_500_000);
    path.control.set_search(false);
    path.demand = Bitrate::from_mbps(5);
    path.run(3_000);
    assert_eq!(path.pace(), None);
    // The machine stalls.
    path.waiting += 600_000.0;
    path.run(200);
    assert!(path.pace().is_some());
    path.run(2_000);
    assert_eq!(path.pace(), None);
    path.demand = Bitrate::from_mbps(70);
    path.run(1_000);
    for _ in 0..500 {
        path.run(INTERVAL);
        assert!(path.pace().is_some(), "full all the time");
    }
}

/// How long the queue is in the mean over 4 s, in milliseconds.
fn mean_queue(target_ms: Option<u64>) -> f64 {
    let mut path = Path::new(50, 5_000_000);
    path.control.set_aim(Aim {
        target_delay: target_ms.map(Duration::from_millis),
        ..Aim::default()
    });
    path.run(3_000);
    let mut sum = 0.0;
    for _ in 0..400 {
        path.run(INTERVAL);
        sum += path.queue_ms();
    }
    sum / 400.0
}

#[test]
fn the_queue_is_as_long_as_wanted() {
    let usual = mean_queue(None);
    assert_eq!(mean_queue(Some(5)), usual);
    assert!(mean_queue(Some(2)) < usual);
    let long = mean_queue(Some(60));
    assert!((30.0..90.0).contains(&long), "{long}");
}

/// What comes over a line that others fill from 5 s on, five seconds later.
fn beside_others(sharing: Sharing) -> f64 {
    let mut path = Path::new(50, 300_000);
    path.control.set_aim(Aim {
        sharing,
        ..Aim::default()
    });
    path.run(5_000);
    path.foreign = Bitrate::from_mbps(60);
    path.run(5_000);
    path.run(5_000).0
}

#[test]
fn who_yields_gives_way_to_others() {
    let [yields, usual] = [Sharing::Yield, Sharing::Auto].map(beside_others);
    assert!(yields < 2.0 && yields < usual / 3.0, "{yields} {usual}");
}

#[test]
fn who_holds_goes_on_beside_others_as_long_as_that_comes() {
    let share = |others: &Others| {
        let percent = 60;
        others.share(
            Instant::from_millis(3_000),
            Aim {
                sharing: Sharing::Hold { percent },
                ..Aim::default()
            },
        )
    };
    let mut others = Others::default();
    others.on_rate(Instant::from_millis(1_000), Some(Bitrate::from_mbps(50)));
    assert_eq!(share(&others), Bitrate::ZERO, "nobody is there");
    others.on_test(Instant::from_millis(2_000), true, None);
    assert_eq!(share(&others), Bitrate::ZERO, "the queue was ours");
    others.on_test(Instant::from_millis(2_000), false, None);
    assert_eq!(share(&others), Bitrate::from_mbps(30));
    others.on_rate(Instant::from_millis(2_500), Some(Bitrate::from_mbps(35)));
    assert_eq!(share(&others), Bitrate::from_mbps(30), "of what it was");
    others.on_test(
        Instant::from_millis(2_500),
        false,
        Some(Bitrate::from_mbps(20)),
    );
    assert_eq!(share(&others), Bitrate::from_mbps(12), "the path is slower");
}

#[test]
fn samples_of_the_rate_are_longer_where_the_queue_overflows() {
    let ms = Duration::from_millis;
    let depth = Depth {
        queue: ms(5),
        rate: Bitrate::from_mbps(20),
        at: Instant::ZERO,
    };
    for (depth, is_searching, expected) in [
        (None, false, ms(1)),
        (Some(depth), false, ms(4)),
        (Some(depth), true, Duration::ZERO),
    ] {
        let control = RateControl {
            jitter: ms(1),
            depth,
            is_searching,
            ..RateControl::default()
        };
        assert_eq!(control.sampled_jitter(), expected);
    }
}

#[test]
fn a_ceiling_set_behind_a_queue_of_seconds_rises_when_that_has_gone() {
    let at = |ms| Instant::from_millis(ms);
    let pace = Bitrate::from_mbps(9);
    let set = Ceiling {
        pace,
        since: at(0),
        is_settled: false,
        raised_at: at(0),
        step: 2,
    };
    for (rtt_ms, rises) in [(50, true), (2_400, false)] {
        let mut ceiling = set;
        for ms in (0..=1_300).step_by(50) {
            ceiling.rise(at(ms), Duration::from_millis(rtt_ms));
        }
        assert_eq!(ceiling.pace > pace, rises, "{rtt_ms} ms");
    }
}

#[test]
fn losses_of_before_a_ceiling_come_for_two_round_trips_and_then_never_again() {
    let at = |ms| Instant::from_millis(ms);
    let mut ceiling = Ceiling {
        pace: Bitrate::from_mbps(9),
        since: at(1_000),
        is_settled: false,
        raised_at: at(1_000),
        step: 2,
    };
    let mut is_settled = |ms, after_ms| ceiling.is_settled(at(ms), Duration::from_millis(after_ms));
    assert!(!is_settled(1_259, 260));
    assert!(is_settled(1_260, 260));
    assert!(is_settled(1_300, 5_000), "a queue of seconds came later");
}

#[test]
fn a_long_queue_that_overflowed_while_the_line_was_slow_holds_nothing_down_once_it_is_gone() {
    let mut path = Path::new(100, 400_000);
    path.told_after = RTT;
    path.run(5_000);
    path.line = Bitrate::from_mbps(10);
    let (_, lost) = path.run(400);
    assert!(lost > 0.1, "{lost}");
    path.line = Bitrate::from_mbps(100);
    path.run(400);
    let (mbps, lost) = path.run(1_000);
    assert!(mbps > 90.0, "{mbps}");
    assert_eq!(lost, 0.0);
}

#[test]
fn what_overflowed_is_taken_to_hold_less_when_the_way_itself_has_become_longer() {
    let mut path = Path::new(50, 1_500_000);
    path.run(2_000);
    path.control.depth = Some(Depth {
        queue: Duration::from_millis(100),
        rate: Bitrate::from_mbps(50),
        at: path.now,
    });
    path.longer_us = 80_000.0;
    path.run(5_000);
    let depth = path.control.depth.expect("is remembered").queue;
    assert!(depth < DEEP, "{depth:?}");
}

#[test]
fn a_ceiling_stays_where_the_queue_is_too_short_for_the_round_trip_or_is_not_what_overflows() {
    for (depth_ms, rtt_ms, drained_ms, goes) in [
        (60, 40, None, true),
        (40, 40, None, false),
        (60, 600, None, false),
        (170, 600, None, true),
        (60, 40, Some(19_000), false),
        (60, 40, Some(17_000), true),
    ] {
        let mut path = Path::new(50, 190_000);
        path.run(2_000);
        path.demand = Bitrate::from_mbps(20);
        path.run(1_000);
        path.told_after = Duration::from_millis(rtt_ms);
        path.now = Instant::from_millis(20_000);
        path.control.depth = Some(Depth {
            queue: Duration::from_millis(depth_ms),
            rate: Bitrate::from_mbps(50),
            at: path.now,
        });
        path.control.ceiling = Some(Ceiling {
            pace: Bitrate::from_mbps(40),
            since: Instant::from_millis(8_000),
            is_settled: true,
            raised_at: path.now,
            step: 2,
        });
        path.control.drained_at = drained_ms.map(Instant::from_millis);
        path.run(rtt_ms + 10);
        let has_gone = path.control.ceiling.is_none();
        assert_eq!(has_gone, goes, "{depth_ms}, {rtt_ms}, {drained_ms:?}");
    }
}

mod recalled;
