//! A hostile client beside an honest one: what the honest client loses, and what the gateway keeps for the other.

use core::time::Duration;

use pleach_linux::clock;

use super::{
    Options, Scene,
    attack::{Attack, Pace},
    mixes::{Hostile, Mix},
    peer::Peer,
    report::{Scenario, fall, mib},
    sampler::Sampler,
    stage::{Cast, Stage},
};
use crate::crowd::{
    gateway::{Keys, Manner},
    honest::{Honest, Measured},
    numbering::{INNER_GATEWAY, Outer, inner},
    swarm::Load,
};

/// Number of the hostile client; the honest one is 0.
const HOSTILE: u32 = 1;

/// Runs the scenario.
pub(super) fn run(scene: &Scene<'_>, options: &Options) -> anyhow::Result<Scenario> {
    let keys = Keys::draw()?;
    let cast = Cast {
        clients: 1,
        links: 1,
        others: &[keys.public],
        rekey_after: None,
        manner: Manner::Plain,
        binary: scene.binary,
        progress: scene.progress,
    };
    let mut stage = Stage::build(scene.world, &cast)?;
    stage.swarm.members[0].honest = Some(Honest::new(clock::now())?);
    stage.swarm.set_load(Load {
        clients: 1,
        bytes_per_second: options.rate.as_bps() / 8,
    });
    stage.run("hostile client: warm-up", options.time * 3 / 10)?;
    let mut scenario = Scenario::new("a hostile client beside an honest one");
    let first = measure(&mut stage, "hostile client: before", options.time)?;
    let memory = stage.gateway.usage()?.anonymous;
    let mut attacked = Vec::new();
    let (mut most_memory, mut most_kept, mut most_total) = (memory, 0, 0);
    for (number, mix) in (1..).zip(Mix::ALL) {
        let address = Outer {
            client: HOSTILE,
            link: 0,
            place: 0,
        };
        let inner = inner(HOSTILE).octets();
        let mut peer = Peer::new(
            keys.pair(),
            stage.gateway_key,
            inner,
            INNER_GATEWAY.octets(),
        );
        peer.association = number;
        let attack = Attack::start(
            &scene.world.crowd,
            address.address(),
            Pace::Bits(options.attack.as_bps()),
            Hostile::new(peer, mix, number),
        )?;
        let sampler = Sampler::start(
            stage.gateway.process()?,
            stage.gateway.control().to_owned(),
            SAMPLES,
        )?;
        // The handshake, and the first answers.
        stage.run(mix.name(), options.pause())?;
        let cpu = stage.clock()?;
        let measured = measure(&mut stage, mix.name(), options.time)?;
        let (elapsed, cpu) = cpu.read(&stage.gateway)?;
        for sample in sampler.finish()? {
            most_memory = most_memory.max(sample.anonymous_bytes);
            most_kept = most_kept.max(sample.peer_kept_bytes);
            most_total = most_total.max(sample.kept_bytes);
        }
        let sent = attack.finish()?;
        let name = mix.name();
        scenario.fact(format!("{name}: sent by the client"), sent.mbps(), "Mbit/s");
        scenario.fact(format!("{name}: datagrams"), sent.per_second(), "1/s");
        scenario.fact(
            format!("{name}: CPU of the client"),
            sent.cpu_percent(),
            "%",
        );
        scenario.fact(
            format!("{name}: CPU of the gateway"),
            cpu / elapsed * 100.0,
            "%",
        );
        attacked.push((mix, measured));
        stage.run("hostile client: pause", options.pause())?;
    }
    let last = measure(&mut stage, "hostile client: after", options.time)?;
    let seconds = options.time.as_secs_f64();
    let without = mean(first.mbps(seconds), last.mbps(seconds));
    let ping = mean(first.ping_ms(0.99), last.ping_ms(0.99));
    scenario.fact("honest client alone: throughput", without, "Mbit/s");
    scenario.fact("honest client alone: 99th percentile of pings", ping, "ms");
    for (mix, measured) in attacked {
        let name = mix.name();
        let with = measured.mbps(seconds);
        scenario.limit(
            format!("{name}: fall of throughput"),
            fall(without, with),
            10.0,
            "%",
        );
        let rise = measured.ping_ms(0.99) - ping;
        scenario.limit(
            format!("{name}: rise of the 99th percentile of pings"),
            rise,
            5.0,
            "ms",
        );
    }
    scenario.limit("memory of one peer's packets", mib(most_kept), 48.0, "MiB");
    scenario.limit("memory of all packets", mib(most_total), 256.0, "MiB");
    let grown = most_memory.saturating_sub(memory);
    scenario.limit("growth of the gateway's memory", mib(grown), 64.0, "MiB");
    stage.finish()?;
    Ok(scenario)
}

/// Returns what the honest client gets within `time`.
fn measure(stage: &mut Stage<'_>, what: &str, time: Duration) -> anyhow::Result<Measured> {
    take(stage)?;
    stage.run(what, time)?;
    take(stage)
}

fn take(stage: &mut Stage<'_>) -> anyhow::Result<Measured> {
    let honest = stage.swarm.members[0].honest.as_mut();
    honest.map_or_else(
        || anyhow::bail!("the honest client has no traffic"),
        Honest::take,
    )
}

fn mean(first: f64, last: f64) -> f64 {
    f64::midpoint(first, last)
}

/// Interval at which the gateway's memory is read.
const SAMPLES: Duration = Duration::from_millis(250);
