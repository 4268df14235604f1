//! `[peer]` in the proxy's configuration: made where there is none, in a part of the file between two marks, which is replaced
//! and removed as a whole. A `[peer]` that the user has written is left alone.
//!
//! A changed file is read as the proxy reads it before it takes the place of the old one.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use ipnet::IpNet;

use super::{FILE, KEY_FILE, NAME, STORE};
use crate::{
    config::{self, ConfigError},
    keys::SecretKey,
    onboard::{
        durable::{self, Draft, Existing},
        host,
        place::Place,
    },
};

/// `[peer]` as it is, or is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerSection {
    /// Where this end answers; `None`: it only asks.
    pub(super) listen: Option<SocketAddr>,
    /// Where invitations say that it does.
    pub(super) endpoints: Vec<SocketAddr>,
    /// Where peers may go beside this host's own addresses.
    pub(super) allow: Vec<IpNet>,
    /// Invitations and peers.
    pub(super) store: PathBuf,
    pub(super) key: SecretKey,
    /// Whether it is this program's, and may be replaced.
    pub(super) is_ours: bool,
}

/// What is there; `None`: no `[peer]`, or no file.
///
/// # Errors
/// The file cannot be read, or its `[peer]` takes no invitations.
pub(super) fn read(place: &Place) -> anyhow::Result<Option<PeerSection>> {
    let path = place.config(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let loaded = config::load_proxy(&path)?;
    let has_section = text
        .lines()
        .any(|line| line.trim_start().starts_with("[peer]"));
    let Some(stripe) = loaded.config.stripe else {
        if has_section {
            bail!(
                "[peer] in {} has no key: add private_key_file, or remove the section, then try again",
                path.display()
            );
        }
        return Ok(None);
    };
    let Some(store) = stripe.store else {
        bail!(
            "[peer] in {} takes no invitations: add store = {:?} there, then try again",
            path.display(),
            store(place).display().to_string()
        );
    };
    Ok(Some(PeerSection {
        listen: stripe.listen,
        endpoints: stripe.endpoints,
        allow: stripe.allow,
        store,
        key: stripe.private_key,
        is_ours: text.contains(BEGIN),
    }))
}

/// A section with a new key, which is in a file from now on, or the one that an interruption left.
///
/// # Errors
/// The disk's.
pub(super) fn create(place: &Place, draft: &mut Draft) -> anyhow::Result<PeerSection> {
    let directory = place.directory();
    let store = store(place);
    for (directory, mode) in [(directory, 0o755), (&store, 0o700)] {
        let made = draft.directory(directory, mode);
        made.map_err(|error| host::cannot_write(directory, &error))?;
    }
    Ok(PeerSection {
        listen: None,
        endpoints: Vec::new(),
        allow: Vec::new(),
        store,
        key: draft.secret(&place.config(KEY_FILE))?,
        is_ours: true,
    })
}

/// Writes `section` into the file, which is made if it is not there; whether the file has changed.
///
/// # Errors
/// The file cannot be written, or the section does not fit the rest of it.
pub(super) fn write(place: &Place, section: &PeerSection) -> anyhow::Result<bool> {
    let path = place.config(FILE);
    let old = read_text(&path)?;
    let text = match &old {
        Some(text) => format!("{}\n{}", without_section(text).trim_end(), render(section)),
        None => format!("{}\n{}", head(place), render(section)),
    };
    let changed = old.as_deref() != Some(text.as_str());
    if changed {
        replace(&path, &text)?;
    }
    Ok(changed)
}

/// Takes this program's section and key away, and the file if it has nothing else. Whether the whole file is gone.
///
/// # Errors
/// The disk's.
pub(super) fn remove(place: &Place) -> anyhow::Result<bool> {
    let path = place.config(FILE);
    let cannot = |path: &Path, error| host::cannot_write(path, &error);
    let text = read_text(&path)?.unwrap_or_default();
    if !text.contains(BEGIN) {
        return Ok(false);
    }
    let is_all = text.starts_with(HEAD);
    if is_all {
        durable::remove(&path).map_err(|error| cannot(&path, error))?;
    } else {
        replace(&path, &format!("{}\n", without_section(&text).trim_end()))?;
    }
    let key = place.config(KEY_FILE);
    durable::remove(&key).map_err(|error| cannot(&key, error))?;
    Ok(is_all)
}

/// Where the store of this program's section is.
pub(super) fn store(place: &Place) -> PathBuf {
    let store = place.state(STORE);
    std::path::absolute(&store).unwrap_or(store)
}

fn read_text(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Replaces the file at `path`, if `text` is a proxy's configuration.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let mode = fs::metadata(path).map_or(0o600, |old| old.permissions().mode() & 0o777);
    // Beside it, because paths in it are relative to it.
    let candidate = path.with_file_name(".proxy.toml.candidate");
    let cannot = |error| host::cannot_write(path, &error);
    durable::write(&candidate, text.as_bytes(), 0o600, Existing::Replace).map_err(cannot)?;
    let fits = config::load_proxy(&candidate);
    let _ = fs::remove_file(&candidate);
    if let Err(error) = fits {
        let error: ConfigError = error;
        bail!(
            "{} cannot take a [peer] section: {error}; correct it, then try again",
            path.display()
        );
    }
    durable::write(path, text.as_bytes(), mode, Existing::Replace).map_err(cannot)
}

fn without_section(text: &str) -> String {
    let Some((before, rest)) = text.split_once(BEGIN) else {
        return text.to_owned();
    };
    let after = rest.split_once(END).map_or("", |(_, after)| after);
    format!("{}\n{}", before.trim_end(), after.trim_start())
}

fn head(place: &Place) -> String {
    format!(
        "{HEAD}; `pleach peer remove` of the last peer removes this file. Without this line it does not.\n\
         # All keys are in the example proxy.toml.\n\
         mode = \"proxy\"\n\n\
         [proxy]\n\
         listen = \"127.0.0.1:1080\"\n\
         control = {:?}\n",
        place.control(NAME).display().to_string()
    )
}

fn render(section: &PeerSection) -> String {
    let mut text = format!(
        "\n{BEGIN}\n[peer]\nprivate_key_file = \"{KEY_FILE}\"\nstore = {:?}\n",
        section.store.display().to_string()
    );
    let list = |items: Vec<String>| {
        let quoted: Vec<String> = items.iter().map(|item| format!("\"{item}\"")).collect();
        quoted.join(", ")
    };
    if let Some(listen) = section.listen {
        text += &format!("listen = \"{listen}\"\n");
    }
    if !section.endpoints.is_empty() {
        let endpoints = section.endpoints.iter().map(ToString::to_string);
        text += &format!("endpoints = [{}]\n", list(endpoints.collect()));
    }
    if !section.allow.is_empty() {
        let allow = section.allow.iter().map(ToString::to_string);
        text += &format!("allow = [{}]\n", list(allow.collect()));
    }
    text + END + "\n"
}

const HEAD: &str = "# Written by `pleach peer`";
const BEGIN: &str = "# Begin of what `pleach peer` writes and removes.";
const END: &str = "# End of what `pleach peer` writes and removes.";
