//! Split TCP (RFC 3135): a TCP connection that would go through the tunnel packet by packet is ended at the client and carried
//! to the gateway as a TCP connection of the kernel.
//!
//! ```text
//!  application ──TCP──► near end ══ CUBIC, through the tunnel ══► far end ──TCP──► server
//!                       client                                   gateway
//! ```
//!
//! A sender that keeps too little in flight for links whose round trips differ (BBR: twice the product of its rate and the
//! *shortest* round trip) leaves the slower links idle. Ended at the gateway, such a sender meets one link, and the tunnel
//! carries a sender with CUBIC, whose window grows until the links are full.
//!
//! | module | what |
//! | --- | --- |
//! | [`decision`] | whether connections are split (`split_tcp = "auto"`) |
//! | [`protocol`] | what the near end asks and the far end answers |
//! | [`near`] | at the client: takes redirected connections |
//! | [`far`] | at the gateway: connects to servers |
//! | [`socket`] | settings of sockets; how a connection ends |
//!
//! The connection to the far end is opened when the application's is accepted, so that the first data need as many round
//! trips as without splitting. Limits: `docs/split-tcp.md`.

pub(crate) mod decision;
pub(crate) mod far;
pub(crate) mod near;
mod protocol;
mod socket;

/// When connections are split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SplitTcp {
    /// While the links' round trips differ so much that a sender may not fill them.
    Auto,
    /// Always.
    On,
    /// Never.
    #[default]
    Off,
}
