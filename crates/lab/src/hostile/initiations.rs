//! A flood of initiations from one address while clients change keys, and recorded initiations that are replayed.

use core::time::Duration;

use pleach_linux::clock;

use super::{
    Options, Scene,
    attack::{Attack, Pace, Sent},
    floods::Ring,
    report::{Scenario, fall},
    stage::{Cast, Stage},
};
use crate::crowd::{gateway::Manner, numbering::Outer, swarm::Load};

/// Runs the scenario.
pub(super) fn run(scene: &Scene<'_>, options: &Options) -> anyhow::Result<Scenario> {
    let cast = Cast {
        clients: options.clients,
        links: 1,
        others: &[],
        rekey_after: Some(options.rekey),
        manner: Manner::Plain,
        binary: scene.binary,
        progress: scene.progress,
    };
    let mut stage = Stage::build(scene.world, &cast)?;
    stage.swarm.recorder.most = RECORDED;
    let ring = Ring::initiations(&stage.gateway_key, DISTINCT)?;
    let mut scenario = Scenario::new("initiations with a correct mac1 from one address");
    stage.swarm.set_load(Load {
        clients: options.clients,
        bytes_per_second: options.rate.as_bps() / 8 / u64::from(options.clients),
    });
    stage.run("initiations: warm-up", options.time * 3 / 10)?;
    let before = returned(&mut stage, "initiations: before", options.time)?;
    let (losses, completed) = (stage.losses(), stage.completed());
    let attack = Attack::start(
        &scene.world.crowd,
        address(),
        Pace::Datagrams(options.flood),
        ring,
    )?;
    let cpu = stage.clock()?;
    let during = flood(&mut stage, options, &completed)?;
    let (elapsed, cpu) = cpu.read(&stage.gateway)?;
    let sent = attack.finish()?;
    stage.run("initiations: pause", options.pause() * 2)?;
    let after = returned(&mut stage, "initiations: after", options.time)?;
    scenario.fact("initiations sent", sent.per_second(), "1/s");
    scenario.fact("initiations wanted", options.flood as f64, "1/s");
    scenario.fact("CPU of the attacker", sent.cpu_percent(), "%");
    scenario.fact("CPU of the gateway", cpu / elapsed * 100.0, "%");
    scenario.fact("duration", elapsed, "s");
    scenario.fact("clients", options.clients.into(), "");
    scenario.fact("age at which keys change", options.rekey.as_secs_f64(), "s");
    let without = f64::midpoint(before, after);
    scenario.fact("throughput without the flood", without, "Mbit/s");
    scenario.limit("fall of throughput", fall(without, during), 10.0, "%");
    let fewest = changes(&stage, &completed);
    scenario.limit(
        format!(
            "changes of keys that some client lacks of {}",
            options.changes
        ),
        f64::from(options.changes) - fewest as f64,
        0.0,
        "",
    );
    scenario.limit(
        "associations that expired",
        (stage.losses() - losses) as f64,
        0.0,
        "",
    );
    replay(&mut stage, options, &mut scenario)?;
    stage.finish()?;
    Ok(scenario)
}

/// Drives the clients until each has changed its keys as often as wanted, but at most for one and a half times the
/// time that this should take. Returns their throughput in Mbit/s.
fn flood(stage: &mut Stage<'_>, options: &Options, before: &[u64]) -> anyhow::Result<f64> {
    let began_at = clock::now();
    let end = began_at + options.rekey * options.changes * 3 / 2;
    let received = stage.received();
    while clock::now() < end && changes(stage, before) < options.changes.into() {
        stage.run("initiations: flood", STEP)?;
    }
    let seconds = clock::now().since(began_at).as_secs_f64();
    Ok((stage.received() - received) as f64 * 8e-6 / seconds)
}

/// Returns the smallest number of handshakes of a client since `before`.
fn changes(stage: &Stage<'_>, before: &[u64]) -> u64 {
    let completed = stage.completed();
    let changes = completed.iter().zip(before).map(|(now, then)| now - then);
    changes.min().unwrap_or(0)
}

/// Returns the throughput of all clients within `time`, in Mbit/s.
fn returned(stage: &mut Stage<'_>, what: &str, time: Duration) -> anyhow::Result<f64> {
    let (began_at, received) = (clock::now(), stage.received());
    stage.run(what, time)?;
    let seconds = clock::now().since(began_at).as_secs_f64();
    Ok((stage.received() - received) as f64 * 8e-6 / seconds)
}

/// Replays the clients' initiations, all of them once a second, while the clients are idle.
fn replay(stage: &mut Stage<'_>, options: &Options, scenario: &mut Scenario) -> anyhow::Result<()> {
    stage.swarm.set_load(Load::default());
    stage.swarm.recorder.most = 0;
    let recorded = core::mem::take(&mut stage.swarm.recorder.initiations);
    let count = recorded.len() as u64;
    let losses = stage.losses();
    stage.run("recorded initiations: pause", options.pause() * 2)?;
    let idle = cpu_percent(stage, "recorded initiations: idle", options.time)?;
    let attack = Attack::start(
        &stage.world.crowd,
        address(),
        Pace::Datagrams(count.max(1)),
        Ring::new(recorded),
    )?;
    // The first round is read; only then all of them were read before.
    stage.run("recorded initiations: first round", options.pause() * 2)?;
    let replayed = cpu_percent(stage, "recorded initiations", options.time)?;
    let sent: Sent = attack.finish()?;
    let again = cpu_percent(stage, "recorded initiations: idle again", options.time)?;
    scenario.fact("recorded initiations", count as f64, "");
    scenario.fact("recorded initiations sent", sent.per_second(), "1/s");
    scenario.fact("CPU of the gateway without them", idle, "%");
    scenario.fact("CPU of the gateway with them", replayed, "%");
    scenario.limit(
        "CPU that recorded initiations cost",
        replayed - f64::midpoint(idle, again),
        2.0,
        "% of a core",
    );
    scenario.limit(
        "associations lost by recorded initiations",
        (stage.losses() - losses) as f64,
        0.0,
        "",
    );
    Ok(())
}

/// Returns the gateway's processor time within `time`, in percent of a core.
fn cpu_percent(stage: &mut Stage<'_>, what: &str, time: Duration) -> anyhow::Result<f64> {
    let cpu = stage.clock()?;
    stage.run(what, time)?;
    let (elapsed, cpu) = cpu.read(&stage.gateway)?;
    Ok(cpu / elapsed * 100.0)
}

/// Returns the address of the attacker, which is no client's.
fn address() -> core::net::Ipv4Addr {
    let outer = Outer {
        client: STRANGER,
        link: 0,
        place: 0,
    };
    outer.address()
}

/// Number of the attacker's address.
pub(super) const STRANGER: u32 = 60_000;
/// Number of different initiations of the flood. Each costs the attacker three curve operations beforehand.
const DISTINCT: u32 = 2_048;
/// Number of initiations that are recorded.
const RECORDED: usize = 1_000;
/// Interval at which changes of keys are counted.
const STEP: Duration = Duration::from_millis(500);
