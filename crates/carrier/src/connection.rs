//! Datagrams over one WebSocket connection, both ways.

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

/// What the connections of a set take pieces from: whichever can send takes the next.
pub(crate) type Pieces = Arc<Mutex<mpsc::Receiver<Piece>>>;

/// Bounds for messages of both ends.
pub(crate) fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .max_write_buffer_size(MAX_UNWRITTEN)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
}

/// Moves datagrams until the connection ends, or nothing has come for [`SILENCE`]. `deliver` takes what has come, and says
/// whether anybody still wants it.
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
            loop {
                match next {
                    Some(Ok(Message::Binary(datagram))) => {
                        received.bytes.extend_from_slice(&datagram);
                        received.lengths.push(datagram.len());
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_))) | None => return CarrierError::Closed,
                    Some(Ok(Message::Text(_) | Message::Frame(_))) => {
                        return CarrierError::WebSocket("a message that is no datagram".to_owned());
                    }
                    Some(Err(error)) => return explain(&error),
                }
                if received.lengths.len() >= MOST_TOGETHER {
                    break;
                }
                match stream.next().now_or_never() {
                    Some(more) => next = more,
                    None => break,
                }
            }
            if !received.lengths.is_empty() && !deliver(received).await {
                return CarrierError::Closed;
            }
        }
    };
    tokio::select! {
        error = send => error,
        error = receive => error,
    }
}

/// In the words of this crate.
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
/// What waits to be written in the WebSocket layer, answers to pings among it, before the connection ends.
const MAX_UNWRITTEN: usize = 512 << 10;
/// Datagrams handed over together.
const MOST_TOGETHER: usize = 64;
/// The engine probes a reserve path once a minute, over any of a set's connections.
const SILENCE: Duration = Duration::from_secs(900);
