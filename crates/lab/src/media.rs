//! Real film for the traffic `video`: how it is made, cut into packets, put together again, and judged.
//!
//! Before the run ffmpeg makes the film ([`film`]): H.264 without B frames, a key frame a second, in an MPEG transport
//! stream. [`ts`] and [`rtp`] are the framing. What came in time is put together again: [`player`] says which frames a
//! viewer sees, [`score`] lets ffmpeg decode exactly those and hold them against the film. ffmpeg is called as a program
//! ([`ffmpeg`]); nothing else of the lab needs it.

pub(crate) mod ffmpeg;
pub(crate) mod film;
pub(crate) mod player;
pub(crate) mod rtp;
pub(crate) mod score;
pub(crate) mod ts;

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use pleach_sim::scenario::{Scenario, TrafficKind};

use film::Film;

/// The films of `scenario`, one entry a traffic; made below the directory `out`.
///
/// # Errors
/// If ffmpeg is missing or fails.
pub(crate) fn films(scenario: &Scenario, out: &Path) -> anyhow::Result<Vec<Option<Arc<Film>>>> {
    let film = |(index, traffic): (usize, &pleach_sim::scenario::Traffic)| {
        let TrafficKind::Video(spec) = traffic.kind else {
            return Ok(None);
        };
        let name = &traffic.name;
        ffmpeg::check(&spec).with_context(|| format!("traffic `{name}`"))?;
        let path = out.join(format!("film-{index}.ts"));
        let film = Film::make(&spec, traffic.stop - traffic.start, &path);
        let film = film.with_context(|| format!("cannot make the film of traffic `{name}`"))?;
        Ok(Some(Arc::new(film)))
    };
    scenario.traffic.iter().enumerate().map(film).collect()
}
