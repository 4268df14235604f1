//! Byte counters and rate caps of peers.
//!
//! | direction | counted and limited | packets above the cap |
//! | --- | --- | --- |
//! | to the peer ("down" at a gateway) | when a packet leaves the tunnel's lanes for the first time | wait in the tunnel queue |
//! | from the peer ("up" at a gateway) | when a packet is delivered to the host | wait in a queue of the peer, behind the resequencer |
//!
//! Both queues signal congestion by CoDel ([`crate::queue`]), so a TCP connection fills the cap, and a flow that ignores
//! congestion loses the packets above the cap. The queue for packets from a peer takes no memory until the peer reaches
//! its cap; it is bounded by 100 ms at the cap, within 15 000 bytes to 4 MiB, and by 4096 packets, and counts among the
//! packets kept for the peer ([`Endpoint::kept`]).
//!
//! The counters belong to the place of a peer in the table: they start at 0 when a peer is added, and go on when a new
//! association begins. They never exceed what was carried.

use core::time::Duration;

use super::{Endpoint, PeerConfig};
use crate::{
    counters::DropReason,
    flows::FlowId,
    meter::Meter,
    packet::PacketBuf,
    queue::{Queue, QueueConfig},
    time::Instant,
    units::{Bitrate, Bytes},
};

/// Rate caps of a peer, in inner bytes; `None` for no cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Cap of packets from the peer.
    pub up: Option<Bitrate>,
    /// Cap of packets to the peer.
    pub down: Option<Bitrate>,
}

/// Bytes of inner packets, with their IP headers, since the peer was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes from the peer that were delivered to the host.
    pub up_bytes: u64,
    /// Bytes to the peer that left the tunnel queue for a path. A packet that is sent again or in copies counts once.
    pub down_bytes: u64,
}

/// What packets from a peer pass before they are delivered to the host.
#[derive(Debug, Default)]
pub(super) struct Upload {
    meter: Meter,
    /// Packets above the cap. `None` without a cap.
    queue: Option<Box<Queue>>,
}

impl Upload {
    fn set_cap(&mut self, now: Instant, cap: Option<Bitrate>) {
        self.meter.set_cap(now, cap);
        let Some(cap) = cap else {
            return;
        };
        let most = cap.bytes_in(QUEUED).get();
        let most = Bytes::new(most.clamp(LEAST_QUEUED, MOST_QUEUED));
        let config = QueueConfig {
            max_bytes: most,
            max_packets: MOST_QUEUED_PKTS,
            ..QueueConfig::default()
        };
        let queue = self
            .queue
            .get_or_insert_with(|| Box::new(Queue::new(config)));
        queue.set_max_bytes(most);
    }

    /// Returns the bytes from the peer that were delivered.
    pub(super) const fn bytes(&self) -> u64 {
        self.meter.bytes()
    }

    /// Returns the number of packets that wait.
    pub(super) fn waiting_pkts(&self) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.len() as u64)
    }

    /// Returns when the next waiting packet may be delivered. `None` if no packet waits.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let is_waiting = self.queue.as_ref().is_some_and(|queue| !queue.is_empty());
        is_waiting.then(|| self.meter.next_at().unwrap_or(Instant::ZERO))
    }
}

impl Endpoint {
    /// Sets the caps of the peer with the public key `public_key`. Returns whether there is such a peer.
    pub fn set_caps(&mut self, now: Instant, public_key: &[u8; 32], caps: Caps) -> bool {
        let Some(index) = self.peers.of_key(public_key) else {
            return false;
        };
        let peer = &mut self.peers[index];
        peer.upload.set_cap(now, caps.up);
        peer.tunnel.set_cap(now, caps.down);
        // Packets that waited because of the former caps may be due.
        self.release_upload(now, index);
        self.peers.activate(index);
        true
    }

    /// Returns the caps of the peer with the public key `public_key`.
    #[must_use]
    pub fn caps(&self, public_key: &[u8; 32]) -> Option<Caps> {
        let peer = &self.peers[self.peers.of_key(public_key)?];
        Some(Caps {
            up: peer.upload.meter.cap(),
            down: peer.tunnel.cap(),
        })
    }

