use super::*;

fn limiter() -> HandshakeLimiter {
    HandshakeLimiter::new(Limits::default(), Secret::from([1; 32]))
}

fn v4(number: u32) -> SocketAddr {
    SocketAddr::from((number.to_be_bytes(), 4000))
}

/// Returns how many initiations of `sources` are read within 10 s if each source sends 10 000 per second.
fn reads_in_10_s(limiter: &mut HandshakeLimiter, sources: &[SocketAddr], proved: bool) -> usize {
    let tries = (0..100_000_u64).flat_map(|step| {
        let now = Instant::from_nanos(step * 100_000);
        sources.iter().map(move |source| (now, *source))
    });
    tries
        .filter(|(now, source)| limiter.admit(*now, *source, proved) == Admission::Proceed)
        .count()
}

#[test]
fn one_source_never_has_more_than_its_share() {
    for (proved, share) in [(false, 5 * 10 + 5), (true, 20 * 10 + 20)] {
        let reads = reads_in_10_s(&mut limiter(), &[v4(1)], proved);
        assert!(reads <= share, "{reads}");
        assert!(reads >= share - 10, "{reads}");
    }
}

#[test]
fn all_sources_together_never_have_more_than_the_rate() {
    let sources: Vec<SocketAddr> = (0..40).map(v4).collect();
    let reads = reads_in_10_s(&mut limiter(), &sources, true);
    assert!((1_900..=10 * 200 + 50).contains(&reads), "{reads}");
}

#[test]
fn a_flood_from_proved_strangers_never_keeps_a_peer_out() {
    let mut limiter = limiter();
    let peer = v4(99);
    limiter.on_known(peer.into(), None);
    let strangers: Vec<SocketAddr> = (0..40).map(v4).collect();
    let mut come_back = 0;
    for step in 0..100_u64 {
        let now = Instant::from_nanos(step * 100_000_000);
        for stranger in strangers.iter().cycle().take(400) {
            let admission = limiter.admit(now, *stranger, true);
            come_back += usize::from(matches!(admission, Admission::ComeBack(_)));
        }
        assert_eq!(limiter.admit(now, peer, true), Admission::Proceed);
    }
    assert!(come_back > 30_000);
}

#[test]
fn a_read_for_nothing_is_not_repeated_within_a_minute() {
    let mut limiter = limiter();
    let mut wasted = 0;
    for step in 0..600_000_u32 {
        let now = Instant::from_millis(step.into());
        if limiter.admit(now, v4(step), false) == Admission::Proceed {
            wasted += 1;
            limiter.on_wasted(now);
        }
    }
    assert_eq!(wasted, 10, "in ten minutes");
}

#[test]
fn invented_sources_do_not_keep_others_from_a_cookie() {
    let mut limiter = limiter();
    let mut refused = 0;
    for step in 0..400_000_u32 {
        // 200 000 per second.
        let now = Instant::from_nanos(u64::from(step) * 5_000);
        let stranger = v4(step.wrapping_mul(2_654_435_761));
        limiter.admit(now, stranger, false);
        if step % 1_000 == 0 {
            let client = limiter.admit(now, v4(7), false);
            refused += usize::from(client == Admission::Refuse);
        }
    }
    assert_eq!(refused, 0);
}

#[test]
fn the_replies_to_one_claimed_source_are_bounded() {
    let mut limiter = limiter();
    limiter.on_wasted(Instant::ZERO);
    let replies = (0..200_000_u64)
        .filter(|step| {
            let now = Instant::from_nanos(step * 5_000);
            limiter.admit(now, v4(1), false) == Admission::ProveAddress
        })
        .count();
    assert!(replies <= 400, "{replies}");
}

#[test]
fn load_ends_though_initiations_trickle_in() {
    let mut limiter = limiter();
    let mut number = 0;
    while limiter.admit(Instant::ZERO, v4(number), false) == Admission::Proceed {
        number += 1;
    }
    assert!(limiter.is_on_guard(Instant::ZERO));
    let trickle = (1..=20).map(|i| limiter.admit(Instant::from_millis(i * 100), v4(900), false));
    assert_eq!(trickle.last(), Some(Admission::Proceed));
}

#[test]
fn those_who_are_told_to_come_back_do_not_all_come_at_once() {
    let mut limiter = limiter();
    let now = Instant::from_millis(5);
    let told: Vec<Duration> = (0..3_000)
        .filter_map(|number| match limiter.admit(now, v4(number), true) {
            Admission::ComeBack(wait) => Some(wait),
            Admission::Proceed | Admission::ProveAddress | Admission::Refuse => None,
        })
        .collect();
    assert_eq!(told.len(), 3_000 - 50);
    assert!(told.is_sorted() && told[0] >= SOONEST);
    let within = told
        .iter()
        .filter(|wait| **wait <= Duration::from_secs(1))
        .count();
    assert!((150..=200).contains(&within), "{within}");
    assert_eq!(told.last(), Some(&LATEST));
}

#[test]
fn the_rate_follows_the_cores() {
    assert_eq!(Limits::for_cores(0), Limits::default());
    assert_eq!(Limits::for_cores(1).all, Rate::new(200, 50));
    assert_eq!(Limits::for_cores(2).all, Rate::new(1_000, 250));
    assert_eq!(Limits::for_cores(4).all.per_second, 2_600);
    assert_eq!(Limits::for_cores(1000), Limits::for_cores(MAX_CORES));
}

#[test]
fn an_address_is_known_as_long_as_any_peer_has_it() {
    let mut limiter = limiter();
    let (a, b) = (Source::from(v4(1)), Source::from(v4(2)));
    limiter.on_known(a, None);
    limiter.on_known(a, None);
    limiter.on_known(b, Some(a));
    assert_eq!(limiter.known.get(&a), Some(&1));
    limiter.on_known(b, Some(a));
    assert_eq!(limiter.known.get(&a), None);
}
