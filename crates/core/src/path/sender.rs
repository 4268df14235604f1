//! What was sent on one path and is not yet reported: bytes in flight, and the packets themselves, kept so that they can
//! be sent again elsewhere when the path falls silent.
//!
//! Bounds: at most [`MAX_OUTSTANDING`] datagrams are remembered; older ones are forgotten and cannot be re-injected.

use std::collections::VecDeque;

use crate::{
    ids::{PathId, Seq},
    packet::{PacketBuf, Pool},
    time::Instant,
    units::Bytes,
};

/// A packet with its place in the association's order, given once and kept over re-injections.
#[derive(Debug)]
pub struct Numbered {
    /// The place.
    pub global_seq: Seq,
    /// Distance to the flow's previous packet; 0 if there is none.
    pub flow_step: u16,
    /// Keyed hash of the flow.
    pub flow_hash: u64,
    /// Where it was sent before, if it was taken back.
    pub origin: Option<Origin>,
    /// The packet.
    pub packet: PacketBuf,
}

/// An earlier sending of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The path.
    pub path: PathId,
    /// The datagram's number on it.
    pub counter: u64,
    /// When.
    pub sent_at: Instant,
}

/// The sending side of one path.
#[derive(Debug, Default)]
pub struct Sender {
    /// Number of the next data datagram; its low 32 bits travel.
    next_data: u64,
    next_control: u64,
    /// Global number of the last data datagram.
    last_global: Option<Seq>,
    /// One more than the highest number reported received.
    reported: u64,
    sent_bytes: u64,
    in_flight: Bytes,
    /// Data datagrams since the first unreported one, oldest first; the last is `next_data - 1`.
    outstanding: VecDeque<Outstanding>,
}

#[derive(Debug)]
struct Outstanding {
    len: u32,
    sent_at: Instant,
    /// `None` if a copy travels elsewhere anyway.
    numbered: Option<Numbered>,
}

impl Sender {
    /// The number the next data datagram will carry.
    #[must_use]
    pub fn next_data(&self) -> u64 {
        self.next_data
    }

    /// Takes a number for a control datagram.
    pub fn take_control(&mut self) -> u64 {
        let number = self.next_control;
        self.next_control += 1;
        number
    }

    /// How far `global_seq` is ahead of the last data datagram's; 0 if that does not fit the wire or there is none.
    #[must_use]
    pub fn path_step(&self, global_seq: Seq) -> i16 {
        let step = self.last_global.map(|last| global_seq.distance_from(last));
        step.and_then(|step| i16::try_from(step).ok()).unwrap_or(0)
    }

    /// Notes that a data datagram of `len` bytes went out with [`Self::next_data`]'s number.
    pub fn on_sent(
        &mut self,
        now: Instant,
        len: usize,
        global_seq: Seq,
        numbered: Option<Numbered>,
        pool: &mut Pool,
    ) {
        if self.outstanding.len() >= MAX_OUTSTANDING {
            self.pop_oldest(pool);
        }
        self.next_data += 1;
        self.last_global = Some(global_seq);
        self.sent_bytes += len as u64;
        self.in_flight += Bytes::of_len(len);
        self.outstanding.push_back(Outstanding {
            len: u32::try_from(len).unwrap_or(u32::MAX),
            sent_at: now,
            numbered,
        });
    }

