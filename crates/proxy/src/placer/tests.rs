use super::*;
use crate::{rules::Destination, target::Host};

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn config(policy: Policy) -> PlacerConfig {
    PlacerConfig {
        policy,
        stickiness: Stickiness::Tls,
        sticky_time: Duration::from_secs(600),
        rules: Vec::new(),
    }
}

/// Returns a placer with links of 20 and 10 Mbit/s, which both lead to all IPv4 addresses.
fn placer(config: PlacerConfig) -> Placer {
    let mut placer = Placer::new(config, Instant::ZERO);
    for (name, mbps) in [("wifi", 20), ("lte", 10)] {
        let id = placer.add_link(LinkSettings {
            name: name.to_owned(),
            download: Some(Bitrate::from_mbps(mbps)),
            ..LinkSettings::default()
        });
        placer.set_reach(id, everywhere());
    }
    placer
}

fn everywhere() -> Reach {
    Reach {
        v4: true,
        ..Reach::default()
    }
}

fn target(host: &str, port: u16) -> Target {
    Target::new(Host::parse(host).expect("host"), port).expect("port")
}

fn begin(
    placer: &mut Placer,
    now: Instant,
    app: Option<&str>,
    to: &Target,
) -> Result<Placement, NoLink> {
    let addresses = [IpAddr::from([192, 0, 2, 1])];
    let ask = Ask {
        dscp: None,
        client: CLIENT,
        app,
        target: to,
        addresses: &addresses,
        warm: &[],
    };
    placer.begin(now, ask)
}

#[test]
fn connections_that_begin_together_see_each_other() {
    let mut placer = placer(config(Policy::MaxThroughput));
    let to = target("files.example", 80);
    let mut counts = [0, 0];
    for _ in 0..15 {
        let placement = begin(&mut placer, at(0), None, &to).expect("links");
        assert_eq!(placement.why, Why::Scheduler(Policy::MaxThroughput));
        counts[placement.links[0].0] += 1;
    }
    assert_eq!(counts, [10, 5]);
    assert_eq!(placer.connection_counts(), [10, 5]);
}

#[test]
fn a_connection_that_waits_is_opened_and_has_its_window() {
    let mut placer = placer(config(Policy::MaxThroughput));
    let to = target("files.example", 80);
    for (link, rtt) in [(0, 20), (1, 40)] {
        let rtt = Duration::from_millis(rtt);
        let sample = TcpSample {
            rtt,
            min_rtt: rtt,
            segments: 1,
            retransmitted: 0,
        };
        placer.observe_tcp(LinkId(link), sample);
    }
    let mut first = |now, warm: &[Warm]| {
        let addresses = [IpAddr::from([192, 0, 2, 1])];
        let ask = Ask {
            dscp: None,
            client: CLIENT,
            app: None,
            target: &to,
            addresses: &addresses,
            warm,
        };
        let placement = placer.begin(now, ask).expect("links");
        placer.end(now, placement.id, None);
        placement.links[0]
    };
    let warm = |link, received| Warm {
        link: LinkId(link),
        received: Bytes::new(received),
    };
    // An answer of 22 kB takes three, two or one RTTs, plus 9 or 18 ms at the rate of the link.
    assert_eq!(first(at(0), &[]), LinkId(0));
    assert_eq!(first(at(0), &[warm(1, 0)]), LinkId(0));
    assert_eq!(first(at(0), &[warm(1, 100_000)]), LinkId(1));
    assert_eq!(first(at(0), &[warm(1, 100_000), warm(0, 0)]), LinkId(0));
}

#[test]
fn what_a_server_says_of_its_answer_counts_for_more_than_what_is_expected() {
    let mut placer = placer(config(Policy::MaxThroughput));
    let to = target("files.example", 80);
    let first = begin(&mut placer, at(0), None, &to).expect("links");
    assert_eq!(first.links[0], LinkId(0));
    // 1 GB takes 400 s on the faster link.
    let all = |down| Demand { up: 100, down };
    placer.foretell(first.id, all(1_000_000_000));
    let next = |placer: &mut Placer| {
        let next = begin(placer, at(10), None, &to).expect("links");
        placer.end(at(10), next.id, None);
        next.links[0]
    };
    assert_eq!(next(&mut placer), LinkId(1));
    placer.glance(at(20), first.id, all(999_999_999));
    assert_eq!(next(&mut placer), LinkId(0), "a byte is left");
    placer.foretell(first.id, all(u64::MAX));
    assert_eq!(next(&mut placer), LinkId(0), "nobody believes that");
}

