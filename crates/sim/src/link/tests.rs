use std::sync::Arc;

use pleach_core::units::Bitrate;
use proptest::prelude::*;

use super::{
    bundle::{Bundle, SharedConfig},
    loss::Gilbert,
    trace::Opportunities,
    *,
};

/// A packet that consists of a number only. Flipping a bit has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Numbered(u64);

impl Corrupt for Numbered {
    fn flip_bit(&mut self, _bit: u64) {}
}

fn mbps(rate: u64) -> Rate {
    Rate::Constant(Bitrate::from_mbps(rate))
}

fn micros(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1_000)
}

/// Runs the link until it is idle. Returns every packet with the instant at which the model delivers it.
fn drain<P: Corrupt>(link: &mut Link<P>) -> Vec<(Instant, P)> {
    let mut delivered = Vec::new();
    while let Some(at) = link.poll_timeout() {
        while let Some(packet) = link.poll_output(at) {
            delivered.push((at, packet));
        }
    }
    delivered
}

#[test]
fn a_train_leaves_at_the_rate() {
    let config = LinkConfig {
        rate: mbps(12),
        delay: Duration::from_millis(20),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 1, Instant::ZERO);
    for number in 0..50 {
        link.handle_packet(Instant::ZERO, 1500, Numbered(number));
    }
    for (number, delivered) in (0..).zip(drain(&mut link)) {
        let at = Instant::from_millis(number + 1) + Duration::from_millis(20);
        assert_eq!(delivered, (at, Numbered(number)));
    }
    assert_eq!(link.stats().tx_bytes, 50 * 1500);
    assert_eq!(link.queue_delay().max(), Duration::from_millis(50));
}

#[test]
fn late_polls_do_not_shift_departures() {
    let config = LinkConfig {
        rate: mbps(12),
        ..LinkConfig::default()
    };
    let mut links = Bundle::new(vec![(config, None)], vec![], 1, Instant::ZERO);
    links.handle_packet(Instant::ZERO, 0, 1500, Numbered(0));
    links.handle_packet(micros(500), 0, 1500, Numbered(1));
    let late = Instant::from_millis(90);
    assert_eq!(
        links.poll_output(late).map(|d| d.at),
        Some(Instant::from_millis(1))
    );
    assert_eq!(
        links.poll_output(late).map(|d| d.at),
        Some(Instant::from_millis(2))
    );
    assert_eq!(links.poll_output(late), None);
}

#[test]
fn a_full_queue_drops_the_tail() {
    let config = LinkConfig {
        rate: mbps(12),
        queue: Bytes::new(15_000),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 1, Instant::ZERO);
    // One packet is in service and ten are queued. Then one packet leaves each millisecond, while two packets arrive.
    for number in 0..100 {
        link.handle_packet(Instant::ZERO, 1500, Numbered(number));
    }
    assert_eq!(link.stats().queue_drops, 89);
    assert_eq!(link.queue_len(), Bytes::new(15_000));
    for step in 0..40 {
        link.handle_packet(micros(1_000 + step * 500), 1500, Numbered(100 + step));
    }
    assert_eq!(link.stats().queue_drops, 89 + 20);
    assert_eq!(drain(&mut link).len(), 11 + 20);
}

#[test]
fn an_unlimited_link_only_delays() {
    let config = LinkConfig {
        delay: Duration::from_millis(7),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 1, Instant::ZERO);
    link.handle_packet(micros(3), 9000, Numbered(0));
    assert_eq!(link.poll_timeout(), Some(micros(7_003)));
    assert_eq!(link.poll_output(micros(7_002)), None);
    assert_eq!(link.poll_output(micros(7_003)), Some(Numbered(0)));
    assert_eq!(link.poll_timeout(), None);
}

#[test]
fn jitter_keeps_order_unless_told_otherwise() {
    let order = |reorder| {
        let config = LinkConfig {
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(5),
            reorder,
            ..LinkConfig::default()
        };
        let mut link = Link::new(config, 3, Instant::ZERO);
        (0..500).for_each(|n| link.handle_packet(micros(n * 100), 100, Numbered(n)));
        let delivered = drain(&mut link);
        assert_eq!(delivered.len(), 500);
        for (at, packet) in &delivered {
            let delay = at.since(micros(packet.0 * 100));
            assert!(delay >= Duration::from_millis(10));
            assert!(delay <= Duration::from_millis(15));
        }
        delivered.is_sorted_by_key(|(_, packet)| *packet)
    };
    assert!(order(false));
    assert!(!order(true));
}

