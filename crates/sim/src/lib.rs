//! Emulated links, the scenario files that describe them, and a simulator that runs the engine over them.
//!
//! The same link model runs on two clocks: [`link::Link`] is a state machine, and every call passes it the time. The
//! simulator ([`run`](mod@run)) runs it on virtual time; the lab runs it on real packets between network namespaces.
//! Both run one [`scenario::Scenario`] in the same [`phases`] and fill the records of [`measure`]. [`collect`] turns
//! these records into [`results`], and [`report`] turns results into a page. [`sweep`] simulates many variants of a
//! scenario. Nothing here reads a clock, does I/O or draws ambient randomness.
#![forbid(unsafe_code)]

pub mod addresses;
pub mod bonds;
pub mod collect;
pub mod emodel;
pub mod idle_delay;
pub mod link;
pub mod measure;
pub mod pattern;
pub mod phases;
mod quic;
pub mod report;
pub mod results;
pub mod run;
pub mod scenario;
pub mod sweep;
pub mod tcp;
mod traffic;
pub mod transfer;
pub mod voice;
mod world;
