//! Difference between the seen and the sent film: ffmpeg decodes both and compares picture by picture.
//!
//! The seen film is a transport stream of the shown frames ([`Film::only`]). ffmpeg's `ssim` and `psnr` use the sent
//! film as their main input. Each sent picture is compared with the seen picture of the same time or, during a
//! freeze, with the last one before it. The reference is the encoded film, not its source, so the score includes only
//! the effect of the network and not of coding. Frames before the first shown frame cannot be compared and are
//! omitted.

use std::{ffi::OsStr, fs, path::Path, process::Command};

use anyhow::{Context as _, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use core::time::Duration;
use pleach_sim::results::{Picture, VideoResult};

use crate::media::{
    ffmpeg,
    film::{FRAME_TIME, Film},
    player::Viewing,
};

/// Number of freezes for which a picture is stored: the longest freezes.
const PICTURES_MAX: usize = 3;
/// Width of a picture in pixels. Two pictures stand side by side.
const PICTURE_WIDTH: u32 = 480;
/// Largest value of an 8-bit picture sample.
const PEAK: f64 = 255.0;

/// Measures the quality of the film that the viewer saw, by decoding it and `film` with ffmpeg. Stores similarity and
/// pictures in `result`. Files are written to `dir`; their names begin with `name`. The film began at time `start` of
/// the run. `command` returns the command that starts a given program.
///
/// # Errors
/// Fails if ffmpeg fails, or if `dir` cannot be written.
pub(crate) fn score(
    result: &mut VideoResult,
    film: &Film,
    viewing: &Viewing,
    start: Duration,
    (dir, name): (&Path, &str),
    command: &dyn Fn(&OsStr) -> Command,
) -> anyhow::Result<()> {
    let Some(first) = viewing.is_shown.iter().position(|is_shown| *is_shown) else {
        return Ok(());
    };
    let seen = format!("{name}-seen.ts");
    let path = dir.join(&seen);
    fs::write(&path, film.only(&viewing.is_shown))
        .with_context(|| format!("cannot write {}", path.display()))?;
    let run = |graph: &str, rest: &[&str]| {
        // Paths are relative to `dir`, because some characters of a path have a special meaning in the arguments of
        // filters.
        let mut command = command(OsStr::new(ffmpeg::PROGRAM));
        command
            .current_dir(dir)
            .args(["-v", "error", "-y", "-copyts", "-i"]);
        command
            .arg(&film.path)
            .args(["-i", &seen, "-lavfi", graph])
            .args(rest);
        ffmpeg::output(&mut command)
    };
    let logs = ["ssim", "psnr"].map(|what| format!("{name}-{what}.log"));
    let graph = format!(
        "[0:v]split[a][b];[1:v]split[c][d];\
         [a][c]ssim=stats_file={}[x];[b][d]psnr=stats_file={}[y]",
        logs[0], logs[1]
    );
    run(
        &graph,
        &[
            "-map", "[x]", "-f", "null", "-", "-map", "[y]", "-f", "null", "-",
        ],
    )?;
    let read = |log: &String| {
        let path = dir.join(log);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let ssim = column(&read(&logs[0])?, "All:");
    let errors = column(&read(&logs[1])?, "mse_avg:");
    let wanted = film.frames.len() - first;
    ensure!(
        ssim.len() == wanted && errors.len() == wanted,
        "ffmpeg compared {} and {} of {wanted} frames",
        ssim.len(),
        errors.len()
    );
    result.ssim = mean(&ssim);
    result.ssim_min = ssim.iter().copied().reduce(f64::min);
    result.psnr_db = mean(&errors)
        .filter(|mse| *mse > 0.0)
        .map(|mse| 10.0 * (PEAK * PEAK / mse).log10());
    for (number, frame) in worst(viewing, &ssim, first).into_iter().enumerate() {
        let file = format!("{name}-worst-{}.png", number + 1);
        let shown = viewing
            .is_shown
            .iter()
            .take(frame)
            .filter(|is_shown| **is_shown);
        let last = shown.count() - 1;
        let graph = format!(
            "[0:v]select=eq(n\\,{frame}),setpts=0,scale={PICTURE_WIDTH}:-2[a];\
             [1:v]select=eq(n\\,{last}),setpts=0,scale={PICTURE_WIDTH}:-2[b];[a][b]hstack"
        );
        run(&graph, &["-frames:v", "1", &file])?;
        let path = dir.join(&file);
        let png = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let at = start + FRAME_TIME * u32::try_from(frame)?;
        result.pictures.push(Picture {
            time_s: at.as_secs_f64(),
            ssim: ssim.get(frame - first).copied().unwrap_or(f64::NAN),
            file: path.display().to_string(),
            png_base64: STANDARD.encode(png),
        });
    }
    Ok(())
}

/// Returns the frames to show, in order of time: for each of the longest freezes after the first shown frame, the
/// frame that differs most from the picture that the viewer saw.
fn worst(viewing: &Viewing, ssim: &[f64], first: usize) -> Vec<usize> {
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let held = viewing.is_shown.iter().enumerate().skip(first);
    for (frame, _) in held.filter(|(_, is_shown)| !**is_shown) {
        match runs.last_mut() {
            Some(run) if run.last() == Some(&(frame - 1)) => run.push(frame),
            _ => runs.push(vec![frame]),
        }
    }
    runs.sort_by_key(|run| core::cmp::Reverse(run.len()));
    runs.truncate(PICTURES_MAX);
    let likeness = |frame: &usize| ssim.get(frame - first).copied().unwrap_or(1.0);
    let least = |run: &Vec<usize>| {
        run.iter()
            .copied()
            .min_by(|a, b| likeness(a).total_cmp(&likeness(b)))
    };
    let mut frames: Vec<usize> = runs.iter().filter_map(least).collect();
    frames.sort_unstable();
    frames
}

/// Returns the numbers after `label` in the lines of a log.
fn column(log: &str, label: &str) -> Vec<f64> {
    let number = |line: &str| {
        let word = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix(label))?;
        word.parse().ok()
    };
    log.lines().filter_map(number).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_filters_write() {
        let ssim = "n:1 Y:1.000000 U:1.000000 V:1.000000 All:1.000000 (inf)\n\
                    n:2 Y:0.912 U:0.9 V:0.9 All:0.905000 (10.22)\n";
        assert_eq!(column(ssim, "All:"), [1.0, 0.905]);
        let psnr = "n:1 mse_avg:0.00 mse_y:0.00 psnr_avg:inf psnr_y:inf \n";
        assert_eq!(column(psnr, "mse_avg:"), [0.0]);
        assert!(column("", "All:").is_empty());
    }

    #[test]
    fn the_worst_frames_are_those_of_the_longest_freezes() {
        let is_shown = "..##.##..#...##.#".chars().map(|c| c == '#').collect();
        let viewing = Viewing {
            is_shown,
            ..Viewing::default()
        };
        let mut ssim = vec![1.0; 15];
        for (frame, value) in [
            (4, 0.1),
            (7, 0.5),
            (8, 0.4),
            (10, 0.9),
            (11, 0.7),
            (12, 0.8),
        ] {
            ssim[frame - 2] = value;
        }
        assert_eq!(worst(&viewing, &ssim, 2), [4, 8, 11]);
    }
}
