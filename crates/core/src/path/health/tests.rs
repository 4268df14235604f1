use super::*;
use crate::rng::Rng;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// A path that came up at 1000 ms, with a timeout of 20 + 3 × 5, hence 40 ms.
fn up() -> Health {
    let mut health = Health::new(at(990));
    health.on_rtt(ms(20), ms(5));
    health.on_probe_sent(at(990));
    health.on_acked(at(1_000), false);
    health
}

/// Runs all timers up to `until` and sends all probes that are due. Returns the times of the probes.
fn run(health: &mut Health, until: Instant) -> Vec<Instant> {
    let mut probes = Vec::new();
    while let Some(now) = health.next_deadline()
        && now <= until
    {
        health.on_timeout(now);
        if health.probe_due(now) {
            probes.push(now);
            health.on_probe_sent(now);
        }
        assert!(health.next_deadline() > Some(now), "a deadline must move");
    }
    probes
}

#[test]
fn a_new_path_carries_nothing_until_evidence_comes() {
    let mut health = Health::new(at(0));
    assert_eq!(health.state(), State::Probing);
    assert!(health.probe_due(at(0)) && !health.is_usable());
    health.on_probe_sent(at(0));
    health.on_received(at(5));
    assert_eq!(health.state(), State::Probing);
    health.on_acked(at(30), false);
    assert!(health.is_usable());
}

#[test]
fn a_path_dead_at_the_start_is_probed_quickly_then_slowly_and_comes_up_later() {
    let mut health = Health::new(at(0));
    let probes = run(&mut health, at(5_000));
    let early = probes.iter().filter(|p| **p < at(1_000)).count();
    assert_eq!((early, probes.len() - early), (50, 16));
    assert_eq!(health.state(), State::Down);
    health.on_acked(at(5_003), false);
    assert_eq!(health.state(), State::Up);
}

#[test]
fn an_idle_path_is_probed_after_550_ms_and_a_busy_one_is_not() {
    let mut health = up();
    let mut probes = Vec::new();
    for answer in 0..8 {
        let now = at(1_550 + 570 * answer);
        probes.extend(run(&mut health, now));
        health.on_acked(now + ms(20), false);
    }
    assert_eq!(probes.len(), 8);
    assert_eq!(probes[1].since(probes[0]), ms(570));
    for tick in 0..1_000 {
        let now = at(6_000 + tick * 10);
        health.on_sent(now);
        health.on_acked(now, true);
        assert_eq!(run(&mut health, now), []);
    }
}

#[test]
fn a_probe_joins_an_answer_once_nothing_has_come_for_half_of_the_time() {
    let mut health = up();
    assert!(!health.probe_may_join(at(1_274)));
    assert!(health.probe_may_join(at(1_275)));
    health.on_probe_sent(at(1_275));
    health.on_acked(at(1_295), false);
    assert!(!health.probe_may_join(at(1_569)), "it was probed");
    assert!(health.probe_may_join(at(1_570)));
    assert!(!health.probe_due(at(1_844)) && health.probe_due(at(1_845)));
    let mut second = health.clone();
    second.set_second(true);
    assert!(!second.probe_may_join(at(1_624)));
    assert_eq!(run(&mut second, at(1_954)), []);
    assert_eq!(run(&mut second, at(1_965)), [at(1_955)]);
    run(&mut health, at(1_950));
    assert!(!health.probe_may_join(at(2_500)), "it is silent");
}

#[test]
fn silence_makes_suspect_then_down_and_evidence_makes_up_at_once() {
    let mut health = up();
    health.on_sent(at(1_100));
    run(&mut health, at(1_139));
    assert_eq!(health.state(), State::Up);
    let probes = run(&mut health, at(1_140));
    assert_eq!((health.state(), probes.len()), (State::Suspect, 1));
    let mut revived = health.clone();
    revived.on_acked(at(1_150), true);
    assert_eq!(revived.state(), State::Up);

    assert_eq!(run(&mut health, at(2_099)).len(), 47);
    assert_eq!(health.state(), State::Suspect);
    run(&mut health, at(2_100));
    assert_eq!(health.state(), State::Down);
    assert_eq!(run(&mut health, at(3_100)).len(), 4);
    health.on_acked(at(3_110), false);
    assert_eq!(health.state(), State::Up);
}

