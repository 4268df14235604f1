//! What the data threads pass to each other: packets of the host and datagrams that arrived at the wrong thread.
//!
//! Each thread has a mailbox, and a [`Post`] from which it fills the mailboxes of the others. Parcels are collected
//! during a round, at most [`PARCEL`] packets or datagrams each, and the other thread is woken once for a parcel.
//!
//! Bounds: a mailbox holds [`MAILBOX`] parcels, and [`STRAYS`] more of received datagrams, which anybody can send and which
//! therefore have no room in common with the rest. What does not fit is dropped and counted, as by a full socket. In each
//! round, a thread takes [`PER_ROUND`] parcels and the received datagrams, which is less than a read of a socket can
//! deliver.

use std::sync::{
    Arc,
    mpsc::{self, Receiver, SyncSender},
};

use pleach_core::{
    endpoint::{Endpoint, workers::Share},
    packet::PacketBuf,
    time::Instant,
    transmit::Route,
    tunnel::Incoming,
};
use pleach_linux::poll::Waker;

use super::directory::Routes;

/// What one data thread passes to another.
pub(super) enum Parcel {
    /// Datagrams for a link that worker 0 carries over TCP.
    Carried(Vec<CarriedBatch>),
    /// Packets of the host for the worker's clients.
    Packets(Vec<PacketBuf>),
}

/// Received datagrams of the worker's sessions, or initiations for worker 0.
type Strays = Vec<(Incoming, Vec<u8>)>;

/// Datagrams for a link that TCP carries.
#[derive(Debug)]
pub(in crate::run_tunnel) struct CarriedBatch {
    pub(in crate::run_tunnel) route: Route,
    pub(in crate::run_tunnel) segment_len: usize,
    pub(in crate::run_tunnel) bytes: Vec<u8>,
}

/// The mailbox of a data thread.
#[derive(Clone, Debug)]
struct Mailbox {
    parcels: SyncSender<Parcel>,
    strays: SyncSender<Strays>,
    waker: Waker,
}

/// What arrives in a mailbox.
#[derive(Debug)]
pub(super) struct Inbox {
    parcels: Receiver<Parcel>,
    strays: Receiver<Strays>,
    waker: Waker,
}

/// Counters of a [`Post`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passed {
    /// Number of packets and datagrams that were passed to other threads.
    pub(super) passed: u64,
    /// Number of packets and datagrams that were dropped because a mailbox was full.
    pub(super) refused: u64,
}

/// What a data thread has for the others.
#[derive(Debug)]
pub(in crate::run_tunnel) struct Post {
    share: Share,
    routes: Arc<Routes>,
    boxes: Vec<Mailbox>,
    packets: Vec<Vec<PacketBuf>>,
    strays: Vec<Strays>,
    /// Batches for worker 0, and the number of their datagrams.
    carried: (Vec<CarriedBatch>, usize),
    counters: Passed,
}

/// Makes the mailboxes of `wakers.len()` data threads. Returns what each of them needs.
pub(super) fn mailboxes(wakers: &[Waker], routes: &Arc<Routes>) -> Vec<(Post, Inbox)> {
    let count = wakers.len();
    let (boxes, inboxes): (Vec<Mailbox>, Vec<Inbox>) = wakers
        .iter()
        .map(|waker| {
            let (sender, parcels) = mpsc::sync_channel(MAILBOX);
            let (stray, strays) = mpsc::sync_channel(STRAYS);
            let mailbox = Mailbox {
                parcels: sender,
                strays: stray,
                waker: waker.clone(),
            };
            let waker = waker.clone();
            let inbox = Inbox {
                parcels,
                strays,
                waker,
            };
            (mailbox, inbox)
        })
        .unzip();
    let posts = (0..count).map(|number| Post {
        share: Share::new(number, count),
        routes: Arc::clone(routes),
        boxes: boxes.clone(),
        packets: (0..count).map(|_| Vec::new()).collect(),
        strays: (0..count).map(|_| Vec::new()).collect(),
        carried: (Vec::new(), 0),
        counters: Passed::default(),
    });
    posts.zip(inboxes).collect()
}

