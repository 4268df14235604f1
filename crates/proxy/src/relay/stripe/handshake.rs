//! Handshake of a lane (a TCP connection to a peer) before it belongs to an association: greeting and key exchange
//! over its socket ([`crate::stripe::channel`]).

use std::io;

use pleach_core::session::{
    entropy::Entropy as _,
    handshake::{Incoming, StaticKeys},
    invitation::Claim,
    secret::Secret,
};
use pleach_linux::{clock, entropy::KernelEntropy};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::stripe::{
    channel::{self, ChannelError, GREETING_LEN, Opener, Sealer},
    frame::Frame,
};

/// A TCP connection whose ends have authenticated each other.
#[derive(Debug)]
pub(crate) struct Shaken {
    pub(crate) stream: TcpStream,
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
    /// Whether the other end may be sent frames of UDP flows. Always `true` at the answering end, which sends such
    /// frames only as answers.
    pub(crate) serves_flows: bool,
}

impl Shaken {
    /// Sends one frame.
    pub(crate) async fn send(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let (mut plain, mut sealed) = (Vec::new(), Vec::new());
        frame.encode(&mut plain);
        self.sealer.seal(&plain, &mut sealed);
        self.stream.write_all(&sealed).await
    }

    /// Receives one frame in encoded form.
    pub(crate) async fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(frame) = self.opener.next_frame().map_err(io::Error::other)? {
                return Ok(frame.to_vec());
            }
            match self.stream.read(self.opener.space()).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => self.opener.on_filled(len),
            }
        }
    }
}

/// Reads the greeting of the listening end. Returns the position of its public key among `known`. `None` if the key
/// is not among them.
pub(crate) async fn read_greeting<'a>(
    stream: &mut TcpStream,
    known: impl Iterator<Item = &'a [u8; 32]>,
) -> io::Result<Option<usize>> {
    let mut greeting = [0; GREETING_LEN];
    stream.read_exact(&mut greeting).await?;
    channel::recognise(&greeting, known).map_err(io::Error::other)
}

/// Performs the handshake at the end that connects, with the owner of the public key `remote`.
pub(crate) async fn ask(
    mut stream: TcpStream,
    local: &StaticKeys,
    remote: &[u8; 32],
) -> io::Result<Shaken> {
    let (initiator, first) = channel::initiate(local, remote, seed()?).map_err(io::Error::other)?;
    // This message does not depend on the greeting, and only the owner of `remote` can read it.
    stream.write_all(&first).await?;
    if read_greeting(&mut stream, [remote].into_iter())
        .await?
        .is_none()
    {
        return Err(io::Error::other("it is not the peer"));
    }
    let second = read_message(&mut stream).await?;
    let read = channel::read_response(initiator, &second).map_err(io::Error::other)?;
    let (sealer, opener, serves_flows) = read;
    Ok(Shaken {
        stream,
        sealer,
        opener,
        serves_flows,
    })
}

/// Presents the invitation `claim` to the owner of `remote`, whose greeting has been read. After success the owner
/// knows `local`.
pub(crate) async fn enrol(
    mut stream: TcpStream,
    local: &StaticKeys,
    remote: &[u8; 32],
    claim: &Claim,
) -> io::Result<()> {
    let time = clock::unix_nanos();
    let initiated = channel::initiate_with_claim(local, remote, claim, time, seed()?);
    let (initiator, first) = initiated.map_err(io::Error::other)?;
    stream.write_all(&first).await?;
    let second = read_message(&mut stream).await?;
    channel::read_response(initiator, &second).map_err(io::Error::other)?;
    Ok(())
}

/// Returns a function that finds the sender of an initiation in a fixed list.
#[cfg(test)]
pub(crate) fn among(known: &[[u8; 32]]) -> impl AsyncFnOnce(&Incoming) -> Option<usize> {
    async |incoming: &Incoming| known.iter().position(|key| *key == incoming.remote_static)
}

/// Performs the handshake at the listening end. `who` identifies the peer. Returns the connection and the peer's
/// number.
pub(crate) async fn answer(
    mut stream: TcpStream,
    local: &StaticKeys,
    who: impl AsyncFnOnce(&Incoming) -> Option<usize>,
) -> io::Result<(Shaken, usize)> {
    let [nonce, _] = split(clock::entropy()?);
    let greeting = channel::greeting(local.public(), nonce);
    stream.write_all(&greeting).await?;
    let first = read_message(&mut stream).await?;
    let incoming = channel::read_initiation(local, &first).map_err(io::Error::other)?;
    let who = who(&incoming).await;
    let who = who.ok_or_else(|| io::Error::other("its key is not known"))?;
    let (sealer, opener, second) = channel::respond(incoming, seed()?).map_err(io::Error::other)?;
    stream.write_all(&second).await?;
    let shaken = Shaken {
        stream,
        sealer,
        opener,
        serves_flows: true,
    };
    Ok((shaken, who))
}

/// Returns the version of the striping protocol of the other end, if `error` says that the versions differ.
pub(crate) fn other_version(error: &io::Error) -> Option<u8> {
    match error.get_ref()?.downcast_ref::<ChannelError>()? {
        ChannelError::Version(version) => Some(*version),
        ChannelError::Handshake(_) | ChannelError::Length(_) | ChannelError::Seal => None,
    }
}

/// Returns a random seed for an ephemeral key. It is wiped when dropped.
fn seed() -> io::Result<Secret> {
    let mut source = KernelEntropy::open()?;
    Ok(Secret::filled_by(|bytes| source.fill(bytes)))
}

/// Splits 32 bytes into two halves.
pub(crate) fn split(bytes: [u8; 32]) -> [[u8; 16]; 2] {
    let mut halves = [[0; 16]; 2];
    halves[0].copy_from_slice(&bytes[..16]);
    halves[1].copy_from_slice(&bytes[16..]);
    halves
}

async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).await?;
    let len = channel::handshake_len(length).map_err(io::Error::other)?;
    let mut message = vec![0; len];
    stream.read_exact(&mut message).await?;
    Ok(message)
}