#[test]
fn silence_counts_from_the_last_evidence_while_more_is_outstanding() {
    let mut health = up();
    for now in 0..20 {
        health.on_sent(at(1_100 + now * 10));
        health.on_acked(at(1_100 + now * 10 + 5), true);
    }
    // Last evidence at 1295, nothing sent since.
    run(&mut health, at(1_334));
    assert_eq!(health.state(), State::Up);
    run(&mut health, at(1_335));
    assert_eq!(health.state(), State::Suspect);
}

#[test]
fn an_unanswered_probe_finds_a_dead_idle_path() {
    let mut health = up();
    run(&mut health, at(1_590));
    assert_eq!(health.state(), State::Suspect);
    run(&mut health, at(2_800));
    assert_eq!(health.state(), State::Down);
}

#[test]
fn interface_events_act_at_once_and_old_evidence_does_not_revive() {
    let mut health = up();
    health.on_sent(at(1_100));
    health.on_link(at(1_101), LinkEvent::Down);
    assert_eq!(health.state(), State::Down);
    assert_eq!(health.next_deadline(), None);
    assert!(!health.probe_due(at(9_000)));
    health.on_acked(at(1_105), false);
    assert_eq!(health.state(), State::Down);
    health.on_link(at(2_000), LinkEvent::Up);
    assert_eq!(health.state(), State::Probing);
    assert!(health.probe_due(at(2_000)));
    health.on_probe_sent(at(2_000));
    health.on_acked(at(2_020), false);
    assert_eq!(health.state(), State::Up);
    health.on_link(at(2_030), LinkEvent::Up);
    assert_eq!(health.state(), State::Up);
}

#[test]
fn something_received_on_a_dead_path_hastens_the_probe_but_not_beyond_the_quick_pace() {
    let mut health = Health::new(at(0));
    let last = *run(&mut health, at(3_000)).last().expect("probes");
    health.on_received(last + ms(1));
    assert!(!health.probe_due(last + ms(19)));
    assert!(health.probe_due(last + ms(20)));
    assert_eq!(health.state(), State::Down);
}

#[test]
fn paths_slower_than_a_second_do_not_flap() {
    let mut health = up();
    health.on_rtt(ms(1_200), ms(25));
    health.on_sent(at(1_100));
    run(&mut health, at(1_100 + 1_274));
    assert_eq!(health.state(), State::Up);
    run(&mut health, at(1_100 + 2_549));
    assert_eq!(health.state(), State::Suspect);
    run(&mut health, at(1_100 + 2_550));
    assert_eq!(health.state(), State::Down);
}

#[test]
fn a_path_that_often_pauses_gets_more_patience_up_to_the_cap() {
    let silences = |usual: u64, pause: u64, every: u64| {
        let mut health = up();
        let mut now = at(1_000);
        for ack in 0..20_000 {
            health.on_sent(now);
            now += ms(if ack % every == 0 { pause } else { usual });
            health.on_acked(now, false);
        }
        health.suspect_timeout()
    };
    assert_eq!(silences(10, 10, 2), ms(40));
    let often = silences(10, 60, 30);
    assert!((ms(50)..ms(80)).contains(&often), "{often:?}");
    assert_eq!(silences(10, 900, 30), ms(80));
    // One long silence in a thousand is not usual.
    assert_eq!(silences(10, 60, 1_000), ms(40));
}

#[test]
fn a_late_timer_leaves_no_deadline_behind() {
    let mut health = up();
    health.on_sent(at(1_100));
    let now = at(4_000_000);
    health.on_timeout(now);
    assert_eq!(health.state(), State::Down);
    assert!(health.probe_due(now));
    health.on_probe_sent(now);
    assert!(health.next_deadline() > Some(now));
}