#[test]
fn a_black_hole_swallows_and_returns() {
    let config = LinkConfig {
        rate: mbps(12),
        delay: Duration::from_millis(5),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 1, Instant::ZERO);
    let to = |state| LinkChange {
        state: Some(state),
        ..LinkChange::default()
    };
    link.handle_packet(Instant::ZERO, 1500, Numbered(0));
    link.apply(Instant::from_millis(3), &to(LinkState::Blackhole));
    link.handle_packet(Instant::from_millis(4), 1500, Numbered(1));
    assert_eq!(
        drain(&mut link),
        [(Instant::from_millis(6), Numbered(0))],
        "what was under way arrives"
    );
    link.apply(Instant::from_millis(10), &to(LinkState::Up));
    link.handle_packet(Instant::from_millis(10), 1500, Numbered(2));
    link.handle_packet(Instant::from_millis(11), 1500, Numbered(3));
    link.apply(Instant::from_millis(12), &to(LinkState::Down));
    link.handle_packet(Instant::from_millis(12), 1500, Numbered(4));
    assert_eq!(drain(&mut link), []);
    assert_eq!(link.stats().state_drops, 4);
}

#[test]
fn a_rate_change_counts_from_its_instant() {
    let config = LinkConfig {
        rate: mbps(12),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 1, Instant::ZERO);
    (0..2).for_each(|n| link.handle_packet(Instant::ZERO, 1500, Numbered(n)));
    let change = LinkChange {
        rate: Some(mbps(6)),
        ..LinkChange::default()
    };
    link.apply(micros(500), &change);
    let at: Vec<_> = drain(&mut link).into_iter().map(|(at, _)| at).collect();
    assert_eq!(at, [micros(1_500), micros(3_500)]);
}

#[test]
fn sharing_links_get_one_rate_together() {
    let member = || {
        let config = LinkConfig {
            delay: Duration::from_millis(5),
            ..LinkConfig::default()
        };
        (config, Some(0))
    };
    let shared = SharedConfig {
        rate: mbps(12),
        queue: Bytes::new(4_500),
    };
    let mut links = Bundle::new(vec![member(), member()], vec![shared], 1, Instant::ZERO);
    for number in 0..6 {
        let link = usize::try_from(number % 2).expect("small");
        links.handle_packet(Instant::ZERO, link, 1500, Numbered(number));
    }
    let mut got = Vec::new();
    while let Some(at) = links.poll_timeout() {
        while let Some(delivery) = links.poll_output(at) {
            got.push((delivery.at, delivery.link, delivery.packet.0));
        }
    }
    let expected: Vec<_> = [(6, 0, 0), (7, 1, 1), (8, 0, 2), (9, 1, 3)]
        .map(|(ms, link, number)| (Instant::from_millis(ms), link, number))
        .into();
    assert_eq!(got, expected);
    let drops: Vec<_> = links.stats().map(|stats| stats.queue_drops).collect();
    assert_eq!(drops, [1, 1]);
}

#[test]
fn access_rates_apply_before_the_shared_one() {
    let access = LinkConfig {
        rate: mbps(6),
        ..LinkConfig::default()
    };
    let shared = SharedConfig {
        rate: mbps(12),
        queue: Bytes::new(15_000),
    };
    let mut links = Bundle::new(
        vec![(access.clone(), Some(0)), (access, Some(0))],
        vec![shared],
        1,
        Instant::ZERO,
    );
    (0..2).for_each(|link| links.handle_packet(Instant::ZERO, link, 1500, Numbered(0)));
    let late = Instant::from_millis(50);
    let at: Vec<_> = core::iter::from_fn(|| links.poll_output(late).map(|d| d.at)).collect();
    assert_eq!(at, [Instant::from_millis(3), Instant::from_millis(4)]);
}

#[derive(Clone, Debug)]
enum Step {
    Send { len: usize },
    Wait { micros: u64 },
    Rate(u64),
    Queue(u64),
    Delay(u64),
    State(u8),
    Loss(u8),
    Poll,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1_usize..2000).prop_map(|len| Step::Send { len }),
        4 => (0_u64..5_000).prop_map(|micros| Step::Wait { micros }),
        1 => (0_u64..4).prop_map(Step::Rate),
        1 => (0_u64..20_000).prop_map(Step::Queue),
        1 => (0_u64..20).prop_map(Step::Delay),
        1 => (0_u8..3).prop_map(Step::State),
        1 => (0_u8..3).prop_map(Step::Loss),
        4 => Just(Step::Poll),
    ]
}

