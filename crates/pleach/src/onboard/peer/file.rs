//! The section `[peer]` of the proxy's configuration. If the file has none, it is written between two marks, and later
//! replaced and removed as a whole. A `[peer]` that the user has written is left alone.
//!
//! A changed file replaces the old one only after it has been read successfully in the way the proxy reads it.

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

/// Contents of `[peer]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerSection {
    /// Address on which this end answers; `None`: this end only asks.
    pub(super) listen: Option<SocketAddr>,
    /// Addresses of this end that are written into invitations.
    pub(super) endpoints: Vec<SocketAddr>,
    /// Destinations that peers may reach through this proxy, besides this host's own addresses.
    pub(super) allow: Vec<IpNet>,
    /// Directory of invitations and peers.
    pub(super) store: PathBuf,
    pub(super) key: SecretKey,
    /// Whether this program has written the section and may replace it.
    pub(super) is_ours: bool,
    /// Whether the file has a `[[known_peer]]`, which needs `[peer]`.
    pub(super) has_others: bool,
}

/// Reads the section; `None` if the file or its `[peer]` does not exist.
///
/// # Errors
/// If the file cannot be read, or if its `[peer]` does not allow invitations.
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
        has_others: !stripe.known.is_empty(),
    }))
}

/// Makes a section with a new key, which is written to its file here, or with the key that an interruption left.
///
/// # Errors
/// The disk's errors.
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
        has_others: false,
    })
}

/// Writes `section` into the file, which is created if missing. Returns whether the file has changed.
///
/// # Errors
/// If the file cannot be written, or if the section does not fit the rest of the file.
pub(super) fn write(place: &Place, section: &PeerSection) -> anyhow::Result<bool> {
    let path = place.config(FILE);
    let old = read_text(&path)?;
    let text = match &old {
        Some(text) => {
            let rest = without_section(text).with_context(|| path.display().to_string())?;
            format!("{}\n{}", rest.trim_end(), render(section))
        }
        None => format!("{}\n{}", head(place), render(section)),
    };
    let changed = old.as_deref() != Some(text.as_str());
    if changed {
        replace(&path, &text)?;
    }
    Ok(changed)
}

/// Returns the text of the file; `None` if it does not exist.
///
/// # Errors
/// The disk's errors.
pub(super) fn text(place: &Place) -> anyhow::Result<Option<String>> {
    read_text(&place.config(FILE))
}

/// Restores the content that the file had before [`write`](fn@write). `text`: this content, or `None` if the file did
/// not exist; the file is then removed.
///
/// # Errors
/// The disk's errors.
pub(super) fn restore(place: &Place, text: Option<&str>) -> anyhow::Result<()> {
    let path = place.config(FILE);
    let Some(text) = text else {
        let removed = durable::remove(&path);
        return removed
            .map(drop)
            .map_err(|error| host::cannot_write(&path, &error));
    };
    replace(&path, text)
}

/// Whether this program has made the whole file, not only its section.
///
/// # Errors
/// The disk's errors.
pub(super) fn is_whole(place: &Place) -> anyhow::Result<bool> {
    let text = read_text(&place.config(FILE))?;
    Ok(text.is_some_and(|text| text.starts_with(HEAD) && text.contains(BEGIN)))
}

/// Removes this program's section and key. If this program has made the whole file, removes the file.
///
/// # Errors
/// The disk's errors.
pub(super) fn remove(place: &Place) -> anyhow::Result<()> {
    let path = place.config(FILE);
    let cannot = |path: &Path, error| host::cannot_write(path, &error);
    let text = read_text(&path)?.unwrap_or_default();
    if !text.contains(BEGIN) {
        return Ok(());
    }
    if text.starts_with(HEAD) {
        durable::remove(&path).map_err(|error| cannot(&path, error))?;
    } else {
        let rest = without_section(&text).with_context(|| path.display().to_string())?;
        replace(&path, &format!("{}\n", rest.trim_end()))?;
    }
    let key = place.config(KEY_FILE);
    durable::remove(&key).map_err(|error| cannot(&key, error))?;
    Ok(())
}

/// Returns the directory of the store of this program's section.
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

/// Replaces the file at `path`, if `text` is a valid configuration of a proxy.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let mode = fs::metadata(path).map_or(0o600, |old| old.permissions().mode() & 0o777);
    // Written to the same directory, because paths in the file are relative to it.
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

/// Returns the text without this program's section.
///
/// # Errors
/// If the line at the end of the section is missing: then the end of the section is unknown.
fn without_section(text: &str) -> anyhow::Result<String> {
    let Some((before, rest)) = text.split_once(BEGIN) else {
        return Ok(text.to_owned());
    };
    let Some((_, after)) = rest.split_once(END) else {
        bail!("the line {END:?} is missing: add it behind [peer], then try again");
    };
    Ok(format!("{}\n{}", before.trim_end(), after.trim_start()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_without_its_end_is_refused() {
        let rest = "[proxy]\nlisten = \"127.0.0.1:1080\"\n";
        let whole = format!("{rest}{BEGIN}\n[peer]\n{END}\n[[link]]\nname = \"dsl\"\n");
        let kept = without_section(&whole).expect("both marks");
        assert!(kept.starts_with(rest) && kept.ends_with("[[link]]\nname = \"dsl\"\n"));
        assert!(!kept.contains("[peer]"));
        let torn = whole.replace(END, "");
        let error = without_section(&torn).expect_err("nobody knows what is the user's");
        assert!(error.to_string().contains(END), "{error}");
    }
}
