//! Goodput of single links, stored between runs. The stored figures are valid until the sources of the simulator's
//! hosts and links change.

use std::{
    collections::BTreeMap,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    process,
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// Goodput in Mbit/s, by measurement.
#[derive(Debug)]
pub(crate) struct Cache {
    path: PathBuf,
    content: Content,
    /// Figures of this run that must not be stored.
    doubtful: BTreeMap<String, f64>,
}

/// Content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    /// Hash of the simulator's sources; figures with another hash are invalid.
    model: String,
    mbps: BTreeMap<String, f64>,
}

impl Cache {
    /// Reads the file at `path`. Starts empty if the file is missing, unreadable, or of another version of the
    /// simulator.
    ///
    /// # Errors
    /// If the simulator's sources cannot be read.
    pub(crate) fn open(path: PathBuf) -> anyhow::Result<Self> {
        let model = model()?;
        let text = fs::read_to_string(&path).unwrap_or_default();
        let content: Content = serde_json::from_str(&text).unwrap_or_default();
        let content = if content.model == model {
            content
        } else {
            Content {
                model,
                ..Content::default()
            }
        };
        Ok(Self {
            path,
            content,
            doubtful: BTreeMap::new(),
        })
    }

    /// Returns the goodput measured for `key`.
    pub(crate) fn find(&self, key: &str) -> Option<f64> {
        let content = &self.content.mbps;
        content.get(key).or_else(|| self.doubtful.get(key)).copied()
    }

    /// Remembers `mbps` for `key` in this process only. A stored figure takes precedence.
    pub(crate) fn remember(&mut self, key: String, mbps: f64) {
        self.doubtful.insert(key, mbps);
    }

    /// Stores `mbps` for `key` and writes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn keep(&mut self, key: String, mbps: f64) -> anyhow::Result<()> {
        self.content.mbps.insert(key, mbps);
        let text = serde_json::to_string_pretty(&self.content)?;
        // The rename leaves either the old or the new file after an interruption. The process id separates the drafts
        // of simultaneous benches.
        let draft = self.path.with_extension(format!("{}.new", process::id()));
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, &self.path))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Returns a hash of the sources that determine how a link without tunnel behaves.
fn model() -> anyhow::Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/src");
    let mut paths = Vec::new();
    for part in ["link", "tcp", "traffic", "world"] {
        paths.push(root.join(part).with_extension("rs"));
        let dir = root.join(part);
        let entries =
            fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
        for entry in entries {
            paths.push(entry?.path());
        }
    }
    paths.retain(|path| path.is_file());
    paths.sort();
    let mut hasher = DefaultHasher::new();
    for path in paths {
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        text.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}
