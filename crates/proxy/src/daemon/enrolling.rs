//! Makes this host a peer of another host that runs pleach, by an invitation of that host. This host is the end that
//! presents the invitation.

use std::{io, net::SocketAddr, time::Duration};

use pleach_core::{session::handshake::StaticKeys, wire::handshake::Claim};
use tokio::{net::TcpStream, time};

use crate::relay::stripe::handshake;

/// Why an invitation was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The owner of the key does not answer at this address. It has not received the claim.
    #[error("{0}")]
    Absent(io::Error),
    /// The owner closed the connection when it had received the claim.
    #[error("the claim is refused")]
    Refused,
    /// The owner may have received the claim, but did not answer as specified.
    #[error("{0}")]
    Unanswered(io::Error),
}

/// Presents `claim` to the owner of the public key `remote`, which answers at `to`. If the call succeeds, the owner
/// has stored the public key of `keys`.
///
/// # Errors
/// Fails if nobody answers at `to` within some seconds, if another host answers, or if the claim is refused.
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

/// Timeout for a connection with its handshake, and for the claim. It allows for one lost packet and the other end's
/// disk.
const PATIENCE: Duration = Duration::from_secs(5);