impl Post {
    /// Gives packets of the host to the own engine, or stages them for the worker of their client. Leaves `packets`
    /// empty.
    pub(in crate::run_tunnel) fn sort(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        packets: &mut Vec<PacketBuf>,
    ) {
        for packet in packets.drain(..) {
            let Some(packet) = endpoint.offer_packet(now, packet) else {
                continue;
            };
            let view = packet.view().ok();
            let owner = view.and_then(|view| self.routes.worker_of(view.destination()));
            match owner.filter(|owner| *owner != self.share.number()) {
                Some(owner) => {
                    self.packets[owner].push(packet);
                    if self.packets[owner].len() >= PARCEL {
                        self.send_packets(owner);
                    }
                }
                // The engine counts the drop.
                None => endpoint.handle_packet(now, packet),
            }
        }
    }

    /// Stages a datagram for the worker that is to receive it. Returns `false` if that is the own engine.
    pub(in crate::run_tunnel) fn pass(&mut self, incoming: &Incoming, datagram: &[u8]) -> bool {
        let owner = self.share.receiver_of(datagram);
        if owner == self.share.number() {
            return false;
        }
        self.strays[owner].push((*incoming, datagram.to_vec()));
        if self.strays[owner].len() >= PARCEL {
            self.send_strays(owner);
        }
        true
    }

    /// Stages datagrams for a link that TCP carries, for worker 0.
    pub(super) fn pass_carried(&mut self, batch: CarriedBatch) {
        let (batches, count) = &mut self.carried;
        *count += batch.bytes.len().div_ceil(batch.segment_len.max(1));
        batches.push(batch);
        if *count >= PARCEL {
            self.send_carried();
        }
    }

    /// Sends everything that is staged.
    pub(in crate::run_tunnel) fn flush(&mut self) {
        for worker in 0..self.boxes.len() {
            if !self.packets[worker].is_empty() {
                self.send_packets(worker);
            }
            if !self.strays[worker].is_empty() {
                self.send_strays(worker);
            }
        }
        if self.carried.1 > 0 {
            self.send_carried();
        }
    }

    pub(super) const fn counters(&self) -> Passed {
        self.counters
    }

    fn send_packets(&mut self, worker: usize) {
        let packets = std::mem::take(&mut self.packets[worker]);
        let count = packets.len();
        let is_sent = self.boxes[worker]
            .parcels
            .try_send(Parcel::Packets(packets));
        self.count(worker, is_sent.is_ok(), count);
    }

    fn send_strays(&mut self, worker: usize) {
        let strays = std::mem::take(&mut self.strays[worker]);
        let count = strays.len();
        let is_sent = self.boxes[worker].strays.try_send(strays);
        self.count(worker, is_sent.is_ok(), count);
    }

    fn send_carried(&mut self) {
        let (batches, count) = std::mem::take(&mut self.carried);
        let is_sent = self.boxes[0].parcels.try_send(Parcel::Carried(batches));
        self.count(0, is_sent.is_ok(), count);
    }

    /// Counts what was sent to a worker, or did not fit into its mailbox. The other end of a channel is gone only while the
    /// daemon stops.
    fn count(&mut self, worker: usize, is_sent: bool, count: usize) {
        if is_sent {
            self.counters.passed += count as u64;
            self.boxes[worker].waker.wake();
        } else {
            self.counters.refused += count as u64;
        }
    }
}

