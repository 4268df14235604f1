//! Rows of the tables `clients` and `invitations`.

use ipnet::IpNet;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};
use zeroize::Zeroizing;

use super::Failure;
use crate::{
    clients::{
        StoredClient,
        decisions::Rows,
        raw::{RawClient, RawInvitation, bps, list, nets, signed},
    },
    keys::{self, KEY_LEN, SecretKey},
    onboard::store::Invitation,
};

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
        .query_row([keys::encode_public(public_key)], raw_client)
        .optional()?;
    Ok(found.map(RawClient::checked).transpose()?)
}

/// Returns all clients, by name.
pub(super) fn clients(file: &Connection) -> Result<Vec<StoredClient>, Failure> {
    let mut select = file.prepare(
        "SELECT name, public_key, preshared_key, allowed_ips, rate_up, rate_down, added_at
         FROM clients ORDER BY name",
    )?;
    let mut found = Vec::new();
    for raw in select.query_map([], raw_client)? {
        found.push(raw?.checked()?);
    }
    Ok(found)
}

/// Replaces the client with the public key `public_key` by `client`. A client with the same name makes room for it, too.
pub(super) fn replace(
    file: &mut Transaction<'_>,
    public_key: &[u8; KEY_LEN],
    client: Option<&StoredClient>,
) -> Result<(), Failure> {
    let key = keys::encode_public(public_key);
    match client {
        Some(client) => {
            file.execute(
                "DELETE FROM clients WHERE public_key = ?1 OR name = ?2",
                [&key, &client.name],
            )?;
            file.insert_client(client, None)
        }
        None => {
            file.execute("DELETE FROM clients WHERE public_key = ?1", [&key])?;
            Ok(())
        }
    }
}

/// Returns all invitations, by name.
pub(super) fn invitations(file: &Connection) -> Result<Vec<Invitation>, Failure> {
    let mut select =
        file.prepare("SELECT name, key, expires_at, addresses FROM invitations ORDER BY name")?;
    let mut found = Vec::new();
    for raw in select.query_map([], raw_invitation)? {
        found.push(raw?.checked()?);
    }
    Ok(found)
}

impl Rows for Transaction<'_> {
    type Error = Failure;

    fn has_client(&mut self, name: &str) -> Result<bool, Failure> {
        let mut select = self.prepare("SELECT 1 FROM clients WHERE name = ?1")?;
        Ok(select.exists([name])?)
    }

    fn client_of(&mut self, public_key: &[u8; KEY_LEN]) -> Result<Option<StoredClient>, Failure> {
        client_of(self, public_key)
    }

    /// Rows that cannot be read are left out, because no gateway assigns their addresses.
    fn all_nets(&mut self) -> Result<Vec<(String, IpNet)>, Failure> {
        let mut select = self.prepare(
            "SELECT name, allowed_ips FROM clients UNION ALL SELECT name, addresses FROM invitations",
        )?;
        let rows = select.query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        })?;
        let mut found = Vec::new();
        for row in rows {
            let (name, text) = row?;
            let nets = nets(&text).unwrap_or_default();
            found.extend(nets.into_iter().map(|net| (name.clone(), net)));
        }
        Ok(found)
    }

    fn insert_client(
        &mut self,
        client: &StoredClient,
        invitation: Option<&str>,
    ) -> Result<(), Failure> {
        let preshared_key = client.preshared_key.as_ref().map(SecretKey::to_base64);
        let preshared_key = preshared_key.as_ref().map(|key| key.as_str());
        self.execute(
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

    fn user_of(&mut self, id: &str) -> Result<Option<String>, Failure> {
        let select = "SELECT public_key FROM clients WHERE invitation = ?1";
        Ok(self.query_row(select, [id], |row| row.get(0)).optional()?)
    }

    fn invitation_of(&mut self, id: &str) -> Result<Option<Invitation>, Failure> {
        let select = "SELECT name, key, expires_at, addresses FROM invitations WHERE id = ?1";
        let found = self.query_row(select, [id], raw_invitation).optional()?;
        Ok(found.map(RawInvitation::checked).transpose()?)
    }

    fn insert_invitation(&mut self, id: &str, invitation: &Invitation) -> Result<(), Failure> {
        self.execute(
            "INSERT INTO invitations (id, name, key, expires_at, addresses)
             VALUES (?1, ?2, ?3, ?4, ?5)",
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

    fn delete_invitation(&mut self, id: &str) -> Result<(), Failure> {
        self.execute("DELETE FROM invitations WHERE id = ?1", [id])?;
        Ok(())
    }

    fn withdraw(&mut self, name: &str, now: u64) -> Result<(), Failure> {
        self.execute(
            "DELETE FROM invitations WHERE name = ?1 OR expires_at <= ?2",
            params![name, signed(now)],
        )?;
        Ok(())
    }
}

fn raw_client(row: &Row<'_>) -> rusqlite::Result<RawClient> {
    Ok(RawClient {
        name: row.get(0)?,
        public_key: row.get(1)?,
        preshared_key: row.get::<_, Option<String>>(2)?.map(Zeroizing::new),
        allowed_ips: row.get(3)?,
        rates: [row.get(4)?, row.get(5)?],
        added_at: row.get(6)?,
    })
}

fn raw_invitation(row: &Row<'_>) -> rusqlite::Result<RawInvitation> {
    Ok(RawInvitation {
        name: row.get(0)?,
        key: Zeroizing::new(row.get(1)?),
        expires_at: row.get(2)?,
        addresses: row.get(3)?,
    })
}