    /// Forgets everything up to `highest`, which the other end reports received. Returns whether that was news; a number
    /// never sent is none.
    pub fn on_reported(&mut self, highest: Seq, pool: &mut Pool) -> bool {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the wire carries the low 32 bits"
        )]
        let back = Seq(self.next_data as u32).distance_from(highest);
        let Some(reported) = u64::try_from(i64::from(back) - 1)
            .ok()
            .and_then(|back| self.next_data.checked_sub(back))
        else {
            return false;
        };
        if reported <= self.reported {
            return false;
        }
        self.reported = reported;
        while self.next_data - (self.outstanding.len() as u64) < reported
            && !self.outstanding.is_empty()
        {
            self.pop_oldest(pool);
        }
        true
    }

    /// How many data datagrams lie at or before the highest reported.
    #[must_use]
    pub fn reported(&self) -> u64 {
        self.reported
    }

    /// Hands every packet not yet reported to `taken`, oldest first, and forgets what is in flight: the path is silent.
    ///
    /// `path`: its id, noted in each packet's [`Origin`].
    pub fn take_unreported(&mut self, path: PathId, taken: &mut VecDeque<Numbered>) {
        let first = self.next_data - self.outstanding.len() as u64;
        for (counter, outstanding) in (first..).zip(self.outstanding.drain(..)) {
            if let Some(mut numbered) = outstanding.numbered {
                let sent_at = outstanding.sent_at;
                numbered.origin = Some(Origin {
                    path,
                    counter,
                    sent_at,
                });
                taken.push_back(numbered);
            }
        }
        self.in_flight = Bytes::ZERO;
    }

    /// Returns all buffers and forgets what is in flight, as after a change of address or a restart of the other end.
    pub fn forget(&mut self, pool: &mut Pool) {
        while !self.outstanding.is_empty() {
            self.pop_oldest(pool);
        }
    }

    /// Data datagrams sent and not reported, nor forgotten.
    #[must_use]
    pub fn outstanding_pkts(&self) -> usize {
        self.outstanding.len()
    }

    /// Bytes sent and not reported.
    #[must_use]
    pub fn in_flight(&self) -> Bytes {
        self.in_flight
    }

    /// Bytes of data datagrams sent, UDP payload.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    fn pop_oldest(&mut self, pool: &mut Pool) {
        if let Some(outstanding) = self.outstanding.pop_front() {
            self.in_flight = self.in_flight - Bytes::new(u64::from(outstanding.len));
            if let Some(numbered) = outstanding.numbered {
                pool.recycle(numbered.packet);
            }
        }
    }
}

/// 16 384 packets are 200 ms at 1 Gbit/s, and 24 MB of buffers.
pub const MAX_OUTSTANDING: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    fn send(sender: &mut Sender, pool: &mut Pool, global: u32) {
        let numbered = Numbered {
            global_seq: Seq(global),
            flow_step: 0,
            flow_hash: 0,
            origin: None,
            packet: pool.copy_of(&[1]),
        };
        sender.on_sent(Instant::ZERO, 100, Seq(global), Some(numbered), pool);
    }

    #[test]
    fn reports_free_what_they_cover() {
        let mut pool = Pool::new(100, 1);
        let mut sender = Sender::default();
        for global in 0..5 {
            send(&mut sender, &mut pool, global);
        }
        assert!(sender.on_reported(Seq(1), &mut pool));
        assert!(!sender.on_reported(Seq(1), &mut pool));
        assert!(!sender.on_reported(Seq(77), &mut pool), "never sent");
        assert_eq!(
            (sender.outstanding_pkts(), sender.in_flight()),
            (3, Bytes::new(300))
        );
        assert_eq!(pool.free_len(), 2);
        let mut taken = VecDeque::new();
        sender.take_unreported(PathId(0), &mut taken);
        assert_eq!(
            taken.iter().map(|n| n.global_seq.0).collect::<Vec<_>>(),
            [2, 3, 4]
        );
        assert_eq!(sender.in_flight(), Bytes::ZERO);
        assert!(
            sender.on_reported(Seq(3), &mut pool),
            "the path was not silent after all"
        );
        assert!(!sender.on_reported(Seq(5), &mut pool), "never sent");
    }

    #[test]
    fn steps_that_do_not_fit_are_unknown() {
        let mut pool = Pool::new(1, 1);
        let mut sender = Sender::default();
        assert_eq!(sender.path_step(Seq(5)), 0);
        send(&mut sender, &mut pool, 5);
        assert_eq!(
            (sender.path_step(Seq(9)), sender.path_step(Seq(2))),
            (4, -3)
        );
        assert_eq!(sender.path_step(Seq(50_000)), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let mut pool = Pool::new(MAX_OUTSTANDING * 2, 1);
        let mut sender = Sender::default();
        for global in 0..20_000 {
            send(&mut sender, &mut pool, global);
        }
        assert_eq!(sender.outstanding_pkts(), MAX_OUTSTANDING);
        assert!(
            sender.on_reported(Seq(100), &mut pool),
            "news, though its packet is forgotten"
        );
        assert_eq!(sender.outstanding_pkts(), MAX_OUTSTANDING);
    }
}
