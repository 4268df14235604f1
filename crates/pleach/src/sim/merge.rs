//! `pleach sim merge`: joins the rows of all shards of a sweep.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use pleach_sim::sweep::{Row, csv, merge::Merge, summary};

use super::shard_file::{MODE, shard_files};
use crate::onboard::durable::{self, Existing};

/// Options of `pleach sim merge`.
#[derive(Debug, clap::Args)]
pub(crate) struct MergeOptions {
    /// Directories with the rows of shards
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// File for all rows, one line of JSON per case
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// File for all rows as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Writes the rows in order of their cases, and prints a table by policy.
///
/// # Errors
/// If rows are missing, contradict each other or belong to different sweeps, or if a file cannot be read or written.
pub(crate) fn run(options: &MergeOptions) -> anyhow::Result<()> {
    let mut merge = Merge::default();
    for dir in &options.dirs {
        let paths = shard_files(dir)?;
        if paths.is_empty() {
            bail!(
                "{}: there is no shard file; name a directory that `pleach sim sweep` has written",
                dir.display()
            );
        }
        for path in paths {
            let shown = path.display().to_string();
            let content = fs::read(&path).with_context(|| format!("cannot read {shown}"))?;
            if merge.add(&shown, &content)? > 0 {
                super::note(&format!(
                    "{shown}: the last line is incomplete and is left out"
                ));
            }
        }
    }
    let rows = merge.finish()?;
    let lines: String = rows.iter().map(|row: &Row| row.line() + "\n").collect();
    write(&options.out, &lines)?;
    if let Some(path) = &options.csv {
        write(path, &csv::table(&rows))?;
    }
    io::stdout()
        .write_all(summary::table(&rows).as_bytes())
        .context("cannot print the table")
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    durable::write(path, text.as_bytes(), MODE, Existing::Replace)
        .with_context(|| format!("cannot write {}", path.display()))
}