#[test]
fn a_link_that_has_nothing_to_do_shows_nothing_meanwhile() {
    let mut placer = Placer::new(config(Policy::OnlyOne), Instant::ZERO);
    let link = placer.add_link(LinkSettings::default());
    placer.set_reach(link, everywhere());
    let to = target("a.example", 80);
    let down = |down| Demand { up: 0, down };
    // Three times: 8 Mbit/s for 100 ms, then no data for 300 ms.
    for turn in 0..3 {
        let from = turn * 400;
        let id = begin(&mut placer, at(from), None, &to).expect("a link").id;
        placer.glance(at(from), id, down(1));
        placer.glance(at(from + 50), id, down(50_001));
        placer.observe(at(from + 100), id, down(100_001), false);
        placer.end(at(from + 100), id, None);
    }
    let (_, shown) = placer.link_mut(link).expect("a link").beginnings;
    let shown = shown.rate().expect("a beginning").as_bps();
    assert!((7_900_000..8_100_000).contains(&shown), "{shown}");
}

#[test]
fn sites_with_logins_keep_their_link_and_plain_downloads_spread() {
    let mut placer = placer(config(Policy::RoundRobin));
    let links = |placer: &mut Placer, to: &Target| {
        let mut placed = || begin(placer, at(1), None, to).expect("links");
        [placed(), placed()].map(|placement| (placement.links[0].0, placement.why))
    };
    let plain = links(&mut placer, &target("files.example", 80));
    assert_ne!(plain[0].0, plain[1].0);
    let bank = links(&mut placer, &target("bank.example", 443));
    assert_eq!(bank[0].0, bank[1].0);
    assert_eq!(bank[1].1, Why::Site);
    // If the site's link goes down, the site takes another link and stays on it.
    let kept = LinkId(bank[0].0);
    placer.set_reach(kept, Reach::default());
    let placement =
        begin(&mut placer, at(2), None, &target("www.bank.example", 443)).expect("links");
    assert_eq!(
        (placement.links[0].0, placement.why),
        (1 - kept.0, Why::OnlyLink)
    );
    placer.set_reach(kept, everywhere());
    let placement = begin(&mut placer, at(3), None, &target("bank.example", 443)).expect("links");
    assert_eq!(placement.links[0].0, 1 - kept.0);
}

#[test]
fn the_first_rule_that_holds_wins_and_strict_ones_leave_no_other() {
    let rules = vec![
        Rule {
            app: Some("skype".to_owned()),
            link: LinkId(1),
            ..Rule::default()
        },
        Rule {
            destination: Destination::parse("work.example"),
            link: LinkId(1),
            strict: true,
            ..Rule::default()
        },
    ];
    let mut placer = placer(PlacerConfig {
        rules,
        ..config(Policy::MaxThroughput)
    });
    let to = target("work.example", 80);
    let call = begin(&mut placer, at(0), Some("skype"), &to).expect("links");
    assert_eq!(
        (call.links, call.why),
        (vec![LinkId(1), LinkId(0)], Why::Rule(1))
    );
    let work = begin(&mut placer, at(0), Some("curl"), &to).expect("links");
    assert_eq!((work.links, work.why), (vec![LinkId(1)], Why::Rule(2)));

    placer.set_reach(LinkId(1), Reach::default());
    let call = begin(&mut placer, at(1), Some("skype"), &target("x.example", 80)).expect("links");
    assert_eq!((call.links, call.why), (vec![LinkId(0)], Why::OnlyLink));
    let refused = begin(&mut placer, at(1), None, &to).expect_err("strict");
    assert!(
        refused.to_string().contains("rule 2 allows link lte only"),
        "{refused}"
    );
}

#[test]
fn no_link_says_why_for_each() {
    let mut placer = placer(config(Policy::MaxThroughput));
    placer.set_reach(LinkId(1), Reach::default());
    let to = target("2001:db8::1", 80);
    let addresses = ["2001:db8::1".parse().expect("address")];
    let ask = Ask {
        dscp: None,
        client: CLIENT,
        app: None,
        target: &to,
        addresses: &addresses,
        warm: &[],
    };
    let refused = placer.begin(at(0), ask).expect_err("IPv4 only");
    assert_eq!(refused.to_string(), "wifi: no IPv6; lte: down");
    assert_eq!(placer.connection_counts(), [0, 0]);
}

