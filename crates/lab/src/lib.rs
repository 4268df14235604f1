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
//! In scenarios with equalizers, links are TAP instead of TUN devices. The [`emulator`] drives `pleach-sim`'s link
//! model with real packets and the real clock. Daemons run as child processes in client and gateway, traffic programs
//! ([`traffic`]) as threads. Their measurements become `pleach-sim`'s results and report. Nothing outlives the process,
//! even if it is killed: namespaces, devices and daemons end with its descriptors and threads.
//!
//! The lab needs root, or a kernel that permits users to create user namespaces; `/dev/net/tun`; `ip` (iproute2); for
//! films `ffmpeg`.

pub mod crowd;
mod daemon;
pub mod emulator;
pub mod halted;
pub mod hostile;
mod media;
pub mod netns;
pub mod parity;
pub mod run;
pub mod soak;
pub mod topology;
pub mod traffic;
mod wait;

pub use run::{Options, run};
