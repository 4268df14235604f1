//! The thread that finds the programs of flows, for rules with `app`.
//!
//! The engine asks for the program of a flow that could match a rule. The thread looks for the socket of the flow and
//! the process that has it open ([`pleach_linux::owner`]), so that packets do not wait. At most [`MAX_WAITING`] flows
//! wait for the thread, and the engine asks for further flows when they send their next packets. A search takes some
//! milliseconds. After each search the thread pauses for [`PAUSES`] times as long, which limits its use of a core to a
//! fifth.

use std::{
    io,
    net::UdpSocket,
    sync::mpsc::{self, Receiver, Sender, SyncSender},
    thread,
};

use pleach_core::endpoint::{Endpoint, FlowQuestion};
use pleach_linux::{
    clock,
    owner::{self, Finder, Transport},
    poll::Waker,
};

/// The data path's handle to the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Programs {
    questions: SyncSender<FlowQuestion>,
    answers: Receiver<(FlowQuestion, Found)>,
    /// Number of questions without answer.
    waiting: usize,
    waker: Waker,
}

impl Programs {
    /// Starts the thread. `finder`: process that searches; `None`: this process searches.
    ///
    /// # Errors
    /// If the thread or an eventfd cannot be created.
    pub(super) fn start(finder: Option<Finder>) -> io::Result<Self> {
        let waker = Waker::new()?;
        let (questions, todo) = mpsc::sync_channel(MAX_WAITING);
        let (done, answers) = mpsc::channel();
        let wake = waker.clone();
        thread::Builder::new()
            .name("programs".to_owned())
            .spawn(move || answer(finder.as_ref(), &todo, &done, &wake))?;
        Ok(Self {
            questions,
            answers,
            waiting: 0,
            waker,
        })
    }

    /// Returns the waker, which is readable when there are answers.
    pub(super) const fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Passes questions of the engine to the thread, as many as may wait.
    pub(super) fn hand_over(&mut self, endpoint: &mut Endpoint) {
        while self.waiting < MAX_WAITING
            && let Some(question) = endpoint.poll_flow_question()
        {
            if self.questions.try_send(question).is_ok() {
                self.waiting += 1;
            }
        }
    }

    /// Passes the thread's answers to the engine.
    pub(super) fn collect(&mut self, endpoint: &mut Endpoint) {
        self.waker.clear();
        while let Ok((question, found)) = self.answers.try_recv() {
            self.waiting -= 1;
            match found {
                Found::Nothing => endpoint.answer_flow(&question, None),
                Found::NotYet => endpoint.delay_flow_question(&question),
                Found::Program(name) => endpoint.answer_flow(&question, Some(&name)),
            }
        }
    }
}

/// What a search has found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// The flow is of another host, or its program was not found.
    Nothing,
    /// A server of this host has not accepted the connection, so nobody has its socket open.
    NotYet,
    /// The program with this name.
    Program(String),
}

/// Answers questions until the other end of a channel is dropped.
fn answer(
    finder: Option<&Finder>,
    questions: &Receiver<FlowQuestion>,
    answers: &Sender<(FlowQuestion, Found)>,
    waker: &Waker,
) {
    while let Ok(question) = questions.recv() {
        let began_at = clock::now();
        let found = find(finder, &question);
        if answers.send((question, found)).is_err() {
            return;
        }
        waker.wake();
        thread::park_timeout(clock::now().since(began_at) * PAUSES);
    }
}

/// Looks for the program that has opened the flow.
fn find(finder: Option<&Finder>, question: &FlowQuestion) -> Found {
    let inode = inode(question);
    match inode {
        Some(0) => Found::NotYet,
        Some(inode) => owner::find_name(finder, inode).map_or(Found::Nothing, Found::Program),
        None => Found::Nothing,
    }
}

/// Returns the inode of the flow's socket; 0 for a connection that its server has not accepted; `None` for a flow of
/// another host.
fn inode(question: &FlowQuestion) -> Option<u32> {
    let transport = match question.protocol {
        TCP => Transport::Tcp,
        UDP => Transport::Udp,
        _ => return None,
    };
    // For a flow of another host, the kernel would find a socket of this host that is bound to all addresses and to the
    // same port.
    UdpSocket::bind((question.source.ip(), 0)).ok()?;
    let socket = owner::socket(transport, question.source, question.destination).ok()?;
    Some(socket.inode)
}

/// Maximum number of flows that wait for the thread.
const MAX_WAITING: usize = 64;
/// Length of the pause after a search, as a multiple of the length of the search.
const PAUSES: u32 = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;
