//! Peers that became known by invitations.
//!
//! ```text
//! STORE/invitations, STORE/clients   as in the store of a gateway: invitations of this end, peers that accepted one
//! STORE/peers/NAME.json              an invitation of another end that this end accepted (0600)
//! ```

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use pleach_core::session::invitation::Claim;
use pleach_linux::clock;
use pleach_proxy::daemon::{KnownPeer, known::Enrolment};
use serde::{Deserialize, Serialize};

use crate::{
    keys::KEY_LEN,
    onboard::{
        durable::{self, Existing},
        store::{self, Store},
    },
};

/// A peer whose invitation was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Accepted {
    pub(super) name: String,
    #[serde(with = "store::public")]
    pub(super) public_key: [u8; KEY_LEN],
    /// Where it answers.
    pub(super) endpoint: SocketAddr,
    /// What it takes connections to.
    pub(super) networks: Vec<IpNet>,
    /// Its invitation, hexadecimal.
    pub(super) invitation: String,
}

/// All peers in the store at `path`, those that accepted an invitation and those whose invitation was accepted. A directory that
/// is not there has none.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn peers(path: &Path) -> io::Result<Vec<KnownPeer>> {
    let mut peers: Vec<KnownPeer> = Vec::new();
    for accepted in all(path)? {
        peers.push(KnownPeer {
            name: accepted.name,
            public_key: accepted.public_key,
            serves: Some((accepted.endpoint, accepted.networks)),
        });
    }
    if path.exists() {
        for enrolled in Store::open(path)?.clients()? {
            if peers
                .iter()
                .all(|peer| peer.public_key != enrolled.public_key)
            {
                peers.push(KnownPeer {
                    name: enrolled.name,
                    public_key: enrolled.public_key,
                    serves: None,
                });
            }
        }
    }
    Ok(peers)
}

/// What decides on claims to invitations in the store at `path`, for the owner of `own_key`.
pub(crate) fn enrolment(path: PathBuf, own_key: [u8; KEY_LEN]) -> Enrolment {
    Enrolment::new(move |claim, key| {
        claimed(&path, claim, key, &own_key)
            .inspect_err(|error| tracing::debug!("a peer's invitation is refused: {error}"))
            .ok()
    })
}

fn claimed(
    path: &Path,
    claim: &Claim,
    key: &[u8; KEY_LEN],
    own_key: &[u8; KEY_LEN],
) -> Result<KnownPeer, store::Refusal> {
    let now = clock::unix_nanos() / 1_000_000_000;
    let client = Store::open(path)?.claim(claim, key, own_key, now)?.client;
    let accepted = all(path)?.into_iter().find(|peer| peer.public_key == *key);
    Ok(KnownPeer {
        name: client.name,
        public_key: client.public_key,
        serves: accepted.map(|peer| (peer.endpoint, peer.networks)),
    })
}

/// All accepted invitations, by name.
///
/// # Errors
/// A file cannot be read.
pub(super) fn all(path: &Path) -> io::Result<Vec<Accepted>> {
    let directory = path.join(PEERS);
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found: Vec<Accepted> = Vec::new();
    for entry in entries {
        let file = entry?.path();
        if file
            .extension()
            .is_some_and(|extension| extension == "json")
            && let Some(peer) = store::read(&file)?
        {
            found.push(peer);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Writes an accepted invitation down.
///
/// # Errors
/// The disk's.
pub(super) fn write(path: &Path, peer: &Accepted) -> io::Result<()> {
    store::write(&file(path, &peer.name), peer, Existing::Replace)
}

/// Removes an accepted invitation; whether it was there.
///
/// # Errors
/// The disk's.
pub(super) fn remove(path: &Path, name: &str) -> io::Result<bool> {
    durable::remove(&file(path, name))
}

/// `name`: as [`crate::config`] takes them, so it has no separator.
fn file(path: &Path, name: &str) -> PathBuf {
    path.join(PEERS).join(format!("{name}.json"))
}

/// Directory of accepted invitations below the store.
pub(super) const PEERS: &str = "peers";
