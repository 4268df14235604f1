//! Endpoints of one gateway that divide its clients among them.
//!
//! A gateway can run several threads, its *workers*, each with an endpoint of its own ([`Endpoint::set_share`]). A client
//! belongs to one worker, which follows from the client's key ([`Share::owner_of`]), and only that worker's endpoint
//! knows it. The session indices of an endpoint name its worker ([`Share::receiver_of`]), so the host delivers the
//! datagrams of a session to the right worker.
//!
//! An initiation does not show to whom its sender belongs before it is read. So all initiations go to worker 0, whose
//! endpoint checks and limits them like a sole endpoint does (see `handshakes`):
//!
//! ```text
//! initiation -> worker 0: MACs, replays, limits, two curve operations -> the key belongs to worker k
//!     Endpoint::poll_handed of worker 0 -> host -> Endpoint::handle_handed of worker k: answers, with its own session
//!     Endpoint::poll_verdict of worker k -> host -> Endpoint::handle_verdict of worker 0
//! ```
//!
//! A [`Verdict`] is what worker 0 needs for its limits and cookies: the worker has taken the initiation, it was useless, it
//! is to be turned away, or a client has proved an address.
//!
//! Bounds: at most [`MAX_WORK`] initiations are read at a time, and each is handed over at most once. At most as many
//! wait for each other worker; further senders are turned away. [`MAX_VERDICTS`] verdicts wait for the host, besides
//! those that say that an initiation was taken.

use core::fmt;
use std::collections::VecDeque;

use super::{
    Endpoint,
    index::NUMBER_MASK,
    work::{Arrival, MAX_WORK},
};
use crate::{
    counters::DropReason,
    session::{
        handshake::Incoming as Initiation,
        limiter::{Admission, Source},
    },
    time::Instant,
    wire::{
        handshake::InitiationView,
        header::{RECEIVER_INDEX_AT, TRANSPORT_KINDS},
    },
};

/// A worker, and the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    number: usize,
    count: usize,
}

impl Share {
    /// The only worker of an endpoint.
    pub const SOLE: Self = Self {
        number: 0,
        count: 1,
    };

    /// Returns worker `number` of `count`. `count` is limited to 1 to [`MAX_WORKERS`], and `number` to the workers that
    /// exist.
    #[must_use]
    pub fn new(number: usize, count: usize) -> Self {
        let count = count.clamp(1, MAX_WORKERS);
        Self {
            number: number.min(count - 1),
            count,
        }
    }

    /// Returns the number of this worker, from 0.
    #[must_use]
    pub const fn number(self) -> usize {
        self.number
    }

    /// Returns the number of workers.
    #[must_use]
    pub const fn count(self) -> usize {
        self.count
    }

    /// Returns the worker to which the client with the public key `public_key` belongs.
    #[must_use]
    pub fn owner_of(self, public_key: &[u8; 32]) -> usize {
        // Public keys look like random numbers, so this divides the clients evenly.
        let [a, b, c, d, ..] = *public_key;
        u32::from_le_bytes([a, b, c, d]) as usize % self.count
    }

    /// Returns the worker that is to receive `datagram`: for a transport datagram the worker of the session, for an
    /// initiation worker 0. All others are for this worker, whose endpoint counts the drop.
    #[must_use]
    pub fn receiver_of(self, datagram: &[u8]) -> usize {
        let index = datagram.get(RECEIVER_INDEX_AT..RECEIVER_INDEX_AT + 3);
        match (datagram.first(), index) {
            (Some(kind), Some(&[a, b, c])) if TRANSPORT_KINDS.contains(kind) => {
                let number = u32::from_be_bytes([0, a, b, c]) & NUMBER_MASK;
                number as usize % self.count
            }
            _ if InitiationView::new(datagram).is_ok() => 0,
            _ => self.number,
        }
    }

    /// Returns the number of this worker and the number of workers for calculations with indices.
    pub(super) fn numbers(self) -> (u32, u32) {
        // There are at most `MAX_WORKERS`.
        let number = u32::try_from(self.number).unwrap_or(0);
        (number, u32::try_from(self.count).unwrap_or(1))
    }
}

/// The bits of a receiver index whose remainder of the division by the number of workers is the worker of the session.
pub const WORKER_MASK: u32 = NUMBER_MASK;
/// Maximum number of workers.
pub const MAX_WORKERS: usize = 64;
/// Maximum number of verdicts that wait for the host. Further ones are dropped: a sender that would have been turned away
/// then gets no reply, and repeats its request.
pub const MAX_VERDICTS: usize = 1024;

/// An initiation that the endpoint of worker 0 has read, and whose sender belongs to another worker.
pub struct Handed {
    arrival: Arrival,
    initiation: Box<Initiation>,
    owner: usize,
}

impl Handed {
    /// Returns the worker to which the sender belongs.
    #[must_use]
    pub const fn owner(&self) -> usize {
        self.owner
    }
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handed")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

/// What the endpoint of worker 0 has to know about the clients of another worker.
#[derive(Debug)]
pub struct Verdict(Kind);

#[derive(Debug)]
enum Kind {
    Known {
        source: Source,
        former: Option<Source>,
    },
    /// Worker `worker` has taken an initiation that was handed to it.
    Taken {
        worker: usize,
    },
    TurnAway {
        arrival: Arrival,
        admission: Admission,
    },
    Wasted,
}

/// What an endpoint knows about those of the other workers, and has for them.
#[derive(Debug)]
pub(super) struct Others {
    /// This endpoint's part of the clients.
    pub(super) share: Share,
    /// Initiations for the other endpoints. Bounded by [`MAX_WORK`] for each.
    handed: VecDeque<Handed>,
    /// Number of initiations that each worker has been handed and not taken yet.
    pub(super) outstanding: Vec<usize>,
    /// What the endpoint of worker 0 has to know. Bounded by [`MAX_VERDICTS`].
    verdicts: VecDeque<Verdict>,
}

impl Default for Others {
    fn default() -> Self {
        Self::of(Share::SOLE)
    }
}

impl Others {
    fn of(share: Share) -> Self {
        Self {
            share,
            handed: VecDeque::new(),
            outstanding: vec![0; share.count()],
            verdicts: VecDeque::new(),
        }
    }

