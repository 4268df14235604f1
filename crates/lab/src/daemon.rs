//! A daemon under test: its configuration, process, log, and control socket.

use core::time::Duration;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, PipeReader, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::{fs::OpenOptionsExt as _, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use pleach_core::time::Instant;
use pleach_linux::clock;
use pleach_sim::results::StatusSample;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::{netns::Netns, wait};

/// A daemon under test.
pub(crate) struct Daemon {
    pub(crate) name: &'static str,
    command: &'static str,
    binary: PathBuf,
    config: PathBuf,
    log: PathBuf,
    pub(crate) control: PathBuf,
    /// File to which the daemon writes its decisions, if it does.
    pub(crate) trace: Option<PathBuf>,
    /// Whether the daemon writes a detailed log, which nobody reads. The log file stays empty.
    pub(crate) is_log_stalled: bool,
    /// The end of the log that nobody reads.
    unread: Option<PipeReader>,
    process: Option<Child>,
}

impl Daemon {
    /// Creates a daemon of the subcommand `command`. Its files in `dir` are called `name`.
    pub(crate) fn new(
        name: &'static str,
        command: &'static str,
        binary: &Path,
        dir: &Path,
    ) -> Self {
        let file = |extension: &str| dir.join(format!("{name}.{extension}"));
        let mut control = file("sock");
        if control.as_os_str().len() > MAX_SOCKET_PATH {
            let process = std::process::id();
            control = std::env::temp_dir().join(format!("pleach-lab-{process}-{name}.sock"));
        }
        Self {
            name,
            command,
            binary: binary.to_owned(),
            config: file("toml"),
            log: file("log"),
            control,
            trace: None,
            is_log_stalled: false,
            unread: None,
            process: None,
        }
    }

    /// Writes the configuration, which may contain a key, readable for its owner only.
    pub(crate) fn configure(&self, text: &str) -> anyhow::Result<()> {
        // The mode only affects new files.
        let _ = fs::remove_file(&self.config);
        let _ = fs::remove_file(&self.log);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.config)
            .with_context(|| format!("cannot write {}", self.config.display()))?;
        Ok(file.write_all(text.as_bytes())?)
    }

    pub(crate) fn launch(&mut self, host: &Netns) -> anyhow::Result<()> {
        let log = File::options()
            .append(true)
            .create(true)
            .open(&self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut command = host.command(&self.binary);
        if self.is_log_stalled {
            let (unread, end) = io::pipe()?;
            // SAFETY: the descriptor is open, and the call changes only the size of the pipe's buffer.
            let size = unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
            ensure!(size >= 0, "pipe: {}", io::Error::last_os_error());
            self.unread = Some(unread);
            command.env("RUST_LOG", "debug").stderr(end);
        } else {
            command.stderr(log.try_clone()?);
        }
        let process = command
            .arg(self.command)
            .arg(&self.config)
            .args(
                self.trace
                    .iter()
                    .flat_map(|path| ["--trace".as_ref(), path.as_os_str()]),
            )
            .stdin(Stdio::null())
            .stdout(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        self.process = Some(process);
        Ok(())
    }

    /// Checks that the daemon still runs.
    ///
    /// # Errors
    /// Fails if the daemon has ended. The error contains the end of its log.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        if let Some(status) = process.try_wait()? {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(5).collect();
            let tail = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
            bail!("the {} ended ({status}):\n{tail}", self.name);
        }
        Ok(())
    }

    /// Returns the id of the daemon's process, if it was started.
    pub(crate) fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Whether the daemon's control socket accepts connections.
    pub(crate) fn is_answering(&self) -> bool {
        UnixStream::connect(&self.control).is_ok()
    }

    /// Returns the daemon's status. `None` if it does not answer in time.
    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        self.ask(&json!({ "command": "status" }))
    }

    /// Returns the daemon's status with time and name.
    pub(crate) fn sample(&self, begin: Instant) -> Option<StatusSample> {
        let status = self.status()?;
        Some(StatusSample {
            time_s: clock::now().since(begin).as_secs_f64(),
            node: self.name.to_owned(),
            status,
        })
    }

    /// Returns the daemon's answer to `request`. `None` if it does not answer in time.
    pub(crate) fn ask(&self, request: &serde_json::Value) -> Option<serde_json::Value> {
        ask(&self.control, request)
    }

    /// Ends the daemon.
    ///
    /// # Errors
    /// Fails if the daemon had ended before, or does not end after the request.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        self.check()?;
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        if let Some(pid) = i32::try_from(process.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)?;
        }
        let deadline = clock::now() + STOP_PATIENCE;
        let ended = wait::for_condition(deadline, || !matches!(process.try_wait(), Ok(None)));
        if !ended {
            bail!("the {} did not end within {STOP_PATIENCE:?}", self.name);
        }
        Ok(())
    }

    /// Ends the daemon at once, without a chance to clean up.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Returns the answer to `request` of the daemon at the socket `control`. `None` if it does not answer in time.
pub(crate) fn ask(control: &Path, request: &serde_json::Value) -> Option<serde_json::Value> {
    let socket = UnixStream::connect(control).ok()?;
    socket.set_read_timeout(Some(STATUS_PATIENCE)).ok()?;
    (&socket)
        .write_all(format!("{request}\n").as_bytes())
        .ok()?;
    let mut answer = String::new();
    BufReader::new(&socket).read_line(&mut answer).ok()?;
    serde_json::from_str(&answer).ok()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Size of the pipe to nobody, in bytes: some dozen lines of a log.
const PIPE_BYTES: libc::c_int = 4096;
/// Longest time for which a daemon may take to end after a request.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time to wait for the answer to a status request.
const STATUS_PATIENCE: Duration = Duration::from_millis(300);
/// Longest path of a Unix socket in bytes (sun_path).
const MAX_SOCKET_PATH: usize = 107;
