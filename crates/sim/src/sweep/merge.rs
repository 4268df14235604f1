//! Joins the rows of several shards.
//!
//! All rows must have the same hash of sweep and program. Every case must be there. A case can be there more than once if
//! its rows are equal.

use core::fmt;
use std::collections::BTreeMap;

use super::{NotARow, Row, shard::Rows};

/// Rows that have been read so far.
///
/// Bound: at most [`super::MAX_CASES`] rows, because numbers of cases are checked against the number of cases, which all
/// rows must have in common.
#[derive(Debug, Default)]
pub struct Merge {
    /// The row of each case, with the file and line it is from.
    rows: BTreeMap<u64, (Row, Source)>,
    /// Names of the files.
    files: Vec<String>,
}

/// Index of a file, and a line in it from 1.
type Source = (usize, usize);

/// Reason why rows cannot be joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// Two rows of a case differ.
    #[error(
        "{second} and {first}: the rows of case {case} differ; remove the file that is wrong, and run its shard again"
    )]
    Conflict {
        /// Number of the case.
        case: u64,
        /// File and line of the first row.
        first: String,
        /// File and line of the other row.
        second: String,
    },
    /// There is no row.
    #[error("there is no row of a sweep; run `pleach sim sweep FILE --out DIR`")]
    Empty,
    /// A row is of another sweep or another program than the first row.
    #[error(
        "{place}: a row of {other}, but {first} has rows of {expected}; merge only shards of one sweep file that one version of the program has computed"
    )]
    Foreign {
        /// File and line of the row.
        place: String,
        /// Sweep, version and hash of the row.
        other: String,
        /// File and line of the first row.
        first: String,
        /// Sweep, version and hash of the first row.
        expected: String,
    },
    /// Cases have no row.
    #[error(
        "{missing} of {cases} cases are missing: {numbers}; run their shards (again), and merge then"
    )]
    Missing {
        /// Number of missing cases.
        missing: u64,
        /// Number of cases of the sweep.
        cases: u64,
        /// Numbers of the missing cases.
        numbers: Ranges,
    },
    /// A line is not a row.
    #[error("{file}: {error}; remove the file, and run its shard again")]
    NotARow {
        /// Name of the file.
        file: String,
        /// The line and what is wrong with it.
        error: NotARow,
    },
}

impl Merge {
    /// Adds the rows of the shard file `file` with this content. Returns the length of an incomplete line at its end in
    /// bytes, which is left out; 0 if there is none.
    ///
    /// # Errors
    /// Fails if a line is not a row, belongs to another sweep or program, or contradicts another row.
    pub fn add(&mut self, file: &str, content: &[u8]) -> Result<usize, MergeError> {
        let rows = Rows::parse(content).map_err(|error| MergeError::NotARow {
            file: file.to_owned(),
            error,
        })?;
        self.files.push(file.to_owned());
        let index = self.files.len() - 1;
        for (line, row) in rows.rows {
            self.add_row((index, line), row)?;
        }
        Ok(rows.partial_bytes)
    }

    fn add_row(&mut self, source: Source, row: Row) -> Result<(), MergeError> {
        if let Some((first, first_source)) = self.rows.values().next()
            && (&row.id, row.cases) != (&first.id, first.cases)
        {
            return Err(MergeError::Foreign {
                place: self.place(source),
                other: origin(&row),
                first: self.place(*first_source),
                expected: origin(first),
            });
        }
        match self.rows.get(&row.case) {
            Some((other, _)) if *other == row => {}
            Some((_, other)) => {
                return Err(MergeError::Conflict {
                    case: row.case,
                    first: self.place(*other),
                    second: self.place(source),
                });
            }
            None => {
                self.rows.insert(row.case, (row, source));
            }
        }
        Ok(())
    }

    /// Returns all rows in order of their cases.
    ///
    /// # Errors
    /// Fails if a case is missing.
    pub fn finish(self) -> Result<Vec<Row>, MergeError> {
        let cases = match self.rows.values().next() {
            Some((row, _)) => row.cases,
            None => return Err(MergeError::Empty),
        };
        let missing: Vec<u64> = (0..cases)
            .filter(|case| !self.rows.contains_key(case))
            .collect();
        if !missing.is_empty() {
            return Err(MergeError::Missing {
                missing: u64::try_from(missing.len()).unwrap_or(u64::MAX),
                cases,
                numbers: Ranges(missing),
            });
        }
        Ok(self.rows.into_values().map(|(row, _)| row).collect())
    }

