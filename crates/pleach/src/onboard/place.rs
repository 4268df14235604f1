//! Where the files of a gateway or client lie.

use std::path::{Path, PathBuf};

use crate::config::RUN_DIRECTORY;

/// The directory that the user chose, or the usual ones.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Place {
    /// Directory of configuration, keys and, unless it is the default, of state and control socket
    #[arg(long, value_name = "DIR", default_value = CONFIG_DIRECTORY)]
    dir: PathBuf,
}

impl Place {
    /// Configuration and keys.
    pub(crate) fn config(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// The directory of [`Self::config`].
    pub(crate) fn directory(&self) -> &Path {
        &self.dir
    }

    /// What changes: a gateway's store, a key that waits for its enrolment. The daemon may write here, not in `/etc`.
    pub(crate) fn state(&self, name: &str) -> PathBuf {
        if self.is_usual() {
            Path::new(STATE_DIRECTORY).join(name)
        } else {
            self.dir.join("state").join(name)
        }
    }

    /// The daemon's control socket.
    pub(crate) fn control(&self, name: &str) -> PathBuf {
        let directory = if self.is_usual() {
            Path::new(RUN_DIRECTORY)
        } else {
            &self.dir
        };
        directory.join(format!("{name}.sock"))
    }

    /// Whether the service manager's unit finds the files.
    pub(crate) fn is_usual(&self) -> bool {
        self.dir == Path::new(CONFIG_DIRECTORY)
    }
}

const CONFIG_DIRECTORY: &str = "/etc/pleach";
const STATE_DIRECTORY: &str = "/var/lib/pleach";
