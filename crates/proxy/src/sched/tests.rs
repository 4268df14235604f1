use super::*;

fn link(id: usize, mbps: u64, load: u64) -> LinkView {
    LinkView {
        id: LinkId(id),
        rate: Bitrate::from_mbps(mbps),
        load: Bytes::new(load),
        sharing: Bytes::new(load),
        start: Duration::ZERO,
        single: None,
        weight: None,
    }
}

/// Returns how often each of `links` is chosen in `turns` calls, if every transfer ends at once.
fn shares(policy: Policy, links: &[LinkView], turns: usize) -> Vec<usize> {
    let mut scheduler = Scheduler::new(policy);
    let mut counts = vec![0; links.len()];
    for _ in 0..turns {
        let ranked = scheduler.rank(links, Bytes::new(1000), Bytes::new(1000));
        counts[ranked[0].0] += 1;
    }
    counts
}

#[test]
fn every_scheduler_ranks_all_links_once_and_none_of_none() {
    let links = [link(0, 20, 5_000), link(1, 10, 0), link(2, 1, 9)];
    for policy in Policy::ALL {
        let mut scheduler = Scheduler::new(policy);
        assert_eq!(scheduler.rank(&[], Bytes::new(1), Bytes::new(1)), []);
        for _ in 0..10 {
            let mut ranked = scheduler.rank(&links, Bytes::new(22_000), Bytes::new(22_000));
            ranked.sort();
            assert_eq!(ranked, [LinkId(0), LinkId(1), LinkId(2)], "{policy:?}");
        }
        assert_eq!(Policy::named(policy.name()), Some(policy));
    }
    assert_eq!(Policy::named("fastest"), None);
}

#[test]
fn round_robins_share_by_turn_by_rate_and_by_weight() {
    let links = [link(0, 20, 0), link(1, 10, 0)];
    assert_eq!(shares(Policy::OnlyOne, &links, 30), [30, 0]);
    assert_eq!(shares(Policy::RoundRobin, &links, 30), [15, 15]);
    assert_eq!(shares(Policy::WeightedRoundRobin, &links, 30), [20, 10]);
    let by_user = links.map(|link| LinkView {
        weight: Some(if link.id.0 == 0 { 1 } else { 4 }),
        ..link
    });
    assert_eq!(shares(Policy::WeightedRoundRobin, &by_user, 30), [6, 24]);
}

#[test]
fn round_robins_survive_links_that_come_and_go() {
    let both = [link(0, 20, 0), link(1, 10, 0)];
    for policy in [Policy::RoundRobin, Policy::WeightedRoundRobin] {
        let mut scheduler = Scheduler::new(policy);
        for _ in 0..100 {
            assert_eq!(
                scheduler.rank(&both[1..], Bytes::ZERO, Bytes::ZERO),
                [LinkId(1)]
            );
        }
        // After the other link returns, it does not catch up on the connections that it missed.
        let first: Vec<_> = (0..6)
            .map(|_| scheduler.rank(&both, Bytes::ZERO, Bytes::ZERO)[0])
            .collect();
        let fast = first.iter().filter(|id| id.0 == 0).count();
        assert!((3..=5).contains(&fast), "{policy:?} {first:?}");
    }
}

#[test]
fn max_throughput_fills_links_in_proportion_to_their_rates() {
    let mut scheduler = Scheduler::new(Policy::MaxThroughput);
    let demand = Bytes::new(1_000_000);
    let mut links = [link(0, 20, 0), link(1, 10, 0)];
    for _ in 0..15 {
        let chosen = scheduler.rank(&links, demand, demand)[0];
        links[chosen.0].load += demand;
        links[chosen.0].sharing += demand;
    }
    let loads = links.map(|link| link.load.get() / demand.get());
    assert_eq!(loads, [10, 5]);
}

#[test]
fn max_throughput_leaves_a_long_download_alone_where_that_costs_little() {
    let mut scheduler = Scheduler::new(Policy::MaxThroughput);
    let small = Bytes::new(22_380);
    let long = LinkView {
        sharing: small,
        ..link(0, 20, 1_000_000_000)
    };
    // The transfer takes 18 ms on the link that it shares with the download, and 30 and 179 ms on the idle links.
    let links = [long, link(1, 6, 0), link(2, 1, 0)];
    let ranked = scheduler.rank(&links, small, small);
    assert_eq!(ranked, [LinkId(1), LinkId(0), LinkId(2)]);
    // 18 ms on the shared link against 179 ms on the idle one: the idle link is beyond the maximum stretch.
    let ranked = scheduler.rank(&[long, link(2, 1, 0)], small, small);
    assert_eq!(ranked, [LinkId(0), LinkId(2)]);
}