#[test]
fn neighbours_are_reached_where_they_are() {
    let mut placer = placer(config(Policy::MaxThroughput));
    let reach = Reach {
        neighbours: vec!["192.0.2.0/24".parse().expect("network")],
        ..everywhere()
    };
    placer.set_reach(LinkId(1), reach);
    let placement = begin(&mut placer, at(0), None, &target("192.0.2.1", 80)).expect("links");
    assert_eq!(
        (placement.links, placement.why),
        (vec![LinkId(1)], Why::Neighbour)
    );
}

#[test]
fn a_link_that_failed_is_avoided_for_a_while() {
    let mut placer = placer(config(Policy::OnlyOne));
    let to = target("a.example", 80);
    let first = begin(&mut placer, at(0), None, &to).expect("links");
    assert_eq!(first.links, [LinkId(0), LinkId(1)]);
    placer.moved(at(100), first.id, LinkId(1), &[LinkId(0)]);
    assert_eq!(placer.connection_counts(), [0, 1]);
    assert!(placer.is_suspect(at(200), LinkId(0)));
    let second = begin(&mut placer, at(200), None, &to).expect("links");
    assert_eq!(second.links, [LinkId(1), LinkId(0)]);
    let later = begin(&mut placer, at(10_101), None, &to).expect("links");
    assert_eq!(later.links[0], LinkId(0));
    placer.moved(at(10_200), later.id, LinkId(1), &[LinkId(0)]);
    placer.trust(LinkId(0));
    assert!(!placer.is_suspect(at(10_201), LinkId(0)));
}

#[test]
fn dear_links_wait_for_need_and_standby_for_failure() {
    let mut placer = Placer::new(config(Policy::MaxThroughput), Instant::ZERO);
    for cost in [Cost::Rank(0), Cost::Rank(1), Cost::Standby, Cost::Never] {
        let id = placer.add_link(LinkSettings {
            cost,
            download: Some(Bitrate::from_mbps(1)),
            ..LinkSettings::default()
        });
        placer.set_reach(id, everywhere());
    }
    let to = target("a.example", 80);
    // 22.38 kB take 0.18 s at 1 Mbit/s, so eleven such connections take 2 s.
    let firsts: Vec<usize> = (0..13)
        .map(|_| begin(&mut placer, at(0), None, &to).expect("links").links[0].0)
        .collect();
    assert_eq!(firsts[..11], [0; 11]);
    assert_eq!(firsts[11..], [1, 1]);
    placer.set_reach(LinkId(0), Reach::default());
    placer.set_reach(LinkId(1), Reach::default());
    assert_eq!(
        begin(&mut placer, at(0), None, &to).expect("standby").links,
        [LinkId(2)]
    );
    placer.set_reach(LinkId(2), Reach::default());
    assert!(begin(&mut placer, at(0), None, &to).is_err());
}

#[test]
fn rates_are_learnt_and_hope_comes_back() {
    let mut placer = Placer::new(config(Policy::MaxThroughput), Instant::ZERO);
    for name in ["wifi", "lte"] {
        let id = placer.add_link(LinkSettings {
            name: name.to_owned(),
            ..LinkSettings::default()
        });
        placer.set_reach(id, everywhere());
    }
    let to = target("a.example", 80);
    let ids = [0, 1].map(|link| {
        let id = begin(&mut placer, at(0), None, &to).expect("links").id;
        placer.moved(at(0), id, LinkId(link), &[]);
        id
    });
    // The links receive 20 and 10 Mbit/s for 3 s.
    let mut now = at(0);
    for window in 1..=12 {
        now += WINDOW;
        for (id, mbps) in ids.into_iter().zip([20, 10]) {
            let down = window * Bitrate::from_mbps(mbps).bytes_in(WINDOW).get();
            placer.observe(now, id, Demand { up: 0, down }, false);
        }
        placer.handle_window(now);
    }
    let down = |placer: &Placer, now, link| placer.rates(now, LinkId(link)).1;
    assert_eq!(down(&placer, now, 0), Bitrate::from_mbps(20));
    assert_eq!(down(&placer, now, 1), Bitrate::from_mbps(10));
    assert_eq!(placer.links()[1].rx_bytes, 3_750_000);

    let later = now + Duration::from_secs(301);
    assert_eq!(
        down(&placer, later, 1),
        Bitrate::from_mbps(20),
        "tried again"
    );
    // The end of a connection updates the expected amount of data.
    placer.end(now, ids[0], Some(1));
    assert!(placer.demands.expected(None, 80).demand.down > 900_000);
    assert_eq!(placer.connection_counts(), [0, 1]);
}

