//! The text of a configuration file, and errors with a position in it.
//!
//! Every error is one line: `FILE:LINE: KEY: WHAT; remedy: REMEDY`. Values from the file appear escaped and shortened,
//! secrets never appear.

use std::{
    fmt, fs,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

/// A mistake in a configuration, as the one line the user sees.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) struct ConfigError {
    place: Place,
    label: String,
    what: String,
    remedy: String,
}

impl ConfigError {
    /// Makes an error at `place` about the key `label`. An empty `label` means the file itself.
    pub(crate) fn new(
        place: Place,
        label: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            place,
            label: label.into(),
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// Returns the message without the position.
    pub(crate) fn problem(&self) -> String {
        format!("{}: {}; remedy: {}", self.label, self.what, self.remedy)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.label.is_empty() {
            write!(f, "{}: ", self.label)?;
        }
        write!(f, "{}; remedy: {}", self.what, self.remedy)
    }
}

/// A file, and a line in it if known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The file as the user named it.
    pub(crate) file: PathBuf,
    /// Line, counted from 1.
    pub(crate) line: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// A note or warning for the user, which does not prevent a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// Position that the note is about.
    pub(crate) place: Place,
    /// Text of one line.
    pub(crate) text: String,
    /// Whether the user should act.
    pub(crate) warning: bool,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.warning { "warning" } else { "note" };
        write!(f, "{}: {kind}: {}", self.place, self.text)
    }
}

/// The text of a configuration file. Wiped on drop, because it may hold keys.
pub(crate) struct Source {
    path: PathBuf,
    text: Zeroizing<String>,
    /// Byte offsets of all newlines, ascending.
    newlines: Vec<usize>,
    /// Whether users other than the owner may read the file.
    pub(crate) readable_by_others: bool,
}

impl Source {
    /// Reads the file at `path`, which may have at most [`MAX_FILE_BYTES`].
    ///
    /// # Errors
    /// If the file is missing, unreadable, too long, or not UTF-8.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let place = Place {
            file: path.to_owned(),
            line: None,
        };
        let fail = |what: String, remedy: &str| ConfigError::new(place.clone(), "", what, remedy);
        let cannot = |error: io::Error| {
            fail(
                format!("cannot be read: {}", plain(&error)),
                "give the path of an existing configuration file that you may read",
            )
        };
        let file = fs::File::open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        if metadata.is_dir() {
            return Err(fail(
                "is a directory".to_owned(),
                "name a configuration file",
            ));
        }
        // Reserve space for the whole file: a vector that grows would leave copies of secrets behind.
        let room = metadata.len().min(MAX_FILE_BYTES) + 1;
        let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(room).unwrap_or(0)));
        file.take(MAX_FILE_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(cannot)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(fail(
                format!("is longer than {} MiB", MAX_FILE_BYTES >> 20),
                "name a configuration file",
            ));
        }
        let text = core::str::from_utf8(&bytes)
            .map_err(|_| {
                fail(
                    "is not UTF-8 text".to_owned(),
                    "save the file as UTF-8, or name another one",
                )
            })?
            .to_owned();
        Ok(Self {
            readable_by_others: metadata.permissions().mode() & 0o077 != 0,
            ..Self::new(path, text)
        })
    }

    /// Makes a source from `text`, as if it had been read from `path`.
    pub(super) fn new(path: &Path, text: String) -> Self {
        let newlines = text.match_indices('\n').map(|(offset, _)| offset);
        Self {
            path: path.to_owned(),
            newlines: newlines.collect(),
            text: Zeroizing::new(text),
            readable_by_others: false,
        }
    }

    /// The text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the directory of the file, to which relative paths in the file refer.
    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Returns the position of the byte at `offset`. O(log lines).
    pub(crate) fn place(&self, offset: usize) -> Place {
        Place {
            file: self.path.clone(),
            line: Some(1 + self.newlines.partition_point(|newline| *newline < offset)),
        }
    }

    /// Returns the position that means the whole file.
    pub(crate) fn whole(&self) -> Place {
        Place {
            file: self.path.clone(),
            line: None,
        }
    }
}

/// Returns the text of an I/O error without Rust's "(os error N)".
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((message, _)) => message.to_owned(),
        None => text,
    }
}

/// Maximum size of a configuration file in bytes: a gateway with 50 000 clients needs about 10 MiB.
const MAX_FILE_BYTES: u64 = 64 << 20;
