//! `pleach proxy`: everyday traffic over several networks at once, without any support at the far end (DBAS, 2012).
//!
//! ```text
//!  application ──► handshake ──► placer: rules, sticky sites, scheduler ──► connect ──► relay ══ wifi ══► server
//!                  SOCKS, HTTP          ▲ estimate: links, applications     races        splice ══ lte ══► server
//! ```
//!
//! | module | content | does I/O |
//! | --- | --- | --- |
//! | [`handshake`] | the client's first message | no |
//! | [`http`] | HTTP/1 messages: the head of an answer, where bodies end | no |
//! | [`target`] | the client's destination | no |
//! | [`sched`] | which link a connection takes: the paper's schedulers | no |
//! | [`rules`], [`sticky`] | the user's rules; sites that tie a login to an address | no |
//! | [`budget`] | how much links may carry in a month, and how much they have carried | no |
//! | [`estimate`] | the capacity of links and the demand of applications | no |
//! | [`window`] | how much data servers may have in flight, so that links' queues stay short | no |
//! | [`stripe`] | one connection over several links, to another host that runs pleach | no |
//! | [`parts`] | one answer over several links, by ranges of its bytes | no |
//! | [`placer`] | combines these modules: the interface of the daemon and of a simulator | no |
//! | [`daemon`] | sockets, names, processes, the running proxy | yes |
//! | [`relay`] | forwards bytes, a module for each mode | yes |
//!
//! The modules without I/O have no clock, no sockets and no threads: inputs carry `now`. Without the feature `daemon`
//! only these modules are compiled. Sources, and differences from the paper: `docs/proxy.md`.

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
