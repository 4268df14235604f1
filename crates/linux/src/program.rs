//! Runs a helper program, and kills it if it does not end in time.

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

/// Runs `command` with `input`. Returns its exit status, its standard error, and its standard output if `command` pipes
/// it.
///
/// # Errors
/// - The error of the start of the program.
/// - [`io::ErrorKind::TimedOut`] if the program was killed after `patience`.
pub fn run(command: &mut Command, input: &str, patience: Duration) -> io::Result<Output> {
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
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
    if is_killed && !output.status.success() {
        let text = format!("it did not end within {} s", patience.as_secs());
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    Ok(output)
}

/// Kills the process if it does not end within `patience`. Returns whether the process was killed.
fn kill_late(pid: &OwnedFd, is_over: &Receiver<()>, patience: Duration) -> bool {
    is_over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout)
        && pidfd_send_signal(pid, Signal::KILL).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_killed() {
        let soon = Duration::from_millis(50);
        // `sleep` does not read its input. The second input does not fit into the pipe, so writing it blocks.
        for input in [String::new(), "x".repeat(1 << 20)] {
            let error = run(Command::new("sleep").arg("600"), &input, soon).expect_err("is killed");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        let late = Duration::from_secs(600);
        let output = run(Command::new("cat").stdout(Stdio::piped()), "text", late).expect("ends");
        assert_eq!(output.stdout, b"text");
        let output = run(&mut Command::new("false"), "", late).expect("ends");
        assert!(!output.status.success());
        let missing = run(&mut Command::new("there-is-no-such-program"), "", late);
        assert_eq!(
            missing.expect_err("is missing").kind(),
            io::ErrorKind::NotFound
        );
    }
}
