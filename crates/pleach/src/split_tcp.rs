//! Split TCP (RFC 3135): the client terminates a TCP connection whose packets would be sent through the tunnel, and
//! carries its data to the gateway in a separate TCP connection of the client's kernel.
//!
//! ```text
//!  application ──TCP──► near end ══ CUBIC, through the tunnel ══► far end ──TCP──► server
//!                       client                                   gateway
//! ```
//!
//! Some senders keep too few packets in flight for links with different RTTs: BBR keeps twice the product of its rate
//! and the *shortest* RTT. Such a sender leaves the slower links idle. With split TCP, the connection of the sender
//! ends at the gateway and sees only one link. The connection through the tunnel has a CUBIC sender, whose window grows
//! until the links are full.
//!
//! | module | contents |
//! | --- | --- |
//! | [`decision`] | whether connections are split (`split_tcp = "auto"`) |
//! | [`protocol`] | requests of the near end and answers of the far end |
//! | [`near`] | at the client: accepts redirected connections |
//! | [`far`] | at the gateway: connects to servers |
//! | [`send_buffer`] | larger send buffers for links with long RTTs |
//! | [`socket`] | settings of sockets; how a connection ends |
//!
//! The connection to the far end is opened when the application's connection is accepted. So the first data need as
//! many RTTs as without splitting. Limits: `docs/split-tcp.md`.

pub(crate) mod decision;
pub(crate) mod far;
pub(crate) mod near;
mod protocol;
mod send_buffer;
mod socket;

/// Value of the key `split_tcp`: when connections are split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SplitTcp {
    /// While the RTTs of the links differ so much that a sender may not fill the links.
    Auto,
    /// All connections are split.
    On,
    /// No connections are split.
    #[default]
    Off,
}
