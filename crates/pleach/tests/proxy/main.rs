//! Tests of the proxy process between emulated links. Data arrives unchanged and over both links, errors are reported
//! clearly, and the proxy leaves no resources behind.

mod bad_input;
#[cfg(feature = "dashboard")]
#[allow(dead_code, reason = "the tests of the daemons use the rest")]
#[path = "../common/browser.rs"]
mod browser;
mod budgets;
mod cgroup;
mod client;
mod confined;
#[cfg(feature = "dashboard")]
mod dashboard;
mod datagrams;
mod invitations;
mod links;
mod peers;
mod quic;
mod ranges;
mod relay;
mod requests;
#[path = "../common/rights.rs"]
mod rights;
mod set;
mod stripe;
mod transparent;
mod world;