fn change_of(step: &Step) -> LinkChange {
    let mut change = LinkChange::default();
    match *step {
        Step::Rate(3) => {
            let trace = Opportunities::from_text("1\n2\n2\n9\n").expect("valid");
            change.rate = Some(Rate::Opportunities(Arc::new(trace)));
        }
        Step::Rate(kind) => {
            change.rate =
                Some([Rate::Unlimited, mbps(0), mbps(7)][usize::try_from(kind).unwrap()].clone())
        }
        Step::Queue(bytes) => change.queue = Some(Bytes::new(bytes)),
        Step::Delay(millis) => change.delay = Some(Duration::from_millis(millis)),
        Step::State(state) => {
            let states = [LinkState::Up, LinkState::Down, LinkState::Blackhole];
            change.state = Some(states[usize::from(state)]);
        }
        Step::Loss(kind) => {
            let gilbert = Gilbert {
                p: 0.1,
                r: 0.3,
                loss_good: 0.0,
                loss_bad: 0.9,
            };
            let kinds = [Loss::None, Loss::Bernoulli(0.3), Loss::Gilbert(gilbert)];
            change.loss = Some(kinds[usize::from(kind)]);
        }
        Step::Send { .. } | Step::Wait { .. } | Step::Poll => {}
    }
    change
}

/// Plays `steps`, then removes all restrictions and drains the link. Returns the delivered packets and the counters.
fn play(steps: &[Step], seed: u64) -> (Vec<u64>, LinkStats) {
    let config = LinkConfig {
        rate: mbps(10),
        delay: Duration::from_millis(3),
        jitter: Duration::from_millis(1),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, seed, Instant::ZERO);
    let (mut now, mut number, mut out) = (Instant::ZERO, 0, Vec::new());
    let mut poll = |link: &mut Link<Numbered>, now| {
        while let Some(packet) = link.poll_output(now) {
            out.push(packet.0);
        }
        assert!(
            link.poll_timeout().is_none_or(|at| at > now),
            "drained, so the deadline lies ahead"
        );
    };
    for step in steps {
        match step {
            Step::Send { len } => {
                link.handle_packet(now, *len, Numbered(number));
                number += 1;
            }
            Step::Wait { micros } => now += Duration::from_micros(*micros),
            Step::Poll => poll(&mut link, now),
            Step::Rate(_) | Step::Queue(_) | Step::Delay(_) | Step::State(_) | Step::Loss(_) => {
                link.apply(now, &change_of(step));
            }
        }
    }
    let open = LinkChange {
        rate: Some(mbps(100)),
        ..LinkChange::default()
    };
    link.apply(now, &open);
    poll(&mut link, now + Duration::from_secs(60));
    assert_eq!(link.poll_timeout(), None);
    (out, *link.stats())
}

proptest! {
    #[test]
    fn every_packet_is_delivered_in_order_or_counted_once(
        steps in prop::collection::vec(any_step(), 0..300),
        seed: u64,
    ) {
        let (out, stats) = play(&steps, seed);
        prop_assert!(out.is_sorted());
        let sent = steps.iter().filter(|step| matches!(step, Step::Send { .. })).count();
        prop_assert_eq!(stats.offered_pkts, u64::try_from(sent).unwrap());
        prop_assert_eq!(stats.tx_pkts, u64::try_from(out.len()).unwrap());
        let dropped = stats.queue_drops + stats.loss_drops + stats.state_drops;
        prop_assert_eq!(stats.tx_pkts + dropped, stats.offered_pkts);
    }

    #[test]
    fn the_same_seed_gives_the_same_run(
        steps in prop::collection::vec(any_step(), 0..200),
        seed: u64,
    ) {
        prop_assert_eq!(play(&steps, seed), play(&steps, seed));
    }

    #[test]
    fn polling_more_often_changes_nothing(
        steps in prop::collection::vec(any_step(), 0..200),
        seed: u64,
    ) {
        let rarely: Vec<_> = steps.iter().filter(|s| !matches!(s, Step::Poll)).cloned().collect();
        let often: Vec<_> = rarely.iter().flat_map(|step| [step.clone(), Step::Poll]).collect();
        prop_assert_eq!(play(&rarely, seed), play(&often, seed));
    }
}
