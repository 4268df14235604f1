//! Wire format of datagrams, version 1.
//!
//! The first byte is the kind: 1 to 3 are handshake messages ([`handshake`]), 4 is [`Kind::Data`] (one inner packet,
//! encrypted), 5 is [`Kind::Control`] (a list of [`control`] frames, encrypted). All integers are big-endian. The
//! layout of the transport header is in [`header`]; `docs/wire.md` describes the whole protocol.

pub mod control;
#[cfg(feature = "session")]
pub mod handshake;
pub mod header;

/// The kind of a transport datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A list of control frames.
    Control,
    /// One inner packet.
    Data,
}

/// A cursor over received bytes: a read beyond the end returns `None` instead of panicking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}
