//! A scheduler of your own, in the simulator, beside `adaptive`: `docs/own-scheduler.md` walks through it.
//!
//! ```sh
//! cargo run --example own_scheduler               # → own_scheduler.html
//! ```
//!
//! Nothing of pleach is changed: the scheduler implements a trait of `pleach-core`, and `pleach-sim` runs the whole engine
//! with it at both ends of a tunnel. Two lines and one TCP download; the same seed gives the same numbers.
#![expect(clippy::print_stdout, reason = "a program for the command line")]

use std::{error::Error, fs, time::Duration};

use pleach_core::{
    sched::{PacketInfo, PathView, Pick, Scheduler, SchedulerSettings},
    time::Instant,
};
use pleach_sim::{
    report,
    run::{self, EngineWith, Options},
    scenario::Scenario,
};

/// Sends on one path for 50 ms, then on the next. While the path of the current period is not ready, the other paths
/// are used in the order of their ids, so that no path is idle while packets wait.
#[derive(Debug, Default)]
struct Alternate {
    /// Number of periods that have begun.
    turn: usize,
    /// End of the current period; `None` before the first packet.
    ends_at: Option<Instant>,
}

/// Duration of a period.
const TURN: Duration = Duration::from_millis(50);

impl Scheduler for Alternate {
    fn pick(&mut self, now: Instant, paths: &[PathView], _packet: &PacketInfo) -> Pick {
        if *self.ends_at.get_or_insert(now + TURN) <= now {
            self.turn += 1;
            self.ends_at = Some(now + TURN);
        }
        let Some(first) = self.turn.checked_rem(paths.len()) else {
            return Pick::Wait;
        };
        let mut order = (first..paths.len()).chain(0..first);
        let ready = order.find(|index| paths[*index].ready);
        ready.map_or(Pick::Wait, Pick::One)
    }
}

/// A scenario file, as `pleach sim run` and `pleach lab run` take it. The policy is filled in below.
const SCENARIO: &str = r#"
name = "own-scheduler"
description = "20 Mbit/s at 7 ms and 20 Mbit/s at 12 ms, one TCP download"
seed = 1
duration = "10s"

[[link]]
name = "dsl"
rate = "20Mbit"
delay = "7ms"
queue = "60kB"

[[link]]
name = "lte"
rate = "20Mbit"
delay = "12ms"
queue = "60kB"

[tunnel]
policy = "POLICY"

[[traffic]]
kind = "tcp"
name = "download"
cc = "cubic"

[[traffic]]
kind = "ping"
name = "ping"
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let own = SchedulerSettings::own("alternate", Alternate::default);
    let program = EngineWith::new([own]);
    let mut runs = Vec::new();
    for policy in ["alternate", "adaptive"] {
        let text = SCENARIO.replace("POLICY", policy);
        let scenario = Scenario::parse_alone("own-scheduler.toml", &text)?;
        let options = Options {
            program: &program,
            skip_baselines: true,
            progress: &|_| {},
        };
        runs.push(run::run(&scenario, &options)?);
    }
    print!("{}", report::beside_table(&runs));
    fs::write("own_scheduler.html", report::beside(&runs))?;
    println!("the plot: own_scheduler.html");
    Ok(())
}
