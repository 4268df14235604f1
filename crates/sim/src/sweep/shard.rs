//! Parts of a sweep that different processes compute, and the files of their rows.
//!
//! Shard I of N has the cases from ⌊(I−1)·C/N⌋ up to but not including ⌊I·C/N⌋ of C cases. A shard file is JSON lines in
//! any order while the shard is computed, and in order of the cases when it is complete. Each line is written at once
//! with its line break, so only the last line can be incomplete after the writer was killed.

use core::{fmt, ops::Range, str::FromStr};

use super::{NotARow, Row};

/// Shard `index` of `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Number of the shard, from 1 to `count`.
    index: u64,
    /// Number of shards, 1 to [`super::MAX_CASES`].
    count: u64,
}

/// A text that names no shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAShard {
    /// The text is not `I/N`.
    #[error("expected I/N, such as 1/4 for the first of four shards")]
    Form,
    /// The number of the shard is 0 or above the number of shards.
    #[error("there is no shard {index} of {count}: shards are numbered from 1 to {count}")]
    Index {
        /// The number of the shard.
        index: u64,
        /// The number of shards.
        count: u64,
    },
    /// The number of shards is 0 or too high.
    #[error("the number of shards is out of range: use 1 to {}", super::MAX_CASES)]
    Count,
}

impl Shard {
    /// The only shard of an undivided sweep.
    pub const WHOLE: Self = Self { index: 1, count: 1 };

    /// Returns the numbers of the shard's cases if the sweep has `cases`. Empty if there are more shards than cases and
    /// nothing is left for this one.
    #[must_use]
    pub fn cases(self, cases: u64) -> Range<u64> {
        let start = |index: u64| {
            let start = u128::from(index) * u128::from(cases) / u128::from(self.count);
            u64::try_from(start).unwrap_or(cases)
        };
        start(self.index - 1)..start(self.index)
    }

    /// Returns the name of the shard's file.
    #[must_use]
    pub fn file_name(self) -> String {
        format!("shard-{}-of-{}.jsonl", self.index, self.count)
    }

    /// Whether a shard's file can be called `name`.
    #[must_use]
    pub fn is_file_name(name: &str) -> bool {
        let parsed = name
            .strip_prefix("shard-")
            .and_then(|name| name.strip_suffix(".jsonl"))
            .map(|name| name.replacen("-of-", "/", 1).parse::<Self>());
        matches!(parsed, Some(Ok(_)))
    }
}

impl FromStr for Shard {
    type Err = NotAShard;

    fn from_str(text: &str) -> Result<Self, NotAShard> {
        let (index, count) = text.split_once('/').ok_or(NotAShard::Form)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| NotAShard::Form);
        let (index, count) = (number(index)?, number(count)?);
        if !(1..=super::MAX_CASES).contains(&count) {
            return Err(NotAShard::Count);
        }
        if !(1..=count).contains(&index) {
            return Err(NotAShard::Index { index, count });
        }
        Ok(Self { index, count })
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// The rows of a shard file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// The rows in the order of the file, with their line numbers from 1.
    pub rows: Vec<(usize, Row)>,
    /// Length of the complete lines in bytes.
    pub whole_bytes: usize,
    /// Length of the incomplete line at the end in bytes. 0 if the last line is complete.
    pub partial_bytes: usize,
}

impl Rows {
    /// Parses the content of a shard file. An incomplete line at its end is left out.
    ///
    /// # Errors
    /// Fails if a complete line is not a row.
    pub fn parse(content: &[u8]) -> Result<Self, NotARow> {
        let whole_bytes = content
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        let (whole, partial) = content.split_at(whole_bytes);
        let mut rows = Vec::new();
        let lines = whole
            .strip_suffix(b"\n")
            .map(|whole| whole.split(|byte| *byte == b'\n'));
        for (line, bytes) in (1..).zip(lines.into_iter().flatten()) {
            let text = core::str::from_utf8(bytes).map_err(|error| NotARow {
                line,
                reason: error.to_string(),
            })?;
            rows.push((line, Row::parse(line, text)?));
        }
        Ok(Self {
            rows,
            whole_bytes,
            partial_bytes: partial.len(),
        })
    }
}
