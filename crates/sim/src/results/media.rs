//! What calls and videos were like for those who heard and saw them.

use serde::{Deserialize, Serialize};

use super::{Quantiles, null_as_nan};

/// A time in which nothing new was seen or heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Freeze {
    /// When it began, in seconds of the run; by the sender's clock.
    #[serde(deserialize_with = "null_as_nan")]
    pub start_s: f64,
    /// How long it lasted, in seconds.
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
    /// Packets that never came.
    pub lost_pkts: u64,
    /// Packets that came too late to be played.
    pub late_pkts: u64,
    /// Length of the jitter buffer, in milliseconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub buffer_ms: f64,
    /// One-way delay of what came, in milliseconds.
    pub delay_ms: Quantiles,
    /// Of this, what is beyond the quickest link's while idle ([`crate::idle_delay`]), in milliseconds.
    pub added_ms: Quantiles,
    /// From mouth to ear, jitter buffer included, in milliseconds; `None` if nothing came.
    pub mouth_to_ear_ms: Option<f64>,
    /// Share of packets lost or late, 0..=1.
    #[serde(deserialize_with = "null_as_nan")]
    pub unplayed: f64,
    /// How many times longer runs of them are than chance would make them, at least 1.
    #[serde(deserialize_with = "null_as_nan")]
    pub burst_ratio: f64,
    /// Rating of the E-model, 0 to 100.
    #[serde(deserialize_with = "null_as_nan")]
    pub r: f64,
    /// Mean opinion score that follows, 1 to 4.5.
    #[serde(deserialize_with = "null_as_nan")]
    pub mos: f64,
    /// The same of the worst 5 s, if the call lasted so long.
    pub worst_mos: Option<f64>,
    /// Pauses of 60 ms and more that no concealment fills.
    pub dropouts: Vec<Freeze>,
}

/// One video as its viewer saw it.
///
/// The player shows no broken picture: a frame that is not whole in time, and all that refer to it until the next whole
/// key frame, are not shown; the last picture stands still.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VideoResult {
    /// Name of the flow.
    pub flow: String,
    /// What it travels in: `rtp` or `srt`.
    pub transport: String,
    /// Packets that take longer than this are of no use, in milliseconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub deadline_ms: f64,
    /// Packets sent.
    pub sent_pkts: u64,
    /// Packets that never came; under SRT, which gives up what is late, all that are of no use.
    pub lost_pkts: u64,
    /// Packets that came after the deadline.
    pub late_pkts: u64,
    /// Frames sent.
    pub frames: u64,
    /// Frames of which a packet never came.
    pub frames_lost: u64,
    /// Other frames of which a packet came after the deadline.
    pub frames_late: u64,
    /// Frames not shown: lost, late, or made of what was.
    pub frames_held: u64,
    /// When the picture stood still.
    pub freezes: Vec<Freeze>,
    /// Their lengths together, in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub frozen_s: f64,
    /// Structural similarity of what was seen to what was sent, a mean over frames; 1: the same. `None`: not measured.
    pub ssim: Option<f64>,
    /// The same of the worst frame.
    pub ssim_min: Option<f64>,
    /// Peak signal-to-noise ratio of the same, in dB, of the mean squared error over all frames; `None` if nothing
    /// differs, or if it was not measured.
    pub psnr_db: Option<f64>,
    /// Sent and seen side by side, at the worst moments.
    pub pictures: Vec<Picture>,
}

/// What was sent beside what was seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Picture {
    /// When, in seconds of the run.
    #[serde(deserialize_with = "null_as_nan")]
    pub time_s: f64,
    /// Structural similarity.
    #[serde(deserialize_with = "null_as_nan")]
    pub ssim: f64,
    /// Path of the PNG, in the run's directory.
    pub file: String,
    /// The PNG in base64; only in memory, for the report.
    #[serde(skip)]
    pub png_base64: String,
}
