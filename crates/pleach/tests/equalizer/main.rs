//! The equalizer as a program, between two veth links. Packets are spread as configured, also while the configuration
//! changes. Links disappear and return. No changes of the host remain.

mod confined;
mod holding;
mod lab;
mod links;
#[path = "../common/rights.rs"]
mod rights;
mod shares;
mod undo;
mod world;
