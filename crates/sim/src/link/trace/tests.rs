use super::*;

fn ms(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn finish(server: &mut Server, at: Instant, len_bytes: u64) -> Option<Instant> {
    server.begin(at, Bytes::new(len_bytes));
    server.finish()
}

fn trace(text: &str) -> Rate {
    Rate::Opportunities(Arc::new(Opportunities::from_text(text).expect("valid")))
}

fn steps(text: &str) -> Rate {
    Rate::Steps(Arc::new(Steps::from_csv(text, "a").expect("valid")))
}

#[test]
fn rounding_does_not_accumulate() {
    // 7 Mbit/s: 1500 bytes take 1 714 285.71 ns; 7000 of them exactly 12 s.
    let mut server = Server::new(Rate::Constant(Bitrate::from_mbps(7)), Instant::ZERO);
    let mut at = Instant::ZERO;
    for _ in 0..7000 {
        at = finish(&mut server, at, 1500).expect("positive rate");
    }
    assert_eq!(at, ms(12_000));
}

#[test]
fn opportunities_carry_bytes_over_and_repeat() {
    let mut server = Server::new(trace("2\n5\n5\n10\n"), Instant::ZERO);
    // The first 2000 bytes use the opportunity at 2 ms and a third of the first opportunity at 5 ms. The next 2500
    // bytes use the rest of both opportunities at 5 ms.
    assert_eq!(finish(&mut server, ms(0), 2000), Some(ms(5)));
    assert_eq!(finish(&mut server, ms(5), 2500), Some(ms(5)));
    assert_eq!(finish(&mut server, ms(5), 1), Some(ms(10)));
    // The rest of the opportunity at 10 ms is available to packets that have arrived by 10 ms, not to later ones.
    assert_eq!(finish(&mut server, ms(10), 1499), Some(ms(10)));
    assert_eq!(
        finish(&mut server, Instant::from_nanos(10_000_001), 1),
        Some(ms(12))
    );
    assert_eq!(finish(&mut server, ms(1_000_000), 1), Some(ms(1_000_000)));
    assert_eq!(
        finish(&mut server, ms(1_000_001), 1500),
        Some(ms(1_000_002))
    );
}

#[test]
fn a_saturated_trace_carries_its_capacity_to_the_byte() {
    let text = "0\n1\n1\n3\n7\n20\n";
    let mut server = Server::new(trace(text), Instant::ZERO);
    let mut at = Instant::ZERO;
    let mut carried = 0;
    // 100 rounds of 20 ms have six opportunities of 1500 bytes each, which packets of 700 bytes do not divide evenly.
    loop {
        at = finish(&mut server, at, 700).expect("endless");
        if at > ms(2_000) {
            break;
        }
        carried += 700;
    }
    // The packet in service at the end has used the remaining bytes. The one opportunity at 2000 ms that belongs to the
    // next round is used too.
    let capacity = (6 * 100 + 1) * OPPORTUNITY_BYTES;
    assert!(
        carried <= capacity && capacity - carried < 700,
        "{carried} of {capacity}"
    );
}

#[test]
fn recorded_rates_are_piecewise_constant_and_repeat() {
    let csv = "t_s,b,a\n0,99,8\n1,99,0\n2,99,16\n";
    // 1 MB in the first second, none in the second, 2 MB in the third; 3 s period.
    let mut server = Server::new(steps(csv), Instant::ZERO);
    assert_eq!(finish(&mut server, ms(0), 500_000), Some(ms(500)));
    assert_eq!(finish(&mut server, ms(500), 1_000_000), Some(ms(2250)));
    assert_eq!(finish(&mut server, ms(2250), 1_500_000), Some(ms(3000)));
    assert_eq!(finish(&mut server, ms(3000), 1_000_000), Some(ms(4000)));
    assert_eq!(finish(&mut server, ms(4100), 2_000_000), Some(ms(6000)));
}

#[test]
fn a_change_keeps_what_was_sent() {
    let mut server = Server::new(Rate::Constant(Bitrate::from_mbps(8)), Instant::ZERO);
    server.begin(Instant::ZERO, Bytes::new(1000));
    let len = Some(Bytes::new(1000));
    server.change(
        Instant::from_nanos(500_000),
        Rate::Constant(Bitrate::ZERO),
        Instant::ZERO,
        len,
    );
    assert_eq!(server.finish(), None);
    server.change(
        ms(7),
        Rate::Constant(Bitrate::from_mbps(4)),
        Instant::ZERO,
        len,
    );
    assert_eq!(server.finish(), Some(ms(8)));
}

#[test]
fn damaged_records_are_refused_with_the_line() {
    assert_eq!(
        Opportunities::from_text("1\n3\n2\n").err(),
        Some(TraceError::Line(3, "a time not earlier than before"))
    );
    assert_eq!(
        Opportunities::from_text("1\nx\n").err(),
        Some(TraceError::Line(2, "whole milliseconds"))
    );
    assert_eq!(
        Opportunities::from_text("0\n0\n").err(),
        Some(TraceError::Empty)
    );
    assert_eq!(Opportunities::from_text("").err(), Some(TraceError::Empty));
    assert_eq!(
        Steps::from_csv("t,a,b\n0,1,1\n", "c").err(),
        Some(TraceError::Column("c".into(), "a, b".into()))
    );
    for rows in ["0,1\n0,1\n", "0,-1\n", "0,inf\n", "0\n", "zero,1\n"] {
        let text = format!("t,a\n{rows}");
        assert!(
            matches!(Steps::from_csv(&text, "a"), Err(TraceError::Line(..))),
            "{rows}"
        );
    }
    assert_eq!(
        Steps::from_csv("t,a\n0,0\n1,0\n", "a").err(),
        Some(TraceError::Empty)
    );
}

#[test]
fn mean_rate_counts_opportunities() {
    let trace = Opportunities::from_text("1\n2\n3\n4\n").expect("valid");
    assert_eq!(trace.mean_rate(), Bitrate::from_mbps(12));
}

#[test]
fn capacity_adds_up_over_any_cut() {
    let csv = "t_s,b,a\n0,99,8\n1,99,0\n2,99,16\n";
    for (rate, per_round, round_ms) in [
        (steps(csv), 3_000_000, 3_000),
        (trace("2\n5\n5\n10\n"), 6_000, 10),
        (Rate::Constant(Bitrate::from_mbps(8)), 1_000_000, 1_000),
    ] {
        let server = Server::new(rate, ms(7));
        let capacity = |from: u64, to: u64| server.capacity_between(ms(7 + from), ms(7 + to));
        assert_eq!(capacity(0, round_ms * 4), Some(Bytes::new(per_round * 4)));
        let cuts: Vec<_> = (0..=round_ms * 4)
            .step_by(7)
            .chain([round_ms * 4])
            .collect();
        let sum: u64 = cuts
            .windows(2)
            .filter_map(|cut| Some(capacity(cut[0], cut[1])?.get()))
            .sum();
        assert_eq!(sum, per_round * 4);
    }
}
