//! Keys in configuration files: written inline, or in files of their own.
//!
//! A secret's text never appears in a message. A key file is refused if users other than its owner may read or change
//! it. It is also refused if its owner is neither root nor the user of this process, because the owner of a file may
//! open it to others, and put another key there.

use std::{
    fmt,
    fs::File,
    io::Read,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use zeroize::Zeroizing;

use super::{
    source::{ConfigError, Note, plain},
    table::{Table, Value, shorten},
};
use crate::keys::{self, KEY_LEN, KeyError, SecretKey};

/// A password. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(Zeroizing<String>);

impl Password {
    /// Returns the password in the text of a file: its first line. `None` if that is empty.
    pub(crate) fn of_file(text: &str) -> Option<Self> {
        let line = text.lines().next().filter(|line| !line.is_empty())?;
        Some(Self(Zeroizing::new(line.to_owned())))
    }

    /// Returns the password.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// Returns the secret under `key`, or in the file under `file_key`; `None` if neither key is present. For secrets in a
/// configuration file that others may read, adds one warning per file.
///
/// # Errors
/// If both keys are given; if the text is not a key; if the file is missing, belongs to another user, is open to
/// others, or contains no key.
pub(super) fn optional(
    table: &Table<'_>,
    key: &str,
    file_key: &str,
    notes: &mut Vec<Note>,
) -> Result<Option<SecretKey>, ConfigError> {
    match (table.optional(key), table.optional(file_key)) {
        (None, None) => Ok(None),
        (Some(inline), None) => {
            let text = inline.as_text().ok_or_else(|| {
                inline.wrong("expected a key in base64, found no string", GENERATE)
            })?;
            let decoded = keys::decode(text).map_err(|error| not_a_key(&inline, error))?;
            let text = "this file contains secret keys and is open to others; chmod 600 it";
            if table.source().readable_by_others && notes.iter().all(|note| note.text != text) {
                notes.push(Note {
                    place: inline.place(),
                    text: text.to_owned(),
                    warning: true,
                });
            }
            Ok(Some(SecretKey::new(decoded)))
        }
        (None, Some(file)) => from_file(&file, table.source().directory()).map(Some),
        (Some(_), Some(file)) => Err(file.wrong(
            format!("given together with {key}"),
            "keep one of the two, preferably the file",
        )),
    }
}

/// Returns the secret, which must be present; see [`optional`].
///
/// # Errors
/// As [`optional`], or if neither key is present.
pub(super) fn required(
    table: &Table<'_>,
    key: &str,
    file_key: &str,
    notes: &mut Vec<Note>,
) -> Result<SecretKey, ConfigError> {
    optional(table, key, file_key, notes)?.ok_or_else(|| {
        table.wrong(
            key,
            "missing required key",
            &format!("add {file_key} = \"FILE\"; `pleach genkey` prints its content"),
        )
    })
}

/// Reads a public key.
///
/// # Errors
/// If the text is not a key.
pub(super) fn public(value: &Value<'_>) -> Result<[u8; KEY_LEN], ConfigError> {
    let remedy = "write the public key of the other end, as printed by `pleach pubkey`";
    let text = value.text("a key in base64", remedy)?;
    let key =
        keys::decode(text).map_err(|error| value.wrong(format!("expected {error}"), remedy))?;
    Ok(*key)
}

fn from_file(value: &Value<'_>, directory: &Path) -> Result<SecretKey, ConfigError> {
    let remedy = "make the file with `pleach genkey`, or correct the path";
    let text = private_text(value, directory, "key", remedy)?;
    let decoded = keys::decode(&text).map_err(|error| {
        let name = value.as_text().unwrap_or_default();
        let shown = shorten(&format!("{:?}", directory.join(name).as_os_str()));
        value.wrong(format!("key file {shown}: expected {error}"), GENERATE)
    })?;
    Ok(SecretKey::new(decoded))
}

/// Returns the content of the file that `value` names, at most [`MAX_SECRET_FILE_BYTES`]. `what` is `key` or `token`.
/// `remedy` says how to make such a file.
///
/// # Errors
/// If the file cannot be read, is no text or too long, or if another user may read or change it.
pub(super) fn private_text(
    value: &Value<'_>,
    directory: &Path,
    what: &str,
    remedy: &str,
) -> Result<Zeroizing<String>, ConfigError> {
    let name = value.text(
        &format!("the path of a {what} file"),
        "write the path as a string",
    )?;
    let path = directory.join(name);
    let shown = shorten(&format!("{:?}", path.as_os_str()));
    let cannot = |error: std::io::Error| {
        value.wrong(
            format!("{what} file {shown} cannot be read: {}", plain(&error)),
            remedy,
        )
    };
    let file = File::open(&path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        return Err(value.wrong(
            format!("{shown} is not a regular file"),
            &format!("give the path of a file that contains one {what}"),
        ));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(value.wrong(
            format!("{what} file {shown} is open to others (mode {mode:03o})"),
            &format!("chmod 600 the file, and make a new {what} if others may have read it"),
        ));
    }
    let (owner, reader) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if !is_trusted_owner(owner, reader) {
        return Err(value.wrong(
            format!(
                "{what} file {shown} belongs to user {owner}, who may read and replace the {what}"
            ),
            &format!("chown the file to root or to user {reader}, and make a new {what}"),
        ));
    }
    // Growing would leave copies of the secret in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(2 * MAX_SECRET_FILE_BYTES));
    file.take(MAX_SECRET_FILE_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(cannot)?;
    let text = core::str::from_utf8(&bytes).ok();
    let text = text.filter(|text| text.len() <= MAX_SECRET_FILE_BYTES);
    text.map(|text| Zeroizing::new(text.to_owned()))
        .ok_or_else(|| {
            let most = MAX_SECRET_FILE_BYTES;
            value.wrong(
                format!("{what} file {shown} is not text, or has more than {most} bytes"),
                remedy,
            )
        })
}

/// Whether a key file that belongs to `owner` may be used by a process of user `reader`.
fn is_trusted_owner(owner: u32, reader: u32) -> bool {
    owner == 0 || owner == reader
}

fn not_a_key(value: &Value<'_>, error: KeyError) -> ConfigError {
    value.wrong(format!("expected {error}"), GENERATE)
}

const GENERATE: &str = "paste the output of `pleach genkey`";

/// Longest key file in bytes: longer than any key with white space, so that a wrong file is recognised.
const MAX_SECRET_FILE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_reader_may_own_a_key_file() {
        assert!(
            is_trusted_owner(0, 0) && is_trusted_owner(0, 1000) && is_trusted_owner(1000, 1000)
        );
        assert!(!is_trusted_owner(1000, 0) && !is_trusted_owner(1001, 1000));
    }
}
