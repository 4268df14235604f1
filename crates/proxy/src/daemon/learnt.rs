//! State that a proxy stores across restarts, as plain data.

use pleach_core::units::Bitrate;

use crate::estimate::application::Demand;

/// State that is stored across restarts.
#[derive(Clone, Debug, Default)]
pub struct Learnt {
    /// Demand of applications, and of ports, written `:PORT`.
    pub demands: Vec<(String, Demand)>,
    /// Name of each link, and its estimated capacity up and down; zero if the capacity is not known.
    pub links: Vec<(String, Bitrate, Bitrate)>,
    /// Bytes that links with budgets carried: name of the link, first day of the month (in days since 1970-01-01),
    /// and bytes.
    pub usage: Vec<(String, i32, u64)>,
}
