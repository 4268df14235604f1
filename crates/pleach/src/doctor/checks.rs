//! The checks. Each has a pure function that judges facts, and an observer that collects these facts.
//!
//! | module | problem |
//! | --- | --- |
//! | [`carrier`] | UDP is blocked; what keeps TCP from carrying a link |
//! | [`clock`] | the clock of the host is behind |
//! | [`conntrack`] | the connection tracking table is full, or its UDP timeout is too short |
//! | [`files`] | key files that others may read; mistakes in a configuration |
//! | [`forwarding`] | a gateway's host does not forward packets |
//! | [`gateways`] | a gateway that is not in use could not take over |
//! | [`load`] | the CPU is too slow for the rate |
//! | [`mtu`] | long packets are lost on a link |
//! | [`names`] | a host name of the gateway has no address |
//! | [`peers`] | clients of a gateway have another key or version |
//! | [`port`] | a gateway's port is in use |
//! | [`portal`] | a captive portal asks for a login |
//! | [`reverse_path`] | the reverse path filter drops answers |
//! | [`routes`] | another VPN or a rule blocks the route; no route at all |
//! | [`silence`] | no answer: UDP blocked, wrong key, wrong pre-shared key, no gateway |
//! | [`throttling`] | datagrams are dropped beyond a rate |
//! | [`tun`] | no TUN device, no right to use it |
//! | [`twins`] | two links have the same next hop |

pub(super) mod carrier;
pub(super) mod clock;
pub(super) mod conntrack;
pub(super) mod files;
pub(super) mod forwarding;
pub(super) mod gateways;
pub(super) mod load;
pub(super) mod mtu;
pub(super) mod names;
pub(super) mod peers;
pub(super) mod port;
pub(super) mod portal;
pub(super) mod reverse_path;
pub(super) mod routes;
pub(super) mod silence;
pub(super) mod throttling;
pub(super) mod tun;
pub(super) mod twins;
