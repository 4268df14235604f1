//! The whole engine: endpoints of a client and of gateways, connected by simulated paths, on a virtual clock.
#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of hosts, paths and packets are small here"
)]

#[path = "engine/awi.rs"]
mod awi;
#[path = "engine/classes.rs"]
mod classes;
#[path = "engine/clients.rs"]
mod clients;
#[path = "engine/faults.rs"]
mod faults;
#[path = "engine/frames.rs"]
mod frames;
#[path = "engine/memory.rs"]
mod memory;
#[path = "engine/mtu.rs"]
mod mtu;
#[path = "engine/ops.rs"]
mod ops;
#[path = "engine/osia.rs"]
mod osia;
#[path = "engine/pair.rs"]
mod pair;
#[path = "engine/ranks.rs"]
mod ranks;
#[path = "engine/repair.rs"]
mod repair;
#[path = "engine/resting.rs"]
mod resting;
#[path = "engine/roaming.rs"]
mod roaming;
#[path = "engine/strangers.rs"]
mod strangers;
#[path = "engine/world.rs"]
mod world;
