//! Handshake computations that the owner of an endpoint runs on another thread.
//!
//! Answering a handshake takes five X25519 operations, about 0.3 ms. In that time a data thread forwards hundreds of
//! packets. So an endpoint does not run these operations itself. It returns [`HandshakeWork`], which its owner runs on
//! another thread, and takes the [`HandshakeResult`]. All decisions remain in the endpoint. An owner without threads
//! calls [`Endpoint::work_inline`](super::Endpoint::work_inline).
//!
//! Bounds: [`MAX_WORK`] pieces of work waiting or in progress, of which at most [`MAX_UNPROVED`] are for senders that
//! have not proved their address.

use core::fmt;
use std::{collections::VecDeque, sync::Arc};

use crate::{
    session::{
        handshake::{
            EphemeralId, Established, HandshakeError, Incoming as Initiation, Responder, StaticKeys,
        },
        secret::Secret,
    },
    transmit::Route,
    wire::handshake::Hello,
};

/// Maximum number of pieces of work waiting or in progress: 20 ms of one thread.
pub const MAX_WORK: usize = 64;
/// Maximum number of initiations in progress without a proved address. After one of them turned out to be useless, no
/// further initiations without a proved address are read for a while, so this limits the cost of a burst.
pub const MAX_UNPROVED: usize = 4;

/// A computation for a handshake.
pub struct HandshakeWork(Task);

enum Task {
    Read {
        keys: Arc<StaticKeys>,
        arrival: Arrival,
    },
    Respond {
        arrival: Arrival,
        peer: usize,
        local_index: u32,
        hello: Hello,
        initiation: Box<Initiation>,
        psk: Secret,
        seed: Secret,
    },
}

/// The result of a piece of work.
pub struct HandshakeResult(pub(super) Outcome);

pub(super) enum Outcome {
    Read {
        arrival: Arrival,
        read: Result<Box<Initiation>, HandshakeError>,
    },
    Responded {
        arrival: Arrival,
        peer: usize,
        local_index: u32,
        association: u64,
        answer: Result<(Established, Vec<u8>), HandshakeError>,
    },
}

/// A received initiation.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) route: Route,
    pub(super) is_proved: bool,
    /// Identifies the initiation after it has been authenticated.
    pub(super) id: EphemeralId,
    /// Whether the endpoint of another worker has admitted it.
    pub(super) is_handed: bool,
    pub(super) datagram: Vec<u8>,
}

impl HandshakeWork {
    pub(super) fn read(keys: Arc<StaticKeys>, arrival: Arrival) -> Self {
        Self(Task::Read { keys, arrival })
    }

    pub(super) fn respond(
        arrival: Arrival,
        peer: usize,
        local_index: u32,
        hello: Hello,
        initiation: Box<Initiation>,
        psk: Secret,
        seed: Secret,
    ) -> Self {
        Self(Task::Respond {
            arrival,
            peer,
            local_index,
            hello,
            initiation,
            psk,
            seed,
        })
    }

    /// Runs the work: two or three X25519 operations.
    #[must_use]
    pub fn run(self) -> HandshakeResult {
        HandshakeResult(match self.0 {
            Task::Read { keys, arrival } => {
                let read = Responder::read_initiation(&keys, &arrival.datagram);
                Outcome::Read {
                    arrival,
                    read: read.map(Box::new),
                }
            }
            Task::Respond {
                arrival,
                peer,
                local_index,
                hello,
                initiation,
                psk,
                seed,
            } => Outcome::Responded {
                arrival,
                peer,
                local_index,
                association: hello.association,
                answer: initiation.respond(psk.expose(), local_index, hello, seed),
            },
        })
    }

    fn is_unproved_read(&self) -> bool {
        matches!(&self.0, Task::Read { arrival, .. } if !arrival.is_proved)
    }
}

impl fmt::Debug for HandshakeWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandshakeWork")
    }
}

impl fmt::Debug for HandshakeResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandshakeResult")
    }
}

/// The waiting work, and counts of the work in progress.
#[derive(Debug, Default)]
pub(super) struct WorkQueue {
    waiting: VecDeque<HandshakeWork>,
    /// Number of pieces of work that are waiting or in progress.
    open: usize,
    /// Number of initiations without a proved address that are waiting to be read or being read.
    unproved: usize,
}

impl WorkQueue {
    /// Whether one more initiation can be read or answered.
    pub(super) fn has_room(&self, is_proved: bool) -> bool {
        self.open < MAX_WORK && (is_proved || self.unproved < MAX_UNPROVED)
    }

    /// Adds work. The queue must [have room](Self::has_room).
    pub(super) fn push(&mut self, work: HandshakeWork) {
        self.open += 1;
        self.unproved += usize::from(work.is_unproved_read());
        self.waiting.push_back(work);
    }

    pub(super) fn poll(&mut self) -> Option<HandshakeWork> {
        self.waiting.pop_front()
    }

    pub(super) fn on_done(&mut self, result: &HandshakeResult) {
        self.open = self.open.saturating_sub(1);
        if matches!(&result.0, Outcome::Read { arrival, .. } if !arrival.is_proved) {
            self.unproved = self.unproved.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_can_be_done_by_another_thread() {
        const fn is_send<T: Send>() {}
        is_send::<HandshakeWork>();
        is_send::<HandshakeResult>();
    }
}
