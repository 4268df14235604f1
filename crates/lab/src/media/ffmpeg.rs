//! Calls of ffmpeg.

use std::{
    io,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};
use pleach_sim::scenario::{VideoSpec, VideoTransport};

/// Name of the program.
pub(crate) const PROGRAM: &str = "ffmpeg";

/// Checks that ffmpeg is installed and supports `spec`.
///
/// # Errors
/// Returns an error with the scenario's key and a remedy if ffmpeg is missing or does not support `spec`.
pub(crate) fn check(spec: &VideoSpec) -> anyhow::Result<()> {
    let protocols = match output(Command::new(PROGRAM).args(["-hide_banner", "-protocols"])) {
        Ok(protocols) => protocols,
        Err(error) if is_missing(&error) => bail!(
            "kind = \"video\" needs ffmpeg, which is not on PATH: `apt-get install ffmpeg` installs it, and so does \
             `./dev bench video`; or remove this [[traffic]]"
        ),
        Err(error) => return Err(error),
    };
    let has_srt = protocols.lines().any(|line| line.trim() == "srt");
    if spec.transport == VideoTransport::Srt && !has_srt {
        bail!(
            "transport = \"srt\" needs an ffmpeg with libsrt, such as Debian's; this ffmpeg has no libsrt: use \"rtp\""
        );
    }
    Ok(())
}

/// Runs `command` to its end. Returns its output on stdout.
///
/// # Errors
/// Fails if the program cannot be started. If the program fails, the error contains its messages.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .context("cannot run ffmpeg")?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        // The last lines describe the error. The lines before are progress messages.
        let lines: Vec<&str> = message.trim().lines().rev().take(5).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        bail!("ffmpeg failed ({}): {}", output.status, lines.join(" / "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn is_missing(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}
