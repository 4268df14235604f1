//! Runs `nft`, and kills it if it does not end in time.

use std::{
    io::{self, Write as _},
    process::{Command, Output, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use rustix::{
    fd::OwnedFd,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// Runs `nft` with `arguments` and `input`. Returns its output if it succeeded.
///
/// # Errors
/// - [`io::ErrorKind::NotFound`], with the remedy in the text, if `nft` is missing.
/// - [`io::ErrorKind::Other`] with the message of `nft` if `nft` refused: nothing has changed.
/// - [`io::ErrorKind::TimedOut`] or [`io::ErrorKind::Interrupted`] if `nft` was killed. The kernel can have completed
///   its transaction.
pub(super) fn nft(arguments: &[&str], input: &str) -> io::Result<Output> {
    run("nft", arguments, input, PATIENCE)
}

fn run(program: &str, arguments: &[&str], input: &str, patience: Duration) -> io::Result<Output> {
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| {
        let text = format!("cannot run nft: {error}; install the package nftables");
        io::Error::new(error.kind(), text)
    })?;
    // Without a pidfd or a thread, the program runs without a time limit.
    let pid = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
    let (ended, is_over) = mpsc::channel::<()>();
    let watch = pid.and_then(|pid| {
        let watching = move || kill_late(&pid, &is_over, patience);
        thread::Builder::new().spawn(watching).ok()
    });
    // If writing fails, the exit status shows it.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output();
    drop(ended);
    let is_killed = watch.is_some_and(|watch| watch.join().unwrap_or(false));
    let output = output?;
    if output.status.success() {
        return Ok(output);
    }
    if is_killed {
        let text = format!("nft did not end within {} s", patience.as_secs());
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    if output.status.code().is_none() {
        let text = format!("nft was killed: {}", output.status);
        return Err(io::Error::new(io::ErrorKind::Interrupted, text));
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("nft: {}", text.trim())))
}

/// Kills the process if it does not end within `patience`. Returns whether the process was killed.
fn kill_late(pid: &OwnedFd, is_over: &Receiver<()>, patience: Duration) -> bool {
    is_over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout)
        && pidfd_send_signal(pid, Signal::KILL).is_ok()
}

/// A tunnel that stops runs `nft` twice; the service manager kills it after 15 s.
const PATIENCE: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_killed() {
        let soon = Duration::from_millis(50);
        // `sleep` does not read its input. The second input does not fit into the pipe, so writing it blocks.
        for input in [String::new(), "x".repeat(1 << 20)] {
            let error = run("sleep", &["600"], &input, soon).expect_err("is killed");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        let late = Duration::from_secs(600);
        let output = run("cat", &[], "text", late).expect("ends");
        assert_eq!(output.stdout, b"text");
        let killed = run("sh", &["-c", "kill -9 $$"], "", late).expect_err("is killed");
        assert_eq!(killed.kind(), io::ErrorKind::Interrupted);
        let error = run("false", &[], "", late).expect_err("fails");
        assert_eq!(error.kind(), io::ErrorKind::Other);
    }
}
