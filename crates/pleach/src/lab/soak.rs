//! `pleach lab soak`: a gateway under trouble for a long time.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::Context as _;
use pleach_lab::soak::{self, Options};

/// Options of `pleach lab soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct SoakOptions {
    /// Duration of the run
    #[arg(long, value_name = "MINUTES", default_value_t = 60.0)]
    minutes: f64,
    /// Number of clients, besides a client's daemon
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Write the figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the soak and returns the table of its figures.
///
/// # Errors
/// Options out of range, missing rights, a daemon that ends, or a file that cannot be written.
pub(crate) fn run(options: &SoakOptions) -> anyhow::Result<String> {
    anyhow::ensure!(
        (0.2..=1_440.0).contains(&options.minutes),
        "--minutes {}: a number from 0.2 to 1440",
        options.minutes
    );
    // The file is opened first, because `/run` changes for this process.
    let mut json = options
        .json
        .as_ref()
        .map(|path| fs::File::create(path).with_context(|| path.display().to_string()))
        .transpose()?;
    soak::prepare()?;
    let report = soak::run(&Options {
        binary: None,
        time: Duration::from_secs_f64(options.minutes * 60.0),
        clients: options.clients,
        quiet: false,
    })?;
    if let Some(file) = &mut json {
        serde_json::to_writer_pretty(file, &report).context("figures")?;
    }
    Ok(report.to_string())
}
