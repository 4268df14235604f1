//! "Alternative Transmission Strategies for Multipath Transport of Multimedia Streams over Wireless Networks" (Becke,
//! Dreibholz, Bayer, Packeiser, Rathgeb, 2013): a stream of 8 Mbit/s over WLAN and 3G, judged by the share of packets
//! lost or late.
//!
//! | experiment | section, figure | targets |
//! | --- | --- | --- |
//! | [`strategies`] | V-A to V-C, figures 5 to 7 | R-CSN-1 to 7, 9 |
//! | [`correction`] | V-D, figure 8 | R-CSN-8 |
//!
//! [`testbed`] states the choices that the paper leaves open.

pub mod correction;
pub mod strategies;
pub mod testbed;

use crate::experiment::Experiment;

/// Returns the paper's experiments, in its order.
#[must_use]
pub fn experiments() -> Vec<Experiment> {
    vec![strategies::experiment(), correction::experiment()]
}
