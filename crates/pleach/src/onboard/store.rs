//! A gateway's invitations and the clients that used one: files that the gateway owns, apart from the configuration.
//!
//! ```text
//! STORE/invitations/ID.json    an open invitation: name, derived key, expiry, inner addresses         (0600)
//! STORE/clients/NAME.json      an enrolled client: public key, pre-shared key, inner addresses        (0600)
//! STORE/lock                   lock that is held during changes
//! ```
//!
//! An invitation is used up by creating its client's file, which fails if the file exists. So only one of two claims
//! succeeds, even after an interruption. The invitation's file is removed after that. If an interruption leaves it, the
//! client's file names the invitation and so shows that it is used up. Only a key derived from the secret is stored
//! ([`pleach_core::session::invitation`]), and only while the invitation is open or its client enrolled.

use std::{
    fs::{self, File},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use ipnet::IpNet;
use pleach_core::session::invitation::{Claim, InvitationKey};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

use super::durable::{self, Existing};
use crate::{
    clients::StoreError,
    keys::{self, KEY_LEN, SecretKey},
};

/// An invitation that no client has used yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Invitation {
    /// Name of the future client.
    pub(crate) name: String,
    /// Key derived from the invitation's secret.
    #[serde(with = "secret")]
    pub(crate) key: SecretKey,
    /// End of validity, in seconds since 1970.
    pub(crate) expires_at: u64,
    /// Inner addresses that are reserved for the client.
    pub(crate) addresses: Vec<IpAddr>,
}

/// The data from which an invitation is made.
#[derive(Debug)]
pub(crate) struct Offer<'a> {
    /// Id of the invitation.
    pub(crate) id: [u8; 16],
    /// Name of the future client.
    pub(crate) name: &'a str,
    /// Key derived from the invitation's secret.
    pub(crate) key: InvitationKey,
    /// End of validity, in seconds since 1970.
    pub(crate) expires_at: u64,
}

/// A client that has used an invitation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Enrolled {
    /// Name of the client.
    pub(crate) name: String,
    /// Static public key of the client.
    #[serde(with = "public")]
    pub(crate) public_key: [u8; KEY_LEN],
    /// Pre-shared key of client and gateway.
    #[serde(with = "secret")]
    pub(crate) preshared_key: SecretKey,
    /// Inner addresses of the client.
    pub(crate) addresses: Vec<IpAddr>,
    /// Time of the enrolment, in seconds since 1970.
    pub(crate) enrolled_at: u64,
    /// Id of the invitation that the client used, hexadecimal.
    pub(crate) invitation: String,
}

/// A claim that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    /// Client that made the claim.
    pub(crate) client: Enrolled,
    /// Whether this claim has used the invitation up; `false` if the same client had done so before.
    pub(crate) is_new: bool,
}

/// Why a claim is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The validity of the invitation has ended.
    #[error("the invitation has expired")]
    Expired,
    /// The disk returned an error.
    #[error("the client cannot be stored: {0}")]
    Io(#[from] io::Error),
    /// The store of clients returned an error.
    #[error("the client cannot be stored: {0}")]
    Store(#[from] StoreError),
    /// The invitation is used up, was withdrawn, or never existed.
    #[error("there is no such invitation, or it is used already")]
    Unknown,
    /// The proof is wrong: the claim was altered or guessed.
    #[error("the proof in the claim is wrong")]
    WrongProof,
}

/// The store of one gateway.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    path: PathBuf,
}

