//! Video frames: where they end, and how many repair symbols each frame gets.
//!
//! A frame is useful only if all of it arrives in time, and its packets are sent at once. Symbols sent during the frame
//! protect only half of it. The symbols of the next frame arrive too late if the next frame follows after the deadline.
//! So symbols follow the last packet of a frame if its packets cannot be retransmitted in time.
//!
//! *Frames.* A frame consists of packets of one class that the host sent within [`PAUSE`] of each other. The last
//! packet is recognised by RTP's marker (RFC 3550 section 5.1), or because no packet follows. Frames longer than
//! [`MOST_PKTS`] are cut. A stream that hardly ever pauses has no frames, and is protected like any other stream
//! ([`super::sending`]).
//!
//! *Number of symbols.* Missing packets are counted by frame. A frame gets as many symbols as would have sufficed for
//! all recent frames except one in [`ONE_IN`]. The limit is an eighth of its packets; the unused part of that budget
//! passes to the next frame.
//!
//! *Coverage.* A symbol covers all packets that are still useful. If the deadline is close, these are the packets of
//! the current frame alone, and the symbols form a block code over the frame. The code is random: one symbol in 250 is
//! linearly dependent on the others, which never happens with Reed-Solomon codes. If the deadline is further away, the
//! window slides over several frames, which may share a burst of losses. A separate block for each frame is never
//! better than the window. It is worse as soon as the deadline lies beyond the next frame, because each frame would
//! need symbols for the longest burst alone.
//!
//! This rule is pleach's own, with measurements in `docs/media.md`; the window is that of RFC 8681. Bounds:
//! [`REMEMBERED`] frames.

use core::time::Duration;
use std::collections::VecDeque;

use crate::{ids::Seq, time::Instant};

/// The frames of the packets sent.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The frame that is being sent.
    current: Option<Frame>,
    /// The frames sent before the current one, oldest first.
    sent: VecDeque<Frame>,
    /// Number of older frames for each number of lost packets.
    by_losses: [u32; MOST_LOST + 1],
    /// Excess of recent pauses over recent cuts, which shows whether the stream has frames; at most [`SURE_FOR_LONG`].
    pauses: u8,
    /// Number of symbols to send.
    owed: u32,
    /// Number of packets whose share of symbols has not been sent yet.
    saved_pkts: u32,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    first: Seq,
    pkts: u32,
    lost: usize,
    /// Deadline of the frame's last packet.
    due: Instant,
}

impl Frames {
    /// Adds the packet `seq` with the deadline `due`. `is_last` says whether it is marked as the last packet of its
    /// frame.
    pub(super) fn on_packet(&mut self, seq: Seq, due: Instant, is_last: bool) {
        let is_new = |frame: &mut Frame| due.since(frame.due) >= PAUSE;
        if let Some(frame) = self.current.take_if(is_new) {
            self.end(frame, true);
        }
        let frame = self.current.get_or_insert(Frame {
            first: seq,
            pkts: 0,
            lost: 0,
            due,
        });
        frame.pkts += 1;
        frame.due = due;
        let is_full = seq.distance_from(frame.first) >= MOST_PKTS - 1;
        if let Some(frame) = self.current.take_if(|_| is_last || is_full) {
            self.end(frame, is_last);
        }
    }

    /// Ends the current frame, because no packet follows it for now.
    pub(super) fn pause(&mut self) {
        if let Some(frame) = self.current.take() {
            self.end(frame, true);
        }
    }

    /// Whether the stream has frames, so that symbols follow each frame.
    pub(super) fn are_there(&self) -> bool {
        self.pauses >= SURE
    }

    /// Whether the stream has frames, and the current frame has begun but not ended.
    pub(super) fn are_under_way(&self) -> bool {
        self.are_there() && self.current.is_some()
    }

    /// Whether a symbol is to be sent.
    pub(super) fn is_owed(&self) -> bool {
        self.are_there() && self.owed > 0
    }

    /// Records a symbol that is sent at `now`, with a one-way delay of `least_delay`. Returns how many packets before
    /// `next` it should cover.
    pub(super) fn cover(&mut self, now: Instant, least_delay: Duration, next: Seq) -> u32 {
        self.owed = self.owed.saturating_sub(1);
        let is_of_use = |frame: &&Frame| now + least_delay < frame.due;
        let newest_first = self.current.iter().chain(self.sent.iter().rev());
        let oldest = newest_first.take_while(is_of_use).last();
        // If every frame is late, the symbol covers the newest one.
        let oldest = oldest.or(self.current.as_ref()).or(self.sent.back());
        let pkts = oldest.map_or(0, |frame| next.distance_from(frame.first));
        u32::try_from(pkts).unwrap_or(0)
    }

