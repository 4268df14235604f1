//! One connection over an association (the shared TCP connections to a peer), as its tasks use it: reads, writes and
//! closing. Dropping a [`Carried`] closes the connection.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    time::Duration,
};

use tokio::{net::TcpStream, time};

use super::association::{Association, Watch};
use crate::{
    relay::pipe,
    stripe::{
        connections::{Connection, State},
        frame::{Broken, ConnId, Refusal, Wanted},
    },
};

/// One connection over an association.
#[derive(Debug)]
pub(crate) struct Carried {
    pub(crate) association: Rc<Association>,
    pub(crate) conn: ConnId,
    watch: Rc<Watch>,
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.association.close(self.conn);
    }
}

impl Carried {
    /// Returns the connection `conn`, which the peer requested.
    pub(crate) fn incoming(association: &Rc<Association>, conn: ConnId) -> Self {
        Self {
            association: Rc::clone(association),
            conn,
            watch: association.watch(conn),
        }
    }

    /// Requests a connection to `wanted`, whose first bytes are `first`. `None` if there are too many connections.
    pub(crate) fn ask(association: &Rc<Association>, wanted: Wanted, first: &[u8]) -> Option<Self> {
        let conn = association.mux.borrow_mut().open(wanted, first)?;
        let this = Self::incoming(association, conn);
        association.wake();
        Some(this)
    }

    /// Waits for the peer's answer to the request.
    ///
    /// # Errors
    /// Fails if the connection breaks before the answer arrives.
    pub(crate) async fn answered(&self) -> io::Result<Option<Refusal>> {
        loop {
            match self.state() {
                Some(State::Open) => return Ok(None),
                Some(State::Refused(refusal)) => return Ok(Some(refusal)),
                Some(State::Broken { why, .. }) => return Err(broke(why)),
                Some(State::Opening | State::Asked) => self.watch.state.notified().await,
                None => return Err(io::ErrorKind::NotConnected.into()),
            }
        }
    }

    /// Informs the peer that the connection it requested is open.
    pub(crate) fn accept(&self) {
        self.association.mux.borrow_mut().accept(self.conn);
        self.association.wake();
    }

    /// Informs the peer that the connection it requested is refused.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        self.association.mux.borrow_mut().refuse(self.conn, refusal);
        self.association.wake();
    }

    /// Waits until the connection is refused or broken, and returns the reason.
    pub(crate) async fn broken(&self) -> io::Error {
        loop {
            match self.state() {
                Some(State::Broken { why, .. }) => return broke(why),
                Some(State::Refused(_)) => return io::Error::other("it was refused"),
                Some(State::Asked | State::Open | State::Opening) => {
                    self.watch.state.notified().await;
                }
                None => return io::ErrorKind::NotConnected.into(),
            }
        }
    }

    /// Sends all bytes from `from` until the end of the stream, and then the end.
    pub(crate) async fn take_all(
        &self,
        scratch: &RefCell<Vec<u8>>,
        from: &TcpStream,
        moved: &Cell<u64>,
    ) -> io::Result<()> {
        loop {
            self.room().await;
            from.readable().await?;
            // Other connections may have used up the free buffer space meanwhile. There must be no await from here to
            // the write.
            let room = self.association.mux.borrow().room(self.conn);
            if room == 0 {
                continue;
            }
            let read = {
                let mut scratch = scratch.borrow_mut();
                let len = room.min(scratch.len());
                let read = from.try_read(&mut scratch[..len]);
                if let Ok(len) = read
                    && self.write(&scratch[..len]) < len
                {
                    return Err(io::Error::other("read more than there was room for"));
                }
                read
            };
            match read {
                Ok(0) => {
                    self.finish();
                    return Ok(());
                }
                Ok(len) => moved.set(moved.get() + len as u64),
                Err(error) if pipe::is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends `bytes`.
    pub(crate) async fn take(&self, mut bytes: &[u8], moved: &Cell<u64>) {
        while !bytes.is_empty() {
            self.room().await;
            let len = self.write(bytes);
            moved.set(moved.get() + len as u64);
            bytes = &bytes[len..];
        }
    }

    /// Ends the stream to the peer.
    pub(crate) fn finish(&self) {
        self.association.mux.borrow_mut().finish(self.conn);
        self.association.wake();
    }

    /// Writes all bytes from the peer to `to`, and then closes the sending direction of `to`.
    pub(crate) async fn deliver_all(
        &self,
        to: &TcpStream,
        moved: &Cell<u64>,
        held_up: &Cell<bool>,
    ) -> io::Result<()> {
        loop {
            let written = {
                let mut mux = self.association.mux.borrow_mut();
                let bytes = mux.peek(self.conn);
                if bytes.is_empty() {
                    let is_done = |found: &Connection| found.receiver.is_done();
                    if mux.connection(self.conn).is_none_or(is_done) {
                        break;
                    }
                    None
                } else {
                    let written = to.try_write(bytes);
                    if let Ok(len) = written {
                        mux.consume(self.conn, len);
                    }
                    Some(written)
                }
            };
            match written {
                None => self.watch.readable.notified().await,
                Some(Ok(len)) => {
                    moved.set(moved.get() + len as u64);
                    self.association.wake();
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    held_up.set(true);
                    to.writable().await?;
                    held_up.set(false);
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Some(Err(error)) => return Err(error),
            }
        }
        pipe::finish(to)?;
        self.association.wake();
        Ok(())
    }

    /// Waits until the other end has delivered all bytes that were sent, and the end of the stream.
    ///
    /// # Errors
    /// Fails if nothing more was delivered for `limit`, or if the connection broke.
    pub(crate) async fn delivered(&self, limit: Duration) -> io::Result<()> {
        let delivered = async {
            let (mut seen, mut deadline) = (None, time::Instant::now());
            loop {
                {
                    let mux = self.association.mux.borrow();
                    let Some(found) = mux.connection(self.conn) else {
                        return Err(io::ErrorKind::NotConnected.into());
                    };
                    if found.out.is_done() {
                        return io::Result::Ok(());
                    }
                    let now = Some(found.out.delivered());
                    if now != seen {
                        (seen, deadline) = (now, time::Instant::now() + limit);
                    }
                }
                // No other task waits for this notification, because all bytes have been written.
                let moved = time::timeout_at(deadline, self.watch.writable.notified());
                moved.await.map_err(|_| io::ErrorKind::TimedOut)?;
            }
        };
        tokio::select! {
            outcome = delivered => outcome,
            error = self.broken() => Err(error),
        }
    }

    fn state(&self) -> Option<State> {
        let mux = self.association.mux.borrow();
        mux.connection(self.conn).map(Connection::state)
    }

    #[must_use]
    fn write(&self, bytes: &[u8]) -> usize {
        let taken = self.association.mux.borrow_mut().write(self.conn, bytes);
        self.association.wake();
        taken
    }

    async fn room(&self) -> usize {
        loop {
            let room = self.association.mux.borrow().room(self.conn);
            if room > 0 {
                return room;
            }
            self.watch.writable.notified().await;
        }
    }
}

fn broke(why: Broken) -> io::Error {
    match why {
        Broken::Ended => io::Error::other("it broke at the other end, or no lane is left"),
        Broken::Violated(violation) => {
            io::Error::other(format!("one end says that the other {violation}"))
        }
    }
}
