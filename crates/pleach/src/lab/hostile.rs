//! `pleach lab hostile`: hostile clients and strangers at one gateway.

use std::{path::PathBuf, time::Duration};

use pleach_core::units::Bitrate;
use pleach_lab::{
    crowd::MOST_CLIENTS,
    hostile::{self, Options, Which},
};

use super::{parse_time, write_json};

/// A scenario.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Scenario {
    /// A hostile client with a valid key beside an honest client
    Client,
    /// A flood of initiations while clients change keys, and recorded initiations
    Initiations,
    /// Datagrams without meaning, with one client and with many
    Strays,
    /// A client that forges its source address
    Spoofed,
}

/// Options of `pleach lab hostile`.
#[derive(Debug, clap::Args)]
pub(crate) struct HostileOptions {
    /// Only these scenarios
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Scenario>,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    time: Duration,
    /// Rate that honest clients offer, in all
    #[arg(long, value_name = "RATE", default_value = "20Mbit")]
    rate: Bitrate,
    /// Rate of the hostile client
    #[arg(long, value_name = "RATE", default_value = "100Mbit")]
    attack: Bitrate,
    /// Number of clients that change keys during the flood of initiations
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_CLIENTS)))]
    clients: u32,
    /// Age at which these clients change keys
    #[arg(long, value_name = "TIME", default_value = "6s", value_parser = parse_time)]
    rekey: Duration,
    /// Number of changes of keys of each of these clients
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    changes: u32,
    /// Initiations per second
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    flood: u64,
    /// Number of clients of the larger gateway that gets strays
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_CLIENTS)))]
    crowd: u32,
    /// Strays per second
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    strays: u64,
    /// Duration for which source addresses are forged
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    spoof: Duration,
    /// Write the figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the scenarios and returns the table of their figures.
///
/// # Errors
/// Options out of range, missing rights, a gateway that ends, or a file that cannot be written.
pub(crate) fn run(options: &HostileOptions) -> anyhow::Result<String> {
    pleach_lab::netns::prepare()?;
    let only = options.only.iter().map(|scenario| match scenario {
        Scenario::Client => Which::Client,
        Scenario::Initiations => Which::Initiations,
        Scenario::Strays => Which::Strays,
        Scenario::Spoofed => Which::Spoofed,
    });
    let mut scenarios: Vec<_> = only.collect();
    if scenarios.is_empty() {
        scenarios = Which::ALL.to_vec();
    }
    let report = hostile::run(&Options {
        binary: None,
        scenarios,
        time: options.time,
        rate: options.rate,
        attack: options.attack,
        clients: options.clients,
        rekey: options.rekey,
        changes: options.changes,
        flood: options.flood,
        crowd: options.crowd,
        strays: options.strays,
        spoof: options.spoof,
        quiet: false,
    })?;
    if let Some(path) = &options.json {
        write_json(path, &report)?;
    }
    Ok(report.to_string())
}
