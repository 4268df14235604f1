//! The contract of [`Scheduler`], run over every policy, and tests of the small policies.

use super::*;
use crate::rng::Rng;

/// Every policy with its default settings, and some policies with other settings. The flag says whether the policy's
/// documentation allows it to wait while a path is ready.
fn policies() -> Vec<(Policy, bool)> {
    let defaults = Policy::<PathId>::NAMES.iter().map(|name| {
        let policy = Policy::named(name).expect("it is listed");
        (policy, !NEVER_WAIT.contains(name))
    });
    let others = [
        (awi(3, Count::Bytes, Wrr::Block), false),
        (awi(3, Count::Packets, Wrr::Smooth), false),
        (awi(15, Count::Bytes, Wrr::Smooth), false),
        (consn(Variant::LastDescends), false),
        (single(2), true),
        (srtt_weighted(Weights::Equal), false),
    ];
    defaults.chain(others).collect()
}

/// Policies whose documentation says that they never wait.
const NEVER_WAIT: [&str; 8] = [
    "auto-weight",
    "awi",
    "consn",
    "min-rtt",
    "redundant",
    "round-robin",
    "srtt-weighted",
    "weighted",
];

fn awi(fixed: u8, count: Count, wrr: Wrr) -> Policy {
    Policy::Awi(AwiSettings {
        fixed: Some(PathId(fixed)),
        count,
        wrr,
        loss: LossSource::Both,
        ..AwiSettings::default()
    })
}

fn consn(variant: Variant) -> Policy {
    Policy::Consn(ConsnSettings {
        variant,
        redundancy: true,
        pdc: true,
        ..ConsnSettings::default()
    })
}

fn srtt_weighted(weights: Weights) -> Policy {
    Policy::SrttWeighted(SrttWeightedSettings {
        weights,
        pdc: true,
        ..SrttWeightedSettings::default()
    })
}

fn single(id: u8) -> Policy {
    let link = Some(PathId(id));
    Policy::Single(SingleSettings { link })
}

/// Returns `count` equal paths without measurements, all ready.
pub(super) fn ready_paths(count: usize) -> Vec<PathView> {
    let ids = (0..u8::MAX).take(count);
    ids.map(|id| PathView {
        ready: true,
        usable: true,
        ..PathView::unmeasured(PathId(id))
    })
    .collect()
}

/// A packet of 1250 bytes without backlog behind it.
pub(super) fn packet() -> PacketInfo {
    PacketInfo {
        flow: FlowId::of_hash(7),
        ..PacketInfo::of_len(Bytes::new(1_250))
    }
}

/// A random world: paths that appear, vanish and change between packets.
struct World {
    rng: Rng,
    now: Instant,
    paths: Vec<PathView>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            now: Instant::ZERO,
            paths: Vec::new(),
        }
    }

    /// Advances to the next packet; at least one path is ready.
    fn step(&mut self) -> PacketInfo {
        let rng = &mut self.rng;
        self.now += Duration::from_nanos(rng.next_u64() >> (34 + rng.below(30)));
        if self.paths.is_empty() || rng.chance(0.02) {
            self.paths = ready_paths(PathId::MAX);
            let keep = rng.uniform();
            self.paths.retain(|_| rng.chance(keep));
        }
        for path in &mut self.paths {
            path.usable = rng.chance(0.8);
            path.ready = path.usable && rng.chance(0.6);
            if rng.chance(0.05) {
                path.weight = u32::try_from(rng.below(100)).expect("small");
                path.cost = u8::try_from(rng.below(3)).expect("small");
                let micros = rng.below(300_000);
                path.smoothed_rtt = rng.chance(0.8).then_some(Duration::from_micros(micros));
                path.extra_delay = Duration::from_micros(rng.below(400_000));
                let bps = rng.next_u64() >> rng.below(64);
                path.rate = rng.chance(0.8).then_some(Bitrate::from_bps(bps));
                path.in_flight = Bytes::new(rng.below(1_000_000));
                path.staged = Bytes::new(rng.below(2) * rng.below(100_000));
                path.queue_delay = Duration::from_micros(rng.below(50_000));
                path.is_searching = rng.chance(0.5);
                path.loss_ppm = u32::try_from(rng.below(50_000)).expect("small");
                path.is_silent = rng.chance(0.1);
            }
        }
        if !self.paths.iter().any(|path| path.ready) {
            if self.paths.is_empty() {
                self.paths = ready_paths(1);
            }
            let one = usize::try_from(rng.below(self.paths.len() as u64)).expect("small");
            (self.paths[one].usable, self.paths[one].ready) = (true, true);
        }
        PacketInfo {
            len: Bytes::new(40 + rng.below(1_400)),
            flow: FlowId::of_hash(rng.below(20) << 50),
            is_expendable: rng.chance(0.1),
            backlog: Bytes::new(rng.below(3) * rng.below(50_000)),
            own_backlog: Bytes::new(rng.below(3) * rng.below(50_000)),
            to_last: Bytes::new(rng.below(3) * rng.below(300_000)),
            round_trip: Duration::from_micros(rng.below(3) * rng.below(300_000)),
            has_behind: rng.chance(0.5),
            urgency: rng.chance(0.2).then(|| Urgency {
                left: Duration::from_micros(rng.below(400_000)),
                duplicate: [Duplicate::Never, Duplicate::Auto, Duplicate::Always]
                    [usize::try_from(rng.below(3)).expect("small")],
                is_small: rng.chance(0.5),
            }),
        }
    }
}