    /// Records the loss of the packet `seq`.
    pub(super) fn on_lost(&mut self, seq: Seq) {
        let mut frames = self.current.iter_mut().chain(self.sent.iter_mut().rev());
        let holds = |frame: &&mut Frame| {
            let place = seq.distance_from(frame.first);
            u32::try_from(place).is_ok_and(|place| place < frame.pkts)
        };
        if let Some(frame) = frames.find(holds) {
            frame.lost = MOST_LOST.min(frame.lost + 1);
        }
    }

    /// Ends a frame. `is_paused` says that the frame was not cut. Single packets at intervals, as in a voice call, are
    /// not counted as frames.
    fn end(&mut self, frame: Frame, is_paused: bool) {
        self.pauses = if is_paused && frame.pkts >= LEAST_PKTS {
            SURE_FOR_LONG.min(self.pauses + 1)
        } else {
            self.pauses.saturating_sub(1)
        };
        if self.sent.len() == REMEMBERED
            && let Some(oldest) = self.sent.pop_front()
        {
            self.by_losses[oldest.lost] += 1;
            if self.by_losses.iter().sum::<u32>() >= FADES_AT {
                self.by_losses.iter_mut().for_each(|frames| *frames /= 2);
            }
        }
        self.sent.push_back(frame);
        self.saved_pkts = MOST_SAVED_PKTS.min(self.saved_pkts + frame.pkts);
        self.owed = self.needed().min(self.saved_pkts / PKTS_A_SYMBOL);
        self.saved_pkts -= self.owed * PKTS_A_SYMBOL;
    }

    /// Returns the number of symbols that would have sufficed for nearly all recent frames.
    fn needed(&self) -> u32 {
        let told = self.sent.iter().rev().skip(UNTOLD);
        let mut by_losses = self.by_losses;
        for frame in told {
            by_losses[frame.lost] += 1;
        }
        let frames = by_losses.iter().sum::<u32>();
        if frames < LEAST_FRAMES {
            return u32::MAX;
        }
        // Count down from the highest number of losses. Stop as soon as more than one frame in [`ONE_IN`] had at least
        // this number of losses.
        let mut frames_beyond = 0;
        let most = by_losses.iter().rposition(|count| {
            frames_beyond += count;
            frames_beyond * ONE_IN > frames
        });
        most.and_then(|lost| u32::try_from(lost).ok()).unwrap_or(0)
    }
}

