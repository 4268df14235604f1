//! The use that one TCP connection makes of its link: its rate, its fair share, and the receive window that limits
//! it.

use std::time::Duration;

use pleach_core::units::{Bitrate, Bytes};
use pleach_linux::tcp::{self, TcpInfo};
use tokio::net::TcpStream;

use crate::window::Sharer;

/// Use that a TCP connection makes of its link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    /// Minimum RTT of the connection; zero before it is connected.
    pub(super) base: Duration,
    /// RTT as measured by the receiver; zero if it has not been measured.
    round_trip: Duration,
    /// `seen`: bytes received from the server until the last measurement. `rate`: smoothed receive rate. `part`: fair
    /// share of the link.
    pub(super) seen: u64,
    pub(super) rate: Bitrate,
    pub(super) part: Option<Bitrate>,
    /// Limit of the receive window that is in force.
    pub(super) bound: Option<Bytes>,
}

impl Share {
    /// Creates the state for a connection over `stream` that has received `seen` bytes.
    pub(crate) fn begin(stream: &TcpStream, seen: u64) -> Self {
        let mut share = Self {
            seen,
            ..Self::default()
        };
        if let Ok(info) = tcp::info(stream) {
            share.on_tcp(&info);
        }
        share
    }

    /// Updates the RTTs from the kernel's TCP statistics.
    pub(crate) fn on_tcp(&mut self, info: &TcpInfo) {
        if info.min_rtt > Duration::ZERO {
            self.base = info.min_rtt;
        }
        self.round_trip = info.receiver_rtt;
    }

    /// Removes the limit from `stream`, which the next request will use.
    pub(crate) fn end(mut self, stream: &TcpStream) {
        self.put(stream, None, true);
    }

    pub(super) fn sharer(&self) -> Sharer {
        // A connection is limited by its window only if it fills the window about once per RTT. If the RTT is not
        // known, the connection is assumed to be limited.
        let is_filled = |bound: Bytes| {
            let on_the_way = self.rate.bytes_in(self.round_trip);
            self.round_trip == Duration::ZERO || on_the_way.get() * 2 >= bound.get()
        };
        Sharer {
            rate: self.rate,
            part: self.part,
            is_held_up: self.rate > Bitrate::ZERO && self.bound.is_some_and(is_filled),
        }
    }

    /// Applies the limit `bound`. A limit that is already in force is applied again if `moves` is set, that is, if
    /// the connection moves data, because the kernel may have changed it.
    pub(super) fn put(&mut self, stream: &TcpStream, bound: Option<Bytes>, moves: bool) {
        let is_near = |old: Bytes, new: Bytes| old.get().abs_diff(new.get()) * 10 < old.get();
        match (self.bound, bound) {
            (None, None) => return,
            (Some(old), Some(new)) if !moves && is_near(old, new) => return,
            _ => {}
        }
        let bytes = bound.map(|bytes| u32::try_from(bytes.get()).unwrap_or(u32::MAX));
        // If the socket refuses, the kernel's own window remains.
        if tcp::bound_window(stream, bytes).is_ok() {
            self.bound = bound;
        }
    }
}
