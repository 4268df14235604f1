//! Determines the frames that a viewer sees.
//!
//! The player shows no damaged picture. A frame is shown only if all packets arrived in time: its own packets, and
//! the packets of all frames to which it refers, back to the last key frame. Otherwise the previous picture stands
//! still: a freeze. Conference programs behave like this, and it is the strictest test of a network. Players that
//! conceal losses freeze less often but show artefacts.

use core::time::Duration;

use pleach_sim::results::Freeze;

use crate::media::film::{Datagram, FRAME_TIME, Frame};

/// Fate of a datagram, ordered from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// The datagram arrived before the deadline.
    InTime,
    /// The datagram arrived after the deadline.
    Late,
    /// The datagram never arrived.
    Lost,
}

/// Result of viewing a film.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Viewing {
    /// Number of frames of which a datagram never arrived.
    pub(crate) frames_lost: u64,
    /// Number of other frames of which a datagram was late.
    pub(crate) frames_late: u64,
    /// Whether each frame was shown.
    pub(crate) is_shown: Vec<bool>,
    /// Times without new frames, relative to the start of the run.
    pub(crate) freezes: Vec<Freeze>,
}

/// Determines which of `frames` a viewer saw, and the freezes. `fates` are the fates of their `datagrams`; missing
/// entries count as lost. The film began at time `start` of the run.
pub(crate) fn view(
    frames: &[Frame],
    datagrams: &[Datagram],
    fates: &[Fate],
    start: Duration,
) -> Viewing {
    let mut worst = vec![Fate::InTime; frames.len()];
    for (index, datagram) in datagrams.iter().enumerate() {
        let fate = fates.get(index).copied().unwrap_or(Fate::Lost);
        if let Some(worst) = worst.get_mut(datagram.frame) {
            *worst = fate.max(*worst);
        }
    }
    let mut viewing = Viewing::default();
    let mut is_intact = false;
    let mut at = start;
    for (frame, fate) in frames.iter().zip(worst) {
        viewing.frames_lost += u64::from(fate == Fate::Lost);
        viewing.frames_late += u64::from(fate == Fate::Late);
        is_intact = fate == Fate::InTime && (is_intact || frame.is_key);
        if !is_intact {
            let goes_on = viewing.is_shown.last() == Some(&false);
            match viewing.freezes.last_mut() {
                Some(freeze) if goes_on => freeze.length_s += FRAME_TIME.as_secs_f64(),
                _ => viewing.freezes.push(Freeze {
                    start_s: at.as_secs_f64(),
                    length_s: FRAME_TIME.as_secs_f64(),
                }),
            }
        }
        viewing.is_shown.push(is_intact);
        at += FRAME_TIME;
    }
    viewing
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns frames of two datagrams each, with a key frame every five frames.
    fn film(count: usize) -> (Vec<Frame>, Vec<Datagram>) {
        let frames = (0..count).map(|n| Frame {
            packets: n * 2..n * 2 + 2,
            is_key: n % 5 == 0,
        });
        let datagrams = (0..2 * count).map(|n| Datagram {
            frame: n / 2,
            packets: n..n + 1,
            at: Duration::ZERO,
        });
        (frames.collect(), datagrams.collect())
    }

    fn view_with(wrong: &[(usize, Fate)]) -> Viewing {
        let (frames, datagrams) = film(20);
        let mut fates = [Fate::InTime; 40];
        for (index, fate) in wrong {
            fates[*index] = *fate;
        }
        view(&frames, &datagrams, &fates, Duration::from_secs(1))
    }

    fn shown(viewing: &Viewing) -> String {
        let mark = |is_shown: &bool| if *is_shown { '#' } else { '.' };
        viewing.is_shown.iter().map(mark).collect()
    }

    #[test]
    fn all_is_shown_when_all_is_in_time() {
        let viewing = view_with(&[]);
        assert_eq!(shown(&viewing), "#".repeat(20));
        assert_eq!(viewing.freezes, []);
    }

    #[test]
    fn a_hole_freezes_the_picture_until_the_next_whole_key_frame() {
        // Frame 2 lacks a datagram. Frame 10, a key frame, is late. Frame 19 has both faults.
        let viewing = view_with(&[
            (5, Fate::Lost),
            (20, Fate::Late),
            (38, Fate::Late),
            (39, Fate::Lost),
        ]);
        assert_eq!(shown(&viewing), "##...#####.....####.");
        assert_eq!((viewing.frames_lost, viewing.frames_late), (2, 1));
        let freezes: Vec<(i32, i32)> = viewing
            .freezes
            .iter()
            .map(|f| {
                #[expect(clippy::cast_possible_truncation, reason = "seconds of a test")]
                let ms = |s: f64| (s * 1e3).round() as i32;
                (ms(f.start_s), ms(f.length_s))
            })
            .collect();
        assert_eq!(freezes, [(1_080, 120), (1_400, 200), (1_760, 40)]);
    }

    #[test]
    fn nothing_is_shown_of_what_never_came() {
        let (frames, datagrams) = film(10);
        let viewing = view(&frames, &datagrams, &[], Duration::ZERO);
        assert_eq!(
            (shown(&viewing).as_str(), viewing.frames_lost),
            ("..........", 10)
        );
        assert_eq!(viewing.freezes.len(), 1);
    }
}
