//! Classes of traffic: deadlines, copies, links, order.

use std::{collections::BTreeMap, time::Duration};

use pleach_core::{
    class::{Class, ClassCounts, Duplicate, Match, Service},
    counters::DropReason,
    time::Instant,
    units::Bitrate,
};

use crate::world::{PathModel, World, connected, number_of, path_id};

/// Source ports, which identify the flows.
const BULK: u16 = 1;
const STREAM: u16 = 2;
const PINNED: u16 = 3;

/// Returns the class of the stream.
fn class(service: Service) -> Class {
    Class {
        name: "stream".to_owned(),
        matches: Match {
            ports: vec![STREAM..=STREAM],
            ..Match::default()
        },
        service,
    }
}

fn limited(delay_ms: u64, mbps: u64) -> PathModel {
    PathModel {
        rate: Some(Bitrate::from_mbps(mbps)),
        ..PathModel::with_delay(delay_ms)
    }
}

/// A run in which both ends know each other and the rates of the paths.
struct Run {
    world: World,
    sent_at: BTreeMap<u32, Instant>,
    bulk: u32,
}

impl Run {
    fn new(paths: &[PathModel], classes: Vec<Class>) -> Self {
        let mut world = World::with_classes(paths, classes, 5);
        world
            .run_until_true(Duration::from_secs(3), connected)
            .expect("connects");
        world.run_for(Duration::from_secs(1));
        Self {
            world,
            sent_at: BTreeMap::new(),
            bulk: 0,
        }
    }

    fn bulk(&mut self) {
        self.world.send(1, 0, BULK, self.bulk, 1_400);
        self.bulk += 1;
    }

    fn stream(&mut self, len: usize) {
        let number = self.sent_at.len() as u32;
        self.world.send(1, 0, STREAM, number, len);
        self.sent_at.insert(number, self.world.now);
    }

    /// Returns the delay of each packet of the stream that arrived, by number.
    fn delays(&self) -> BTreeMap<u32, Duration> {
        let delivered = self.world.hosts[0].delivered.iter();
        let stream = delivered.filter_map(|(at, packet)| match number_of(packet) {
            (STREAM, number) => Some((number, at.since(self.sent_at[&number]))),
            _ => None,
        });
        stream.collect()
    }

    fn counts(&self) -> ClassCounts {
        let mut peers = self.world.hosts[1].endpoint.status();
        let (_, status) = peers.next().expect("a peer");
        let mut counts = status.classes.iter();
        counts.next().expect("a class").1
    }
}

#[test]
fn voice_passes_a_flow_that_fills_both_paths() {
    let mut run = Run::new(&[limited(10, 20), limited(14, 20)], Vec::new());
    for step in 0..50_000_u32 {
        // 56 Mbit/s are offered to paths of 40 Mbit/s.
        run.bulk();
        if step % 100 == 0 {
            run.stream(200);
        }
        run.world.run_for(Duration::from_micros(200));
    }
    run.world.run_for(Duration::from_secs(1));
    let delays = run.delays();
    assert_eq!(delays.len(), run.sent_at.len(), "all came");
    // The first half second is not yet recognised as voice, and the rate search builds queues.
    let settled = delays.range(100..).map(|(_, delay)| *delay);
    let worst = settled.max().expect("some");
    assert!(worst < Duration::from_millis(35), "{worst:?}");
    let counts = run.counts();
    assert!(counts.packets > 400 && counts.copies > 0, "{counts:?}");
}

#[test]
fn a_small_stream_does_not_notice_that_a_path_falls_silent() {
    let service = Service {
        deadline: Some(Duration::from_millis(150)),
        duplicate: Duplicate::Auto,
        share_percent: 100,
        ..Service::default()
    };
    let mut run = Run::new(&[limited(10, 20), limited(14, 20)], vec![class(service)]);
    for step in 0..500 {
        if step == 200 {
            run.world.set_silent(0, true);
        }
        run.stream(200);
        run.world.run_for(Duration::from_millis(20));
    }
    run.world.run_for(Duration::from_secs(1));
    let delays = run.delays();
    assert_eq!(delays.len(), run.sent_at.len(), "all came");
    let worst = delays.values().max().expect("some");
    assert!(*worst < Duration::from_millis(20), "{worst:?}");
}

