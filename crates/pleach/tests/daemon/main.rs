//! The real daemons against the real kernel: `pleach up` in network namespaces. Needs root; says so and passes without.

mod dns;
mod doctor;
mod names;
mod onboard;
mod peers;
mod process;
mod recovery;
mod reload;
mod speedtest;
mod status;
mod traces;
mod traffic;
mod uplinks;
mod world;