#[test]
fn max_throughput_does_not_put_a_large_thing_on_a_slow_link() {
    let mut scheduler = Scheduler::new(Policy::MaxThroughput);
    // The transfer alone takes 2 s on the fast link, after the link's load, and 16 s on the slow link.
    let links = [link(0, 8, 1_000_000), link(1, 1, 0)];
    assert_eq!(
        scheduler.rank(&links, Bytes::new(2_000_000), Bytes::new(2_000_000))[0],
        LinkId(0)
    );
}

#[test]
fn max_throughput_takes_the_link_that_answers_first_while_round_trips_are_what_it_waits_for() {
    let chosen = |demand: u64, starts_ms: [u64; 2]| {
        let mut links = [link(0, 20, 0), link(1, 10, 0)];
        for (link, ms) in links.iter_mut().zip(starts_ms) {
            link.start = Duration::from_millis(ms);
        }
        let (demand, answer) = (Bytes::new(demand), Bytes::new(50_000));
        let mut scheduler = Scheduler::new(Policy::MaxThroughput);
        let turns = (0..30).map(|_| {
            let first = scheduler.rank(&links, demand, answer)[0];
            links[first.0].load += demand;
            links[first.0].sharing += answer;
            first.0
        });
        turns.collect::<Vec<_>>()
    };
    let small = chosen(130_000, [80, 160]);
    // The fourth connection takes equally long on both links, but delays no other connection on the second link.
    assert_eq!(small[..6], [0, 0, 0, 1, 0, 0]);
    assert_eq!(small.iter().sum::<usize>(), 9, "a third of the rate");
    // Without known RTTs, the delay of other connections only decides between links that finish at the same time. For
    // large transfers, rates matter more than RTTs, and the delay of other connections never decides.
    assert_eq!(chosen(130_000, [0, 0])[..6], [0, 1, 0, 0, 1, 0]);
    assert_eq!(chosen(500_000, [80, 160])[..6], [0, 0, 1, 0, 0, 1]);
}

#[test]
fn makespan_is_the_papers_rule_without_ours() {
    let chosen = |policy, links: &[LinkView], demand| {
        let demand = Bytes::new(demand);
        Scheduler::new(policy).rank(links, demand, demand)[0].0
    };
    // A long download finishes last in any case. The paper's rule then puts a page on a link with a twentieth of the
    // rate.
    let long = LinkView {
        sharing: Bytes::new(22_380),
        ..link(0, 20, 1_000_000_000)
    };
    let links = [long, link(1, 1, 0)];
    assert_eq!(chosen(Policy::Makespan, &links, 22_380), 1);
    assert_eq!(chosen(Policy::MaxThroughput, &links, 22_380), 0);
    // The makespan scheduler ignores RTTs.
    let far = LinkView {
        start: Duration::from_millis(500),
        ..link(0, 20, 0)
    };
    assert_eq!(chosen(Policy::Makespan, &[far, link(1, 19, 0)], 20_000), 0);
    assert_eq!(
        chosen(Policy::MaxThroughput, &[far, link(1, 19, 0)], 20_000),
        1
    );
}

#[test]
fn a_link_that_loses_packets_is_not_taken_for_its_rate() {
    // A single connection gets at most 2 of the link's 20 Mbit/s.
    let lossy = LinkView {
        single: Some(Bitrate::from_mbps(2)),
        ..link(0, 20, 0)
    };
    let demand = Bytes::new(1_000_000);
    for policy in [Policy::Makespan, Policy::MaxThroughput] {
        let first = |links: &[LinkView]| Scheduler::new(policy).rank(links, demand, demand)[0].0;
        assert_eq!(first(&[link(0, 20, 0), link(1, 5, 0)]), 0);
        assert_eq!(first(&[lossy, link(1, 5, 0)]), 1, "{policy:?}");
        assert_eq!(first(&[lossy, link(1, 1, 0)]), 0, "{policy:?}");
    }
}

/// Compares the scheduler with a reference that tries every assignment and computes when all transfers are finished.
#[test]
fn max_throughput_agrees_with_trying_everything() {
    let mut seed = 1_u64;
    let mut next = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    for _ in 0..500 {
        // The rates differ by less than the maximum stretch.
        let links: Vec<_> = (0..3)
            .map(|id| LinkView {
                sharing: Bytes::ZERO,
                ..link(id, 10 + next(30), next(3_000_000))
            })
            .collect();
        let demand = Bytes::new(next(2_000_000));
        let done = |chosen: usize| {
            let after = links.iter().enumerate().map(|(id, link)| {
                let more = if id == chosen { demand } else { Bytes::ZERO };
                link.all_done_us(more)
            });
            after.max()
        };
        let chosen = Scheduler::new(Policy::MaxThroughput).rank(&links, demand, demand)[0];
        let best = (0..3).map(done).min().flatten();
        assert_eq!(done(chosen.0), best, "{links:?} {demand}");
    }
}
