//! The equalizers of a scenario: real daemons (`pleach equalize`) at its ends.
//!
//! Each equalizer spreads the traffic to the other end: at the client, traffic to the servers; at the gateway,
//! traffic to the client's address for spread traffic. Packets are spread one by one (`interleave`), and the
//! guideline is off, as in the simulator.

use core::{fmt::Write as _, net::IpAddr, time::Duration};
use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, ensure};
use pleach_core::time::Instant;
use pleach_linux::clock;
use pleach_sim::{
    addresses::{INNER_V4, INNER_V6, Place},
    link::trace::Rate,
    results::StatusSample,
    scenario::{End, EqualizerSpec, Scenario, Spread},
};
use serde_json::{Value, json};

use crate::{daemon::Daemon, topology::Topology, wait};

/// Longest time for which links may take to come up.
const PATIENCE: Duration = Duration::from_secs(10);

/// The running equalizers of a world.
pub(super) struct Equalizers<'a> {
    scenario: &'a Scenario,
    all: Vec<(&'a EqualizerSpec, Daemon)>,
}

impl<'a> Equalizers<'a> {
    /// Writes configurations into `dir`, starts all equalizers, and waits until their links are up.
    pub(super) fn start(
        world: &Topology,
        binary: &Path,
        dir: &Path,
        scenario: &'a Scenario,
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut all = Vec::new();
        for spec in &scenario.equalizers {
            let (name, host) = match spec.end {
                End::Client => ("client", &world.client),
                End::Gateway => ("gateway", &world.gateway),
            };
            let mut daemon = Daemon::new(name, "equalize", binary, dir);
            daemon.configure(&configuration(world, scenario, spec, &daemon.control)?)?;
            daemon.launch(host)?;
            all.push((spec, daemon));
        }
        let mut this = Self { scenario, all };
        for (spec, daemon) in &mut this.all {
            let deadline = clock::now() + PATIENCE;
            let mut failed = None;
            let is_up = wait::for_condition(deadline, || {
                failed = daemon.check().err();
                failed.is_some() || links_up(daemon) == spec.links.len()
            });
            failed.map_or(Ok(()), Err)?;
            ensure!(
                is_up,
                "links of the equalizer at the {} did not come up within {PATIENCE:?}; its log is in {}",
                daemon.name,
                dir.display()
            );
        }
        Ok(this)
    }

    /// Sets the weights of the equalizer at `end`, one weight for each of its links.
    pub(super) fn set_weights(&self, end: End, weights: &[u32]) -> anyhow::Result<()> {
        let found = self.all.iter().find(|(spec, _)| spec.end == end);
        let Some((spec, daemon)) = found else {
            return Ok(());
        };
        let by_name: BTreeMap<&str, u32> = names(self.scenario, spec)
            .zip(weights.iter().copied())
            .collect();
        let answer = daemon.ask(&json!({ "command": "weights", "weights": by_name }));
        let is_done = answer.as_ref().is_some_and(|answer| answer["ok"] == true);
        ensure!(
            is_done,
            "the equalizer did not accept the weights {by_name:?}: {answer:?}"
        );
        Ok(())
    }

    /// Adds the status of all equalizers to `samples`.
    pub(super) fn sample_status(&self, begin: Instant, samples: &mut Vec<StatusSample>) {
        samples.extend(
            self.all
                .iter()
                .filter_map(|(_, daemon)| daemon.sample(begin)),
        );
    }

    /// Returns the share in percent of each link at the first equalizer, by name.
    pub(super) fn shares(&self) -> BTreeMap<String, f64> {
        let status = self.all.first().and_then(|(_, daemon)| daemon.status());
        let links = status
            .as_ref()
            .and_then(|status| status.pointer("/splitter/links"));
        let share = |(name, link): (&String, &Value)| {
            Some((name.clone(), 100.0 * link.get("share_wanted")?.as_f64()?))
        };
        let links = links.and_then(Value::as_object).into_iter().flatten();
        links.filter_map(share).collect()
    }

    /// Whether shares change automatically.
    pub(super) fn follow(&self) -> bool {
        self.all.first().is_some_and(|(spec, _)| spec.auto_weights)
    }

    /// Ends all equalizers.
    ///
    /// # Errors
    /// Fails if an equalizer had ended before, or does not end after the request.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.all
            .into_iter()
            .try_for_each(|(_, mut daemon)| daemon.stop())
    }
}

fn links_up(daemon: &Daemon) -> usize {
    let status = daemon.status().unwrap_or_default();
    let links = status["links"].as_array().into_iter().flatten();
    links.filter(|link| link["state"] == "up").count()
}

fn names<'a>(scenario: &'a Scenario, spec: &'a EqualizerSpec) -> impl Iterator<Item = &'a str> {
    let of = |&index: &usize| scenario.links.get(index).map(|link| link.name.as_str());
    spec.links.iter().filter_map(of)
}

fn configuration(
    world: &Topology,
    scenario: &Scenario,
    spec: &EqualizerSpec,
    control: &Path,
) -> anyhow::Result<String> {
    let servers = scenario.traffic.iter();
    let servers = servers.filter(|traffic| Place::of(traffic).is_none_or(|place| !place.outside));
    let mut destinations: Vec<IpAddr> = match spec.end {
        End::Client => servers.map(|traffic| world.server_of(traffic).1).collect(),
        End::Gateway => vec![INNER_V4.into(), INNER_V6.into()],
    };
    destinations.sort_unstable();
    destinations.dedup();
    let probe = match destinations.first() {
        Some(probe) if spec.spread == Spread::Delay => format!("probe = \"{probe}\"\n"),
        Some(_) | None => String::new(),
    };
    let networks: Vec<String> = destinations
        .iter()
        .map(|ip| format!("\"{ip}/{}\"", if ip.is_ipv6() { 128 } else { 32 }))
        .collect();
    let (spread, interleave) = match spec.spread {
        Spread::Delay => ("delay".to_owned(), true),
        Spread::Flow => ("flow".to_owned(), false),
        Spread::Flowlet { gap } => (format!("{}ms", gap.as_millis()), false),
        Spread::Packet => ("packet".to_owned(), true),
    };
    let weights = if spec.auto_weights { "auto" } else { "fixed" };
    let mut text = format!(
        "mode = \"equalize\"\n\n[equalizer]\ndestinations = [{}]\ncontrol = {control:?}\nspread = \"{spread}\"\n{probe}\
         interleave = {interleave}\nweights = \"{weights}\"\ninterval = \"{}ms\"\nguideline = false\n",
        networks.join(", "),
        spec.interval.as_millis()
    );
    for &index in &spec.links {
        let link = scenario.links.get(index).context("a link")?;
        let (n, name) = (100 + index, &link.name);
        let (side, far) = match spec.end {
            End::Client => (&link.up, 1),
            End::Gateway => (&link.down, 2),
        };
        let v6 = if link.ipv6 {
            format!(", \"fd00:{n}::{far}\"")
        } else {
            String::new()
        };
        write!(
            text,
            "\n[[link]]\nname = \"{name}\"\ndevice = \"{name}\"\nnext_hop = [\"10.{n}.0.{far}\"{v6}]\n"
        )?;
        if let Rate::Constant(rate) = side.rate {
            writeln!(text, "rate = \"{}bit\"", rate.as_bps())?;
        }
        if !spec.auto_weights {
            writeln!(text, "weight = {}", link.weight)?;
        }
    }
    Ok(text)
}