#[test]
fn what_would_be_too_late_is_dropped_before_it_is_sent() {
    let service = Service {
        deadline: Some(Duration::from_millis(100)),
        is_ordered: false,
        ..Service::default()
    };
    let mut run = Run::new(&[limited(10, 20)], vec![class(service)]);
    for _ in 0..20_000 {
        // The stream sends 28 Mbit/s.
        run.stream(1_400);
        run.world.run_for(Duration::from_micros(400));
    }
    run.world.run_for(Duration::from_secs(1));
    let delays = run.delays();
    let expired = run.counts().expired;
    assert_eq!(expired, run.world.hosts[1].drops(DropReason::Expired));
    let lost = run.sent_at.len() - delays.len() - expired as usize;
    assert!(
        expired > 4_000 && lost < 1_000,
        "{expired} expired, {lost} lost"
    );
    let late = delays
        .values()
        .filter(|delay| **delay > Duration::from_millis(110));
    assert!(
        late.count() * 100 < delays.len(),
        "of what is sent hardly any is late"
    );
}

#[test]
fn what_needs_no_order_waits_for_nothing() {
    let worst_in = |is_ordered| {
        let service = Service {
            deadline: Some(Duration::from_millis(300)),
            is_ordered,
            ..Service::default()
        };
        let lossy = PathModel {
            loss_pct: 5,
            ..PathModel::with_delay(40)
        };
        let mut run = Run::new(&[lossy], vec![class(service)]);
        for _ in 0..2_000 {
            run.stream(1_000);
            run.world.run_for(Duration::from_millis(5));
        }
        run.world.run_for(Duration::from_secs(1));
        let delays = run.delays();
        let is_waiting = |delay: &&Duration| **delay > Duration::from_millis(45);
        (delays.len(), delays.values().filter(is_waiting).count())
    };
    let (came, waited) = worst_in(false);
    // Only packets that were lost and retransmitted are late.
    assert!(came > 1_980 && waited < 200, "{came} came, {waited} late");
    let (_, waited_in_order) = worst_in(true);
    assert!(
        waited_in_order > 2 * waited,
        "{waited_in_order} and {waited}"
    );
}

#[test]
fn a_class_keeps_to_its_links_while_one_of_them_works() {
    let service = Service {
        links: vec!["link1".to_owned()],
        ..Service::default()
    };
    let mut run = Run::new(&[limited(10, 20), limited(14, 20)], vec![class(service)]);
    let bytes_on = |run: &Run, link: usize| {
        let mut peers = run.world.hosts[1].endpoint.status();
        let (_, status) = peers.next().expect("a peer");
        let mut paths = status.paths.iter();
        let path = paths.find(|path| path.id == path_id(link)).expect("known");
        path.tx_bytes
    };
    let before = bytes_on(&run, 0);
    for _ in 0..2_000 {
        run.stream(1_000);
        run.world.run_for(Duration::from_millis(2));
    }
    assert!(bytes_on(&run, 0) - before < 10_000);
    run.world.set_silent(1, true);
    for _ in 0..2_000 {
        run.stream(1_000);
        run.world.run_for(Duration::from_millis(2));
    }
    run.world.run_for(Duration::from_secs(1));
    assert!(bytes_on(&run, 0) - before > 1_500_000);
    assert!(run.delays().len() + 20 > run.sent_at.len());
}

#[test]
fn a_class_takes_its_link_though_that_is_dearer() {
    let service = Service {
        links: vec!["link1".to_owned()],
        ..Service::default()
    };
    let mut run = Run::new(&[limited(10, 20), limited(14, 20)], vec![class(service)]);
    let now = run.world.now;
    let client = &mut run.world.hosts[1].endpoint;
    client.update_links(now, "link1", |link| link.cost = 1);
    run.world.run_for(Duration::from_secs(1));
    for _ in 0..1_000 {
        run.stream(1_000);
        run.bulk();
        run.world.run_for(Duration::from_millis(2));
    }
    let mut peers = run.world.hosts[1].endpoint.status();
    let (_, status) = peers.next().expect("a peer");
    // The traffic consists of the stream, and of trains and copies that measure the capacity of the path.
    assert!(status.paths[1].tx_bytes > 900_000, "{:?}", status.paths[1]);
}