impl Inbox {
    /// Returns the waker, which is readable when there are parcels.
    pub(super) const fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Gives parcels that have arrived to the engine, and returns datagrams for links that TCP carries. Clear the waker
    /// before.
    pub(super) fn unpack(&self, now: Instant, endpoint: &mut Endpoint) -> Vec<CarriedBatch> {
        for strays in self.strays.try_iter().take(STRAYS) {
            for (incoming, mut datagram) in strays {
                endpoint.handle_datagram(now, &incoming, &mut datagram);
            }
        }
        let mut carried = Vec::new();
        for taken in 1..=PER_ROUND {
            match self.parcels.try_recv() {
                Ok(Parcel::Carried(batches)) => carried.extend(batches),
                Ok(Parcel::Packets(packets)) => {
                    for packet in packets {
                        endpoint.handle_packet(now, packet);
                    }
                }
                Err(_) => return carried,
            }
            if taken == PER_ROUND {
                // The sockets are served before the rest.
                self.waker.wake();
            }
        }
        carried
    }

    /// Does the same with all that has arrived, when nobody sends any more.
    pub(super) fn unpack_all(&self, now: Instant, endpoint: &mut Endpoint) -> Vec<CarriedBatch> {
        let rounds = 0..MAILBOX.div_ceil(PER_ROUND);
        rounds.flat_map(|_| self.unpack(now, endpoint)).collect()
    }
}

/// Maximum number of packets or datagrams in a parcel.
const PARCEL: usize = 64;
/// Maximum number of parcels in a mailbox: 6 MiB of packets of 1500 bytes.
const MAILBOX: usize = 64;
/// Maximum number of parcels of received datagrams in a mailbox.
const STRAYS: usize = 16;
/// Maximum number of other parcels taken in a round.
const PER_ROUND: usize = 16;

#[cfg(test)]
mod tests {
    use pleach_core::transmit::Route;

    use super::*;

    fn posts() -> Vec<(Post, Inbox)> {
        let wakers: Vec<Waker> = (0..2).map(|_| Waker::new().expect("eventfd")).collect();
        mailboxes(&wakers, &Arc::new(Routes::default()))
    }

    fn incoming() -> Incoming {
        Incoming {
            route: Route {
                link: 0,
                remote: ([192, 0, 2, 1], 7).into(),
                local: None,
            },
            is_congested: false,
        }
    }

    #[test]
    fn a_datagram_goes_to_the_worker_of_its_session() {
        let mut posts = posts();
        let (post, _) = &mut posts[0];
        let mut datagram = [4, 0, 0, 0, 0, 2, 0, 0];
        assert!(!post.pass(&incoming(), &datagram), "it is the own one");
        datagram[5] = 3;
        assert!(post.pass(&incoming(), &datagram));
        assert!(!post.pass(&incoming(), &[1, 0, 0, 0, 0, 3]), "no session");
        post.flush();
        let received = posts[1].1.strays.try_recv().expect("a parcel");
        assert!(received.len() == 1 && received[0].1 == datagram);
    }

    #[test]
    fn what_a_full_mailbox_does_not_hold_is_counted() {
        let mut posts = posts();
        let (post, _) = &mut posts[1];
        for _ in 0..(STRAYS + 2) * PARCEL {
            assert!(post.pass(&incoming(), &[5, 0, 0, 0, 0, 2]));
        }
        post.flush();
        let counters = post.counters();
        assert_eq!(counters.passed, (STRAYS * PARCEL) as u64);
        assert_eq!(counters.refused, 2 * PARCEL as u64);
        // What the clients of this thread send has room all the same.
        for _ in 0..2 {
            post.pass_carried(CarriedBatch {
                route: incoming().route,
                segment_len: 100,
                bytes: vec![0; 250],
            });
        }
        post.flush();
        assert_eq!(post.counters().refused, counters.refused);
        assert_eq!(post.counters().passed, counters.passed + 6);
        let parcel = posts[0].1.parcels.try_recv().expect("one parcel");
        assert!(matches!(parcel, Parcel::Carried(batches) if batches.len() == 2));
        assert!(posts[0].1.parcels.try_recv().is_err());
    }
}
