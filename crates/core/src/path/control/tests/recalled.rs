//! A path with a remembered rate, right or wrong, compared with a path without one.

use super::*;

/// A line of 50 Mbit/s with a long buffer. `mbps`: the remembered rate, if any.
fn line(mbps: Option<u64>) -> Line {
    let mut line = Line::new(50, 1_500_000);
    if let Some(mbps) = mbps {
        let memory = PathMemory {
            rate: Bitrate::from_mbps(mbps),
            min_rtt: RTT,
            loss_ppm: 0,
        };
        line.path.recall(line.now, &memory);
        assert!(line.path.remembered_rate().is_some());
    }
    line
}

/// Returns the time in milliseconds until the line delivers nine tenths of its capacity with a queue below 20 ms,
/// during three successive periods of 100 ms.
fn time_to_fill(mut line: Line) -> u64 {
    let mut good = 0;
    for tenth in 1..100 {
        let (mbps, _) = line.run(100);
        let is_good = mbps > 45.0 && line.queue_ms() < 20.0;
        good = if is_good { good + 1 } else { 0 };
        if good == 3 {
            return (tenth - 3) * 100;
        }
    }
    panic!("never full");
}

/// Rate that arrived in the first second, in Mbit/s.
fn first_second(mut line: Line) -> f64 {
    line.run(1_000).0
}

#[test]
fn a_path_that_returns_is_full_sooner() {
    let (cold, warm) = (first_second(line(None)), first_second(line(Some(50))));
    assert!(warm > cold, "{warm} {cold}");
    let (cold, warm) = (time_to_fill(line(None)), time_to_fill(line(Some(50))));
    assert!(warm <= cold, "{warm} {cold}");
}

#[test]
fn a_wrong_memory_costs_at_most_a_second() {
    let cold = time_to_fill(line(None));
    // The remembered rate is two and ten times the capacity, half of it, and a tenth.
    for mbps in [100, 500, 25, 5] {
        let wrong = time_to_fill(line(Some(mbps)));
        assert!(
            wrong <= cold + 1_000,
            "{mbps} Mbit/s: {wrong} ms, {cold} ms"
        );
    }
}

#[test]
fn a_memory_of_another_network_is_not_used() {
    let memory = PathMemory {
        rate: Bitrate::from_mbps(50),
        min_rtt: RTT,
        loss_ppm: 0,
    };
    for (rtt, remembered) in [(RTT, Some(Bitrate::from_mbps(35))), (RTT * 5, None)] {
        let mut line = Line::with(50, 1_500_000, rtt, true);
        line.path.recall(line.now, &memory);
        assert_eq!(line.path.remembered_rate(), remembered);
        let is_fast = line.pace() > Some(Bitrate::from_mbps(30));
        assert_eq!(is_fast, remembered.is_some());
        line.run(3_000);
        assert_eq!(line.path.remembered_rate(), None, "better is known");
    }
}

#[test]
fn a_path_that_is_not_searched_needs_no_memory() {
    let mut line = Line::with(50, 1_500_000, RTT, false);
    let memory = PathMemory {
        rate: Bitrate::from_mbps(50),
        min_rtt: RTT,
        loss_ppm: 0,
    };
    line.path.recall(line.now, &memory);
    assert_eq!(line.path.remembered_rate(), None);
    assert_eq!(line.pace(), None);
}
