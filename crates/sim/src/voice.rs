//! Quality of a call: computes a score from the delays of its packets.
//!
//! A packet is sent every 20 ms ([`INTERVAL`]). Its payload is 12 bytes of RTP header and 160 bytes of G.711
//! ([`PACKET_BYTES`]). The listener's jitter buffer has a fixed length. A packet whose delay exceeds the delay of the
//! call's fastest packet by more than this length arrives too late to be played and counts as lost. The mouth-to-ear
//! delay is the delay of the fastest packet, plus the length of the buffer, plus the 20 ms that it takes to fill a
//! packet. [`judge`] passes this delay, the loss and its burst ratio to the [E-model](crate::emodel).
//!
//! *Added delay* is the delay of a packet beyond its [shortest possible delay](IdleDelay): queues, detours over slower
//! links, repairs.

use core::time::Duration;

use pleach_core::units::{Bitrate, Bytes};

use crate::{
    emodel::{self, Codec},
    idle_delay::IdleDelay,
    results::{Freeze, Quantiles, VoiceResult},
};

/// Time between two packets.
pub const INTERVAL: Duration = Duration::from_millis(20);
/// Payload of a datagram: RTP header and 20 ms of G.711.
pub const PACKET_BYTES: Bytes = Bytes::new(172);
/// Payload rate of a call, without UDP and IP headers.
pub const RATE: Bitrate = Bitrate::from_bps(172 * 8 * 50);

/// Number of consecutive unplayed packets that make a dropout: G.711's concealment has faded out after 60 ms.
const DROPOUT_PKTS: usize = 3;
/// Number of packets in a part of the call that is rated separately: 5 s.
const PIECE_PKTS: usize = 250;

/// Rates a call of `sent` packets. Packet *n* was sent `n` times [`INTERVAL`] after `start` and took `delays[n]`, which
/// is `None` if it never arrived. `buffer` is the length of the jitter buffer. `idle` is the shortest possible delay.
#[must_use]
pub fn judge(
    flow: &str,
    delays: &[Option<Duration>],
    sent: u64,
    start: Duration,
    buffer: Duration,
    idle: &IdleDelay,
) -> VoiceResult {
    let count = usize::try_from(sent).unwrap_or(usize::MAX).min(MAX_PKTS);
    let delay_of = |number: usize| delays.get(number).copied().flatten();
    let mut delays_ms: Vec<f64> = (0..count).filter_map(delay_of).map(millis).collect();
    let added_by = |number: usize| {
        let sent_at = start + INTERVAL * u32::try_from(number).unwrap_or(u32::MAX);
        Some(delay_of(number)?.saturating_sub(idle.at(sent_at)))
    };
    let mut added_ms: Vec<f64> = (0..count).filter_map(added_by).map(millis).collect();
    let fastest_ms = delays_ms.iter().copied().reduce(f64::min);
    let limit_ms = fastest_ms.map(|fastest| fastest + millis(buffer));
    let fate = |number| match (delay_of(number).map(millis), limit_ms) {
        (Some(delay), Some(limit)) if delay <= limit => Fate::Played,
        (Some(_), _) => Fate::Late,
        (None, _) => Fate::Lost,
    };
    let fates: Vec<Fate> = (0..count).map(fate).collect();
    let number_of = |fate| fates.iter().filter(|other| **other == fate).count();
    let mouth_to_ear_ms = limit_ms.map(|limit| limit + millis(INTERVAL));
    let rate = |fates: &[Fate]| {
        let delay_ms = mouth_to_ear_ms.unwrap_or(f64::NAN);
        emodel::rating(Codec::G711, delay_ms, missing(fates), burst_ratio(fates))
    };
    let r = rate(&fates);
    let pieces = fates.chunks(PIECE_PKTS);
    let worst = pieces
        .filter(|piece| piece.len() == PIECE_PKTS)
        .map(rate)
        .reduce(f64::min);
    VoiceResult {
        flow: flow.to_owned(),
        sent_pkts: sent,
        lost_pkts: as_u64(number_of(Fate::Lost)),
        late_pkts: as_u64(number_of(Fate::Late)),
        buffer_ms: millis(buffer),
        delay_ms: Quantiles::of(&mut delays_ms),
        added_ms: Quantiles::of(&mut added_ms),
        mouth_to_ear_ms,
        unplayed: missing(&fates),
        burst_ratio: burst_ratio(&fates),
        r,
        mos: emodel::opinion(r),
        worst_mos: worst.map(emodel::opinion),
        dropouts: dropouts(&fates, start),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Late,
    Lost,
    Played,
}

/// Returns the share of packets that are not played.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn missing(fates: &[Fate]) -> f64 {
    let missing = fates.iter().filter(|fate| **fate != Fate::Played).count();
    missing as f64 / fates.len().max(1) as f64
}