impl World {
    /// Sometimes reports losses, with random numbers up to the maximum.
    fn report(&mut self, scheduler: &mut AnyScheduler) {
        let rng = &mut self.rng;
        if rng.chance(0.9) {
            return;
        }
        let mut number = || rng.next_u64() >> rng.below(64);
        let counts = LossCounts {
            intervals: 1,
            lost_pkts: number(),
            lost_bytes: number(),
            sent_pkts: number(),
            sent_bytes: number(),
        };
        let path = PathId(u8::try_from(rng.below(20)).expect("small"));
        scheduler.on_loss_report(self.now, path, &counts);
        let is_bounded = matches!(scheduler, AnyScheduler::Awi(_));
        assert!(
            scheduler
                .weight(path)
                .is_none_or(|weight| weight <= 50 || !is_bounded)
        );
    }
}

#[test]
fn picks_name_ready_paths_and_only_those_that_may_wait_do() {
    for (policy, may_wait) in policies() {
        for seed in 0..20 {
            let mut world = World::new(seed);
            let mut scheduler = policy.build();
            let mut sent = 0;
            for _ in 0..2_000 {
                let packet = world.step();
                world.report(&mut scheduler);
                match scheduler.pick(world.now, &world.paths, &packet) {
                    Pick::Wait => assert!(may_wait, "{policy:?}"),
                    Pick::One(index) => {
                        let path = &world.paths[index];
                        let is_kept = path.usable && scheduler.profile().look_ahead;
                        assert!(path.ready || is_kept, "{policy:?}");
                        sent += 1;
                    }
                    Pick::Shadowed { index, copies } => {
                        assert!(world.paths[index].ready, "{policy:?}");
                        assert!(copies & 1 << index == 0, "{policy:?}");
                        for index in (0..16).filter(|index| copies & 1 << index != 0) {
                            assert!(world.paths[index].ready, "{policy:?}");
                        }
                        sent += 1;
                    }
                    Pick::Behind { index, .. } => {
                        assert!(packet.has_behind, "{policy:?}");
                        assert!(world.paths[index].ready, "{policy:?}");
                        sent += 1;
                    }
                    Pick::Copies(copies) => {
                        assert!(copies != 0, "{policy:?}");
                        for index in (0..16).filter(|index| copies & 1 << index != 0) {
                            assert!(world.paths[index].ready, "{policy:?}");
                        }
                        sent += 1;
                    }
                }
            }
            assert!(sent > 500, "{policy:?} sent {sent} of 2000");
        }
    }
}

#[test]
fn the_same_calls_give_the_same_answers() {
    for (policy, _) in policies() {
        let (mut one, mut other) = (World::new(42), World::new(42));
        let (mut first, mut second) = (policy.build(), policy.build());
        for step in 0..2_000 {
            let (packet, same) = (one.step(), other.step());
            one.report(&mut first);
            other.report(&mut second);
            let pick = first.pick(one.now, &one.paths, &packet);
            assert_eq!(pick, second.pick(other.now, &other.paths, &same), "{step}");
        }
    }
}