    /// Stores an initiation for its owner, or returns it if the owner is busy with too many.
    fn hand_over(&mut self, handed: Handed) -> Result<(), Handed> {
        match self.outstanding.get_mut(handed.owner) {
            Some(count) if *count < MAX_WORK => *count += 1,
            _ => return Err(handed),
        }
        self.handed.push_back(handed);
        Ok(())
    }

    /// Records that a worker has taken an initiation that it was handed.
    fn on_taken(&mut self, worker: usize) {
        if let Some(count) = self.outstanding.get_mut(worker) {
            *count = count.saturating_sub(1);
        }
    }

    fn give_verdict(&mut self, kind: Kind) {
        if self.verdicts.len() < MAX_VERDICTS {
            self.verdicts.push_back(Verdict(kind));
        }
    }
}

impl Endpoint {
    /// Makes this endpoint that of one of several workers. Its clients must be those that [`Share::owner_of`] gives to
    /// the worker. Call this before any datagram is handled.
    pub fn set_share(&mut self, share: Share) {
        self.others = Others::of(share);
        self.indices.set_share(share);
        self.kept.set_workers(share.count());
        self.pool().set_limit(super::POOL_LIMIT / share.count());
    }

    /// Returns an initiation for another worker. Call this after
    /// [`handle_handshake_result`](Self::handle_handshake_result).
    pub fn poll_handed(&mut self) -> Option<Handed> {
        self.others.handed.pop_front()
    }

    /// Handles an initiation that the endpoint of worker 0 has read.
    pub fn handle_handed(&mut self, now: Instant, handed: Handed) {
        let Handed {
            mut arrival,
            initiation,
            ..
        } = handed;
        arrival.is_handed = true;
        // However many verdicts wait, this one must not be lost.
        let worker = self.others.share.number();
        self.others
            .verdicts
            .push_back(Verdict(Kind::Taken { worker }));
        let result = match self.peers.of_key(&initiation.remote_static) {
            Some(index) => self.on_identified(now, arrival, index, initiation),
            None => self.on_stranger(now, arrival, initiation),
        };
        if let Err(reason) = result {
            self.common.drops.add(reason, 1);
        }
    }

    /// Returns what the endpoint of worker 0 has to know. Call this after every other call.
    pub fn poll_verdict(&mut self) -> Option<Verdict> {
        self.others.verdicts.pop_front()
    }

    /// Handles the verdict of another worker's endpoint.
    pub fn handle_verdict(&mut self, now: Instant, verdict: Verdict) {
        match verdict.0 {
            Kind::Known { source, former } => self.limiter.on_known(source, former),
            Kind::Taken { worker } => self.others.on_taken(worker),
            Kind::TurnAway { arrival, admission } => {
                // The other endpoint has counted the drop.
                let _ = self.turn_away_arrival(&arrival, admission);
            }
            Kind::Wasted => self.limiter.on_wasted(now),
        }
    }

    /// Stores an initiation for the worker `owner`, unless it is busy with too many.
    pub(super) fn hand_over(
        &mut self,
        now: Instant,
        arrival: Arrival,
        initiation: Box<Initiation>,
        owner: usize,
    ) -> Result<(), DropReason> {
        let handed = Handed {
            arrival,
            initiation,
            owner,
        };
        let Err(Handed { arrival, .. }) = self.others.hand_over(handed) else {
            return Ok(());
        };
        let source = arrival.route.remote;
        let admission = self.limiter.on_full(now, source, arrival.is_proved);
        self.turn_away_arrival(&arrival, admission)
    }

    /// Records that an unproved initiation was useless. A proved one costs its sender a token in any case.
    pub(super) fn on_wasted(&mut self, now: Instant, arrival: &Arrival) {
        if arrival.is_proved {
            return;
        }
        if arrival.is_handed {
            self.others.give_verdict(Kind::Wasted);
        } else {
            self.limiter.on_wasted(now);
        }
    }

    /// Records that a peer has proved `source`, and that it no longer uses `former`.
    pub(super) fn on_known(&mut self, source: Source, former: Option<Source>) {
        self.limiter.on_known(source, former);
        if self.others.share.number() != 0 {
            self.others.give_verdict(Kind::Known { source, former });
        }
    }

    /// Lets worker 0 turn an initiation away, because the sender's cookies are those of its endpoint.
    pub(super) fn return_arrival(
        &mut self,
        arrival: &Arrival,
        admission: Admission,
    ) -> Result<(), DropReason> {
        let arrival = Arrival {
            is_handed: false,
            datagram: arrival.datagram.clone(),
            ..*arrival
        };
        self.others
            .give_verdict(Kind::TurnAway { arrival, admission });
        Err(DropReason::HandshakeLimited)
    }

    /// Returns the number of clients, and the number of connected ones.
    #[must_use]
    pub fn peer_counts(&self) -> (usize, usize) {
        let peers = self.peers.iter();
        let connected = peers.clone().filter(|peer| peer.is_connected());
        (peers.count(), connected.count())
    }
}