#[test]
fn a_held_up_client_says_nothing_about_the_link() {
    let mut placer = Placer::new(config(Policy::MaxThroughput), Instant::ZERO);
    let link = placer.add_link(LinkSettings::default());
    placer.set_reach(link, everywhere());
    let id = begin(&mut placer, at(0), None, &target("a.example", 80))
        .expect("link")
        .id;
    let mut now = at(0);
    for window in 1..20 {
        now += WINDOW;
        placer.observe(
            now,
            id,
            Demand {
                up: 0,
                down: window * 10_000,
            },
            true,
        );
        placer.handle_window(now);
    }
    assert_eq!(placer.links()[0].estimator.down.rate(), None);
}

#[test]
fn idle_and_overdue_connections_count_for_what_they_may_still_move() {
    let mut placer = placer(config(Policy::MaxThroughput));
    let id = begin(&mut placer, at(0), None, &target("a.example", 80))
        .expect("links")
        .id;
    let left = |placer: &Placer, now| remaining(now, &placer.connections[&id]);
    assert_eq!(left(&placer, at(0)), 22_380);
    placer.observe(
        at(10),
        id,
        Demand {
            up: 380,
            down: 20_000,
        },
        false,
    );
    assert_eq!(left(&placer, at(10)), 2_000);
    placer.observe(
        at(20),
        id,
        Demand {
            up: 380,
            down: 99_620,
        },
        false,
    );
    assert_eq!(left(&placer, at(20)), 61_190, "beyond what was expected");
    assert_eq!(left(&placer, at(5_021)), 0, "done");
}

#[test]
fn a_busy_link_is_not_suspected_for_one_lost_packet() {
    let mut placer = placer(config(Policy::OnlyOne));
    let to = target("a.example", 80);
    let busy = begin(&mut placer, at(0), None, &to).expect("links").id;
    placer.observe(at(900), busy, Demand { up: 0, down: 9_000 }, false);
    let unlucky = begin(&mut placer, at(1000), None, &to).expect("links").id;
    placer.moved(at(1500), unlucky, LinkId(1), &[LinkId(0)]);
    assert!(!placer.is_suspect(at(1500), LinkId(0)));
    // No data has arrived since, so the link becomes suspect.
    placer.moved(at(2000), unlucky, LinkId(1), &[LinkId(0)]);
    assert!(placer.is_suspect(at(2000), LinkId(0)));
}

/// Begins `count` connections on the first link.
fn crowd(placer: &mut Placer, now: Instant, count: usize) -> Vec<ConnectionId> {
    let to = target("a.example", 80);
    let begin = |_| {
        let id = begin(placer, now, None, &to).expect("links").id;
        placer.moved(now, id, LinkId(0), &[]);
        id
    };
    (0..count).map(begin).collect()
}

#[test]
fn many_connections_that_get_little_each_show_what_a_slow_link_carries() {
    let mut placer = Placer::new(config(Policy::MaxThroughput), Instant::ZERO);
    for _ in 0..2 {
        let link = placer.add_link(LinkSettings::default());
        placer.set_reach(link, everywhere());
    }
    let ids = crowd(&mut placer, at(0), 100);
    let mut moved = vec![0; ids.len()];
    let mut now = at(0);
    // 0.24 Mbit/s: in each window, five of the hundred connections receive one packet each.
    for window in 0..40 {
        now += WINDOW;
        for turn in 0..5 {
            let index = (window * 5 + turn) % ids.len();
            moved[index] += 1500;
            let down = moved[index];
            placer.observe(now, ids[index], Demand { up: 0, down }, false);
        }
        placer.handle_window(now);
    }
    let (_, slow) = placer.rates(now, LinkId(0));
    assert_eq!(slow, Bitrate::from_bps(240_000));
    let (_, unknown) = placer.rates(now, LinkId(1));
    assert_eq!(unknown, slow, "as hopeful as of the best");
}

