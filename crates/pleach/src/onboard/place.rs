//! Directories of the files of a gateway, client or proxy.

use std::path::{Path, PathBuf};

use crate::config::RUN_DIRECTORY;

/// The directory that the user chose, or the default directories.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Place {
    /// Directory of configuration and keys; if it is not the default, also of state and control socket
    #[arg(long, value_name = "DIR", default_value = CONFIG_DIRECTORY)]
    dir: PathBuf,
}

impl Place {
    /// Returns the path of a configuration or key file.
    pub(crate) fn config(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// Returns the directory of configuration and keys.
    pub(crate) fn directory(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of changing data, such as a gateway's store, or a key whose enrolment is not completed. The
    /// daemon may write there, but not in `/etc`.
    pub(crate) fn state(&self, name: &str) -> PathBuf {
        if self.is_usual() {
            Path::new(STATE_DIRECTORY).join(name)
        } else {
            self.dir.join("state").join(name)
        }
    }

    /// Returns the path of the daemon's control socket.
    pub(crate) fn control(&self, name: &str) -> PathBuf {
        let directory = if self.is_usual() {
            Path::new(RUN_DIRECTORY)
        } else {
            &self.dir
        };
        directory.join(format!("{name}.sock"))
    }

    /// Whether the files are in the default directory, where the systemd unit expects them.
    pub(crate) fn is_usual(&self) -> bool {
        self.dir == Path::new(CONFIG_DIRECTORY)
    }
}

/// Default directory of configuration and keys.
pub(crate) const CONFIG_DIRECTORY: &str = "/etc/pleach";
const STATE_DIRECTORY: &str = "/var/lib/pleach";
