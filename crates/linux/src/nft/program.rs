//! Runs `nft`.

use std::{
    io,
    process::{Command, Output},
    time::Duration,
};

use crate::program;

/// Runs `nft` with `arguments` and `input`. Returns its output if it succeeded.
///
/// # Errors
/// - [`io::ErrorKind::NotFound`], with the remedy in the text, if `nft` is missing.
/// - [`io::ErrorKind::Other`] with the message of `nft` if `nft` refused: nothing has changed.
/// - [`io::ErrorKind::TimedOut`] or [`io::ErrorKind::Interrupted`] if `nft` was killed. The kernel can have completed
///   its transaction.
pub(super) fn nft(arguments: &[&str], input: &str) -> io::Result<Output> {
    run("nft", arguments, input)
}

fn run(program: &str, arguments: &[&str], input: &str) -> io::Result<Output> {
    let command = &mut Command::new(program);
    command.args(arguments);
    let output = program::run(command, input, PATIENCE).map_err(|error| {
        let kind = error.kind();
        let text = if kind == io::ErrorKind::NotFound {
            format!("cannot run nft: {error}; install the package nftables")
        } else {
            format!("nft: {error}")
        };
        io::Error::new(kind, text)
    })?;
    if output.status.success() {
        return Ok(output);
    }
    if output.status.code().is_none() {
        let text = format!("nft was killed: {}", output.status);
        return Err(io::Error::new(io::ErrorKind::Interrupted, text));
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("nft: {}", text.trim())))
}

/// A tunnel that stops runs `nft` twice; the service manager kills it after 15 s.
const PATIENCE: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_killed_differs_from_one_that_refused() {
        let output = run("cat", &[], "text").expect("ends");
        assert_eq!(output.stdout, b"text");
        let killed = run("sh", &["-c", "kill -9 $$"], "").expect_err("is killed");
        assert_eq!(killed.kind(), io::ErrorKind::Interrupted);
        let error = run("false", &[], "").expect_err("fails");
        assert_eq!(error.kind(), io::ErrorKind::Other);
    }
}