/// Duration of a pause after which a packet belongs to the next frame.
pub(super) const PAUSE: Duration = Duration::from_millis(2);
/// Minimum number of packets of a frame.
const LEAST_PKTS: u32 = 3;
/// Maximum length of a frame in packets, including packets of other flows between its packets. A symbol can cover a
/// limited range of numbers, and should not cover many packets that are no longer useful.
const MOST_PKTS: i32 = 60;
/// Excess of recent pauses over recent cuts from which the stream is considered to have frames.
const SURE: u8 = 4;
const SURE_FOR_LONG: u8 = 16;
/// Reciprocal of the share of frames that may lose more packets than they have symbols.
const ONE_IN: u32 = 200;
/// Minimum number of frames for an estimate.
const LEAST_FRAMES: u32 = 64;
/// Number of packets per symbol: the budget of repairs (`tunnel/budget.rs`).
const PKTS_A_SYMBOL: u32 = 8;
/// Maximum number of packets whose unused share of symbols passes to the next frame: eight symbols.
const MOST_SAVED_PKTS: u32 = 64;
/// Maximum number of losses counted in one frame.
const MOST_LOST: usize = 16;
/// Number of newest frames that are stored one by one, because losses are reported after the frame was sent: one second
/// at 96 frames per second. Of older frames, only the number is stored.
const REMEMBERED: usize = 96;
/// Number of newest frames whose losses are possibly not reported yet.
const UNTOLD: usize = 16;
/// Number of older frames at which the counts are halved.
const FADES_AT: u32 = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender of 30 frames per second, each with `pkts` packets and a deadline [`LEFT`] later.
    struct Film {
        frames: Frames,
        pkts: u32,
        next: u32,
        at: Instant,
    }

    const LEFT: Duration = Duration::from_millis(50);

    impl Film {
        fn new(pkts: u32) -> Self {
            Self {
                frames: Frames::default(),
                pkts,
                next: 0,
                at: Instant::from_millis(1),
            }
        }

        /// Sends a frame, of which `lost` packets are lost. Returns the number of repair symbols that follow the frame.
        fn frame(&mut self, is_marked: bool, lost: u32) -> u32 {
            self.at += Duration::from_millis(33);
            let first = self.next;
            for packet in 0..self.pkts {
                let is_last = is_marked && packet + 1 == self.pkts;
                self.frames
                    .on_packet(Seq(self.next), self.at + LEFT, is_last);
                self.next += 1;
            }
            if !is_marked {
                self.frames.pause();
            }
            (0..lost).for_each(|i| self.frames.on_lost(Seq(first + i)));
            let mut symbols = 0;
            while self.frames.is_owed() {
                self.frames.cover(self.at, Duration::ZERO, Seq(self.next));
                symbols += 1;
            }
            symbols
        }
    }

    #[test]
    fn frames_end_with_a_marker_or_a_pause() {
        for is_marked in [true, false] {
            let mut film = Film::new(20);
            for _ in 0..SURE {
                assert!(!film.frames.are_there());
                film.frame(is_marked, 0);
            }
            assert!(film.frames.are_there(), "{is_marked}");
        }
        // The pause is recognised at the next packet at the latest.
        let mut frames = Frames::default();
        for frame in 0..6_u32 {
            let due = Instant::from_millis(100) + PAUSE * frame;
            (0..5).for_each(|i| frames.on_packet(Seq(frame * 5 + i), due, false));
        }
        assert!(frames.are_under_way());
    }

    #[test]
    fn what_never_pauses_has_no_frames() {
        let mut frames = Frames::default();
        for seq in 0..5_000_u32 {
            let due = Instant::from_millis(100) + PAUSE * seq / 2;
            frames.on_packet(Seq(seq), due, false);
            assert!(!frames.are_there() && !frames.is_owed());
        }
    }

    #[test]
    fn a_call_has_no_frames() {
        let mut film = Film::new(1);
        assert_eq!((0..500).map(|_| film.frame(true, 0)).sum::<u32>(), 0);
    }

    #[test]
    fn a_large_frame_among_others_is_cut() {
        let mut film = Film::new(20);
        (0..8).for_each(|_| _ = film.frame(true, 0));
        film.pkts = 170;
        film.frame(true, 0);
        assert!(film.frames.are_there());
        assert_eq!(film.frames.sent.iter().map(|f| f.pkts).max(), Some(60));
    }

    #[test]
    fn as_many_symbols_as_nearly_all_frames_need_and_the_share_allows() {
        for (lost, one_in, symbols) in [
            (0, 1, 0..=0),
            (1, 10, 100..=100),
            (2, 20, 200..=200),
            (2, 900, 0..=0),
            (9, 10, 320..=330),
        ] {
            let mut film = Film::new(26);
            let mut run = |frames: u32| {
                (0..frames)
                    .map(|i| film.frame(i % 2 == 0, if i % one_in == 0 { lost } else { 0 }))
                    .sum::<u32>()
            };
            let first = run(20);
            // Before losses are known, the whole budget is used.
            assert!((50..=65).contains(&first), "{first}");
            run(1_000);
            let sent = run(100);
            assert!(symbols.contains(&sent), "{lost} of one in {one_in}: {sent}");
        }
    }

    #[test]
    fn a_symbol_covers_what_is_still_of_use() {
        let mut film = Film::new(20);
        (0..10).for_each(|_| _ = film.frame(true, 0));
        let next = Seq(film.next);
        let mut cover = |least_ms| {
            film.frames
                .cover(film.at, Duration::from_millis(least_ms), next)
        };
        // Frames are 33 ms apart and have a deadline of 50 ms.
        assert_eq!(
            [cover(0), cover(10), cover(20), cover(49), cover(60)],
            [40, 40, 20, 20, 20]
        );
    }

    #[test]
    fn losses_of_anything_are_taken() {
        let mut film = Film::new(5);
        film.frames.on_lost(Seq(3));
        for frame in 0..300_u32 {
            film.frame(frame % 3 == 0, 0);
            for lost in [frame.wrapping_mul(0x9e37_79b9), film.next, 0, u32::MAX] {
                (0..30).for_each(|_| film.frames.on_lost(Seq(lost)));
            }
        }
        assert_eq!(film.frames.sent.len(), REMEMBERED);
    }
}
