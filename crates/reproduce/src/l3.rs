//! "Multipath bonding at Layer 3" (ANRW 2016): weighted round robin over DSL and LTE, with weights that follow the
//! losses on the DSL.
//!
//! | experiment | section, figure | targets |
//! | --- | --- | --- |
//! | [`single_flow`] | 5.2, figure 3 | R-L3-1 to 10, 15, 16 |
//! | [`multiple_flows`] | 5.3, figures 4 and 5 | R-L3-11, 12 |
//! | [`tcp_cross_traffic`] | 5.4, figure 6 | R-L3-13 |
//! | [`tcp_shares`] | 5.4, in the text | R-L3-14 |
//!
//! [`testbed`] has the common settings: the lines, packet sizes, and the choices that the paper leaves open.

pub mod multiple_flows;
pub mod single_flow;
pub mod tcp_cross_traffic;
pub mod tcp_shares;
pub mod testbed;

use crate::experiment::Experiment;

/// Returns the paper's experiments, in its order.
#[must_use]
pub fn experiments() -> Vec<Experiment> {
    vec![
        single_flow::experiment(),
        multiple_flows::experiment(),
        tcp_cross_traffic::experiment(),
        tcp_shares::experiment(),
    ]
}
