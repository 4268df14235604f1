//! The process that runs the program of `[notices]`.
//!
//! A daemon that has confined itself can run no programs, so it starts this process before. The process reads one JSON
//! text per line from its standard input: first the command, then the notices. It runs one program at a time, for at
//! most [`PATIENCE`], and ends with its input. The command is not among its arguments, because it may contain a secret,
//! such as the address of a webhook.

use core::time::Duration;
use std::{
    io::{self, BufRead as _, Write as _},
    os::fd::AsFd as _,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

use anyhow::Context as _;
use pleach_linux::{
    clock,
    confine::{CapabilitySet, Confinement},
    poll::unblock_signals,
    program,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
};
use serde::{Deserialize, Serialize};

use super::Notice;
use crate::config::NoticesConfig;

/// Sends notices to the process that runs the program.
#[derive(Debug)]
pub(crate) struct Messenger {
    config: NoticesConfig,
    pipe: Mutex<Pipe>,
}

#[derive(Debug)]
struct Pipe {
    /// `None` after an error.
    input: Option<ChildStdin>,
    /// It is reaped when this process ends.
    _process: Child,
}

/// A notice as the program receives it.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    /// Time in milliseconds since 1970-01-01 UTC.
    at_ms: u64,
    kind: String,
    subject: String,
    state: String,
    text: String,
}

/// Messenger of this process.
static MESSENGER: OnceLock<Messenger> = OnceLock::new();

/// Starts the messenger of this process, if `config` names a program. Must be called before the process confines itself.
/// If that fails, logs a warning.
pub(crate) fn start(config: Option<&NoticesConfig>) {
    let Some(config) = config else { return };
    match Messenger::start(config) {
        // A process runs one daemon.
        Ok(messenger) => drop(MESSENGER.set(messenger)),
        Err(error) => tracing::warn!("[notices]: no notices are sent: {error:#}"),
    }
}

/// Returns the messenger of this process, if it was started.
pub(crate) fn started() -> Option<&'static Messenger> {
    MESSENGER.get()
}

impl Messenger {
    fn start(config: &NoticesConfig) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("own path")?;
        let mut process = Command::new(program)
            .arg("send-notices")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("process")?;
        let mut input = process.stdin.take().context("pipe")?;
        writeln!(input, "{}", serde_json::to_string(&config.command)?).context("pipe")?;
        // A slow program must not delay the daemon.
        let flags = fcntl_getfl(&input)?;
        fcntl_setfl(&input, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            config: config.clone(),
            pipe: Mutex::new(Pipe {
                input: Some(input),
                _process: process,
            }),
        })
    }

    /// Time for which a state must last before a notice.
    pub(crate) const fn after(&self) -> Duration {
        self.config.after
    }

    /// Sends `notice` to the process. A notice is dropped, with a warning, if the process still has many to send.
    pub(crate) fn send(&self, notice: Notice) {
        let kind = serde_json::to_value(notice.kind).ok();
        let kind = kind.as_ref().and_then(serde_json::Value::as_str);
        let message = Message {
            at_ms: clock::unix_nanos() / 1_000_000,
            kind: kind.unwrap_or_default().to_owned(),
            subject: notice.subject,
            state: notice.state,
            text: notice.text.chars().take(MAX_TEXT_CHARS).collect(),
        };
        let Ok(mut line) = serde_json::to_vec(&message) else {
            return;
        };
        line.push(b'\n');
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(input) = &mut pipe.input else { return };
        // A pipe takes a line of at most `PIPE_BUF` bytes whole or not at all (pipe(7)).
        match rustix::io::write(input.as_fd(), &line) {
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN) => {
                tracing::warn!(
                    text = message.text,
                    "notice dropped: the program of [notices] is too slow"
                );
            }
            Err(error) => {
                tracing::warn!(%error, "no more notices are sent until a restart");
                pipe.input = None;
            }
        }
    }
}

