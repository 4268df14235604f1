//! The cryptographic session between two ends: handshake, keys, replay protection, protection against floods.
//!
//! | module | what |
//! | --- | --- |
//! | [`entropy`], [`secret`] | the source of keys, and their storage |
//! | [`handshake`] | Noise IKpsk2 in one round trip: authentication, and two fresh keys |
//! | [`aead`] | encrypts and decrypts datagrams with those keys, in place |
//! | [`replay`] | the replay window: which counters have been seen |
//! | [`keys`] | one session: keys, replay window per path |
//! | [`rotation`] | the sessions with one peer: change of keys without loss |
//! | [`cookie`] | mac1, mac2, cookies: under a flood, senders must prove their addresses |
//! | [`limiter`] | the limit on the rate of handshakes |
//! | [`seen`] | which initiations were read before |
//!
//! No module here draws randomness of its own: a handshake takes a seed of 32 bytes, and parts that need more take an
//! [`entropy::Entropy`]. **Each seed must be fresh and secret**, since the same seed gives the same keys.
//!
//! # Recorded initiations
//!
//! `WireGuard` puts a timestamp into message 1 and stores the latest timestamp of each peer. The routers on which
//! pleach runs boot without the time of day, so a client's timestamps may decrease, and a gateway forgets the
//! timestamps when it restarts. Therefore:
//!
//! 1. **An initiation is fresh or proved.** It is fresh if its timestamp is later than all earlier timestamps of its
//!    sender and not before the gateway's start. It is proved if a cookie in it proves the source address. A recorded
//!    initiation is neither. A client with a wrong clock is asked for a proof, which costs an RTT
//!    (`endpoint::handshakes`).
//! 2. **An initiation is read once.** [`seen::SeenInitiations`] remembers its mac1 for as long as its cookie is valid.
//! 3. **After an unproved initiation turned out to be useless, only proved initiations are read** for a minute
//!    ([`limiter::HandshakeLimiter`]).
//! 4. **A replay activates no session.** The sender of a replay cannot compute the keys of the answer. The responder
//!    keeps the new session inactive ([`rotation::SessionSet`]'s `next`) until it decrypts a datagram with the new
//!    keys. Until then it continues to send and receive with the old session.
//!
//! # Known limits
//!
//! The initiator's identity is hidden only by the responder's static key: whoever steals that key can read the identity
//! in recorded initiations (the Noise specification, section 7.8, IK). snow does not wipe its handshake state, which
//! contains the psk during a handshake; private keys, transport keys and seeds are wiped.

pub mod aead;
pub mod cookie;
pub mod entropy;
pub mod handshake;
pub(crate) mod hash;
pub mod invitation;
pub mod keys;
pub mod limiter;
mod noise;
mod per_lane;
pub mod replay;
pub mod rotation;
pub mod secret;
pub mod seen;
