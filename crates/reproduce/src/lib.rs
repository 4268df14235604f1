//! Published figures, measured again.
//!
//! A paper is a folder of experiments ([`l3`], [`csn`], [`os`], [`dbas`], [`nat`]). An [`Experiment`] has [`Cell`]s, each a scenario file that
//! `pleach sim run` and `pleach lab run` take as it is, or a workload ([`dbas::model`]), or a transfer ([`pleach_sim::transfer`]), which
//! only the simulator has, and [`Target`]s, each with an id, what was published, the range
//! in which a measurement counts as the same with the reason for that range, and how it is read off the results.
//!
//! [`run()`] writes the scenarios, runs them in one world, keeps their results and judges. All of it lies below one
//! directory, and table and page are made from what is there, so what an earlier call measured in the other world
//! stands beside what this one did:
//!
//! ```text
//! DIR/scenarios/CELL.toml       what ran; transfers lie in DIR/transfers, workloads in DIR/workloads
//! DIR/runs/sim/CELL.json        what it gave, as `results.json` of a run; likewise lab
//! DIR/results.json              one record a target
//! DIR/report.html               the same as a table, and the figures, simulated and lab side by side
//! ```
//!
//! Results of a scenario that has changed since are removed, and those of another build of the program do not count, so nothing is
//! judged by what it was not made for.
//! What runs a scenario is the caller's business ([`Runner`]).

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
