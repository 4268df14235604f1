//! The programs that have opened the flows, for classes that name a program ([`Match::app`]).
//!
//! *Problem.* A packet does not tell which program has sent it. The host can find the program by the socket of the
//! flow, but this takes longer than a packet may wait.
//!
//! *Algorithm.* If a packet meets all other conditions of a class that names a program, and the host has not been asked
//! for the program of the packet's flow, a question ([`FlowQuestion`]) is queued. Until the host answers, the program
//! is unknown and the class does not match, so the first packets of a flow are treated like packets of another program.
//! A flow that has been silent for [`EXPIRY`] is asked for again, because its ports may belong to another socket. The
//! former answer is used until the new answer arrives.
//!
//! *Bounds.* [`PLACES`] flows in 32 KiB, which are allocated with the first question and freed by
//! [`Apps::release_memory`]; [`MOST_QUESTIONS`] questions. A flow that finds the queue full is asked for with a later
//! packet.
//!
//! *Limits.* TCP and UDP only; fragments have no ports. If two flows share a place ([`crate::flows`]), only the program
//! of the first of them is known.
//!
//! [`Match::app`]: super::Match::app

use core::net::SocketAddr;
use std::collections::VecDeque;

use super::Class;
use crate::{
    flows::{EXPIRY, FlowId, PLACES},
    packet::PacketView,
    time::Instant,
};

/// A question for the host: which program has opened the flow of an outgoing packet?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowQuestion {
    /// IP protocol number: 6 (TCP) or 17 (UDP).
    pub protocol: u8,
    /// Source address and port of the packet: this host's socket, if the flow belongs to a program of this host.
    pub source: SocketAddr,
    /// Destination address and port of the packet.
    pub destination: SocketAddr,
    flow: FlowId,
}

impl FlowQuestion {
    /// Returns the question for the flow of a packet; `None` if the packet has no TCP or UDP ports.
    fn of(packet: &PacketView<'_>, flow: FlowId) -> Option<Self> {
        let protocol = packet.protocol();
        let protocol = protocol.filter(|protocol| [TCP, UDP].contains(protocol))?;
        let [source, destination] = packet.ports()?;
        Some(Self {
            protocol,
            source: SocketAddr::new(packet.source(), source),
            destination: SocketAddr::new(packet.destination(), destination),
            flow,
        })
    }
}

/// The programs of flows, and the questions for the host.
#[derive(Clone, Debug, Default)]
pub(super) struct Apps {
    /// The programs that classes name, each once, in alphabetical order.
    names: Vec<String>,
    /// The flows by place; empty until the first question.
    places: Vec<Place>,
    questions: VecDeque<FlowQuestion>,
}

/// What is known of the program of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u64,
    /// When a packet of the flow was last looked up; `None` if the place is free.
    seen_at: Option<Instant>,
    /// Whether the host has been asked for the flow's program.
    is_asked: bool,
    /// Index of the program in the names; `None` if it is unknown or not among the names.
    program: Option<u8>,
    /// How often the host has answered that the program cannot be known yet.
    delays: u8,
}

impl Apps {
    /// Returns the state without any known program, for `classes`.
    pub(super) fn new(classes: &[Class]) -> Self {
        let names = classes.iter().filter_map(|class| class.matches.app.clone());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names.dedup();
        Self {
            names,
            ..Self::default()
        }
    }

    /// Takes over the answers to `earlier`. If there are new names, the host is asked again for the flows whose program
    /// was not among the names.
    pub(super) fn take_over(&mut self, earlier: &Self) {
        if self.names.is_empty() {
            return;
        }
        let has_new = self.names.iter().any(|name| !earlier.names.contains(name));
        let present = |index: u8| {
            let former = earlier.names.get(usize::from(index))?;
            let index = self.names.iter().position(|name| name == former)?;
            u8::try_from(index).ok()
        };
        let places = earlier.places.iter().map(|place| {
            let program = place.program.and_then(present);
            let is_asked = place.is_asked && (program.is_some() || !has_new);
            Place {
                is_asked,
                program,
                ..*place
            }
        });
        self.places = places.collect();
        if !has_new {
            self.questions.clone_from(&earlier.questions);
        }
    }

    /// Frees the memory, and forgets all programs.
    pub(super) fn release_memory(&mut self) {
        self.places = Vec::new();
        self.questions = VecDeque::new();
    }

    /// Returns the index of the program that has opened the flow of an outgoing packet, if it is known and among the names.
    /// Asks the host for it if that has not been done.
    pub(super) fn program(
        &mut self,
        now: Instant,
        packet: &PacketView<'_>,
        flow: FlowId,
    ) -> Option<u8> {
        let question = FlowQuestion::of(packet, flow)?;
        if self.places.is_empty() {
            self.places.resize(PLACES, Place::default());
        }
        let place = &mut self.places[flow.index()];
        let is_recent = place.seen_at.is_some_and(|at| now.since(at) <= EXPIRY);
        if place.hash != flow.hash() && is_recent {
            return None;
        }
        if place.hash != flow.hash() || place.seen_at.is_none() {
            *place = Place {
                hash: flow.hash(),
                ..Place::default()
            };
        }
        place.is_asked &= is_recent;
        place.seen_at = Some(now);
        if !place.is_asked && self.questions.len() < MOST_QUESTIONS {
            place.is_asked = true;
            self.questions.push_back(question);
        }
        place.program
    }

    /// Whether the program with an index has the name `name`.
    pub(super) fn has_name(&self, program: u8, name: &str) -> bool {
        let found = self.names.get(usize::from(program));
        found.is_some_and(|found| found == name)
    }

    /// Returns the next question for the host.
    pub(super) fn poll_question(&mut self) -> Option<FlowQuestion> {
        self.questions.pop_front()
    }

    /// Takes the host's answer to a question. An answer that comes after the flow has been forgotten is ignored.
    pub(super) fn answer(&mut self, question: &FlowQuestion, program: Option<&str>) {
        let flow = question.flow;
        let place = self.places.get_mut(flow.index());
        let Some(place) = place.filter(|place| place.hash == flow.hash() && place.is_asked) else {
            return;
        };
        let mut names = self.names.iter();
        let index = program.and_then(|program| names.position(|name| name == program));
        place.program = index.and_then(|index| u8::try_from(index).ok());
    }

    /// Asks again with the next packet of the flow, because the program cannot be known yet; [`MOST_DELAYS`] times at most.
    pub(super) fn delay(&mut self, question: &FlowQuestion) {
        let flow = question.flow;
        let place = self.places.get_mut(flow.index());
        let place = place.filter(|place| place.hash == flow.hash() && place.is_asked);
        if let Some(place) = place.filter(|place| place.delays < MOST_DELAYS) {
            place.delays += 1;
            place.is_asked = false;
        }
    }
}

/// How often the host may answer that the program of a flow cannot be known yet: a server has then been slow to accept the
/// connection for so many packets and searches.
const MOST_DELAYS: u8 = 16;

/// Maximum number of questions that wait for the host: more than a host opens flows in the time of an answer.
const MOST_QUESTIONS: usize = 64;
const TCP: u8 = 6;
const UDP: u8 = 17;

// The bound of the module documentation.
const _: () = assert!(PLACES * size_of::<Place>() <= 32 << 10);
