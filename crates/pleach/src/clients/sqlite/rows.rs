//! Rows of the tables `clients` and `invitations`.

use std::net::IpAddr;

use ipnet::IpNet;
use pleach_core::{endpoint::accounts::Caps, units::Bitrate};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use zeroize::Zeroizing;

use super::{Failure, signed};
use crate::{
    clients::{StoreError, StoredClient},
    config,
    keys::{self, KEY_LEN, SecretKey},
    onboard::store::Invitation,
};

/// A row of `clients`, as it is in the file.
struct Raw {
    name: String,
    public_key: String,
    preshared_key: Option<Zeroizing<String>>,
    allowed_ips: String,
    rates: [Option<i64>; 2],
    added_at: i64,
}

impl Raw {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            name: row.get(0)?,
            public_key: row.get(1)?,
            preshared_key: row.get::<_, Option<String>>(2)?.map(Zeroizing::new),
            allowed_ips: row.get(3)?,
            rates: [row.get(4)?, row.get(5)?],
            added_at: row.get(6)?,
        })
    }

    fn checked(self) -> Result<StoredClient, StoreError> {
        let bad = |what: &str| StoreError::BadRow {
            name: self.name.clone(),
            what: what.to_owned(),
        };
        if !config::is_name(&self.name) {
            return Err(bad("its name has other characters than A-Z a-z 0-9 . _ -"));
        }
        let public_key = keys::decode(&self.public_key);
        let public_key = public_key.map_err(|_| bad("public_key is no key in base64"))?;
        let preshared_key = self
            .preshared_key
            .as_ref()
            .map(|text| keys::decode(text).map(SecretKey::new))
            .transpose()
            .map_err(|_| bad("preshared_key is no key in base64"))?;
        let allowed_ips = nets(&self.allowed_ips)
            .filter(|nets| !nets.is_empty())
            .ok_or_else(|| bad("allowed_ips is no list of networks separated by commas"))?;
        let [up, down] = self
            .rates
            .map(|rate| rate.map(|rate| u64::try_from(rate).map(Bitrate::from_bps)));
        let rate = |_| bad("rate_up or rate_down is negative");
        Ok(StoredClient {
            public_key: *public_key,
            preshared_key,
            allowed_ips,
            caps: Caps {
                up: up.transpose().map_err(rate)?,
                down: down.transpose().map_err(rate)?,
            },
            added_at: self.added_at.unsigned_abs(),
            name: self.name,
        })
    }
}

/// Returns the client with the public key `public_key`.
pub(super) fn client_of(
    file: &Connection,
    public_key: &[u8; KEY_LEN],
) -> Result<Option<StoredClient>, Failure> {
    let mut select = file.prepare(
        "SELECT name, public_key, preshared_key, allowed_ips, rate_up, rate_down, added_at
         FROM clients WHERE public_key = ?1",
    )?;
    let found = select
        .query_row([keys::encode_public(public_key)], Raw::of)
        .optional()?;
    Ok(found.map(Raw::checked).transpose()?)
}

/// Returns all clients, by name.
pub(super) fn clients(file: &Connection) -> Result<Vec<StoredClient>, Failure> {
    let mut select = file.prepare(
        "SELECT name, public_key, preshared_key, allowed_ips, rate_up, rate_down, added_at
         FROM clients ORDER BY name",
    )?;
    let mut found = Vec::new();
    for raw in select.query_map([], Raw::of)? {
        found.push(raw?.checked()?);
    }
    Ok(found)
}

/// Whether there is a client `name`.
pub(super) fn has_client(file: &Connection, name: &str) -> Result<bool, Failure> {
    let mut select = file.prepare("SELECT 1 FROM clients WHERE name = ?1")?;
    Ok(select.exists([name])?)
}

/// Returns the addresses of all clients and invitations, each with the name of its owner. Rows that cannot be read are
/// left out, because no gateway assigns their addresses.
pub(super) fn all_nets(file: &Connection) -> Result<Vec<(String, IpNet)>, Failure> {
    let mut select = file.prepare(
        "SELECT name, allowed_ips FROM clients UNION ALL SELECT name, addresses FROM invitations",
    )?;
    let mut found = Vec::new();
    for row in select.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    })? {
        let (name, text) = row?;
        for net in nets(&text).unwrap_or_default() {
            found.push((name.clone(), net));
        }
    }
    Ok(found)
}