#[test]
fn links_that_are_not_known_are_told_apart_by_what_they_have_shown() {
    let mut placer = Placer::new(config(Policy::MaxThroughput), Instant::ZERO);
    for _ in 0..3 {
        let link = placer.add_link(LinkSettings::default());
        placer.set_reach(link, everywhere());
    }
    let to = target("a.example", 80);
    let ids: Vec<ConnectionId> = (0..2)
        .map(|_| begin(&mut placer, at(0), None, &to).expect("links").id)
        .collect();
    placer.moved(at(0), ids[0], LinkId(0), &[]);
    placer.moved(at(0), ids[1], LinkId(1), &[]);
    // 8 and 2 Mbit/s, reported within a window.
    for step in 0..=2_u64 {
        let now = at(50 + step * 100);
        for (id, bytes) in [(ids[0], 100_000), (ids[1], 25_000)] {
            let down = bytes * (step + 1);
            placer.glance(now, id, Demand { up: 0, down });
        }
    }
    let down = |link| placer.rates(at(250), LinkId(link)).1;
    assert_eq!(down(0), Bitrate::from_mbps(16));
    assert_eq!(down(1), Bitrate::from_mbps(4));
    assert_eq!(down(2), down(0), "as hopeful as of the best");
}

#[test]
fn what_a_link_has_shown_counts_before_there_is_an_estimate() {
    let mut placer = Placer::new(config(Policy::MaxThroughput), Instant::ZERO);
    for _ in 0..2 {
        let link = placer.add_link(LinkSettings::default());
        placer.set_reach(link, everywhere());
    }
    let slow = placer.link_mut(LinkId(1)).expect("there");
    slow.estimator.down.restore(at(0), Bitrate::from_mbps(9));
    let id = begin(&mut placer, at(0), None, &target("a.example", 80));
    let id = id.expect("links").id;
    placer.moved(at(0), id, LinkId(0), &[]);
    let down = |placer: &Placer, now| placer.rates(now, LinkId(0)).1;
    assert_eq!(down(&placer, at(0)), Bitrate::from_mbps(9));
    // The link receives a page at 16 Mbit/s. In the pause after it, the observed rate is discarded.
    let mut now = at(0);
    for window in 1..=3 {
        now += WINDOW;
        let down = window * 500_000;
        placer.observe(now, id, Demand { up: 0, down }, false);
        placer.handle_window(now);
    }
    let later = now + WINDOW * 40;
    placer.observe(
        later,
        id,
        Demand {
            up: 0,
            down: 1_501_000,
        },
        false,
    );
    placer.handle_window(later);
    assert_eq!(placer.links()[0].estimator.down.rate(), None);
    assert_eq!(down(&placer, later), Bitrate::from_mbps(16));
}

#[test]
fn trickles_and_idle_connections_are_no_crowd() {
    for (each, what) in [(2_000, "trickles"), (0, "idle")] {
        let mut placer = Placer::new(config(Policy::MaxThroughput), Instant::ZERO);
        let link = placer.add_link(LinkSettings::default());
        placer.set_reach(link, everywhere());
        let ids = crowd(&mut placer, at(0), 8);
        let mut now = at(0);
        for window in 1..=60 {
            now += WINDOW;
            for (index, id) in ids.iter().enumerate() {
                // Each connection has moved all expected bytes. In either case one connection continues, below the bulk
                // threshold.
                let more = if index == 0 { 3_000 } else { each };
                let down = 22_380 + window * more;
                placer.observe(now, *id, Demand { up: 0, down }, false);
            }
            placer.handle_window(now);
        }
        let found = placer.links()[0].estimator.down.rate();
        assert_eq!(found, None, "{what}");
    }
}

#[test]
fn budgets_make_links_dearer_and_the_next_month_cheaper_again() {
    let mut placer = placer(config(Policy::RoundRobin));
    placer.link_mut(LinkId(1)).expect("lte").settings.budget = Some(crate::budget::Budget {
        bytes: Bytes::new(1_000_000),
        billing_day: 1,
    });
    let day = |day: u64| day * 86_400;
    let to = target("a.example", 80);
    let firsts = |placer: &mut Placer| {
        let mut firsts: Vec<usize> = (0..2)
            .map(|_| begin(placer, at(0), None, &to).expect("links").links[0].0)
            .collect();
        firsts.sort_unstable();
        firsts
    };
    // Day 0 is 1 January 1970, and day 31 is in the next budget month.
    assert_eq!(placer.charge(LinkId(1), day(0), 100_000), None);
    assert_eq!(firsts(&mut placer), [0, 1]);
    assert_eq!(placer.charge(LinkId(1), day(0), 1), Some(Standing::Ahead));
    assert_eq!(firsts(&mut placer), [0, 0]);
    assert_eq!(placer.charge(LinkId(1), day(0), 0), None, "nothing new");
    // One day later the same volume is within the budget.
    assert_eq!(placer.charge(LinkId(1), day(1), 0), Some(Standing::Within));
    assert_eq!(firsts(&mut placer), [0, 1]);
    // If the budget is used up, the link is used only if no other link is available.
    assert_eq!(
        placer.charge(LinkId(1), day(2), 1_000_000),
        Some(Standing::Spent)
    );
    assert_eq!(firsts(&mut placer), [0, 0]);
    placer.set_reach(LinkId(0), Reach::default());
    assert_eq!(firsts(&mut placer), [1, 1]);
    placer.set_reach(LinkId(0), everywhere());
    assert_eq!(placer.charge(LinkId(1), day(31), 0), Some(Standing::Within));
    assert_eq!(firsts(&mut placer), [0, 1]);
    // A link without a budget has no standing to report.
    assert_eq!(placer.charge(LinkId(0), day(31), 1 << 40), None);
}

