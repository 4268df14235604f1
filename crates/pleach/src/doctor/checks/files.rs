//! Whether the configuration can be used, and whether others may read its keys.
//!
//! Key files are looked up in the text of the configuration, so that all of them are reported even if the first one
//! already prevents the program from starting.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use crate::{
    config::{ConfigError, Note},
    doctor::problem::Problem,
};

/// A file that contains a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Secret {
    /// Path of the file.
    pub(crate) path: PathBuf,
    mode: u32,
}

/// Returns the key files that the configuration `file` names and that exist.
pub(crate) fn observe(file: &Path) -> Vec<Secret> {
    let text = fs::read_to_string(file).map(zeroize::Zeroizing::new);
    let names = text.map_or_else(|_| Vec::new(), |text| named(&text));
    let directory = file.parent().unwrap_or(Path::new(""));
    let secrets = names.into_iter().filter_map(|name| {
        let path = directory.join(name);
        let mode = path.metadata().ok()?.permissions().mode() & 0o777;
        Some(Secret { path, mode })
    });
    secrets.collect()
}

/// Returns the values of `private_key_file` and `preshared_key_file` in all tables.
fn named(text: &str) -> Vec<String> {
    fn search(value: &toml::Value, found: &mut Vec<String>) {
        match value {
            toml::Value::Table(table) => {
                for (key, value) in table {
                    let name = value.as_str().filter(|_| KEY_FILES.contains(&key.as_str()));
                    found.extend(name.map(str::to_owned));
                    search(value, found);
                }
            }
            toml::Value::Array(items) => items.iter().for_each(|item| search(item, found)),
            toml::Value::Boolean(_)
            | toml::Value::Datetime(_)
            | toml::Value::Float(_)
            | toml::Value::Integer(_)
            | toml::Value::String(_) => {}
        }
    }
    let mut found = Vec::new();
    if let Ok(table) = text.parse::<toml::Table>() {
        search(&toml::Value::Table(table), &mut found);
    }
    found
}

/// Returns a problem for each key file that others may access.
pub(crate) fn open_to_others(secrets: &[Secret]) -> Vec<Problem> {
    let open = secrets.iter().filter(|secret| secret.mode & 0o077 != 0);
    let problems = open.map(|Secret { path, mode }| {
        let path = path.display();
        Problem::new(
            "key-file-open",
            format!("users other than the owner may read the key in {path} (mode {mode:03o})"),
            format!(
                "run `chmod 600 {path}`, and make a new key if other people have used this host"
            ),
        )
    });
    problems.collect()
}

/// Returns the problems of the configuration, from the error or the warnings of loading it.
pub(crate) fn verdicts(loaded: Result<&[Note], &ConfigError>) -> Vec<Problem> {
    match loaded {
        Ok(notes) => {
            let warnings = notes.iter().filter(|note| note.warning);
            let problems = warnings.map(|note| {
                let what = format!("{}: {}", note.place, note.text);
                Problem::new(
                    "configuration",
                    what,
                    "change the configuration file as described",
                )
            });
            problems.collect()
        }
        Err(error) => {
            let text = error.to_string();
            let (what, remedy) = text
                .split_once("; remedy: ")
                .unwrap_or((text.as_str(), "correct the file"));
            vec![Problem::new("configuration", what, remedy)]
        }
    }
}

const KEY_FILES: [&str; 2] = ["private_key_file", "preshared_key_file"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_file_is_looked_at() {
        let text = "[tunnel]\nprivate_key_file = \"a\"\n[[client]]\npreshared_key_file = \"b\"\n[[client]]\npreshared_key_file = \"c\"";
        let mut names = named(text);
        names.sort();
        assert_eq!(names, ["a", "b", "c"]);
        assert!(named("no TOML").is_empty());
        let secret = |mode| Secret {
            path: PathBuf::from("k"),
            mode,
        };
        let found = open_to_others(&[secret(0o600), secret(0o640), secret(0o604)]);
        assert_eq!(found.len(), 2);
        assert!(found[0].remedy.contains("chmod 600 k"));
    }
}
