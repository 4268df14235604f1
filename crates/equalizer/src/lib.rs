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
//! | [`sequence`] | whose turn it is: slots for packets, credit for bytes | no |
//! | [`flowlet`] | what a turn is given to: a packet, a flowlet, a flow | no |
//! | [`splitter`] | joins these two: what the kernel does, in plain Rust | no |
//! | [`delay_equalizer`] | how long packets of quick links wait so that all arrive together | no |
//! | [`hold_queue`] | the packets that wait | no |
//! | [`auto`] | weights from what links carry and what others use of it | no |
//! | [`background`] | what others send over a link | no |
//! | [`guideline`] | the paper's three rules about loss and delay | no |
//! | [`passive`] | loss and delay of links from connections on them | no |
//! | [`weights`] | joins these: the one thing the daemon, and a simulator, talk to | no |
//! | [`daemon`] | joins them to the kernel | yes |
//!
//! The modules without I/O have no clock, no sockets and no threads: inputs carry `now`. They are what is left with the
//! feature `daemon` off. Sources, and how we differ from the paper: `docs/equalizer.md`.

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

/// Most links an equalizer has; they are numbered from 0 in the order of the configuration.
pub const MAX_LINKS: usize = 16;
