//! Daemon side of the control socket.
//!
//! A client that begins with an HTTP method gets the API of [`crate::api`] instead.
//!
//! One thread accepts connections, and one thread serves each connection. The data path answers through a channel, so
//! clients cannot delay packets. There are at most [`MAX_CONNECTIONS`] connections; a further one gets an error and is
//! closed. A request line has at most [`MAX_REQUEST_BYTES`]. A request, its answer and each write may take at most
//! [`PATIENCE`]. Only the owner can connect, because the socket has mode 0600 from its creation.
//!
//! Known limit: if two daemons start on the same path at the same moment, the later one takes the path. They cannot
//! both run for long, because there can be only one tunnel device with the same name.

use std::{
    collections::BTreeMap,
    fs, io,
    io::{Read, Write},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{DirBuilderExt, FileTypeExt, MetadataExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, fchmod},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
};
use serde::Serialize;

use super::{ControlRequest, MAX_ONLY, MAX_REQUEST_BYTES, Reply, Request, WEIGHTS};
#[cfg(feature = "dashboard")]
use crate::api::Api;
use crate::config::ViewConfig;

/// Reason why a control socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// A daemon answers on the socket.
    #[error("control socket {}: a running daemon answers there; stop it, or set another `control`", .0.display())]
    Live(PathBuf),
    /// The path belongs to a file that is no socket.
    #[error("control socket {}: there is a file that is no socket; remove it, or set another `control`", .0.display())]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("control socket {}: {}", .0.display(), crate::config::plain(.1))]
    Io(PathBuf, io::Error),
}

/// A listening control socket. Dropping it stops listening and removes the socket; connections end by themselves
/// within [`PATIENCE`].
#[derive(Debug)]
pub(crate) struct ControlServer {
    path: PathBuf,
    /// Device and inode of the socket, so that the socket of another daemon is not removed.
    identity: (u64, u64),
    /// Number of calls of [`Self::on_link_change`].
    link_changes: Arc<AtomicU64>,
    /// Closing this end stops the accepting thread.
    _stop: UnixStream,
}

impl ControlServer {
    /// Opens the socket at `path` and starts serving. Creates the directory if it does not exist.
    ///
    /// `view`: further addresses at which the API of [`crate::api`], the dashboard and the metrics are served.
    ///
    /// A socket that a crashed daemon left is replaced. The receiver returned gets the requests. `waker` is called
    /// after each request, from other threads, and must not block. At most [`MAX_CONNECTIONS`] requests wait.
    ///
    /// # Errors
    /// A daemon answers at `path`, the file at `path` is no socket, or a system call failed. If an address of `view` is
    /// already in use, this is no error: it is tried again.
    pub(crate) fn start(
        path: &Path,
        view: &ViewConfig,
        waker: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Self, Receiver<ControlRequest>), StartError> {
        let fail = |error| StartError::Io(path.to_owned(), error);
        make_room(path)?;
        let listener = bind_private(path).map_err(fail)?;
        let metadata = fs::symlink_metadata(path).map_err(fail)?;
        let (stop, stopped) = UnixStream::pair().map_err(fail)?;
        let (requests, receiver) = mpsc::sync_channel(MAX_CONNECTIONS);
        let link_changes = Arc::new(AtomicU64::new(0));
        let asker = Arc::new(Asker {
            requests,
            waker: Box::new(waker),
            #[cfg(feature = "dashboard")]
            link_changes: Arc::clone(&link_changes),
        });
        #[cfg(feature = "dashboard")]
        let api = Api::start(&asker, view).map_err(fail)?;
        #[cfg(not(feature = "dashboard"))]
        let _ = view;
        let gate = Arc::new(Gate {
            asker,
            #[cfg(feature = "dashboard")]
            api,
            connections: AtomicUsize::new(0),
        });
        thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || accept(&listener, &stopped, &gate))
            .map_err(fail)?;
        let server = Self {
            path: path.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
            link_changes,
            _stop: stop,
        };
        Ok((server, receiver))
    }

    /// Tells the API that the health of a link has changed, so that its next answer is a new measurement.
    pub(crate) fn on_link_change(&self) {
        self.link_changes.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if is_ours {
            // Another process may already have removed the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Sender of requests to the data path.
pub(crate) struct Asker {
    requests: SyncSender<ControlRequest>,
    waker: Box<dyn Fn() + Send + Sync>,
    #[cfg(feature = "dashboard")]
    link_changes: Arc<AtomicU64>,
}

impl Asker {
    /// Returns a sender without a receiver.
    #[cfg(all(test, feature = "dashboard"))]
    pub(crate) fn unheard() -> Self {
        Self {
            requests: mpsc::sync_channel(1).0,
            waker: Box::new(|| {}),
            link_changes: Arc::default(),
        }
    }

    /// Returns how often the health of a link has changed since the start.
    #[cfg(feature = "dashboard")]
    pub(crate) fn link_changes(&self) -> u64 {
        self.link_changes.load(Ordering::Relaxed)
    }

    /// Sends a request to the data path and waits for the answer, at most [`PATIENCE`].
    ///
    /// # Errors
    /// The data path refuses, is busy, or is stopping. The text is one line for the user.
    pub(crate) fn ask<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> ControlRequest,
    ) -> Result<T, String> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.requests
            .try_send(request(Reply(reply)))
            .map_err(|_| "the daemon is stopping or busy".to_owned())?;
        (self.waker)();
        match answer.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err("the daemon did not answer in time".to_owned()),
            Err(RecvTimeoutError::Disconnected) => Err("the daemon is stopping".to_owned()),
        }
    }

    /// Sets the weights of links by name; see [`ControlRequest::Weights`].
    ///
    /// # Errors
    /// No weight is given, a weight is out of range, or the data path refuses.
    pub(crate) fn set_weights(&self, weights: BTreeMap<String, u32>) -> Result<(), String> {
        if weights.is_empty() {
            return Err("weights: none given".to_owned());
        }
        if let Some((name, weight)) = weights.iter().find(|(_, w)| !WEIGHTS.contains(w)) {
            return Err(format!(
                "weights: {name:?}: expected 1 to 1000, found {weight}"
            ));
        }
        self.ask(|reply| ControlRequest::Weights(weights, reply))
    }
}

