//! What a gateway knows of invitations and of the clients that used one: files that it owns, apart from the configuration.
//!
//! ```text
//! STORE/invitations/ID.json    an open invitation: name, derived key, end of life, inner addresses    (0600)
//! STORE/clients/NAME.json      an enrolled client: public key, pre-shared key, inner addresses        (0600)
//! STORE/lock                   held while something changes
//! ```
//!
//! An invitation is used up by making its client's file, which fails if the file is there: of two claims one wins, whatever
//! is interrupted. The invitation's file is removed after that; if an interruption leaves it, the client's file, which names
//! the invitation, says that it is used up. Of a secret only what follows from it is kept
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
use crate::keys::{self, KEY_LEN, SecretKey};

/// An invitation that nobody has used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Invitation {
    /// Of the client to be.
    pub(crate) name: String,
    /// What is kept of the secret.
    #[serde(with = "secret")]
    pub(crate) key: SecretKey,
    /// Seconds since 1970.
    pub(crate) expires_at: u64,
    /// Inner addresses, reserved for the client.
    pub(crate) addresses: Vec<IpAddr>,
}

/// What an invitation is made of.
#[derive(Debug)]
pub(crate) struct Offer<'a> {
    /// Which.
    pub(crate) id: [u8; 16],
    /// Of the client to be.
    pub(crate) name: &'a str,
    /// What is kept of the secret.
    pub(crate) key: InvitationKey,
    /// Seconds since 1970.
    pub(crate) expires_at: u64,
}

/// A client that used an invitation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Enrolled {
    /// Its name.
    pub(crate) name: String,
    /// Its static key.
    #[serde(with = "public")]
    pub(crate) public_key: [u8; KEY_LEN],
    /// Of both ends.
    #[serde(with = "secret")]
    pub(crate) preshared_key: SecretKey,
    /// Its inner addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// Seconds since 1970.
    pub(crate) enrolled_at: u64,
    /// The invitation it used, hexadecimal.
    pub(crate) invitation: String,
}

/// A claim that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    /// Whose.
    pub(crate) client: Enrolled,
    /// Whether it used the invitation up; else the client did so before.
    pub(crate) is_new: bool,
}

/// Why a claim is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Its time is over.
    #[error("the invitation has expired")]
    Expired,
    /// The disk.
    #[error("the client cannot be written down: {0}")]
    Io(#[from] io::Error),
    /// Used up, withdrawn, or never made.
    #[error("there is no such invitation, or it is used up")]
    Unknown,
    /// Altered or guessed.
    #[error("the claim does not prove the invitation")]
    WrongProof,
}

/// The store of one gateway.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    path: PathBuf,
}

/// Who changes the store; ends with the value.
struct Lock(#[expect(dead_code, reason = "closing it ends the lock")] File);

impl Store {
    /// The store at `path`, which is made if it is missing.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        for directory in [path.to_owned(), path.join(INVITATIONS), path.join(CLIENTS)] {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(directory)?;
        }
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// Makes an invitation of `offer` with addresses of `networks` that neither this store nor `taken` has. An open one for the same name is withdrawn, expired ones are removed.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if there is such a client, [`io::ErrorKind::QuotaExceeded`] if a network is full, or
    /// the disk's.
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

    /// Uses up the invitation that `claim` proves, for the owner of `public_key`; the client is on disk when it returns.
    /// The same client may claim again.
    ///
    /// # Errors
    /// Why it is refused; nothing is changed then.
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
            // Left by an interruption.
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

    /// Removes the client `name` or its open invitation; whether there was one.
    ///
    /// # Errors
    /// The disk's.
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

    /// All enrolled clients, by name.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn clients(&self) -> io::Result<Vec<Enrolled>> {
        let clients = self.all::<Enrolled>(CLIENTS)?;
        Ok(clients.into_iter().map(|(_, client)| client).collect())
    }

    /// All invitations with their ids, expired ones too.
    ///
    /// # Errors
    /// A file cannot be read.
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

    /// `name`: as [`crate::config`] takes them, so it has no separator.
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
    /// Its addresses as networks of one host.
    pub(crate) fn allowed_ips(&self) -> Vec<IpNet> {
        self.addresses.iter().copied().map(IpNet::from).collect()
    }
}

/// The first address of `network` that `is_free`, behind the gateway's own; `None` if none is, or after [`MAX_SEARCH`].
fn free_address(network: IpNet, is_free: impl Fn(&IpAddr) -> bool) -> Option<IpAddr> {
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

/// A secret as base64.
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

/// A public key as base64.
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
/// Addresses that are looked at: more clients than a gateway of this program has been tried with.
const MAX_SEARCH: u32 = 1 << 16;

#[cfg(test)]
mod tests;
