//! Quality of calls and videos as their listeners and viewers experience it.

use serde::{Deserialize, Serialize};

use super::{Quantiles, null_as_nan};

/// A time in which no new picture was shown or no sound was played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Freeze {
    /// Start in seconds of the run, by the sender's clock.
    #[serde(deserialize_with = "null_as_nan")]
    pub start_s: f64,
    /// Length in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub length_s: f64,
}

/// One call as its listener heard it ([`crate::voice`]).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VoiceResult {
    /// Name of the flow.
    pub flow: String,
    /// Packets sent.
    pub sent_pkts: u64,
    /// Packets that never arrived.
    pub lost_pkts: u64,
    /// Packets that arrived too late to be played.
    pub late_pkts: u64,
    /// Length of the jitter buffer, in milliseconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub buffer_ms: f64,
    /// One-way delay of the packets that arrived, in milliseconds.
    pub delay_ms: Quantiles,
    /// One-way delay minus the shortest possible delay ([`crate::idle_delay`]), in milliseconds.
    pub added_ms: Quantiles,
    /// Delay from mouth to ear in milliseconds, including the jitter buffer. `None` if no packet arrived.
    pub mouth_to_ear_ms: Option<f64>,
    /// Share of packets that were lost or late, 0..=1.
    #[serde(deserialize_with = "null_as_nan")]
    pub unplayed: f64,
    /// Mean length of runs of unplayed packets, divided by the mean length under random loss. At least 1.
    #[serde(deserialize_with = "null_as_nan")]
    pub burst_ratio: f64,
    /// Rating of the E-model, 0 to 100.
    #[serde(deserialize_with = "null_as_nan")]
    pub r: f64,
    /// Mean opinion score that follows from `r`, 1 to 4.5.
    #[serde(deserialize_with = "null_as_nan")]
    pub mos: f64,
    /// Mean opinion score of the worst 5 s, if the call lasted at least 5 s.
    pub worst_mos: Option<f64>,
    /// Pauses of at least 60 ms, which loss concealment does not fill.
    pub dropouts: Vec<Freeze>,
}

/// One video as its viewer saw it.
///
/// The player shows no damaged picture. It does not show a frame that is incomplete at its deadline, nor the frames
/// that refer to it, until the next complete key frame. Meanwhile it repeats the last picture.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VideoResult {
    /// Name of the flow.
    pub flow: String,
    /// Transport: `rtp` or `srt`.
    pub transport: String,
    /// Delay in milliseconds beyond which a packet is of no use.
    #[serde(deserialize_with = "null_as_nan")]
    pub deadline_ms: f64,
    /// Packets sent.
    pub sent_pkts: u64,
    /// Packets that never arrived. Under SRT, which drops late packets, also packets that would have arrived late.
    pub lost_pkts: u64,
    /// Packets that arrived after the deadline.
    pub late_pkts: u64,
    /// Frames sent.
    pub frames: u64,
    /// Frames of which at least one packet never arrived.
    pub frames_lost: u64,
    /// Other frames of which at least one packet arrived after the deadline.
    pub frames_late: u64,
    /// Frames not shown: lost, late, or dependent on such a frame.
    pub frames_held: u64,
    /// Times in which the picture stood still.
    pub freezes: Vec<Freeze>,
    /// Sum of the lengths of `freezes`, in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub frozen_s: f64,
    /// Structural similarity of the seen to the sent video, averaged over frames. 1: identical. `None`: not measured.
    pub ssim: Option<f64>,
    /// Structural similarity of the worst frame.
    pub ssim_min: Option<f64>,
    /// Peak signal-to-noise ratio of the seen video in dB, from the mean squared error over all frames. `None` if
    /// both videos are identical, or if the ratio was not measured.
    pub psnr_db: Option<f64>,
    /// Sent and seen pictures side by side, at the worst moments.
    pub pictures: Vec<Picture>,
}

/// A sent picture beside the picture seen at that time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Picture {
    /// Time in seconds of the run.
    #[serde(deserialize_with = "null_as_nan")]
    pub time_s: f64,
    /// Structural similarity of the two pictures.
    #[serde(deserialize_with = "null_as_nan")]
    pub ssim: f64,
    /// Path of the PNG, in the run's directory.
    pub file: String,
    /// The PNG in base64. Only in memory, for the report.
    #[serde(skip)]
    pub png_base64: String,
}
