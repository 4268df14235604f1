//! Emulated links, the scenario files that describe them, and a simulator that runs the engine over them.
//!
//! One link model, two clocks: [`link::Link`] is a state machine that gets the time with every call. The simulator
//! ([`run`](mod@run)) runs it on virtual time, the lab on real packets between network namespaces. One
//! [`scenario::Scenario`] feeds both, in the same [`phases`]; what both [`measure`] becomes [`results`] ([`collect`]) and a
//! [`report`]. Nothing here reads a clock, does I/O or draws ambient randomness.
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
pub mod tcp;
mod traffic;
pub mod transfer;
pub mod voice;
mod world;
