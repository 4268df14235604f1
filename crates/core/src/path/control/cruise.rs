//! Probe up and cruise: a little more is sent than the path carries, so that more capacity and a queue are seen.

/// Pacing gain of probe up, in percent: without a queue.
pub(super) const PROBE_UP_PERCENT: u64 = 110;
/// Pacing gain of cruise, in percent: with a short queue.
pub(super) const CRUISE_PERCENT: u64 = 103;
