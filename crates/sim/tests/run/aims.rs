//! User preferences of `adaptive`: the length of its queue, and its behaviour beside other traffic.

use crate::{results, scenario, udp};

/// Returns the median queueing delay of a full line of 20 Mbit/s in milliseconds, with `key` in `[tunnel]`, and the
/// goodput.
fn queue_with(key: &str) -> (f64, f64) {
    let text = format!(
        "name = \"queue\"\nduration = \"5s\"\n[[link]]\nname = \"dsl\"\nrate = \"20Mbit\"\ndelay = \"10ms\"\nqueue = \"500kB\"\n\
         [tunnel]\npolicy = \"adaptive\"\n{key}\n{}",
        udp("30Mbit")
    );
    let results = results(&scenario(&text));
    let queue = results.links[0].down.queue_delay_ms.p50;
    (queue.expect("packets"), results.flows[0].goodput_mbps)
}

#[test]
fn the_queue_is_as_long_as_wanted() {
    let (usual, carried) = queue_with("");
    assert!((1.0..10.0).contains(&usual), "{usual}");
    let (same, _) = queue_with("target_delay = \"5ms\"");
    assert_eq!(same, usual, "5 ms is what is aimed for if nothing is said");
    let (short, short_carried) = queue_with("target_delay = \"2ms\"");
    assert!(short < usual, "{short} {usual}");
    assert!(short_carried > carried * 0.95, "{short_carried} {carried}");
    let (long, _) = queue_with("target_delay = \"50ms\"");
    assert!((30.0..75.0).contains(&long), "{long}");
}

/// Section 5.4 of the L3 paper at an eighth of its rates: a stream with the rate of the first line, which from 2 s on
/// is shared with a TCP flow outside the tunnel, and a second line of a higher rank. Returns the rates from 5 s on in
/// Mbit/s: TCP, and the stream's parts on the first and second line.
fn beside_tcp(key: &str) -> [f64; 3] {
    let text = format!(
        "name = \"shared\"\nduration = \"14s\"\n[[link]]\nname = \"dsl\"\nrate = \"8Mbit\"\ndelay = \"7ms\"\nqueue = \"48kB\"\n\
         [[link]]\nname = \"lte\"\nrate = \"8Mbit\"\ndelay = \"12ms\"\nqueue = \"95kB\"\ncost = 1\n\
         [tunnel]\npolicy = \"adaptive\"\n{key}\n[[traffic]]\nkind = \"tcp\"\nname = \"tcp\"\ncc = \"cubic\"\nlink = \"dsl\"\n\
         distance = \"18ms\"\nstart = \"2s\"\n{}",
        udp("7Mbit")
    );
    let results = results(&scenario(&text));
    let flow = |name: &str| {
        let flow = results.series.flows.iter().find(|flow| flow.name == name);
        late(&flow.expect("a flow").goodput_mbps)
    };
    let link = |index: usize| late(&results.series.links[index].down_mbps);
    [flow("tcp"), link(0) - flow("tcp"), link(1)]
}

/// Returns the mean of a series of 14 s, starting at 5 s.
fn late(series: &[f64]) -> f64 {
    let series = &series[series.len() * 5 / 14..];
    series.iter().sum::<f64>() / series.len() as f64
}

#[test]
fn a_line_yields_to_others_or_holds_its_share() {
    let [tcp_yield, dsl_yield, lte_yield] = beside_tcp("yield = \"dsl\"");
    let [tcp, dsl, lte] = beside_tcp("");
    let [tcp_hold, dsl_hold, lte_hold] = beside_tcp("hold = \"dsl\"\nshare = 80");
    let all = format!(
        "yield {tcp_yield} {dsl_yield} {lte_yield}, usual {tcp} {dsl} {lte}, hold {tcp_hold} {dsl_hold} {lte_hold}"
    );
    // The paper's target for TCP is 20 of 62.5 Mbit/s.
    assert!(tcp_yield > 8.0 * 20.0 / 62.5, "{all}");
    assert!(tcp_yield > tcp_hold * 1.5, "{all}");
    assert!(dsl_hold > 8.0 * 0.8 * 0.9, "{all}");
    assert!(lte_yield > lte_hold, "{all}");
    assert!(tcp_hold <= tcp, "{all}");
}