#[test]
fn energy_counts_while_it_is_saved() {
    let mut placer = placer(config(Policy::RoundRobin));
    placer.link_mut(LinkId(1)).expect("lte").settings.energy = 5;
    let to = target("a.example", 80);
    let first = |placer: &mut Placer| begin(placer, at(0), None, &to).expect("links").links[0].0;
    assert_eq!([(); 2].map(|()| first(&mut placer)), [0, 1]);
    placer.saves_energy = true;
    assert_eq!([(); 3].map(|()| first(&mut placer)), [0, 0, 0]);
    placer.set_reach(LinkId(0), Reach::default());
    assert_eq!(first(&mut placer), 1);
}

#[test]
fn real_time_takes_the_quickest_link_that_does_not_lose_packets() {
    let mut placer = placer(config(Policy::MaxThroughput));
    let sample = |placer: &mut Placer, link, rtt, retransmitted| {
        let rtt = Duration::from_millis(rtt);
        let sample = TcpSample {
            rtt,
            min_rtt: rtt,
            segments: 1000,
            retransmitted,
        };
        placer.observe_tcp(LinkId(link), sample);
    };
    let sip = target("call.example", 5060);
    let first = |placer: &mut Placer| {
        let placement = begin(placer, at(0), None, &sip).expect("links");
        placer.end(at(0), placement.id, None);
        (placement.links[0].0, placement.why)
    };
    let by_scheduler = Why::Scheduler(Policy::MaxThroughput);
    assert_eq!(first(&mut placer).1, by_scheduler, "nothing is known");
    sample(&mut placer, 0, 60, 0);
    sample(&mut placer, 1, 20, 0);
    assert_eq!(first(&mut placer), (1, Why::RealTime));
    let web = target("page.example", 80);
    assert_eq!(
        begin(&mut placer, at(0), None, &web).expect("links").why,
        by_scheduler
    );
    for _ in 0..4 {
        sample(&mut placer, 1, 20, 100);
    }
    assert_eq!(first(&mut placer), (0, Why::RealTime), "it loses packets");
}

#[test]
fn what_is_set_while_it_runs_counts_for_those_that_come() {
    let mut placer = placer(config(Policy::MaxThroughput));
    let to = target("files.example", 80);
    let why = |placer: &mut Placer, app| {
        let placement = begin(placer, at(0), app, &to).expect("links");
        placer.end(at(0), placement.id, None);
        (placement.links[0].0, placement.why)
    };
    let of_curl = || Rule {
        app: Some("curl".to_owned()),
        ..Rule::default()
    };
    assert!(
        placer.assign(of_curl(), None).is_err(),
        "nothing to take back"
    );
    for link in [0, 1, 1] {
        placer.assign(of_curl(), Some(LinkId(link))).expect("room");
        assert_eq!(why(&mut placer, Some("curl")), (link, Why::Assigned));
    }
    assert_eq!(placer.assigned_to("curl"), Some(LinkId(1)));
    assert_ne!(why(&mut placer, Some("wget")).1, Why::Assigned);
    placer.assign(of_curl(), None).expect("assigned before");
    assert_ne!(why(&mut placer, Some("curl")).1, Why::Assigned);
    placer.set_policy(Policy::RoundRobin);
    let turns = [0; 4].map(|_| why(&mut placer, None));
    let round_robin = Why::Scheduler(Policy::RoundRobin);
    assert_eq!(turns.map(|(_, why)| why), [round_robin; 4]);
    assert_eq!(turns.map(|(link, _)| link), [0, 1, 0, 1]);
    let many = (0..=MAX_ASSIGNED).map(|n| {
        let rule = Rule {
            app: Some(format!("app{n}")),
            ..Rule::default()
        };
        placer.assign(rule, Some(LinkId(0)))
    });
    assert_eq!(many.filter(Result::is_err).count(), 1);
}
