//! The lab: real kernels and real daemons over emulated links.
//!
//! [`run()`] takes a scenario and builds its world from network namespaces of this machine ([`topology`]):
//!
//! ```text
//!            link 0: TUN <-> emulator <-> TUN
//!  client ─┬──────────────────────────────────┬─ gateway ──── veth ──── server
//!          └──────────────────────────────────┘  203.0.113.5            10.99.0.2
//!            link n                              2001:db8::5            fd99::2
//! ```
//!
//! Where a scenario has equalizers it is TAP in place of TUN. The [`emulator`] drives `pleach-sim`'s link model with real
//! packets and the real clock. Daemons run as child processes in client and gateway, traffic programs ([`traffic`]) as
//! threads. What they measured becomes `pleach-sim`'s results and report. Nothing outlives the process, not even when it
//! is killed: namespaces, devices and daemons hang on its descriptors and threads.
//!
//! Needs root, or a kernel that lets users make user namespaces; `/dev/net/tun`; `ip` (iproute2); for films `ffmpeg`.

pub mod emulator;
mod media;
pub mod netns;
pub mod parity;
pub mod run;
pub mod topology;
pub mod traffic;
mod wait;

pub use run::{Options, run};
