//! The real daemons against the real kernel: `pleach up` in network namespaces. Needs root; says so and passes without.

mod carrier;
mod closed;
#[cfg(feature = "dashboard")]
mod dashboard;
mod dns;
mod doctor;
#[cfg(feature = "dashboard")]
mod metrics;
mod names;
mod onboard;
mod peers;
mod process;
mod recovery;
mod reload;
mod speedtest;
mod split_tcp;
mod status;
#[cfg(feature = "dashboard")]
mod top;
mod traces;
mod traffic;
mod uplinks;
mod world;
