//! "DBAS: A Deployable Bandwidth Aggregation System" (NTMS 2012): whole connections, or chunks of them, over two
//! interfaces.
//!
//! | experiment | section, figure | targets |
//! | --- | --- | --- |
//! | [`interfaces`] | IV-B1, figures 3 and 4 | R-DB-1 to 4, 7, 8 |
//! | [`applications`] | IV-B2, figure 5 | R-DB-5 |
//! | [`granularity`] | IV-B3, figure 6 | R-DB-6 |
//!
//! The experiments run a fluid [`model`] around the proxy's own schedulers. The paper's figures contain no numbers,
//! so only the statements of its text can be checked. [`testbed`] has the common settings, and the choices that the
//! paper leaves open.

pub mod applications;
pub mod granularity;
pub mod interfaces;
pub mod model;
pub mod testbed;

use crate::experiment::Experiment;

/// Returns the paper's experiments, in its order.
#[must_use]
pub fn experiments() -> Vec<Experiment> {
    vec![
        interfaces::experiment(),
        applications::experiment(),
        granularity::experiment(),
    ]
}
