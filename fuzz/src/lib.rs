//! The bodies of the fuzz targets, one file each: bytes in, a panic for a fault.
//!
//! `fuzz_targets/` gives them to libFuzzer (`./dev fuzz`). `crates/proxy/tests/corpus.rs` includes this file and replays
//! `corpus/` with the compiler that builds everything else. What a target checks stands in the head of its file.

pub mod chunks;
pub mod compression;
pub mod control_frames;
pub mod fec;
pub mod handshake;
pub mod header;
pub mod heap;
pub mod hostile_peer;
pub mod http_answer;
pub mod kernel_input;
pub mod packet;
pub mod proxy_request;
pub mod ranges;
pub mod resequencer;
pub mod sec;
pub mod stripe;
pub mod tun_packets;

/// A target: its name, as in `fuzz_targets/` and `corpus/`, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of the engine, of the proxy's parsers, and of what the kernel gives.
pub const TARGETS: [Target; 16] = [
    ("chunks", chunks::run),
    ("compression", compression::run),
    ("control_frames", control_frames::run),
    ("fec", fec::run),
    ("handshake", handshake::run),
    ("header", header::run),
    ("hostile_peer", hostile_peer::run),
    ("http_answer", http_answer::run),
    ("kernel_input", kernel_input::run),
    ("packet", packet::run),
    ("proxy_request", proxy_request::run),
    ("ranges", ranges::run),
    ("resequencer", resequencer::run),
    ("sec", sec::run),
    ("stripe", stripe::run),
    ("tun_packets", tun_packets::run),
];
