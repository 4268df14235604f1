//! The cryptographic session between two ends: handshake, keys, replay protection, protection against floods.
//!
//! | module | what |
//! | --- | --- |
//! | [`entropy`], [`secret`] | where keys come from, and how they are kept |
//! | [`handshake`] | Noise IKpsk2 in one round trip: who is there, and two fresh keys |
//! | [`aead`] | seals and opens datagrams with those keys, in place |
//! | [`replay`] | which counters have been seen |
//! | [`keys`] | one session: keys, replay window per path |
//! | [`rotation`] | the sessions with one peer: change of keys without loss |
//! | [`cookie`] | mac1, mac2, cookies: whoever floods must show its address |
//! | [`limiter`] | how many handshakes are worked on |
//!
//! Nothing here draws randomness of its own: a handshake takes a seed of 32 bytes, and who needs more of them an
//! [`entropy::Entropy`]. **Each seed must be fresh and secret**, since the same seed gives the same keys.
//!
//! # Why no clock is needed against replayed initiations
//!
//! `WireGuard` puts a timestamp into message 1. The routers this runs on boot without the time of day, so that a
//! client's timestamps would go back. Instead:
//!
//! 1. **A replay brings nothing up.** The replayer cannot compute the keys of the answer. The responder keeps the new
//!    session aside ([`rotation::SessionSet`]'s `next`) until a datagram opens under it, and until then goes on sending
//!    and receiving with the old one.
//! 2. **A recent replay costs no answer.** [`limiter::RecentInitiations`] knows the last 64 ephemeral keys of each
//!    client, at least 64 initiations back.
//! 3. **A flood of replays must show an address.** Above [`limiter::HandshakeLimiter`]'s rate the responder answers
//!    only initiations that carry a cookie made for their source address, and cookies live four minutes at most.
//! 4. **An old replay cannot push out a true handshake**, if the owner asks for a cookie whenever
//!    [`rotation::SessionSet::has_unconfirmed`] says that one is under way: the replay is stuck with its old mac2.
//!
//! # Known limits
//!
//! The initiator's identity is hidden by the responder's static key only: whoever steals that key can read it in
//! recorded initiations (the Noise specification, section 7.8, IK). snow does not wipe its
//! handshake state, which holds the psk while a handshake is under way; private keys, transport keys and seeds are wiped.

pub mod aead;
pub mod cookie;
pub mod entropy;
pub mod handshake;
pub(crate) mod hash;
pub mod keys;
pub mod limiter;
mod noise;
pub mod replay;
pub mod rotation;
pub mod secret;
