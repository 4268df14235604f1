//! Runs a helper program, and kills it with its descendants if it does not end in time.

use std::{
    fs::File,
    io::{self, Write as _},
    os::unix::{fs::FileExt as _, process::CommandExt as _},
    process::{Command, Output, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use rustix::{
    fd::OwnedFd,
    fs::{MemfdFlags, memfd_create},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal},
};

/// Runs `command` with `input`, in a process group of its own. Returns its exit status, standard output and standard
/// error.
///
/// The outputs go to files in memory. So this function does not wait for a descendant that runs on and keeps an output
/// open.
///
/// # Errors
/// - The error of the start of the program.
/// - [`io::ErrorKind::TimedOut`] if the program was killed after `patience`.
pub fn run(command: &mut Command, input: &str, patience: Duration) -> io::Result<Output> {
    let (stdout, stderr) = (file_in_memory()?, file_in_memory()?);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .process_group(0)
        .spawn()?;
    // Without a pidfd or a thread, the program runs without a time limit.
    let group = Pid::from_child(&child);
    let pid = pidfd_open(group, PidfdFlags::empty()).ok();
    let (ended, is_over) = mpsc::channel::<()>();
    let watch = pid.and_then(|pid| {
        let watching = move || kill_late(&pid, group, &is_over, patience);
        thread::Builder::new().spawn(watching).ok()
    });
    // If writing fails, the exit status shows it.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input.as_bytes());
    }
    let status = child.wait();
    drop(ended);
    let is_killed = watch.is_some_and(|watch| watch.join().unwrap_or(false));
    let status = status?;
    if is_killed && !status.success() {
        let text = format!("it did not end within {} s", patience.as_secs());
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    Ok(Output {
        status,
        stdout: content(&stdout)?,
        stderr: content(&stderr)?,
    })
}

fn file_in_memory() -> io::Result<File> {
    Ok(memfd_create("output", MemfdFlags::CLOEXEC)?.into())
}

/// Returns the content of `file`. Does not use its position, because a descendant that runs on writes there.
fn content(file: &File) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Kills the process `pid` and its process group if it does not end within `patience`. Returns whether it was killed.
fn kill_late(pid: &OwnedFd, group: Pid, is_over: &Receiver<()>, patience: Duration) -> bool {
    if is_over.recv_timeout(patience) != Err(RecvTimeoutError::Timeout) {
        return false;
    }
    let is_killed = pidfd_send_signal(pid, Signal::KILL).is_ok();
    if is_killed {
        // While the group has members, its number is not used for another.
        let _ = kill_process_group(group, Signal::KILL);
    }
    is_killed
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
        let output = run(&mut Command::new("cat"), "text", late).expect("ends");
        assert_eq!(output.stdout, b"text");
        let output = run(&mut Command::new("false"), "", late).expect("ends");
        assert!(!output.status.success());
        let missing = run(&mut Command::new("there-is-no-such-program"), "", late);
        assert_eq!(
            missing.expect_err("is missing").kind(),
            io::ErrorKind::NotFound
        );
    }
    #[test]
    fn a_descendant_that_hangs_is_killed_or_left_alone() {
        let soon = Duration::from_millis(50);
        // The shell waits for `sleep`, which inherits its outputs.
        let shell =
            |script: &str, patience| run(Command::new("sh").args(["-c", script]), "", patience);
        let error = shell("sleep 600; true", soon).expect_err("is killed");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let late = Duration::from_secs(600);
        let output = shell("sleep 600 & echo $!", late).expect("ends before its child");
        let pid = String::from_utf8(output.stdout).expect("a number");
        let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a number");
        rustix::process::kill_process(pid, Signal::KILL).expect("it runs on");
    }
}
