//! A process that finds the owners of sockets for another process.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command},
    sync::Mutex,
    time::Duration,
};

use pleach_core::time::Instant;
use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};

use super::process_name;
use crate::clock;

/// A process that runs [`serve`]. Dropping the value ends it.
#[derive(Debug)]
pub struct Finder {
    questions: Mutex<Questions>,
    process: Child,
}

impl Finder {
    /// Starts `program`, which must call [`serve`] with its standard input.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(program: &mut Command) -> io::Result<Self> {
        let (socket, other) = UnixStream::pair()?;
        let questions = Questions::new(socket, PATIENCE, PAUSE)?;
        let process = program.stdin(OwnedFd::from(other)).spawn()?;
        Ok(Self {
            questions: Mutex::new(questions),
            process,
        })
    }

    /// Returns the name of the process that has the socket `inode` open, as [`process_name`] does. `None` also if the
    /// search takes longer than 1 s. Until that search has ended, and at least for 10 s, further calls return `None` at
    /// once. After the end of the process, no name is found any more.
    #[must_use]
    pub fn process_name(&self, inode: u32) -> Option<String> {
        let mut questions = self.questions.lock().ok()?;
        questions.ask(inode).unwrap_or_default()
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        if let Ok(questions) = self.questions.get_mut() {
            // The process ends at the end of its input.
            let _ = questions.socket.shutdown(Shutdown::Both);
        }
        // A search in a slow `/proc` must not delay the end of this process.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The asking end of the socket to a process that runs [`serve`]. At most one question is unanswered.
#[derive(Debug)]
struct Questions {
    socket: UnixStream,
    /// Received bytes of an incomplete answer.
    received: Vec<u8>,
    /// Whether the last question is unanswered. Its answer must not be mistaken for the answer to the next question.
    is_waiting: bool,
    /// Time before which no question is sent, because a search took too long.
    resume_at: Instant,
    pause: Duration,
    /// Whether the process has ended.
    is_over: bool,
}

impl Questions {
    /// `patience`: longest wait for an answer. `pause`: time without questions after an answer that was not in time.
    fn new(socket: UnixStream, patience: Duration, pause: Duration) -> io::Result<Self> {
        socket.set_read_timeout(Some(patience))?;
        Ok(Self {
            socket,
            received: Vec::new(),
            is_waiting: false,
            resume_at: Instant::ZERO,
            pause,
            is_over: false,
        })
    }

    /// Sends the number of an inode, and waits for the name.
    ///
    /// # Errors
    /// `WouldBlock` if the answer does not arrive in time, or the answer to an earlier question has not arrived yet.
    /// Other errors mean that the process has ended.
    fn ask(&mut self, inode: u32) -> io::Result<Option<String>> {
        if self.is_over {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let asked = self.try_ask(inode);
        match &asked {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                tracing::warn!(%error, "programs of clients are not found any more: rules with `app` do not match until a restart");
                self.is_over = true;
            }
            Ok(_) | Err(_) => {}
        }
        asked
    }

    fn try_ask(&mut self, inode: u32) -> io::Result<Option<String>> {
        if clock::now() < self.resume_at {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.is_waiting {
            self.receive(RecvFlags::DONTWAIT)?;
            tracing::info!("programs of clients are found again");
        }
        self.socket.write_all(&inode.to_ne_bytes())?;
        self.is_waiting = true;
        let received = self.receive(RecvFlags::empty());
        if let Err(error) = &received
            && error.kind() == io::ErrorKind::WouldBlock
        {
            self.resume_at = clock::now() + self.pause;
            tracing::warn!(
                "the search for the program of a client takes too long: rules with `app` do not match until it has ended"
            );
        }
        received
    }

    /// Receives the answer to the last question: the length of a name in one byte, 0 for none, and the name.
    fn receive(&mut self, flags: RecvFlags) -> io::Result<Option<String>> {
        loop {
            if let Some((len, rest)) = self.received.split_first()
                && let Some(name) = rest.get(..usize::from(*len))
            {
                let name = String::from_utf8_lossy(name).into_owned();
                self.received.clear();
                self.is_waiting = false;
                return Ok((!name.is_empty()).then_some(name));
            }
            let mut bytes = [0; 256];
            match recv(&self.socket, &mut bytes, flags) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, len)) => self.received.extend_from_slice(&bytes[..len]),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Answers the questions of a [`Finder`] until `socket` ends.
///
/// # Errors
/// If the socket fails.
pub fn serve(socket: &mut (impl Read + Write)) -> io::Result<()> {
    loop {
        let mut inode = [0; 4];
        match socket.read_exact(&mut inode) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let name = process_name(u32::from_ne_bytes(inode)).unwrap_or_default();
        let mut answer = vec![u8::try_from(name.len()).unwrap_or(0)];
        if answer[0] > 0 {
            answer.extend_from_slice(name.as_bytes());
        }
        socket.write_all(&answer)?;
    }
}

/// Longest wait for an answer. A search takes some milliseconds, and callers do not wait for longer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time without questions after a search that took too long. Every such search blocks a thread for [`PATIENCE`].
const PAUSE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::{fs, net::TcpListener, os::fd::AsRawFd as _, sync::mpsc, thread};

    use super::*;

    #[test]
    fn a_finder_answers_as_the_search_itself() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).expect("open");
        let link = link.to_string_lossy();
        let inode = link.trim_start_matches("socket:[").trim_end_matches(']');
        let inode = inode.parse().expect("a number");
        let (asker, mut finder) = UnixStream::pair().expect("a pair");
        let mut questions = Questions::new(asker, PATIENCE, PAUSE).expect("set");
        let serving = thread::spawn(move || serve(&mut finder));
        let asked = questions.ask(inode).expect("an answer");
        let own = fs::read_to_string("/proc/self/comm").expect("a name");
        assert_eq!(asked.as_deref(), Some(own.trim_end()));
        assert_eq!(questions.ask(1).expect("an answer"), None);
        drop(questions);
        serving.join().expect("no panic").expect("ends");
    }

    #[test]
    fn a_slow_answer_is_not_taken_for_another_and_later_questions_are_answered() {
        let (asker, mut finder) = UnixStream::pair().expect("a pair");
        let patience = Duration::from_millis(20);
        let mut questions = Questions::new(asker, patience, Duration::ZERO).expect("set");
        let mut question = || {
            let mut inode = [0; 4];
            finder.read_exact(&mut inode).expect("a question");
            u32::from_ne_bytes(inode)
        };
        let is_late = |asked: io::Result<Option<String>>| {
            asked.expect_err("no answer").kind() == io::ErrorKind::WouldBlock
        };
        assert!(is_late(questions.ask(1)));
        // No further question is sent before the answer is there.
        assert!(is_late(questions.ask(2)));
        assert_eq!(question(), 1);
        // A part of the answer.
        finder.write_all(b"\x05one").expect("open");
        assert!(is_late(questions.ask(3)));
        finder.write_all(b"st").expect("open");
        let (tell, told) = mpsc::channel();
        let serving = thread::spawn(move || {
            let mut inode = [0; 4];
            finder.read_exact(&mut inode).expect("a question");
            tell.send(u32::from_ne_bytes(inode)).expect("heard");
            finder.write_all(b"\x06second").expect("open");
        });
        questions
            .socket
            .set_read_timeout(Some(PATIENCE))
            .expect("set");
        assert_eq!(
            questions.ask(4).expect("an answer").as_deref(),
            Some("second")
        );
        assert_eq!(told.recv(), Ok(4));
        serving.join().expect("no panic");
        // The process has ended.
        let ended = questions.ask(5).expect_err("no answer");
        assert_ne!(ended.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(
            questions.ask(6).expect_err("no answer").kind(),
            io::ErrorKind::BrokenPipe
        );
    }
}