/// Lock of the store; dropping it releases the lock.
struct Lock(#[expect(dead_code, reason = "closing it ends the lock")] File);

impl Store {
    /// Opens the store at `path`, and creates it if missing.
    ///
    /// # Errors
    /// If the store cannot be created.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        for directory in [path.to_owned(), path.join(INVITATIONS), path.join(CLIENTS)] {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(directory)?;
        }
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// Makes an invitation from `offer`, with addresses of `networks` that neither this store nor `taken` contains.
    /// Withdraws an open invitation for the same name, and removes expired ones.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if there is a client of this name, [`io::ErrorKind::QuotaExceeded`] if a
    /// network is full, or the disk's errors.
    pub(crate) fn invite(
        &self,
        offer: &Offer<'_>,
        now: u64,
        networks: &[IpNet],
        taken: &[IpNet],
    ) -> io::Result<Invitation> {
        let name = offer.name;
        let _lock = self.lock()?;
        if self.client(name)?.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let mut in_use: Vec<IpAddr> = self
            .clients()?
            .into_iter()
            .flat_map(|client| client.addresses)
            .collect();
        for (other, invitation) in self.invitations()? {
            if invitation.name == name || invitation.expires_at <= now {
                durable::remove(&self.invitation_path(&other))?;
            } else {
                in_use.extend(invitation.addresses);
            }
        }
        let is_free = |address: &IpAddr| {
            !in_use.contains(address) && !taken.iter().any(|net| net.contains(address))
        };
        let addresses = networks
            .iter()
            .map(|network| free_address(*network, is_free));
        let addresses: Option<Vec<IpAddr>> = addresses.collect();
        let invitation = Invitation {
            name: name.to_owned(),
            key: SecretKey::new(Zeroizing::new(*offer.key.expose())),
            expires_at: offer.expires_at,
            addresses: addresses.ok_or(io::ErrorKind::QuotaExceeded)?,
        };
        let path = self.invitation_path(&HEXLOWER.encode(&offer.id));
        write(&path, &invitation, Existing::Refuse)?;
        Ok(invitation)
    }

    /// Uses up the invitation that `claim` proves, for the owner of `public_key`. The client is on disk when the
    /// function returns. The same client may claim the invitation again.
    ///
    /// # Errors
    /// The reason why the claim is refused; nothing has been changed then.
    pub(crate) fn claim(
        &self,
        claim: &Claim,
        public_key: &[u8; KEY_LEN],
        gateway_key: &[u8; KEY_LEN],
        now: u64,
    ) -> Result<Claimed, Refusal> {
        let again = |client| Claimed {
            client,
            is_new: false,
        };
        let id = HEXLOWER.encode(&claim.id);
        let path = self.invitation_path(&id);
        let _lock = self.lock()?;
        let Some(invitation) = read::<Invitation>(&path)? else {
            let mut clients = self.clients()?.into_iter();
            let same =
                clients.find(|client| client.invitation == id && client.public_key == *public_key);
            return same.map(again).ok_or(Refusal::Unknown);
        };
        let key = InvitationKey::from_kept(invitation.key.expose().into());
        if !key.fits(claim, public_key, gateway_key) {
            return Err(Refusal::WrongProof);
        }
        if let Some(client) = self.client(&invitation.name)? {
            // An interruption has left the invitation's file.
            durable::remove(&path)?;
            let is_same = client.invitation == id && client.public_key == *public_key;
            return if is_same {
                Ok(again(client))
            } else {
                Err(Refusal::Unknown)
            };
        }
        if invitation.expires_at <= now {
            durable::remove(&path)?;
            return Err(Refusal::Expired);
        }
        let client = Enrolled {
            name: invitation.name,
            public_key: *public_key,
            preshared_key: SecretKey::new(Zeroizing::new(*key.psk().expose())),
            addresses: invitation.addresses,
            enrolled_at: now,
            invitation: id,
        };
        write(&self.client_path(&client.name), &client, Existing::Refuse)?;
        durable::remove(&path)?;
        Ok(Claimed {
            client,
            is_new: true,
        })
    }

    /// Removes the client `name` or its open invitation. Returns whether one of them existed.
    ///
    /// # Errors
    /// The disk's errors.
    pub(crate) fn remove(&self, name: &str) -> io::Result<bool> {
        let _lock = self.lock()?;
        let mut found = durable::remove(&self.client_path(name))?;
        for (id, invitation) in self.invitations()? {
            if invitation.name == name {
                found |= durable::remove(&self.invitation_path(&id))?;
            }
        }
        Ok(found)
    }

    /// Returns all enrolled clients, by name.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn clients(&self) -> io::Result<Vec<Enrolled>> {
        let clients = self.all::<Enrolled>(CLIENTS)?;
        Ok(clients.into_iter().map(|(_, client)| client).collect())
    }

    /// Returns all invitations with their ids, including expired ones.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn invitations(&self) -> io::Result<Vec<(String, Invitation)>> {
        self.all(INVITATIONS)
    }

    fn client(&self, name: &str) -> io::Result<Option<Enrolled>> {
        read(&self.client_path(name))
    }

    fn all<T: DeserializeOwned>(&self, directory: &str) -> io::Result<Vec<(String, T)>> {
        let mut found = Vec::new();
        let directory = self.path.join(directory);
        for entry in fs::read_dir(&directory)? {
            let file = entry?.file_name();
            let stem = file.to_str().and_then(|file| file.strip_suffix(".json"));
            if let Some(stem) = stem
                && let Some(value) = read(&directory.join(&file))?
            {
                found.push((stem.to_owned(), value));
            }
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }

    fn invitation_path(&self, id: &str) -> PathBuf {
        self.path.join(INVITATIONS).join(format!("{id}.json"))
    }

    /// Returns the file of the client `name`. [`crate::config`] has checked the name, so it contains no path separator.
    fn client_path(&self, name: &str) -> PathBuf {
        self.path.join(CLIENTS).join(format!("{name}.json"))
    }

    fn lock(&self) -> io::Result<Lock> {
        let path = self.path.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Lock(file))
    }
}

