//! Datagrams of hosts without a key: what one costs a gateway with one client, and a gateway with many.

use anyhow::ensure;

use super::{
    Options, Scene,
    attack::{Attack, Pace},
    floods::Ring,
    initiations::STRANGER,
    report::Scenario,
    stage::{Cast, Stage},
};
use crate::crowd::{gateway::Manner, numbering::Outer};

/// Runs the scenario.
pub(super) fn run(scene: &Scene<'_>, options: &Options) -> anyhow::Result<Scenario> {
    let mut scenario = Scenario::new("strays at a gateway with one client and with many");
    let many = options.crowd;
    let first = cost(scene, options, 1)?;
    let of_many = cost(scene, options, many)?;
    let last = cost(scene, options, 1)?;
    let one = f64::midpoint(first.micros, last.micros);
    scenario.fact("strays sent", of_many.per_second, "1/s");
    scenario.fact("CPU for a stray, 1 client, first", first.micros, "us");
    scenario.fact("CPU for a stray, 1 client, last", last.micros, "us");
    scenario.fact(
        format!("CPU for a stray, {many} clients"),
        of_many.micros,
        "us",
    );
    scenario.fact(
        format!("CPU of the gateway without strays, {many} clients"),
        of_many.idle_percent,
        "%",
    );
    let difference = (of_many.micros / one - 1.0).abs() * 100.0;
    scenario.limit("difference of the cost", difference, 10.0, "%");
    Ok(scenario)
}

/// What strays cost a gateway.
struct Cost {
    /// Processor time for one, in microseconds.
    micros: f64,
    per_second: f64,
    /// Processor time without strays in percent of a core.
    idle_percent: f64,
}

/// Returns the processor time of a gateway with `clients` clients for one stray.
fn cost(scene: &Scene<'_>, options: &Options, clients: u32) -> anyhow::Result<Cost> {
    let cast = Cast {
        clients,
        links: 1,
        others: &[],
        rekey_after: None,
        manner: Manner::Plain,
        binary: scene.binary,
        progress: scene.progress,
    };
    let mut stage = Stage::build(scene.world, &cast)?;
    // Packet trains, searches for the MTU, and reports follow the connections.
    stage.run("strays: settling", options.time)?;
    let clock = stage.clock()?;
    stage.run("strays: idle", options.time)?;
    let (elapsed, cpu) = clock.read(&stage.gateway)?;
    let idle = cpu / elapsed;
    let outer = Outer {
        client: STRANGER,
        link: 0,
        place: 0,
    };
    let attack = Attack::start(
        &scene.world.crowd,
        outer.address(),
        Pace::Datagrams(options.strays),
        Ring::strays(7, DISTINCT),
    )?;
    let before = stage.drops()?;
    let clock = stage.clock()?;
    stage.run("strays", options.time)?;
    let (elapsed, cpu) = clock.read(&stage.gateway)?;
    let handled = stage.drops()?.saturating_sub(before);
    let sent = attack.finish()?;
    ensure!(handled > 0, "the gateway has counted no stray");
    stage.finish()?;
    Ok(Cost {
        micros: (cpu - idle * elapsed) * 1e6 / handled as f64,
        per_second: sent.per_second(),
        idle_percent: idle * 100.0,
    })
}

/// Number of different strays.
const DISTINCT: u32 = 4_096;
