//! The file with the rows of one shard.
//!
//! Each row is appended as soon as it is known, with one write. So after the program was killed, at most the last line
//! is incomplete; the next call removes it and continues. When all rows are there, the file is replaced by one whose
//! rows are in order of their cases. The file is locked while the program runs: a second process waits, and then finds
//! the rows of the first one.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions, TryLockError},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    ops::Range,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use pleach_sim::sweep::{
    Row,
    merge::origin,
    shard::{Rows, Shard},
};

use crate::onboard::durable::{self, Existing};

/// The open file of a shard.
#[derive(Debug)]
pub(super) struct ShardFile {
    path: PathBuf,
    /// The locked file. `None` after a failed write, because the last line can then be incomplete.
    file: Option<File>,
}

impl ShardFile {
    /// Opens the file of `shard` in `dir`, which is created if missing. Removes an incomplete line at the file's end.
    /// Returns the file and the numbers of the cases it has rows of. All rows must have the sweep, version and hash of
    /// `this`.
    ///
    /// # Errors
    /// If `dir` has rows of another sweep or program, or if the file cannot be read or written.
    pub(super) fn open(
        dir: &Path,
        shard: Shard,
        this: &Row,
    ) -> anyhow::Result<(Self, BTreeSet<u64>)> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        for path in shard_files(dir)? {
            refuse_foreign(&path, this)?;
        }
        let path = dir.join(shard.file_name());
        let shown = path.display();
        let mut file = lock(&path)?;
        let mut content = Vec::new();
        file.read_to_end(&mut content)
            .with_context(|| format!("cannot read {shown}"))?;
        let rows = Rows::parse(&content)
            .map_err(|error| anyhow!("{shown}: {error}; remove the file to compute it again"))?;
        if rows.partial_bytes > 0 {
            let whole = u64::try_from(rows.whole_bytes).unwrap_or(u64::MAX);
            file.set_len(whole)
                .with_context(|| format!("cannot shorten {shown}"))?;
            super::note(&format!(
                "{shown}: the last line is incomplete and was removed; its case is computed again"
            ));
        }
        let numbers = shard.cases(this.cases);
        for (line, row) in &rows.rows {
            if origin(row) != origin(this) {
                return Err(foreign(&path, row, this));
            }
            if !numbers.contains(&row.case) {
                bail!(
                    "{shown}:{line}: case {} is not in shard {shard}; remove the file to compute it again",
                    row.case
                );
            }
        }
        let done = rows.rows.iter().map(|(_, row)| row.case).collect();
        let file = Some(file);
        Ok((Self { path, file }, done))
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends `row`.
    ///
    /// # Errors
    /// If the row, or an earlier row, could not be written.
    pub(super) fn append(&mut self, row: &Row) -> anyhow::Result<()> {
        let shown = self.path.display();
        let mut file = self
            .file
            .take()
            .ok_or_else(|| anyhow!("cannot write {shown}: an earlier row could not be written"))?;
        file.write_all((row.line() + "\n").as_bytes())
            .with_context(|| format!("cannot write {shown}"))?;
        self.file = Some(file);
        Ok(())
    }

    /// Sorts the file, which has one row for each of the cases `numbers`.
    ///
    /// # Errors
    /// If the file cannot be read or written, or has two different rows of a case.
    pub(super) fn finish(self, numbers: Range<u64>) -> anyhow::Result<()> {
        let shown = self.path.display();
        let content = fs::read(&self.path).with_context(|| format!("cannot read {shown}"))?;
        let mut rows = Rows::parse(&content)
            .map_err(|error| anyhow!("{shown}: {error}; remove the file to compute it again"))?
            .rows;
        rows.sort_by_key(|(_, row)| row.case);
        rows.dedup_by(|(_, row), (_, earlier)| row == earlier);
        if !rows.iter().map(|(_, row)| row.case).eq(numbers) {
            bail!(
                "{shown}: the rows are not those of the shard; remove the file to compute it again"
            );
        }
        let sorted: String = rows.iter().map(|(_, row)| row.line() + "\n").collect();
        if sorted.as_bytes() != content {
            durable::write(&self.path, sorted.as_bytes(), MODE, Existing::Replace)
                .with_context(|| format!("cannot write {shown}"))?;
        }
        Ok(())
    }
}

/// Opens `path`, which is created if missing, and locks it. If another process has locked it, waits until this process
/// ends.
///
/// # Errors
/// If the file cannot be opened or locked.
fn lock(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    loop {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot open {shown}"))?;
        let locked = match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                super::note(&format!(
                    "{shown}: another process is computing this shard; waiting until it ends"
                ));
                file.lock()
            }
            Err(TryLockError::Error(error)) => Err(error),
            Ok(()) => Ok(()),
        };
        locked.with_context(|| format!("cannot lock {shown}"))?;
        // The other process has replaced the file if it has completed the shard.
        let is_current = fs::metadata(path).is_ok_and(|current| {
            let locked = file.metadata();
            locked
                .is_ok_and(|locked| (locked.dev(), locked.ino()) == (current.dev(), current.ino()))
        });
        if is_current {
            return Ok(file);
        }
    }
}

/// Returns the paths of the shard files in `dir`, in alphabetical order.
///
/// # Errors
/// If `dir` cannot be read.
pub(super) fn shard_files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let cannot_read = || format!("cannot read {}", dir.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).with_context(cannot_read)? {
        let entry = entry.with_context(cannot_read)?;
        if entry.file_name().to_str().is_some_and(Shard::is_file_name) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// Returns an error if the first row of `path` has another sweep, version or hash than `this`. A first line that is
/// incomplete or no row is accepted: only the shard to which the file belongs needs it.
fn refuse_foreign(path: &Path, this: &Row) -> anyhow::Result<()> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let mut line = Vec::new();
    BufReader::new(file)
        .read_until(b'\n', &mut line)
        .with_context(|| format!("cannot read {shown}"))?;
    let row = str::from_utf8(&line).map(|line| Row::parse(1, line));
    match row {
        Ok(Ok(row)) if origin(&row) != origin(this) => Err(foreign(path, &row, this)),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn foreign(path: &Path, row: &Row, this: &Row) -> anyhow::Error {
    anyhow!(
        "{}: has rows of {}, but this is {}; the sweep file, a file it refers to or the program has changed, so choose another --out or remove the old rows",
        path.display(),
        origin(row),
        origin(this)
    )
}

/// Permissions of result files.
pub(super) const MODE: u32 = 0o644;
