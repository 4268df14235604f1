//! The proxy as a program, between emulated links: what comes through is what was sent, over both links; what is wrong
//! is told clearly, and nothing stays behind.

mod bad_input;
mod budgets;
mod cgroup;
mod client;
mod invitations;
mod links;
mod peers;
mod ranges;
mod relay;
mod requests;
mod set;
mod stripe;
mod transparent;
mod world;
