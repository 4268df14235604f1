//! The engine as a whole: a client and gateways' endpoints joined by simulated paths, on a virtual clock.

#[path = "engine/faults.rs"]
mod faults;
#[path = "engine/ops.rs"]
mod ops;
#[path = "engine/pair.rs"]
mod pair;
#[path = "engine/strangers.rs"]
mod strangers;
#[path = "engine/world.rs"]
mod world;
