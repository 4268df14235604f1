//! Speed of the simulator: packet events per second of one core, where the arrival of a packet at a host or a link is
//! one event.
//!
//! `raw` forwards UDP through client, link, gateway and server. `tunnel` sends the same traffic through two production
//! engines over two links, with real keys. `tcp` is a CUBIC download through the same engines. Times are per event;
//! criterion's throughput is the result.

use std::time::Duration;

use criterion::{Criterion, Throughput};
use pleach_sim::{
    phases::{Setup, setups},
    run::{EngineOnly, PhaseOutcome, run_phase},
    scenario::Scenario,
};

const LINKS: &str = r#"
name = "bench"
duration = "1s"
[[link]]
name = "one"
rate = "300Mbit"
delay = "7ms"
queue = "1MB"
weight = 300
[[link]]
name = "two"
rate = "300Mbit"
delay = "15ms"
queue = "1MB"
weight = 300
"#;
const TUNNEL: &str = "[tunnel]\npolicy = \"weighted\"\n";
const UDP: &str =
    "[[traffic]]\nkind = \"udp\"\nname = \"udp\"\nrate = \"280Mbit\"\nsize = \"1200B\"\n";
const TCP: &str = "[[traffic]]\nkind = \"tcp\"\nname = \"tcp\"\n";

fn scenario(text: &str) -> Scenario {
    Scenario::parse_alone("bench.toml", text).expect("a valid scenario")
}

fn simulate(scenario: &Scenario, setup: &Setup) -> PhaseOutcome {
    run_phase(scenario, setup, &EngineOnly).expect("it runs")
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(4))
        .configure_from_args();
    let mut group = criterion.benchmark_group("packet events");
    for (name, text) in [
        ("raw", format!("{LINKS}{UDP}")),
        ("tunnel", format!("{LINKS}{TUNNEL}{UDP}")),
        ("tcp", format!("{LINKS}{TUNNEL}{TCP}")),
    ] {
        let scenario = scenario(&text);
        let setup = &setups(&scenario, true)[0];
        let events = simulate(&scenario, setup).packet_events;
        group.throughput(Throughput::Elements(events));
        group.bench_function(name, |bencher| {
            bencher.iter(|| simulate(&scenario, setup).packet_events);
        });
    }
    group.finish();
    criterion.final_summary();
}
