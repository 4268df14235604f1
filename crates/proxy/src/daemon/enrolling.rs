//! Becoming the peer of another pleach by an invitation: the end that accepts one.

use std::{io, net::SocketAddr, time::Duration};

use pleach_core::{session::handshake::StaticKeys, wire::handshake::Claim};
use tokio::{net::TcpStream, time};

use crate::relay::stripe::handshake;

/// Why an invitation was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The owner of the key does not answer there. It has got nothing.
    #[error("{0}")]
    Absent(io::Error),
    /// It closed the connection when it had got the claim.
    #[error("the claim is refused")]
    Refused,
    /// It may have got the claim, and did not answer as it should.
    #[error("{0}")]
    Unanswered(io::Error),
}

/// Presents `claim` to the owner of `remote`, which answers at `to`. Once it returns, the owner knows `keys`.
///
/// # Errors
/// Nobody answers there within some seconds, somebody else does, or the claim is refused.
pub async fn enrol(
    to: SocketAddr,
    keys: &StaticKeys,
    remote: &[u8; 32],
    claim: &Claim,
) -> Result<(), EnrolError> {
    let timed_out = || io::Error::from(io::ErrorKind::TimedOut);
    let reached = async {
        let mut stream = TcpStream::connect(to).await?;
        let found = handshake::read_greeting(&mut stream, [remote].into_iter()).await?;
        found.ok_or_else(|| io::Error::other("it is not the peer"))?;
        io::Result::Ok(stream)
    };
    let reached = time::timeout(PATIENCE, reached).await;
    let reached = reached.unwrap_or_else(|_| Err(timed_out()));
    let stream = reached.map_err(EnrolError::Absent)?;
    let claimed = time::timeout(PATIENCE, handshake::enrol(stream, keys, remote, claim)).await;
    match claimed.unwrap_or_else(|_| Err(timed_out())) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(EnrolError::Refused),
        Err(error) => Err(EnrolError::Unanswered(error)),
    }
}

/// For a connection or a handshake, the other end's disk, and a loss.
const PATIENCE: Duration = Duration::from_secs(5);