/// State shared by the threads that serve connections.
struct Gate {
    asker: Arc<Asker>,
    #[cfg(feature = "dashboard")]
    api: Api,
    connections: AtomicUsize,
}

/// Creates the directory, and removes a socket on which no daemon answers.
fn make_room(path: &Path) -> Result<(), StartError> {
    let fail = |error| StartError::Io(path.to_owned(), error);
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .map_err(fail)?;
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(StartError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(StartError::Live(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(fail)
        }
        Err(error) => Err(fail(error)),
    }
}

/// Binds a listener whose file has mode 0600 from its creation, because Linux takes the mode from the unbound socket.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let socket: OwnedFd = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, 16)?;
    Ok(UnixListener::from(socket))
}

fn accept(listener: &UnixListener, stopped: &UnixStream, gate: &Arc<Gate>) {
    loop {
        let mut ready = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(stopped, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) if !ready[1].revents().is_empty() => return,
            Ok(_) => {}
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                // The process is out of file descriptors or memory. Wait until other connections have released some.
                tracing::warn!(%error, "control connection not accepted");
                let mut stop = [PollFd::new(stopped, PollFlags::IN)];
                let _ = poll(&mut stop, Some(&BREATHER));
                continue;
            }
        };
        // Only this thread increments the counter, so the limit holds.
        if gate.connections.load(Ordering::Acquire) >= MAX_CONNECTIONS {
            // The line fits into the socket's empty buffer, so this call cannot block.
            let _ = write_error(&stream, "too many connections");
            continue;
        }
        gate.connections.fetch_add(1, Ordering::AcqRel);
        let slot = Slot(Arc::clone(gate));
        let served = thread::Builder::new()
            .name("control-conn".to_owned())
            .stack_size(256 << 10)
            .spawn(move || {
                // An error means that the client left or was too slow.
                let _ = serve(stream, slot);
            });
        if let Err(error) = served {
            tracing::warn!(%error, "control connection not served");
        }
    }
}

/// One of the limited number of connections.
pub(crate) struct Slot(Arc<Gate>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Answers requests until the client leaves or is too slow. A client that uses HTTP is passed to the API.
fn serve(stream: UnixStream, slot: Slot) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    #[cfg(feature = "dashboard")]
    if speaks_http(&stream)? {
        let api = Arc::clone(&slot.0);
        return api.api.hand_over(stream, slot);
    }
    let mut lines = Lines {
        stream: &stream,
        buffer: Vec::new(),
    };
    loop {
        match lines.next()? {
            Line::End => return Ok(()),
            Line::TooLong => {
                return write_error(&stream, "the request is longer than 64 KiB");
            }
            Line::Complete(line) => answer(&stream, &line, &slot.0)?,
        }
    }
}