/// Runs the process that [`start`] starts.
///
/// # Errors
/// If standard input does not begin with a command.
pub(crate) fn serve() -> anyhow::Result<()> {
    // The daemon has blocked the signals that end it.
    unblock_signals().context("signals")?;
    let rights = Confinement {
        capabilities: CapabilitySet::empty(),
        bpf: false,
        // The program may use what its user may use.
        files: None,
    };
    let _confined = rights.apply();
    crate::log_lines::in_background();
    let mut lines = io::stdin().lock().lines();
    let first = lines.next().context("no command")??;
    let command: Vec<String> = serde_json::from_str(&first).context("command")?;
    for line in lines {
        let line = line?;
        if is_daemon_gone() {
            break;
        }
        let Ok(message) = serde_json::from_str::<Message>(&line) else {
            continue;
        };
        if let Err(error) = run(&command, &message, &line, PATIENCE) {
            tracing::warn!("[notices] command: {error:#}");
        }
    }
    Ok(())
}

/// Whether the other end of standard input is closed. Notices that still wait there are then of no use.
fn is_daemon_gone() -> bool {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    let now = Timespec::default();
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

/// Runs `command` for `message`, whose JSON text is `line`.
///
/// # Errors
/// If the program cannot be started, fails, or has not ended after `patience`.
fn run(
    command: &[String],
    message: &Message,
    line: &str,
    patience: Duration,
) -> anyhow::Result<()> {
    let (program, arguments) = command.split_first().context("empty")?;
    let mut process = Command::new(program);
    process
        .args(arguments)
        .env("PLEACH_NOTICE_KIND", &message.kind)
        .env("PLEACH_NOTICE_SUBJECT", &message.subject)
        .env("PLEACH_NOTICE_STATE", &message.state)
        .env("PLEACH_NOTICE_TEXT", &message.text);
    let output = program::run(&mut process, &format!("{line}\n"), patience)
        .with_context(|| program.clone())?;
    let told = String::from_utf8_lossy(&output.stderr);
    let told = told.lines().next().unwrap_or_default();
    anyhow::ensure!(
        output.status.success(),
        "{program}: {}: {}",
        output.status,
        told.chars().take(MAX_TEXT_CHARS).collect::<String>()
    );
    Ok(())
}

/// Longest run of the program.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum length of the text of a notice in characters. A line then has less than `PIPE_BUF` (4096) bytes.
const MAX_TEXT_CHARS: usize = 600;

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            at_ms: 7,
            kind: "link".to_owned(),
            subject: "lte".to_owned(),
            state: "down".to_owned(),
            text: "lte is \"down\"".to_owned(),
        }
    }

    #[test]
    fn the_program_gets_the_notice_as_json_and_in_its_environment() {
        let directory = tempfile::tempdir().expect("directory");
        let file = directory.path().join("notice");
        let script = format!(
            "cat > {0}; printf '%s %s' \"$PLEACH_NOTICE_KIND\" \"$PLEACH_NOTICE_TEXT\" >> {0}",
            file.display()
        );
        let command = ["/bin/sh", "-c", &script].map(str::to_owned);
        let line = serde_json::to_string(&message()).expect("JSON");
        run(&command, &message(), &line, PATIENCE).expect("runs");
        let written = std::fs::read_to_string(file).expect("written");
        assert_eq!(written, format!("{line}\nlink lte is \"down\""));
    }

    #[test]
    fn a_program_that_fails_or_does_not_end_is_reported() {
        let failed = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
            let run = run(&command, &message(), "{}", Duration::from_millis(100));
            format!("{:#}", run.expect_err("fails"))
        };
        assert!(failed(&["/bin/false"]).contains("exit status: 1"));
        assert!(failed(&["/bin/sh", "-c", "echo why >&2; exit 3"]).ends_with("3: why"));
        assert!(failed(&["/nonexistent/program"]).contains("/nonexistent/program"));
        assert!(failed(&["/bin/sleep", "60"]).contains("did not end"));
    }
}