/// Inserts a client, with the id of the invitation that it has used.
pub(super) fn insert_client(
    file: &Connection,
    client: &StoredClient,
    invitation: Option<&str>,
) -> Result<(), Failure> {
    let preshared_key = client.preshared_key.as_ref().map(SecretKey::to_base64);
    let preshared_key = preshared_key.as_ref().map(|key| key.as_str());
    file.execute(
        "INSERT INTO clients
         (name, public_key, preshared_key, allowed_ips, rate_up, rate_down, added_at, invitation)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            client.name,
            keys::encode_public(&client.public_key),
            preshared_key,
            list(&client.allowed_ips),
            bps(client.caps.up),
            bps(client.caps.down),
            signed(client.added_at),
            invitation
        ],
    )?;
    Ok(())
}

/// Returns the invitation with the id `id`.
pub(super) fn invitation_of(file: &Connection, id: &str) -> Result<Option<Invitation>, Failure> {
    let mut select =
        file.prepare("SELECT name, key, expires_at, addresses FROM invitations WHERE id = ?1")?;
    let found = select.query_row([id], raw_invitation).optional()?;
    Ok(found.map(checked_invitation).transpose()?)
}

/// Returns all invitations, by name.
pub(super) fn invitations(file: &Connection) -> Result<Vec<Invitation>, Failure> {
    let mut select =
        file.prepare("SELECT name, key, expires_at, addresses FROM invitations ORDER BY name")?;
    let mut found = Vec::new();
    for raw in select.query_map([], raw_invitation)? {
        found.push(checked_invitation(raw?)?);
    }
    Ok(found)
}

/// Inserts an invitation.
pub(super) fn insert_invitation(
    file: &Connection,
    id: &str,
    invitation: &Invitation,
) -> Result<(), Failure> {
    file.execute(
        "INSERT INTO invitations (id, name, key, expires_at, addresses) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            id,
            invitation.name,
            invitation.key.to_base64().as_str(),
            signed(invitation.expires_at),
            list(&invitation.addresses)
        ],
    )?;
    Ok(())
}

/// Returns a rate as it is stored.
pub(super) fn bps(rate: Option<Bitrate>) -> Option<i64> {
    rate.map(|rate| signed(rate.as_bps()))
}

type RawInvitation = (String, Zeroizing<String>, i64, String);

fn raw_invitation(row: &Row<'_>) -> rusqlite::Result<RawInvitation> {
    let key = Zeroizing::new(row.get::<_, String>(1)?);
    Ok((row.get(0)?, key, row.get(2)?, row.get(3)?))
}

fn checked_invitation(
    (name, key, expires_at, addresses): RawInvitation,
) -> Result<Invitation, StoreError> {
    let bad = |what: &str| StoreError::BadRow {
        name: name.clone(),
        what: what.to_owned(),
    };
    let key = keys::decode(&key).map_err(|_| bad("the key of its invitation is no key"))?;
    let addresses: Result<Vec<IpAddr>, _> = addresses
        .split(',')
        .map(|address| address.trim().parse())
        .collect();
    let addresses = addresses.map_err(|_| bad("addresses of its invitation are no addresses"))?;
    Ok(Invitation {
        key: SecretKey::new(key),
        expires_at: u64::try_from(expires_at).unwrap_or(0),
        addresses,
        name,
    })
}

/// Returns the networks in `text`, separated by commas. An address without a length is a network of one host. `None` if
/// an element is neither, or has host bits set.
fn nets(text: &str) -> Option<Vec<IpNet>> {
    text.split(',')
        .map(|item| {
            let item = item.trim();
            let host = item.parse::<IpAddr>().map(IpNet::from);
            let net = host.or_else(|_| item.parse::<IpNet>()).ok()?;
            (net.trunc() == net).then_some(net)
        })
        .collect()
}

fn list(items: &[impl ToString]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(", ")
}
