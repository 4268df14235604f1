//! "DBAS: A Deployable Bandwidth Aggregation System" (NTMS 2012): whole connections, or their chunks, over two interfaces.
//!
//! | experiment | section, figure | targets |
//! | --- | --- | --- |
//! | [`interfaces`] | IV-B1, figures 3 and 4 | R-DB-1 to 4, 7, 8 |
//! | [`applications`] | IV-B2, figure 5 | R-DB-5 |
//! | [`granularity`] | IV-B3, figure 6 | R-DB-6 |
//!
//! What runs is a fluid [`model`] around the proxy's own schedulers. The paper's figures are pictures without numbers; what
//! can be checked is what its text says of them. [`testbed`] has what all share, and what the paper leaves open.

pub mod applications;
pub mod granularity;
pub mod interfaces;
pub mod model;
pub mod testbed;

use crate::experiment::Experiment;

/// The paper's experiments, in its order.
#[must_use]
pub fn experiments() -> Vec<Experiment> {
    vec![
        interfaces::experiment(),
        applications::experiment(),
        granularity::experiment(),
    ]
}
