//! Probe up and cruise: the path is paced slightly above its capacity, so that additional capacity or a queue becomes visible.

/// Pacing gain of probe up, in percent. Used while the standing queue is below `low`.
pub(super) const PROBE_UP_PERCENT: u64 = 110;
/// Pacing gain of cruise, in percent. Used while the standing queue is between `low` and `high`.
pub(super) const CRUISE_PERCENT: u64 = 103;
