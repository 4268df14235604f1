//! A path whose rate is remembered, right and wrong, beside one that is not.

use super::*;

/// A line of 50 Mbit/s with a deep queue, of which `mbps` is remembered.
fn path(mbps: Option<u64>) -> Path {
    let mut path = Path::new(50, 1_500_000);
    if let Some(mbps) = mbps {
        let memory = PathMemory {
            rate: Bitrate::from_mbps(mbps),
            min_rtt: RTT,
            loss_ppm: 0,
        };
        assert!(path.control.recall(&memory));
    }
    path
}

/// Milliseconds until a tenth of a second has brought nine tenths of what the line carries and the queue is below 20 ms,
/// and stays so for two tenths.
fn time_to_fill(mut path: Path) -> u64 {
    let mut good = 0;
    for tenth in 1..100 {
        let (mbps, _) = path.run(100);
        let is_good = mbps > 45.0 && path.queue_ms() < 20.0;
        good = if is_good { good + 1 } else { 0 };
        if good == 3 {
            return (tenth - 3) * 100;
        }
    }
    panic!("never full");
}

/// What came in the first second, in Mbit/s.
fn first_second(mut path: Path) -> f64 {
    path.run(1_000).0
}

#[test]
fn a_path_that_returns_is_full_sooner() {
    let (cold, warm) = (first_second(path(None)), first_second(path(Some(50))));
    assert!(warm > cold, "{warm} {cold}");
    let (cold, warm) = (time_to_fill(path(None)), time_to_fill(path(Some(50))));
    assert!(warm <= cold, "{warm} {cold}");
}

#[test]
fn a_wrong_memory_costs_at_most_a_second() {
    let cold = time_to_fill(path(None));
    // The network became twice and ten times as slow, or as fast.
    for mbps in [100, 500, 25, 5] {
        let wrong = time_to_fill(path(Some(mbps)));
        assert!(
            wrong <= cold + 1_000,
            "{mbps} Mbit/s: {wrong} ms, {cold} ms"
        );
    }
}

#[test]
fn a_memory_of_another_network_is_not_used() {
    let mut path = path(Some(50));
    assert_eq!(path.control.remembered(RTT), Some(Bitrate::from_mbps(35)));
    assert_eq!(path.control.remembered(RTT * 5), None);
    let far = path.control.pace(path.now, RTT * 5, true, &path.meter);
    assert!(far < Some(Bitrate::from_mbps(2)));
    path.control.on_known(path.now);
    path.run(10);
    assert_eq!(path.control.remembered(RTT), None, "better is known");
}

#[test]
fn what_is_not_searched_needs_no_memory() {
    let mut path = path(None);
    path.control.set_search(false);
    let memory = PathMemory {
        rate: Bitrate::from_mbps(50),
        min_rtt: RTT,
        loss_ppm: 0,
    };
    assert!(!path.control.recall(&memory));
    assert_eq!(path.pace(), None);
}
