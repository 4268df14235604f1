//! "OSIA: Out-of-order Scheduling for In-order Arriving in concurrent multi-path transfer" (2012): schedulers by the
//! disorder they make, and what that costs.
//!
//! | experiment | section, figure | targets |
//! | --- | --- | --- |
//! | [`ratios`] | 5.2, 5.3, figures 7 and 8 | R-OS-1, 2 |
//! | [`paths`] | 5.4, table 1, figure 9 | R-OS-3 |
//! | [`in_order`] | 3.3, table 1 | R-OS-4, 5 |
//!
//! The paper was simulated only, and with a transport of its own, so there is no lab: what runs are transfers
//! ([`pleach_sim::transfer`]). Its figures are drawn in three dimensions without numbers; what can be checked is what its text
//! says of them. [`testbed`] has what all share.

pub mod in_order;
pub mod paths;
pub mod ratios;
pub mod testbed;

use crate::experiment::Experiment;

/// The paper's experiments, in its order.
#[must_use]
pub fn experiments() -> Vec<Experiment> {
    vec![
        ratios::experiment(),
        paths::experiment(),
        in_order::experiment(),
    ]
}
