//! What one TCP connection has of its link: its rate, its part, and the receive window that bounds it.

use std::time::Duration;

use pleach_core::units::{Bitrate, Bytes};
use pleach_linux::tcp::{self, TcpInfo};
use tokio::net::TcpStream;

use crate::window::Sharer;

/// What a connection has of its link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    /// Its shortest round trip; zero before it is connected.
    pub(super) base: Duration,
    /// The round trip as who receives sees it; zero if that was not seen.
    round_trip: Duration,
    /// Bytes from the server when it was last looked at, and its rate since, smoothed.
    pub(super) seen: u64,
    pub(super) rate: Bitrate,
    pub(super) part: Option<Bitrate>,
    /// The bound that is in force.
    pub(super) bound: Option<Bytes>,
}

impl Share {
    /// That of a connection over `stream`, on which `seen` bytes have come.
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

    /// Notes what TCP says of round trips.
    pub(crate) fn on_tcp(&mut self, info: &TcpInfo) {
        if info.min_rtt > Duration::ZERO {
            self.base = info.min_rtt;
        }
        self.round_trip = info.receiver_rtt;
    }

    /// Takes the bound off `stream`, which serves another connection next.
    pub(crate) fn end(mut self, stream: &TcpStream) {
        self.put(stream, None, true);
    }

    pub(super) fn sharer(&self) -> Sharer {
        // A window is filled once in a round trip, at most; where that is not known, it may be.
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

    /// Puts `bound` in force. One that is in force already is repeated where something moves, because the kernel may have set
    /// another.
    pub(super) fn put(&mut self, stream: &TcpStream, bound: Option<Bytes>, moves: bool) {
        let is_near = |old: Bytes, new: Bytes| old.get().abs_diff(new.get()) * 10 < old.get();
        match (self.bound, bound) {
            (None, None) => return,
            (Some(old), Some(new)) if !moves && is_near(old, new) => return,
            _ => {}
        }
        let bytes = bound.map(|bytes| u32::try_from(bytes.get()).unwrap_or(u32::MAX));
        // A socket that refuses goes on as the kernel thinks good.
        if tcp::bound_window(stream, bytes).is_ok() {
            self.bound = bound;
        }
    }
}
