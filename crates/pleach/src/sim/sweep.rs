//! `pleach sim sweep`: simulates the cases of a sweep, or of one shard of it, and writes a row per case.
//!
//! The rows of a shard are in one file of the output directory ([`super::shard_file`]). They carry a hash of the sweep
//! file, of all files it refers to, and of this program. A directory that has rows with another hash is refused, because
//! their figures could differ for reasons other than the parameters.

use std::{
    fs,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::Context as _;
use blake2::{Blake2s256, Digest as _};
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use pleach_sim::{
    scenario::{Files, ScenarioError},
    sweep::{Row, Sweep, SweepError, shard::Shard},
};

use super::{Daemon, shard_file::ShardFile};
use crate::onboard::BadInput;

/// Options of `pleach sim sweep`.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepOptions {
    /// Sweep file
    file: PathBuf,
    /// Directory for the rows; a call that was interrupted is continued
    #[arg(long, value_name = "DIR", required_unless_present_any = ["list", "files"])]
    out: Option<PathBuf>,
    /// Simulate only part I of N of the cases [default: all cases]
    #[arg(long, value_name = "I/N", default_value_t = Shard::WHOLE, hide_default_value = true)]
    shard: Shard,
    /// Number of cases that are simulated at once [default: number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Only print the parameters of each case, one line of JSON per case
    #[arg(long)]
    list: bool,
    /// Only print the paths of the files that the sweep needs
    #[arg(long, conflicts_with = "list")]
    files: bool,
}

/// Simulates the cases of a shard that are not in the output directory yet.
///
/// # Errors
/// If the sweep is invalid, if the directory belongs to another sweep, or if a file cannot be read or written.
pub(crate) fn run(options: &SweepOptions) -> anyhow::Result<()> {
    let sweep = load(&options.file)?;
    let numbers = options.shard.cases(sweep.cases());
    if options.files {
        let files: String = sweep
            .files()
            .map(|(path, _)| format!("{}\n", path.display()))
            .collect();
        return print(&files);
    }
    let Some(out) = options.out.as_deref().filter(|_| !options.list) else {
        let lines: Result<String, serde_json::Error> = numbers
            .map(|number| {
                let parameters = sweep.parameters(number);
                let line = serde_json::json!({ "case": number, "parameters": parameters });
                Ok(serde_json::to_string(&line)? + "\n")
            })
            .collect();
        return print(&lines?);
    };
    let id = id(&sweep)?;
    let this = Row {
        sweep: sweep.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        id,
        cases: sweep.cases(),
        ..Row::default()
    };
    let (file, done) = ShardFile::open(out, options.shard, &this)?;
    let todo: Vec<u64> = numbers.clone().filter(|n| !done.contains(n)).collect();
    let total = numbers.end - numbers.start;
    if !done.is_empty() {
        super::note(&format!(
            "{}: {} of {total} cases are already there",
            file.path().display(),
            done.len(),
        ));
    }
    let progress = Progress::new(options.shard, total, &done);
    let file = Mutex::new(file);
    let on_row = |row: Row| -> anyhow::Result<()> {
        let row = Row {
            id: this.id.clone(),
            version: this.version.clone(),
            ..row
        };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.append(&row)?;
        progress.advance();
        Ok(())
    };
    let jobs = options.jobs.map_or(0, usize::from);
    let program = Daemon::default();
    sweep
        .run(&todo, jobs, &program, &on_row)
        .map_err(|error| match error {
            SweepError::Case(error) => invalid(&error),
            SweepError::Row(error) => error,
            SweepError::Threads(error) => anyhow::Error::new(error).context("cannot start threads"),
        })?;
    progress.finish();
    let file = file.into_inner().unwrap_or_else(PoisonError::into_inner);
    file.finish(numbers)
}

/// Reads the sweep file `path` and all files it refers to.
fn load(path: &Path) -> anyhow::Result<Sweep> {
    let text = fs::read_to_string(path)
        .map_err(|error| BadInput::error(format!("cannot read {}: {error}", path.display())))?;
    let mut files = Files {
        scenario: path,
        traces: std::env::var_os("PLEACH_TRACES").map(PathBuf::from),
        read: &mut |path: &Path| fs::read_to_string(path),
    };
    Sweep::parse(&text, &mut files).map_err(|error| invalid(&error))
}

/// Returns an error of the user's files, which ends the program with exit code 2.
fn invalid(error: &ScenarioError) -> anyhow::Error {
    BadInput::error(error.to_string())
}

/// Returns the hash of the sweep's files and of this program: version and executable.
fn id(sweep: &Sweep) -> anyhow::Result<String> {
    let mut hash = Blake2s256::new();
    let mut part = |bytes: &[u8]| {
        // The length separates a part from the next one.
        hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
        hash.update(bytes);
    };
    part(env!("CARGO_PKG_VERSION").as_bytes());
    // The link to the executable stays readable if the file is replaced while the program runs.
    let program = fs::read("/proc/self/exe").context("cannot read this program's executable")?;
    part(&program);
    for (_, content) in sweep.files() {
        part(content.as_bytes());
    }
    let digest = hash.finalize();
    Ok(data_encoding::HEXLOWER.encode(&digest[..ID_BYTES]))
}

/// Progress on stderr: a bar on a terminal, otherwise a line after each twentieth of the cases.
struct Progress {
    bar: ProgressBar,
    shard: Shard,
    /// Number of cases between two lines. 0: a bar is shown.
    step: u64,
}

impl Progress {
    fn new(shard: Shard, total: u64, done: &std::collections::BTreeSet<u64>) -> Self {
        let bar = ProgressBar::new(total);
        let bar = match ProgressStyle::with_template("{bar:30} {pos}/{len} cases, {eta} left") {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        let bar = bar.with_position(u64::try_from(done.len()).unwrap_or(total));
        bar.reset_eta();
        let step = if io::stderr().is_terminal() {
            0
        } else {
            total.div_ceil(LINES).max(1)
        };
        Self { bar, shard, step }
    }

    /// Counts one case.
    fn advance(&self) {
        self.bar.inc(1);
        let done = self.bar.position();
        if self.step > 0 && done.is_multiple_of(self.step) {
            let total = self.bar.length().unwrap_or(done);
            // If this fails, the progress cannot be reported anywhere.
            let _ = writeln!(
                io::stderr(),
                "shard {}: {done} of {total} cases, {} left",
                self.shard,
                HumanDuration(self.bar.eta())
            );
        }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to standard output")
}

/// Length of the hash in rows in bytes. The hash distinguishes a user's own sweeps, so 64 bits suffice.
const ID_BYTES: usize = 8;
/// Number of progress lines of a shard.
const LINES: u64 = 20;