#[test]
fn any_order_of_inputs_keeps_the_rules() {
    let mut rng = Rng::new(8);
    let mut health = Health::new(at(0));
    let mut now = at(0);
    for _ in 0..50_000 {
        now += Duration::from_micros(rng.below(40_000));
        let before = health.state();
        match rng.below(8) {
            0 | 1 => health.on_sent(now),
            2 => health.on_acked(now, rng.chance(0.5)),
            3 => health.on_received(now),
            4 if rng.chance(0.1) => health.on_link(now, LinkEvent::Down),
            5 if rng.chance(0.2) => health.on_link(now, LinkEvent::Up),
            6 => health.on_rtt(ms(rng.below(2_000)), ms(rng.below(26))),
            _ => {
                health.on_timeout(now);
                if health.probe_due(now) {
                    health.on_probe_sent(now);
                }
                assert!(health.next_deadline().is_none_or(|at| at > now));
                let was_up = before == State::Up;
                assert!(was_up || health.state() != State::Up, "only evidence");
            }
        }
        assert_eq!(health.is_usable(), health.state() == State::Up);
    }
}

#[test]
fn a_path_in_reserve_is_hardly_probed() {
    let mut health = Health::new(Instant::from_millis(1_000));
    health.on_acked(Instant::from_millis(1_000), false);
    let due =
        |health: &Health, seconds: u64| health.probe_due(Instant::from_millis(seconds * 1_000));
    assert!(due(&health, 2));
    health.set_reserve(true);
    assert!(!due(&health, 60) && due(&health, 61));
    health.set_reserve(false);
    assert!(due(&health, 2), "wanted again");
}

/// A path of a tunnel that rests, whose last answer arrived at 100 s.
fn resting() -> Health {
    let mut health = up();
    health.on_sent(at(99_960));
    health.on_acked(at(99_980), false);
    health.on_probe_sent(at(99_980));
    health.on_acked(at(100_000), false);
    health.set_resting(true);
    health
}

#[test]
fn a_path_of_a_resting_tunnel_may_answer_a_probe_after_a_second() {
    let mut health = resting();
    // One lost probe does not make the path suspect.
    assert_eq!(run(&mut health, at(110_999)), [at(110_000), at(110_500)]);
    assert_eq!(health.state(), State::Up, "a radio may still wake up");
    let mut answers = health.clone();
    answers.on_acked(at(110_999), false);
    // The path is measured once it is awake.
    assert_eq!(run(&mut answers, at(111_010)), [at(110_999)]);
    answers.on_acked(at(111_019), false);
    assert_eq!(run(&mut answers, at(121_019)), [at(121_019)]);
    assert_eq!(answers.state(), State::Up);
    // Without an answer it is suspect, and probed every 250 ms until it is down.
    let probes = run(&mut health, at(112_000));
    assert_eq!((health.state(), probes.len()), (State::Down, 4));
    let probes = run(&mut health, at(140_000));
    assert_eq!(probes.len(), 2, "{probes:?}");
    health.set_resting(false);
    assert!(health.probe_due(at(140_000)), "a packet wakes it up");
}

#[test]
fn only_the_first_answer_after_a_rest_may_take_a_second() {
    let mut health = resting();
    health.set_resting(false);
    assert!(health.probe_due(at(106_000)));
    health.on_probe_sent(at(106_000));
    assert_eq!(health.suspect_timeout(), ms(1_000));
    health.on_acked(at(106_800), true);
    assert_eq!(health.suspect_timeout(), ms(40), "it is awake");
    run(&mut health, at(106_840));
    assert_eq!(health.state(), State::Suspect);
}

#[test]
fn a_link_that_returns_has_an_awake_radio() {
    let mut health = up();
    health.on_link(at(1_100), LinkEvent::Down);
    health.on_link(at(60_000), LinkEvent::Up);
    health.on_probe_sent(at(60_000));
    health.on_acked(at(60_020), false);
    health.on_sent(at(60_100));
    assert_eq!(health.suspect_timeout(), ms(40));
}
