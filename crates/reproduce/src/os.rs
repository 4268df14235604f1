//! "OSIA: Out-of-order Scheduling for In-order Arriving in concurrent multi-path transfer" (2012): compares
//! schedulers by the reordering that they cause, and by its cost.
//!
//! | experiment | section, figure | targets |
//! | --- | --- | --- |
//! | [`ratios`] | 5.2, 5.3, figures 7 and 8 | R-OS-1, 2 |
//! | [`paths`] | 5.4, table 1, figure 9 | R-OS-3 |
//! | [`in_order`] | 3.3, table 1 | R-OS-4 to 6 |
//!
//! The paper has only simulations, with a transport of its own, so there is no lab: the experiments run transfers
//! ([`pleach_sim::transfer`]). Its figures are three-dimensional and contain no numbers, so only the statements of
//! its text can be checked. [`testbed`] has the common settings.

pub mod in_order;
pub mod paths;
pub mod ratios;
pub mod testbed;

use crate::experiment::Experiment;

/// Returns the paper's experiments, in its order.
#[must_use]
pub fn experiments() -> Vec<Experiment> {
    vec![
        ratios::experiment(),
        paths::experiment(),
        in_order::experiment(),
    ]
}