    /// Returns the configuration and the byte counters of every peer.
    pub fn usage(&self) -> impl Iterator<Item = (&PeerConfig, Usage)> {
        let peers = self.peers.iter();
        peers.map(|peer| (&peer.config, peer.usage()))
    }

    /// Returns the byte counters of the peer with the public key `public_key`.
    #[must_use]
    pub fn usage_of(&self, public_key: &[u8; 32]) -> Option<Usage> {
        let index = self.peers.of_key(public_key)?;
        Some(self.peers[index].usage())
    }

    /// Returns a peer whose byte counters have grown, and by how much since they were last taken by this method or by
    /// [`Self::take_usage_of`]. To count no packet that the host did not get, call this
    /// method when [`Self::poll_deliver`] has nothing left.
    pub fn poll_usage(&mut self) -> Option<(&PeerConfig, Usage)> {
        loop {
            let index = self.peers.next_used()?;
            let usage = self.peers.take_usage(index);
            // The peer may have been removed, or its counters taken, since it came into the queue.
            if usage != Usage::default() {
                return Some((&self.peers[index].config, usage));
            }
        }
    }

    /// As [`Self::poll_usage`], for the peer with the public key `public_key`: before the peer is removed.
    pub fn take_usage_of(&mut self, public_key: &[u8; 32]) -> Option<(&PeerConfig, Usage)> {
        let index = self.peers.of_key(public_key)?;
        let usage = self.peers.take_usage(index);
        (usage != Usage::default()).then(|| (&self.peers[index].config, usage))
    }

    /// Counts the packets of the peer `index` among the delivered ones, which are those after the first `before`, and
    /// takes back the packets above the peer's cap.
    pub(super) fn meter_upload(&mut self, now: Instant, index: usize, before: usize) {
        if self.common.delivered.len() <= before {
            return;
        }
        let Upload { meter, queue } = &mut self.peers[index].upload;
        let Some(queue) = queue.as_mut().filter(|queue| {
            // Without a cap nothing waits, except packets of a cap that was removed.
            meter.cap().is_some() || !queue.is_empty()
        }) else {
            let lens = self.common.delivered.range(before..).map(PacketBuf::len);
            meter.on_passed(now, Bytes::of_len(lens.sum()));
            self.peers.note_usage(index);
            return;
        };
        let (pool, drops) = (&mut self.common.pool, &mut self.common.drops);
        for _ in before..self.common.delivered.len() {
            let Some(packet) = self.common.delivered.remove(before) else {
                break;
            };
            if queue.is_empty() && meter.can_pass(now) {
                meter.on_passed(now, Bytes::of_len(packet.len()));
                self.common.delivered.push_back(packet);
                continue;
            }
            let Ok(view) = packet.view() else {
                drops.add(DropReason::NotIp, 1);
                pool.recycle(packet);
                continue;
            };
            let flow = FlowId::of_hash(self.tunnels.flow_key.hash(&view));
            queue.enqueue(now, packet, flow, |packet, reason| {
                drops.add(DropReason::from(reason), 1);
                pool.recycle(packet);
            });
        }
        self.release_upload(now, index);
    }

    /// Delivers the waiting packets of the peer `index` that its cap permits now.
    pub(super) fn release_upload(&mut self, now: Instant, index: usize) {
        let Upload { meter, queue } = &mut self.peers[index].upload;
        let Some(queue) = queue else {
            return;
        };
        let (pool, drops) = (&mut self.common.pool, &mut self.common.drops);
        while !queue.is_empty() && meter.can_pass(now) {
            let queued = queue.dequeue(now, |packet, reason| {
                drops.add(DropReason::from(reason), 1);
                pool.recycle(packet);
            });
            let Some(queued) = queued else {
                break;
            };
            meter.on_passed(now, Bytes::of_len(queued.packet.len()));
            self.common.delivered.push_back(queued.packet);
        }
        self.peers.note_usage(index);
    }
}

/// Time for which packets from a peer may wait at its cap.
const QUEUED: Duration = Duration::from_millis(100);
/// Minimum of the bound of the queue in bytes: ten packets of 1500 bytes.
const LEAST_QUEUED: u64 = 15_000;
/// Maximum of the bound of the queue in bytes.
const MOST_QUEUED: u64 = 4 << 20;
/// Maximum number of packets in the queue.
const MOST_QUEUED_PKTS: usize = 4096;