#[test]
fn jitter_larger_than_the_deadline_leaves_time_for_does_not_stop_everything() {
    let service = Service {
        deadline: Some(Duration::from_millis(100)),
        ..Service::default()
    };
    let shaken = PathModel {
        shake: Duration::from_millis(80),
        ..limited(30, 20)
    };
    let mut run = Run::new(&[shaken], vec![class(service)]);
    for _ in 0..5_000 {
        run.stream(1_000);
        run.world.run_for(Duration::from_millis(2));
    }
    run.world.run_for(Duration::from_secs(1));
    let counts = run.counts();
    assert!(counts.expired * 50 < counts.packets, "{counts:?}");
}

#[test]
fn what_waits_for_its_link_does_not_hold_up_the_rest() {
    let service = Service {
        links: vec!["link1".to_owned()],
        ..Service::default()
    };
    let mut run = Run::new(&[limited(10, 20), limited(14, 2)], vec![class(service)]);
    for step in 0..10_000 {
        run.bulk();
        if step % 5 == 0 {
            run.stream(1_400);
        }
        run.world.run_for(Duration::from_millis(1));
    }
    let bulk = run.world.numbers(0, BULK).len();
    assert!(bulk > 9_000, "{bulk} of 11 Mbit/s on a path of 20");
}

#[test]
fn redundancy_never_exceeds_its_share() {
    for share_percent in [0, 5, 15, 40] {
        let service = Service {
            deadline: Some(Duration::from_millis(100)),
            is_ordered: false,
            duplicate: Duplicate::Always,
            share_percent,
            ..Service::default()
        };
        // No packet could be retransmitted in time, so all packets request redundancy: copies, repair symbols, and late
        // retransmissions.
        let lossy = PathModel {
            loss_pct: 3,
            ..limited(60, 20)
        };
        let mut run = Run::new(&[lossy, lossy], vec![class(service)]);
        let sent_bytes = |run: &Run| {
            let mut peers = run.world.hosts[1].endpoint.status();
            let (_, status) = peers.next().expect("a peer");
            status.paths.iter().map(|path| path.tx_bytes).sum::<u64>()
        };
        let before = sent_bytes(&run);
        for number in 0..12_000_u64 {
            run.stream(500 + (number * 7_919 % 800) as usize);
            run.world.run_for(Duration::from_millis(2));
            let counts = run.counts();
            let share = counts.bytes.get() * u64::from(share_percent) / 100;
            assert!(counts.copied_bytes.get() <= share, "{counts:?}");
        }
        let counts = run.counts();
        let share = counts.bytes.get() * u64::from(share_percent) / 100;
        assert!(
            counts.copied_bytes.get() + 64 * 1024 > share,
            "it is used: {counts:?}"
        );
        // Copies have headers too. Repairs and their symbols may use an eighth of all traffic, including repairs and
        // copies, plus a burst of 384 KiB.
        let payload = counts.bytes.get() + counts.packets * 38;
        let most = payload * u64::from(100 + share_percent) / 100 * 8 / 7 + 384 * 1024;
        let sent = sent_bytes(&run) - before;
        assert!(sent <= most, "{share_percent} %: {sent} of {most} bytes");
    }
}

#[test]
fn what_keeps_to_a_link_has_its_turn_beside_what_has_a_deadline() {
    let pinned = Class {
        name: "pinned".to_owned(),
        matches: Match {
            ports: vec![PINNED..=PINNED],
            ..Match::default()
        },
        service: Service {
            links: vec!["link0".to_owned()],
            ..Service::default()
        },
    };
    let service = Service {
        deadline: Some(Duration::from_millis(300)),
        ..Service::default()
    };
    let mut run = Run::new(&[limited(10, 20)], vec![class(service), pinned]);
    for number in 0..12_000 {
        // Packets with a deadline and other packets are sent at similar rates: 3 Mbit/s with a deadline, and twice 16
        // Mbit/s for the rest of the 20 Mbit/s.
        run.stream(200);
        run.bulk();
        run.world.send(1, 0, PINNED, number, 1_400);
        run.world.run_for(Duration::from_micros(700));
    }
    let [bulk, pinned] = [BULK, PINNED].map(|flow| run.world.numbers(0, flow).len());
    assert!(pinned * 5 > bulk * 4, "{pinned} beside {bulk}");
}
