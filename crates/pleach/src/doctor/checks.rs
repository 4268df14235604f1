//! The checks: each a pure verdict over facts, and an observer that gathers these.
//!
//! | module | trouble |
//! | --- | --- |
//! | [`carrier`] | UDP is blocked; what keeps TCP from carrying a link |
//! | [`clock`] | the time of day is behind |
//! | [`conntrack`] | the kernel's table of connections is full, or forgets UDP too soon |
//! | [`files`] | key files that others may read; a configuration that is wrong |
//! | [`forwarding`] | a gateway's host does not forward |
//! | [`load`] | the processor is too slow for the rate |
//! | [`mtu`] | long packets vanish on a link |
//! | [`names`] | a name of the gateway stands for no address |
//! | [`peers`] | a gateway's clients have another key or version |
//! | [`port`] | a gateway's port is taken |
//! | [`reverse_path`] | answers are taken for forged |
//! | [`routes`] | another VPN or a rule is in the way; no way at all |
//! | [`silence`] | no answer: UDP blocked, wrong key, wrong psk, nobody there |
//! | [`throttling`] | datagrams are dropped beyond a rate |
//! | [`tun`] | no TUN device, no right to use it |
//! | [`twins`] | two links are one |

pub(super) mod carrier;
pub(super) mod clock;
pub(super) mod conntrack;
pub(super) mod files;
pub(super) mod forwarding;
pub(super) mod load;
pub(super) mod mtu;
pub(super) mod names;
pub(super) mod peers;
pub(super) mod port;
pub(super) mod reverse_path;
pub(super) mod routes;
pub(super) mod silence;
pub(super) mod throttling;
pub(super) mod tun;
pub(super) mod twins;