#[test]
fn a_lone_ready_path_is_used_by_all() {
    for (policy, _) in policies() {
        let mut scheduler = policy.build();
        for count in 1..=3 {
            let mut paths = ready_paths(count);
            for path in &mut paths[..count - 1] {
                (path.usable, path.ready) = (false, false);
            }
            let pick = scheduler.pick(Instant::ZERO, &paths, &packet());
            let copies = Pick::Copies(1 << (count - 1));
            assert!(pick == Pick::One(count - 1) || pick == copies, "{policy:?}");
        }
    }
}

#[test]
fn with_no_path_ready_all_wait_and_none_panics() {
    for (policy, _) in policies() {
        let mut scheduler = policy.build();
        let mut paths = ready_paths(3);
        paths.iter_mut().for_each(|path| path.ready = false);
        for paths in [&paths[..], &[]] {
            let pick = scheduler.pick(Instant::ZERO, paths, &packet());
            assert_eq!(pick, Pick::Wait, "{policy:?}");
        }
    }
}

#[test]
fn ids_beyond_the_contract_do_not_panic() {
    for (policy, _) in policies() {
        let mut scheduler = policy.build();
        let paths = ready_paths(40);
        for _ in 0..100 {
            let _ = scheduler.pick(Instant::ZERO, &paths, &packet());
        }
    }
}

#[test]
fn single_falls_over_to_the_lowest_id_and_returns() {
    let mut scheduler = single(2).build();
    let mut pick = |paths: &[PathView]| scheduler.pick(Instant::ZERO, paths, &packet());
    let mut paths = ready_paths(4);
    assert_eq!(pick(&paths), Pick::One(2));
    paths[2].ready = false;
    assert_eq!(pick(&paths), Pick::Wait);
    paths[2].usable = false;
    assert_eq!(pick(&paths), Pick::One(0));
    (paths[0].usable, paths[0].ready) = (false, false);
    assert_eq!(pick(&paths), Pick::One(1));
    (paths[2].usable, paths[2].ready) = (true, true);
    assert_eq!(pick(&paths), Pick::One(2));
}

#[test]
fn round_robin_takes_turns_and_skips_what_is_not_ready() {
    let mut scheduler = RoundRobin::new();
    let mut paths = ready_paths(3);
    let mut turns = |paths: &[PathView], count: usize| -> Vec<Pick> {
        let mut next = || scheduler.pick(Instant::ZERO, paths, &packet());
        (0..count).map(|_| next()).collect()
    };
    assert_eq!(turns(&paths, 4), [0, 1, 2, 0].map(Pick::One));
    paths[1].ready = false;
    assert_eq!(turns(&paths, 3), [2, 0, 2].map(Pick::One));
    paths.remove(2);
    paths[1].ready = true;
    assert_eq!(turns(&paths, 3), [0, 1, 0].map(Pick::One));
}

#[test]
fn min_rtt_takes_the_quickest_ready_path_and_the_unmeasured_last() {
    let mut paths = ready_paths(3);
    paths[1].smoothed_rtt = Some(Duration::from_millis(50));
    paths[2].smoothed_rtt = Some(Duration::from_millis(20));
    let pick = |paths: &[PathView]| MinRtt.pick(Instant::ZERO, paths, &packet());
    assert_eq!(pick(&paths), Pick::One(2));
    paths[2].ready = false;
    assert_eq!(pick(&paths), Pick::One(1));
    paths[1].ready = false;
    assert_eq!(pick(&paths), Pick::One(0));
    paths[1].ready = true;
    paths[0].smoothed_rtt = Some(Duration::from_millis(50));
    assert_eq!(pick(&paths), Pick::One(0));
}

#[test]
fn redundant_copies_to_all_that_are_ready() {
    let mut paths = ready_paths(16);
    let pick = |paths: &[PathView]| Redundant.pick(Instant::ZERO, paths, &packet());
    assert_eq!(pick(&paths), Pick::Copies(u16::MAX));
    paths[3].ready = false;
    assert_eq!(pick(&paths), Pick::Copies(u16::MAX - 8));
}
