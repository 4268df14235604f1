//! What a proxy keeps over a restart, as plain data.

use pleach_core::units::Bitrate;

use crate::estimate::application::Demand;

/// What is worth keeping over a restart.
#[derive(Clone, Debug, Default)]
pub struct Learnt {
    /// What applications, and ports as `:PORT`, ask for.
    pub demands: Vec<(String, Demand)>,
    /// Of each link its name and what it carries up and down; zero if not known.
    pub links: Vec<(String, Bitrate, Bitrate)>,
    /// What links with budgets carried in the months that began on a day, counted from 1970-01-01.
    pub usage: Vec<(String, i32, u64)>,
}
