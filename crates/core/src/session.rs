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
//! | [`seen`] | which initiations were read before |
//!
//! Nothing here draws randomness of its own: a handshake takes a seed of 32 bytes, and who needs more of them an
//! [`entropy::Entropy`]. **Each seed must be fresh and secret**, since the same seed gives the same keys.
//!
//! # Recorded initiations
//!
//! `WireGuard` puts a timestamp into message 1 and keeps the greatest of each peer. The routers this runs on boot without
//! the time of day, so that a client's timestamps may go back, and a gateway forgets them when it restarts. So here:
//!
//! 1. **An initiation is fresh or proved.** Fresh: its time is later than all of its sender, and not before the gateway's
//!    start. Proved: a cookie in it shows the source address. Neither holds for a recorded one, and a client with a wrong
//!    clock is asked for a proof, which costs a round trip (`endpoint::handshakes`).
//! 2. **An initiation is read once.** [`seen::SeenInitiations`] knows its mac1 for as long as its cookie is good.
//! 3. **After an unproved initiation was read in vain, only proved ones are read** for a minute
//!    ([`limiter::HandshakeLimiter`]).
//! 4. **A replay brings nothing up.** The replayer cannot compute the keys of the answer. The responder keeps the new
//!    session aside ([`rotation::SessionSet`]'s `next`) until a datagram opens under it, and until then goes on sending
//!    and receiving with the old one.
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
pub mod invitation;
pub mod keys;
pub mod limiter;
mod noise;
pub mod replay;
pub mod rotation;
pub mod secret;
pub mod seen;
