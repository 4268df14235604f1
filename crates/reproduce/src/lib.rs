//! Experiments of published papers, measured again.
//!
//! Each paper has a module with its experiments ([`l3`], [`csn`], [`os`], [`dbas`], [`nat`]). An [`Experiment`]
//! consists of:
//!
//! - [`Cell`]s, which are the units that run. A cell is a scenario file that `pleach sim run` and `pleach lab run`
//!   accept unchanged, a workload ([`dbas::model`]), a transfer ([`pleach_sim::transfer`]) or an experiment with
//!   error correction ([`csn::correction`]). Transfers and error correction run in the simulator only.
//! - [`Target`]s, which are the published statements. A target has an id and checks. Each check has the published
//!   value, the range of values that count as equal to it, the reason for that range, and the function that computes
//!   the value from the results.
//!
//! [`run()`] writes the scenarios, runs them in one *world* (simulator or lab), stores the results and judges the
//! targets. All files are below one directory. Table and page are made from all results in this directory, so they
//! also contain the results of earlier calls in the other world:
//!
//! ```text
//! DIR/scenarios/CELL.toml       what ran; transfers lie in DIR/transfers, workloads in DIR/workloads
//! DIR/runs/sim/CELL.json        what it gave, as `results.json` of a run; likewise lab
//! DIR/results.json              one record a target
//! DIR/report.html               the same as a table, and the figures, simulated and lab side by side
//! ```
//!
//! The results of a scenario are removed when the scenario changes. Results of another build of the program do not
//! count. The caller provides the function that runs a scenario ([`Runner`]).

mod calibration;
pub mod csn;
pub mod dbas;
mod evaluate;
mod experiment;
mod kept;
pub mod l3;
pub mod nat;
pub mod os;
mod registry;
mod report;
mod run;
mod runs;
pub mod series;

pub use calibration::{CALIBRATIONS, Calibration, Without};
pub use evaluate::{Measured, Part, Record, Spread, Values, Verdict, evaluate};
pub use experiment::{
    Cell, Check, Draw, Experiment, Figure, Kind, Measure, Panel, Range, Role, Source, Target,
};
pub use kept::{Kept, KeptTarget, KeptWorld, Origin, keep};
pub use registry::{Unknown, all, list, select};
pub use report::{html, markdown::markdown, table};
pub use run::{Extent, Runner, SEEDS, Series, run};
pub use runs::{Directory, Runs, SEEDS_MAX, Worlds};
