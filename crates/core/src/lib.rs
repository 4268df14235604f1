//! The engine of pleach: protocol and policy of a multipath tunnel, as plain state machines.
//!
//! Nothing here reads a clock, draws ambient randomness, waits, opens a socket or starts a thread. Each call passes the
//! time as a [`time::Instant`], and packets and datagrams as buffers. Randomness is a seed at construction; keys are
//! made from an [`session::entropy::Entropy`]. The daemon (`pleach-linux`, `pleach`), the simulator (`pleach-sim`) and
//! the lab run the same types.
//!
//! # The contract of a state machine
//!
//! - `handle_*(now, …)` takes an input; `poll_*` returns an output and never blocks; `on_*` informs a part of an event.
//! - After any `handle_*`, drain every `poll_*`, then wait until `poll_timeout` or the next input.
//! - `now` never decreases. Once drained at `now`, `poll_timeout` lies after `now`.
//! - Every buffer and table has a stated bound. Every packet is delivered, queued, or counted under one
//!   [`counters::DropReason`].
//!
//! # Without sessions
//!
//! The modules [`session`], [`tunnel`], [`endpoint`] and [`wire::handshake`] need the feature `session`, which is on by
//! default. Without the feature, the crate depends on no cipher. It then offers estimators, schedulers, queue,
//! resequencer, FEC and wire formats to a program that has its own encryption or none.
//!
//! # Modules
//!
//! | module | what |
//! | --- | --- |
//! | [`time`], [`units`], [`ids`], [`role`], [`rng`], [`counters`] | basic types |
//! | [`packet`] | inner packets, their five-tuple, pooled buffers |
//! | [`class`] | traffic classes and their requirements: voice, video, or as the user configures |
//! | [`compression`] | header compression for inner packets: only the fields that change are sent |
//! | [`wire`] | the formats of datagrams |
//! | [`session`] | handshake, keys, replay windows, cookies |
//! | [`path`] | the model of one path: RTT, delay, rate, loss, health; pacing |
//! | [`profile`] | the mechanisms a tunnel uses besides path selection, and switches for each of them |
//! | [`queue`] | the tunnel queue: flow queueing with CoDel |
//! | [`sched`] | which path a packet takes: one policy per file |
//! | [`resequencer`] | the order in which received packets are delivered |
//! | [`loss_report`] | loss reports per path, for policies that use them |
//! | [`fec`] | repair symbols, from which lost packets are recovered |
//! | [`sec`] | parity that corrects bit errors in datagrams |
//! | [`tunnel`] | one association of two ends; connects the modules above and contains no algorithm |
//! | [`trace`] | decisions as typed events, and the reason why a path is idle |
//! | [`transmit`] | datagrams ready to send, in batches |
//! | [`endpoint`] | all associations of a host: finds the association of a packet |
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "session"),
    expect(
        dead_code,
        unused_imports,
        reason = "the tunnel, their only user, is left out"
    )
)]

pub mod class;
pub mod compression;
pub mod counters;
#[cfg(feature = "session")]
pub mod endpoint;
pub mod fec;
pub mod flows;
pub mod ids;
pub mod loss_report;
pub mod mark;
#[cfg(feature = "session")]
mod meter;
pub mod packet;
pub mod path;
pub mod profile;
pub mod queue;
pub mod resequencer;
pub mod rng;
pub mod role;
pub mod sched;
pub mod sec;
#[cfg(feature = "session")]
pub mod session;
pub mod time;
pub mod trace;
pub mod transmit;
#[cfg(feature = "session")]
pub mod tunnel;
pub mod units;
pub mod wire;
