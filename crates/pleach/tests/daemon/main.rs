//! Tests the real daemons against the real kernel: `pleach up` in network namespaces. Without root rights, the tests
//! print a message and pass.

#[cfg(feature = "dashboard")]
#[path = "../common/browser.rs"]
mod browser;
mod budgets;
mod carrier;
mod closed;
mod confined;
#[cfg(feature = "dashboard")]
mod dashboard;
#[path = "../common/database.rs"]
mod database;
mod dns;
mod doctor;
mod figures;
mod fleet;
mod flows;
mod gateways;
#[cfg(feature = "dashboard")]
mod metrics;
mod names;
#[cfg(feature = "dashboard")]
mod notices;
mod onboard;
mod peers;
mod portals;
mod process;
mod recovery;
mod reload;
#[path = "../common/rights.rs"]
mod rights;
mod rules;
#[path = "../common/service.rs"]
mod service;
mod speedtest;
mod split_tcp;
mod status;
mod stored;
#[cfg(feature = "dashboard")]
mod top;
mod traces;
mod traffic;
mod uplinks;
mod workers;
mod world;
