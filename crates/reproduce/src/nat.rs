//! "NATALIE: An Adaptive, Network-Aware Traffic Equalizer" (2007): one TCP flow is distributed over two links by the
//! sender alone.
//!
//! | experiment | section, figure | targets |
//! | --- | --- | --- |
//! | [`delays`] | IV.A, figures 2 to 4 | R-NAT-1 to 4 |
//! | [`losses`] | IV.B, figure 5 | R-NAT-5, 6 |
//! | [`weights`] | IV.B, figure 6 | R-NAT-7 to 9 |
//! | [`background`] | V, figure 7 | R-NAT-10 |
//!
//! [`testbed`] has the common settings: the links, the two kinds of TCP, and the choices that the paper leaves open.

pub mod background;
pub mod delays;
pub mod losses;
pub mod testbed;
pub mod weights;

use crate::experiment::Experiment;

/// Returns the paper's experiments, in its order.
#[must_use]
pub fn experiments() -> Vec<Experiment> {
    vec![
        delays::experiment(),
        losses::experiment(),
        weights::experiment(),
        background::experiment(),
    ]
}
