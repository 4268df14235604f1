//! `pleach lab crowd`: many clients on one gateway.

use std::{path::PathBuf, time::Duration};

use pleach_core::units::Bitrate;
use pleach_lab::crowd::{self, MOST_CLIENTS, MOST_LINKS, Options};

use super::{parse_time, write_json};

/// Options of `pleach lab crowd`.
#[derive(Debug, clap::Args)]
pub(crate) struct CrowdOptions {
    /// Number of clients
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_CLIENTS)))]
    clients: u32,
    /// Number of links of each client
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_LINKS)))]
    links: u8,
    /// Number of data threads of the gateway; without it, the gateway chooses
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: Option<u8>,
    /// Time for which all clients are idle while the gateway's memory and processor time are measured
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    idle: Duration,
    /// Time for which busy clients are measured, and other clients move and restart
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = parse_time)]
    load: Duration,
    /// Number of clients that send packets, which return
    #[arg(long, value_name = "N", default_value_t = 0)]
    busy: u32,
    /// Rate that each busy client offers
    #[arg(long, value_name = "RATE", default_value = "1Mbit")]
    rate: Bitrate,
    /// Number of clients whose addresses change every 10 s under load
    #[arg(long, value_name = "N", default_value_t = 0)]
    roaming: u32,
    /// Number of clients that crash and start again every 10 s under load
    #[arg(long, value_name = "N", default_value_t = 0)]
    restarting: u32,
    /// At the end kill the gateway, start it again, and measure how long the clients take to reconnect
    #[arg(long)]
    storm: bool,
    /// Longest time to wait until all clients are connected
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_time)]
    patience: Duration,
    /// Write the figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs a crowd and returns the table of its figures.
///
/// # Errors
/// Options that contradict each other, missing rights, a gateway that ends, or a file that cannot be written.
pub(crate) fn run(options: &CrowdOptions) -> anyhow::Result<String> {
    pleach_lab::netns::prepare()?;
    let report = crowd::run(&Options {
        binary: None,
        clients: options.clients,
        links: options.links,
        workers: options.workers,
        idle: options.idle,
        load: options.load,
        busy: options.busy,
        rate: options.rate,
        roaming: options.roaming,
        restarting: options.restarting,
        storm: options.storm,
        patience: options.patience,
        quiet: false,
    })?;
    if let Some(path) = &options.json {
        write_json(path, &report)?;
    }
    Ok(report.to_string())
}
