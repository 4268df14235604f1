//! A file with what a bug report needs and no secret: a tar archive of texts.
//!
//! Secrets are taken out twice: values of keys whose name says that they are secret, and, wherever they stand, words that have the
//! form of a key (44 characters of base64 for 32 bytes) or of a token. So public keys go too.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::Command,
};

use anyhow::Context as _;

/// Writes `texts`, pairs of name and content, and what this host says of its network, into `file`, which must not be there.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(file: &Path, texts: &[(String, String)]) -> anyhow::Result<()> {
    let opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file);
    let opened = opened.with_context(|| format!("{} cannot be written", file.display()))?;
    let written = archive(opened, texts);
    if written.is_err() {
        // Half of it is of no use.
        let _ = fs::remove_file(file);
    }
    written.with_context(|| format!("{} cannot be written", file.display()))
}

fn archive(file: File, texts: &[(String, String)]) -> io::Result<()> {
    let mut archive = tar::Builder::new(file);
    let mut add = |name: &str, text: &str| {
        let text = without_secrets(text);
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_cksum();
        archive.append_data(
            &mut header,
            format!("pleach-report/{name}"),
            text.as_bytes(),
        )
    };
    for (name, text) in texts {
        add(name, text)?;
    }
    for (name, command) in COMMANDS {
        let output = Command::new(command[0]).args(&command[1..]).output();
        let text = output.map_or_else(
            |error| format!("{command:?}: {error}\n"),
            |output| {
                let said = [output.stdout, output.stderr].concat();
                String::from_utf8_lossy(&said).into_owned()
            },
        );
        add(name, &text)?;
    }
    archive.into_inner()?.sync_all()
}

/// `text` without what may be secret in it.
fn without_secrets(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let (key, value) = line.split_once(['=', ':']).unwrap_or((line, ""));
        let key = key.to_lowercase();
        let is_secret = !key.trim_start().starts_with('#')
            && !value.trim().is_empty()
            && !key.contains("_file")
            && SECRET_KEYS.iter().any(|secret| key.contains(secret));
        if is_secret {
            let end = line.len() - value.len();
            format!("{} {REMOVED}", &line[..end])
        } else {
            without_keys(line)
        }
    });
    lines.map(|line| line + "\n").collect()
}

/// `line` without the words that have the form of a key or token.
fn without_keys(line: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "+/=_-".contains(c);
    let mut kept = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(is_word) {
        let word = &rest[start..];
        let end = word.find(|c| !is_word(c)).unwrap_or(word.len());
        let word = &word[..end];
        let bare = word.trim_end_matches('=');
        // An assignment without spaces has the key in the same word.
        let value = bare.rsplit_once('=').map_or(bare, |(_, value)| value);
        kept.push_str(&rest[..start]);
        let is_key = value.len() == KEY_CHARACTERS && !value.contains(['-', '_']);
        let lower = value.to_lowercase();
        let is_token = ["pleach1", "pleachpeer1"]
            .iter()
            .any(|prefix| lower.starts_with(prefix) && lower.len() > 30);
        kept.push_str(if is_key || is_token { REMOVED } else { word });
        rest = &rest[start + end..];
    }
    kept + rest
}

const REMOVED: &str = "(removed)";
const SECRET_KEYS: [&str; 6] = [
    "private_key",
    "preshared",
    "secret",
    "token",
    "password",
    "psk",
];
/// 32 bytes in base64 without padding.
const KEY_CHARACTERS: usize = 43;
/// What network and host look like; without arguments that only some versions know.
const COMMANDS: [(&str, &[&str]); 8] = [
    ("kernel.txt", &["uname", "-a"]),
    ("links.txt", &["ip", "-s", "address"]),
    ("rules.txt", &["ip", "rule"]),
    ("rules-v6.txt", &["ip", "-6", "rule"]),
    ("routes.txt", &["ip", "route", "show", "table", "all"]),
    (
        "routes-v6.txt",
        &["ip", "-6", "route", "show", "table", "all"],
    ),
    ("neighbours.txt", &["ip", "neigh"]),
    ("firewall.txt", &["nft", "list", "ruleset"]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::SecretKey;

    #[test]
    fn secrets_of_any_form_are_taken_out() {
        let key = SecretKey::random().expect("random").to_base64();
        let token = format!("pleach1{}", "abcdefgh".repeat(12));
        let text = format!(
            "private_key = \"{k}\"\nprivate_key_file = \"a.key\"\n  preshared_key=\"{k}\"\npassword = \"hunter2\"\n\
             x = [\"{k}\"]\ny={k}\n# {k}\nlog: {t} used\n{T}\n{{\"token\": \"short\"}}\nlisten = \"[::]:7700\"\n",
            k = *key,
            t = token,
            T = token.to_uppercase(),
        );
        let clean = without_secrets(&text);
        for secret in [
            key.as_str(),
            key.trim_end_matches('='),
            &token,
            &token.to_uppercase(),
            "hunter2",
            "short",
        ] {
            assert!(!clean.contains(secret), "{secret} in {clean}");
        }
        for kept in [
            "private_key_file = \"a.key\"",
            "listen = \"[::]:7700\"",
            "log:",
        ] {
            assert!(clean.contains(kept), "{kept} not in {clean}");
        }
    }

    #[test]
    fn an_archive_has_all_texts_and_no_key() {
        let directory = tempfile::TempDir::new().expect("directory");
        let file = directory.path().join("report.tar");
        let key = SecretKey::random().expect("random").to_base64();
        let texts = [
            (
                "configuration.toml".to_owned(),
                format!("private_key = \"{}\"\n", *key),
            ),
            ("doctor.txt".to_owned(), "none\n".to_owned()),
        ];
        write(&file, &texts).expect("written");
        let bytes = fs::read(&file).expect("readable");
        assert!(!String::from_utf8_lossy(&bytes).contains(key.as_str()));
        let mut archive = tar::Archive::new(bytes.as_slice());
        let names: Vec<String> = archive
            .entries()
            .expect("an archive")
            .map(|entry| {
                entry
                    .expect("entry")
                    .path()
                    .expect("path")
                    .display()
                    .to_string()
            })
            .collect();
        assert!(
            names.contains(&"pleach-report/configuration.toml".to_owned()),
            "{names:?}"
        );
        assert_eq!(names.len(), texts.len() + COMMANDS.len());
        write(&file, &texts).expect_err("nothing is overwritten");
    }
}
