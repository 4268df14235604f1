//! Counts a connection's bytes and reads from its sockets, for several modes.

use std::io;

use tokio::net::TcpStream;

use super::pipe::{self, Meter};
use crate::daemon::{
    hub::Hub,
    live::{Live, Stop},
};

/// Counts bytes to the server. A *question* (request) begins with the first bytes that the client sends after bytes
/// from the server.
pub(super) struct UpMeter<'a>(pub(super) &'a Live);

impl Meter for UpMeter<'_> {
    fn moved(&self, bytes: u64) {
        self.0.up.set(self.0.up.get() + bytes);
        let (questions, answered) = self.0.questions.get();
        if self.0.down.get() > answered {
            self.0.questions.set((questions + 1, self.0.down.get()));
        }
    }

    // Upward estimates concern the link, so a server that reads slowly is not reported.
    fn held_up(&self, _is_held_up: bool) {}
}

/// Counts bytes from the server.
pub(super) struct DownMeter<'a>(pub(super) &'a Live);

impl Meter for DownMeter<'_> {
    fn moved(&self, bytes: u64) {
        self.0.down.set(self.0.down.get() + bytes);
    }

    fn held_up(&self, is_held_up: bool) {
        self.0.is_held_up.set(is_held_up);
    }
}

/// Appends the available bytes to `came` and returns their number; zero at the end of the stream.
pub(super) async fn read(hub: &Hub, from: &TcpStream, came: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        from.readable().await?;
        let mut scratch = hub.buffers.scratch.borrow_mut();
        match from.try_read(&mut scratch) {
            Ok(len) => {
                came.extend_from_slice(&scratch[..len]);
                return Ok(len);
            }
            Err(error) if pipe::is_transient(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the error that says why a connection's task was stopped.
pub(super) fn stopped(live: &Live) -> io::Error {
    io::Error::other(live.stop_reason.get().map_or("stopped", Stop::text))
}

pub(super) fn broken_off() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the server closed within its answer",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::hub::tests::{add_link, begin, hub};

    #[test]
    fn a_question_is_what_a_client_says_after_the_server_did() {
        let hub = hub();
        add_link(&hub, "l0");
        let (live, _) = begin(&hub, [10, 0, 0, 1].into());
        let (up, down) = (UpMeter(&live), DownMeter(&live));
        let asked = |live: &Live| live.questions.get().0;
        up.moved(100);
        up.moved(100);
        assert_eq!(asked(&live), 1, "one in two pieces");
        down.moved(5000);
        down.moved(5000);
        up.moved(100);
        up.moved(100);
        assert_eq!(asked(&live), 2);
    }
}