/// Whether the first byte, which stays unread, can begin an HTTP method (RFC 9110, section 9). No JSON request begins
/// with such a byte.
#[cfg(feature = "dashboard")]
fn speaks_http(stream: &UnixStream) -> io::Result<bool> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut first = [0];
    let (length, _) = rustix::net::recv(stream, &mut first, rustix::net::RecvFlags::PEEK)?;
    Ok(length == 1 && first[0].is_ascii_uppercase())
}

/// Answers one request.
fn answer(stream: &UnixStream, line: &[u8], gate: &Gate) -> io::Result<()> {
    match serde_json::from_slice(line) {
        Err(error) => write_error(stream, &format!("not a request: {error}")),
        Ok(Request::Status {}) => match gate.asker.ask(ControlRequest::Status) {
            Ok(status) => write_line(stream, &status),
            Err(error) => write_error(stream, &error),
        },
        Ok(Request::Drain { on }) => write_done(
            stream,
            gate.asker.ask(|reply| ControlRequest::Drain(on, reply)),
        ),
        Ok(Request::Only { link, millis }) => {
            let time = Duration::from_millis(millis).min(MAX_ONLY);
            let link = link.map(|link| (link, time));
            write_done(
                stream,
                gate.asker.ask(|reply| ControlRequest::Only(link, reply)),
            )
        }
        Ok(Request::Reload {}) => match gate.asker.ask(ControlRequest::Reload) {
            Ok(report) => write_line(stream, &report),
            Err(error) => write_error(stream, &error),
        },
        Ok(Request::RemoveClient { name }) => {
            let remove = |reply| ControlRequest::RemoveClient(name, reply);
            write_done(stream, gate.asker.ask(remove))
        }
        Ok(Request::Set { set }) => write_done(
            stream,
            gate.asker.ask(|reply| ControlRequest::Set(set, reply)),
        ),
        Ok(Request::Weights { weights }) => write_done(stream, gate.asker.set_weights(weights)),
    }
}

fn write_done(stream: &UnixStream, done: Result<(), String>) -> io::Result<()> {
    match done {
        Ok(()) => write_line(stream, &serde_json::json!({ "ok": true })),
        Err(error) => write_error(stream, &error),
    }
}

/// Splits the data of a client into lines.
struct Lines<'a> {
    stream: &'a UnixStream,
    /// Data received after the last line: at most one line and one read.
    buffer: Vec<u8>,
}

enum Line {
    Complete(Vec<u8>),
    End,
    TooLong,
}

impl Lines<'_> {
    /// Returns the next line without its newline, if it arrives within [`PATIENCE`].
    #[expect(
        clippy::disallowed_methods,
        reason = "a deadline for the whole line; socket timeouts start anew with every byte"
    )]
    fn next(&mut self) -> io::Result<Line> {
        let deadline = Instant::now() + PATIENCE;
        let mut searched = 0;
        let mut chunk = [0; 8 << 10];
        loop {
            let newline = self.buffer[searched..]
                .iter()
                .position(|byte| *byte == b'\n');
            if let Some(offset) = newline {
                let rest = self.buffer.split_off(searched + offset + 1);
                let mut line = core::mem::replace(&mut self.buffer, rest);
                line.pop();
                if line.len() >= MAX_REQUEST_BYTES {
                    return Ok(Line::TooLong);
                }
                return Ok(Line::Complete(line));
            }
            searched = self.buffer.len();
            if searched >= MAX_REQUEST_BYTES {
                return Ok(Line::TooLong);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut stream = self.stream;
            match stream.read(&mut chunk) {
                Ok(0) => return Ok(Line::End),
                Ok(len) => self.buffer.extend_from_slice(&chunk[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn write_error(stream: &UnixStream, text: &str) -> io::Result<()> {
    write_line(stream, &serde_json::json!({ "error": text }))
}

fn write_line(mut stream: &UnixStream, answer: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Pause after a failed accept.
const BREATHER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Maximum number of simultaneous connections.
pub(super) const MAX_CONNECTIONS: usize = 32;

/// Time limit for each request, answer and write on this socket.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
