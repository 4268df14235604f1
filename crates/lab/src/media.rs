//! Real film for the traffic `video`: encoding, packetisation, reassembly and quality.
//!
//! Before the run ffmpeg encodes the film ([`film`]): H.264 without B frames, with one key frame per second, in an MPEG
//! transport stream. [`ts`] and [`rtp`] are the framing. The packets that arrived in time are reassembled. [`player`]
//! determines the frames that a viewer sees. [`score`] lets ffmpeg decode exactly these frames and compare them with
//! the film. ffmpeg is run as a program ([`ffmpeg`]); nothing else in the lab needs it.

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

/// Makes the films of `scenario` below the directory `out`. Returns one entry for each traffic.
///
/// # Errors
/// Fails if ffmpeg is missing or fails.
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
