//! Datagrams over one WebSocket connection, in both directions.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Mutex, mpsc},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Bytes, Error, Message, protocol::WebSocketConfig},
};

use crate::{MAX_MESSAGE, Piece, Received, error::CarrierError};

/// Queue from which all connections of a set take pieces: whichever connection can send takes the next piece.
pub(crate) type Pieces = Arc<Mutex<mpsc::Receiver<Piece>>>;

/// Returns the bounds for messages of both ends.
pub(crate) fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .max_write_buffer_size(MAX_UNWRITTEN)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
}

/// Transfers datagrams until the connection ends, or nothing has arrived for [`SILENCE`]. `deliver` processes the
/// received datagrams and returns whether the receiver still exists.
pub(crate) async fn run<S, F>(
    socket: WebSocketStream<S>,
    pieces: &Pieces,
    deliver: impl Fn(Received) -> F,
) -> CarrierError
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = bool>,
{
    let (mut sink, mut stream) = socket.split();
    let send = async {
        loop {
            let piece = pieces.lock().await.recv().await;
            let Some(piece) = piece else {
                return CarrierError::Closed;
            };
            for datagram in piece.bytes.chunks(piece.segment_len.max(1)) {
                let message = Message::Binary(Bytes::copy_from_slice(datagram));
                if let Err(error) = sink.feed(message).await {
                    return explain(&error);
                }
            }
            if let Err(error) = sink.flush().await {
                return explain(&error);
            }
        }
    };
    let receive = async {
        loop {
            let Ok(first) = tokio::time::timeout(SILENCE, stream.next()).await else {
                return CarrierError::Timeout("nothing was received for minutes");
            };
            let mut received = Received::default();
            let mut next = first;
            let end = loop {
                match next {
                    Some(Ok(Message::Binary(datagram))) => {
                        received.bytes.extend_from_slice(&datagram);
                        received.lengths.push(datagram.len());
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_))) | None => break Some(CarrierError::Closed),
                    Some(Ok(Message::Text(_) | Message::Frame(_))) => {
                        let what = "a message that is no datagram".to_owned();
                        break Some(CarrierError::WebSocket(what));
                    }
                    Some(Err(error)) => break Some(explain(&error)),
                }
                if received.lengths.len() >= MOST_TOGETHER
                    || received.bytes.len() >= MOST_BYTES_TOGETHER
                {
                    break None;
                }
                match stream.next().now_or_never() {
                    Some(more) => next = more,
                    None => break None,
                }
            };
            // Datagrams that arrived before the end, such as a close message, are delivered first.
            if !received.lengths.is_empty() && !deliver(received).await {
                return CarrierError::Closed;
            }
            if let Some(error) = end {
                return error;
            }
        }
    };
    tokio::select! {
        error = send => error,
        error = receive => error,
    }
}

/// Converts an error to a [`CarrierError`].
pub(crate) fn explain(error: &Error) -> CarrierError {
    match error {
        Error::ConnectionClosed | Error::AlreadyClosed | Error::Io(_) => CarrierError::Closed,
        Error::Http(response) => CarrierError::NotTheGateway(response.status().as_u16()),
        Error::AttackAttempt
        | Error::Capacity(_)
        | Error::HttpFormat(_)
        | Error::Protocol(_)
        | Error::Tls(_)
        | Error::Url(_)
        | Error::Utf8(_)
        | Error::WriteBufferFull(_) => CarrierError::WebSocket(error.to_string()),
    }
}

const READ_BUFFER: usize = 16_384;
/// Limit in bytes of unwritten data in the WebSocket layer, including answers to pings. Beyond it the connection ends.
const MAX_UNWRITTEN: usize = 512 << 10;
/// Highest number of datagrams that are delivered together.
const MOST_TOGETHER: usize = 64;
/// Number of bytes after which received datagrams are delivered at once. So at most 64 KiB and one message are
/// delivered together.
const MOST_BYTES_TOGETHER: usize = 65_536;
/// Time without received data after which a connection ends. The engine probes a reserve path once a minute, over any
/// of a set's connections.
const SILENCE: Duration = Duration::from_secs(900);

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use tokio::{io::AsyncWriteExt as _, runtime::Builder};
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    #[test]
    fn long_messages_are_handed_over_before_they_are_many() {
        let runtime = Builder::new_current_thread().enable_all().build();
        let handed_over = StdMutex::new(Vec::new());
        runtime.expect("a runtime").block_on(async {
            let (here, mut there) = tokio::io::duplex(8 << 20);
            // The messages are unmasked, as a server sends them. All are written before the first is read.
            for _ in 0..64 {
                let mut message = vec![0x82, 126];
                message.extend(u16::MAX.to_be_bytes());
                message.resize(message.len() + MAX_MESSAGE, 7);
                there.write_all(&message).await.expect("room");
            }
            drop(there);
            let socket = WebSocketStream::from_raw_socket(here, Role::Client, Some(config())).await;
            let (_pieces, queue) = mpsc::channel(1);
            let pieces = Arc::new(Mutex::new(queue));
            run(socket, &pieces, |received| {
                let mut handed_over = handed_over.lock().expect("no panic");
                handed_over.push(received.bytes.len());
                std::future::ready(true)
            })
            .await;
        });
        let handed_over = handed_over.into_inner().expect("no panic");
        assert_eq!(handed_over.iter().sum::<usize>(), 64 * MAX_MESSAGE);
        let most = MOST_BYTES_TOGETHER + MAX_MESSAGE;
        assert!(
            handed_over.iter().all(|bytes| *bytes <= most),
            "{handed_over:?}"
        );
    }
}