/// Returns the mean length of runs of unplayed packets, divided by the mean length under independent losses. At least
/// 1.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn burst_ratio(fates: &[Fate]) -> f64 {
    let runs = runs(fates);
    if runs.is_empty() {
        return 1.0;
    }
    let total: usize = runs.iter().map(|(_, length)| length).sum();
    let mean = total as f64 / runs.len() as f64;
    (mean * (1.0 - missing(fates))).max(1.0)
}

/// Returns the first packet and the length of each run of unplayed packets.
fn runs(fates: &[Fate]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (number, _) in fates
        .iter()
        .enumerate()
        .filter(|(_, fate)| **fate != Fate::Played)
    {
        match runs.last_mut() {
            Some((first, length)) if *first + *length == number => *length += 1,
            _ => runs.push((number, 1)),
        }
    }
    runs
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn dropouts(fates: &[Fate], start: Duration) -> Vec<Freeze> {
    let step_s = INTERVAL.as_secs_f64();
    runs(fates)
        .into_iter()
        .filter(|(_, length)| *length >= DROPOUT_PKTS)
        .map(|(first, length)| Freeze {
            start_s: start.as_secs_f64() + first as f64 * step_s,
            length_s: length as f64 * step_s,
        })
        .collect()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn as_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Highest number of packets of a call: one day.
const MAX_PKTS: usize = 86_400 * 50;

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: Duration = Duration::from_millis(60);

    fn ms(ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }

    fn call(delays: &[Option<Duration>]) -> VoiceResult {
        call_of(delays, as_u64(delays.len()))
    }

    fn call_of(delays: &[Option<Duration>], sent: u64) -> VoiceResult {
        let idle = IdleDelay::constant(Duration::from_millis(20));
        judge("call", delays, sent, Duration::from_secs(1), BUFFER, &idle)
    }

    #[test]
    fn a_clean_call_is_as_good_as_the_telephone() {
        let call = call(&vec![ms(25); 500]);
        assert_eq!((call.lost_pkts, call.late_pkts), (0, 0));
        assert_eq!(call.mouth_to_ear_ms, Some(105.0));
        assert_eq!(
            (call.delay_ms.p99, call.added_ms.p99),
            (Some(25.0), Some(5.0))
        );
        assert!(call.mos > 4.3 && call.r > 89.0, "{call:?}");
        assert_eq!(call.worst_mos, Some(call.mos));
        assert!(call.dropouts.is_empty());
    }

    #[test]
    fn late_is_as_bad_as_lost() {
        let mut delays = vec![ms(25); 1_000];
        for number in (0..1_000).step_by(50) {
            delays[number] = ms(86);
        }
        let late = call(&delays);
        for delay in &mut delays {
            delay.take_if(|delay| *delay > Duration::from_millis(80));
        }
        let lost = call(&delays);
        assert_eq!((late.late_pkts, lost.lost_pkts), (20, 20));
        assert_eq!((late.unplayed, late.r), (0.02, lost.r));
        assert_eq!(late.burst_ratio, 1.0, "evenly spread");
    }

    #[test]
    fn an_outage_is_one_dropout_and_spoils_its_piece() {
        let mut delays = vec![ms(30); 1_000];
        delays[300..350].fill(None);
        delays[600..602].fill(None);
        let call = call(&delays);
        let [dropout] = call.dropouts[..] else {
            panic!("two packets are concealed: {:?}", call.dropouts);
        };
        assert!((dropout.start_s - 7.0).abs() < 1e-9 && (dropout.length_s - 1.0).abs() < 1e-9);
        assert!((call.burst_ratio - 26.0 * 0.948).abs() < 1e-9);
        assert!(call.worst_mos.expect("four pieces") < call.mos - 0.5);
    }

    #[test]
    fn what_never_came_after_the_last_arrival_is_lost_too() {
        let call = call_of(&[ms(10)], 100);
        assert_eq!(call.lost_pkts, 99);
        let silent = call_of(&[], 100);
        assert_eq!((silent.mos, silent.mouth_to_ear_ms), (1.0, None));
        let none = call_of(&[], 0);
        assert_eq!(none.unplayed, 0.0);
    }
}
