//! `pleach proxy`: everyday traffic over several networks at once, with nothing at the far end (DBAS, 2012).
//!
//! ```text
//!  application ──► handshake ──► placer: rules, sticky sites, scheduler ──► connect ──► relay ══ wifi ══► server
//!                  SOCKS, HTTP          ▲ estimate: links, applications     races        splice ══ lte ══► server
//! ```
//!
//! | module | what | does I/O |
//! | --- | --- | --- |
//! | [`handshake`] | what a client says first | no |
//! | [`http`] | HTTP/1 messages: what an answer says first, where bodies end | no |
//! | [`target`] | where it wants to go | no |
//! | [`sched`] | which link a connection takes: the paper's schedulers | no |
//! | [`rules`], [`sticky`] | what the user says; sites that tie a login to an address | no |
//! | [`budget`] | what links may carry in a month, and have carried | no |
//! | [`estimate`] | what links carry and what applications ask for | no |
//! | [`window`] | how much servers may have on the way, so that links' queues stay short | no |
//! | [`stripe`] | one connection over several links, to another pleach | no |
//! | [`parts`] | one answer over several links, by ranges of its bytes |
//! | [`placer`] | joins these: the one thing the daemon, and a simulator, talk to | no |
//! | [`daemon`] | sockets, names, processes, the running proxy | yes |
//! | [`relay`] | moving bytes, a module for each mode | yes |
//!
//! The modules without I/O have no clock, no sockets and no threads: inputs carry `now`. They are what is left with the
//! feature `daemon` off. Sources, and how we differ from the paper: `docs/proxy.md`.

#![forbid(unsafe_code)]

pub mod budget;
#[cfg(feature = "daemon")]
pub mod daemon;
pub mod estimate;
pub mod handshake;
pub mod http;
pub mod parts;
pub mod placer;
#[cfg(feature = "daemon")]
pub mod relay;
pub mod rules;
pub mod sched;
pub mod sticky;
pub mod stripe;
pub mod target;
pub mod window;