impl Enrolled {
    /// Returns the client's addresses as networks of one host.
    pub(crate) fn allowed_ips(&self) -> Vec<IpNet> {
        self.addresses.iter().copied().map(IpNet::from).collect()
    }
}

/// Returns the first address of `network`, except the gateway's own, that `is_free`. Returns `None` if there is none
/// among the first [`MAX_SEARCH`].
pub(crate) fn free_address(network: IpNet, is_free: impl Fn(&IpAddr) -> bool) -> Option<IpAddr> {
    let own = network.addr();
    let candidate = |step: u32| -> IpAddr {
        match network.network() {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits().wrapping_add(step)).into(),
            IpAddr::V6(first) => {
                Ipv6Addr::from_bits(first.to_bits().wrapping_add(step.into())).into()
            }
        }
    };
    (1..MAX_SEARCH)
        .map(candidate)
        .take_while(|address| network.contains(address) && *address != network.broadcast())
        .find(|address| *address != own && is_free(address))
}

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => Zeroizing::new(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let value = serde_json::from_slice(&bytes);
    let value = value.map_err(|error| {
        let text = format!("{}: {error}; remove the file", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })?;
    Ok(Some(value))
}

pub(super) fn write(path: &Path, value: &impl Serialize, existing: Existing) -> io::Result<()> {
    let mut bytes = Zeroizing::new(serde_json::to_vec_pretty(value)?);
    bytes.push(b'\n');
    durable::write(path, &bytes, 0o600, existing)
}

/// Serialises a secret as base64.
mod secret {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
    use zeroize::Zeroizing;

    use crate::keys::{self, SecretKey};

    pub(super) fn serialize<S: Serializer>(key: &SecretKey, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&key.to_base64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SecretKey, D::Error> {
        let text = Zeroizing::new(String::deserialize(from)?);
        keys::decode(&text)
            .map(SecretKey::new)
            .map_err(D::Error::custom)
    }
}

/// Serialises a public key as base64.
pub(super) mod public {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use super::{KEY_LEN, keys};

    pub(in crate::onboard) fn serialize<S: Serializer>(
        key: &[u8; KEY_LEN],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&keys::encode_public(key))
    }

    pub(in crate::onboard) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<[u8; KEY_LEN], D::Error> {
        let text = String::deserialize(from)?;
        keys::decode(&text)
            .map(|key| *key)
            .map_err(D::Error::custom)
    }
}

const INVITATIONS: &str = "invitations";
const CLIENTS: &str = "clients";
/// Maximum number of addresses that are tried: more clients than a gateway of this program has been tested with.
const MAX_SEARCH: u32 = 1 << 16;

#[cfg(test)]
mod tests;
