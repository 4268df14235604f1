//! The real daemons against the real kernel: `pleach up` in network namespaces. Needs root; says so and passes without.

mod closed;
#[cfg(feature = "dashboard")]
mod dashboard;
#[cfg(feature = "dashboard")]
mod metrics;
mod onboard;
mod peers;
mod process;
mod recovery;
mod status;
#[cfg(feature = "dashboard")]
mod top;
mod traces;
mod traffic;
mod uplinks;
mod world;