    fn place(&self, (file, line): Source) -> String {
        let name = self.files.get(file).map_or("", String::as_str);
        format!("{name}:{line}")
    }
}

/// Returns the sweep, version and hash of `row`, for messages.
#[must_use]
pub fn origin(row: &Row) -> String {
    format!(
        "sweep {:?} of {} cases, pleach {}, hash {}",
        row.sweep, row.cases, row.version, row.id
    )
}

/// Numbers in ascending order. Printed, neighbours are joined (`3, 7-12`), and at most 20 groups are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges(Vec<u64>);

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<&[u64]> = self.0.chunk_by(|a, b| a + 1 == *b).collect();
        for (index, group) in groups.iter().take(GROUPS_SHOWN).enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            match group {
                [first, .., last] => write!(f, "{first}-{last}")?,
                [only] => write!(f, "{only}")?,
                [] => {}
            }
        }
        if groups.len() > GROUPS_SHOWN {
            write!(f, ", and further ones")?;
        }
        Ok(())
    }
}

/// Number of groups of missing cases that a message shows.
const GROUPS_SHOWN: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(case: u64, id: &str, rate: f64) -> String {
        let row = Row {
            sweep: "test".to_owned(),
            id: id.to_owned(),
            case,
            cases: 4,
            rate_mbps: Some(rate),
            ..Row::default()
        };
        row.line() + "\n"
    }

    #[test]
    fn rows_are_sorted_and_equal_rows_are_joined() {
        let mut merge = Merge::default();
        let first = [line(2, "x", 1.0), line(0, "x", 2.0)].concat();
        let second = [line(3, "x", 1.0), line(1, "x", 1.0), line(2, "x", 1.0)].concat();
        assert_eq!(merge.add("a", first.as_bytes()), Ok(0));
        assert_eq!(merge.add("b", second.as_bytes()), Ok(0));
        let rows = merge.finish().expect("complete");
        let cases: Vec<u64> = rows.iter().map(|row| row.case).collect();
        assert_eq!(cases, [0, 1, 2, 3]);
    }

    #[test]
    fn rows_that_differ_are_refused() {
        let mut merge = Merge::default();
        merge.add("a", line(2, "x", 1.0).as_bytes()).expect("a row");
        let error = merge.add("b", line(2, "x", 1.5).as_bytes());
        let error = error.expect_err("another rate").to_string();
        assert!(
            error.starts_with("b:1 and a:1: the rows of case 2 differ"),
            "{error}"
        );
    }

    #[test]
    fn rows_of_another_program_are_refused() {
        let mut merge = Merge::default();
        merge.add("a", line(2, "x", 1.0).as_bytes()).expect("a row");
        let error = merge.add("b", line(3, "y", 1.0).as_bytes());
        let error = error.expect_err("another hash").to_string();
        assert!(error.starts_with("b:1: a row of sweep \"test\""), "{error}");
    }

    #[test]
    fn missing_cases_are_listed_and_incomplete_lines_are_left_out() {
        let mut merge = Merge::default();
        let mut content = line(1, "x", 1.0).into_bytes();
        content.extend(&line(2, "x", 1.0).as_bytes()[..30]);
        assert_eq!(merge.add("a", &content), Ok(30));
        let error = merge.finish().expect_err("three are missing").to_string();
        assert!(
            error.starts_with("3 of 4 cases are missing: 0, 2-3;"),
            "{error}"
        );
        assert_eq!(Merge::default().finish(), Err(MergeError::Empty));
    }

    #[test]
    fn damaged_lines_are_refused() {
        let content = [line(1, "x", 1.0), "{\"case\":1}\n".to_owned()].concat();
        let error = Merge::default().add("a", content.as_bytes());
        let error = error.expect_err("no row").to_string();
        assert!(
            error.starts_with("a: line 2 is not a row of a sweep:"),
            "{error}"
        );
    }
}
