//! `pleach equalize`: packets spread over several links by weight, by the sender alone (NATALIE, 2007).
//!
//! ```text
//!  device counters, own counters, links up and down ──► weights: fixed, live, auto ──► guideline ──► shares
//!                                                                                                       │
//!  packets to `destinations` ──► kernel: BPF at tc, or nftables ◄── sequence of slots, or credit ◄──────┘
//! ```
//!
//! | module | what | does I/O |
//! | --- | --- | --- |
//! | [`sequence`] | which link is next: slots for packets, credit for bytes | no |
//! | [`flowlet`] | unit of spreading: a packet, a flowlet, a flow | no |
//! | [`splitter`] | combines these two: the kernel's part, in plain Rust | no |
//! | [`delay_equalizer`] | how long packets of links with a short delay wait so that all arrive together | no |
//! | [`hold_queue`] | the delayed packets | no |
//! | [`auto`] | weights from the rates of links and the traffic of others | no |
//! | [`background`] | the traffic of others on a link | no |
//! | [`guideline`] | the paper's three rules about loss and delay | no |
//! | [`passive`] | loss and delay of links from connections on them | no |
//! | [`weights`] | combines these: the interface to the daemon and to simulators | no |
//! | [`daemon`] | connects them with the kernel | yes |
//!
//! The modules without I/O have no clock, no sockets and no threads: inputs carry `now`. Without the feature `daemon`,
//! only these modules remain. Sources, and differences from the paper: `docs/equalizer.md`.

#![forbid(unsafe_code)]

pub mod auto;
pub mod background;
#[cfg(feature = "daemon")]
pub mod daemon;
pub mod delay_equalizer;
pub mod flowlet;
pub mod guideline;
pub mod hold_queue;
pub mod passive;
pub mod sequence;
pub mod splitter;
pub mod weights;

/// Highest number of links of an equalizer. Links are numbered from 0 in the order of the configuration.
pub const MAX_LINKS: usize = 16;
