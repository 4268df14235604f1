//! Rows of the tables `clients` and `invitations`.

use data_encoding::HEXLOWER;
use ipnet::IpNet;
use pleach_core::session::invitation::Claim;
use tokio_postgres::Row;
use zeroize::Zeroizing;

use super::{Open, link::Failure};
use crate::{
    clients::{
        StoredClient,
        decisions::Rows,
        raw::{RawClient, RawInvitation, bps, list, nets, signed},
    },
    keys::{self, KEY_LEN, SecretKey},
    onboard::store::Invitation,
};

/// Finds a client by its public key.
pub(super) const FIND: &str =
    "SELECT name, public_key, preshared_key, allowed_ips, rate_up, rate_down, added_at
     FROM clients WHERE public_key = $1";

impl Open {
    /// Whether the invitation of a claim is open, or a client has used it.
    pub(super) fn knows_invitation(&mut self, claim: &Claim) -> Result<bool, Failure> {
        let found = self.link.query_opt(
            "SELECT 1 FROM invitations WHERE id = $1 UNION ALL SELECT 1 FROM clients WHERE invitation = $1 LIMIT 1",
            &[&HEXLOWER.encode(&claim.id)],
        )?;
        Ok(found.is_some())
    }
}

/// Returns all clients, by name.
pub(super) fn clients(open: &mut Open) -> Result<Vec<StoredClient>, Failure> {
    let rows = open.link.query(
        "SELECT name, public_key, preshared_key, allowed_ips, rate_up, rate_down, added_at
         FROM clients ORDER BY name COLLATE \"C\"",
        &[],
    )?;
    let checked = |row: &Row| Ok(raw_client(row)?.checked()?);
    rows.iter().map(checked).collect()
}

/// Returns all invitations, by name.
pub(super) fn invitations(open: &mut Open) -> Result<Vec<Invitation>, Failure> {
    let rows = open.link.query(
        "SELECT name, key, expires_at, addresses FROM invitations ORDER BY name COLLATE \"C\"",
        &[],
    )?;
    let checked = |row: &Row| Ok(raw_invitation(row)?.checked()?);
    rows.iter().map(checked).collect()
}

impl Rows for Open {
    type Error = Failure;

    fn has_client(&mut self, name: &str) -> Result<bool, Failure> {
        let found = self
            .link
            .query_opt("SELECT 1 FROM clients WHERE name = $1", &[&name])?;
        Ok(found.is_some())
    }

    fn client_of(&mut self, public_key: &[u8; KEY_LEN]) -> Result<Option<StoredClient>, Failure> {
        let key = keys::encode_public(public_key);
        let found = self.link.query_opt(&self.find, &[&key])?;
        let raw = found.as_ref().map(raw_client).transpose()?;
        Ok(raw.map(RawClient::checked).transpose()?)
    }

    /// Rows that cannot be read are left out, because no gateway assigns their addresses.
    fn all_nets(&mut self) -> Result<Vec<(String, IpNet)>, Failure> {
        let rows = self.link.query(
            "SELECT name, allowed_ips FROM clients UNION ALL SELECT name, addresses FROM invitations",
            &[],
        )?;
        let mut found = Vec::new();
        for row in rows {
            let (name, text): (String, &str) = (row.try_get(0)?, row.try_get(1)?);
            let nets = nets(text).unwrap_or_default();
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
        self.link.execute(
            "INSERT INTO clients
             (name, public_key, preshared_key, allowed_ips, rate_up, rate_down, added_at, invitation)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            &[
                &client.name,
                &keys::encode_public(&client.public_key),
                &preshared_key,
                &list(&client.allowed_ips),
                &bps(client.caps.up),
                &bps(client.caps.down),
                &signed(client.added_at),
                &invitation,
            ],
        )?;
        Ok(())
    }

    fn user_of(&mut self, id: &str) -> Result<Option<String>, Failure> {
        let select = "SELECT public_key FROM clients WHERE invitation = $1";
        let found = self.link.query_opt(select, &[&id])?;
        Ok(found.map(|row| row.try_get(0)).transpose()?)
    }

    fn invitation_of(&mut self, id: &str) -> Result<Option<Invitation>, Failure> {
        let select = "SELECT name, key, expires_at, addresses FROM invitations WHERE id = $1";
        let found = self.link.query_opt(select, &[&id])?;
        let raw = found.as_ref().map(raw_invitation).transpose()?;
        Ok(raw.map(RawInvitation::checked).transpose()?)
    }

    fn insert_invitation(&mut self, id: &str, invitation: &Invitation) -> Result<(), Failure> {
        self.link.execute(
            "INSERT INTO invitations (id, name, key, expires_at, addresses)
             VALUES ($1, $2, $3, $4, $5)",
            &[
                &id,
                &invitation.name,
                &invitation.key.to_base64().as_str(),
                &signed(invitation.expires_at),
                &list(&invitation.addresses),
            ],
        )?;
        Ok(())
    }

    fn delete_invitation(&mut self, id: &str) -> Result<(), Failure> {
        self.link
            .execute("DELETE FROM invitations WHERE id = $1", &[&id])?;
        Ok(())
    }

    fn withdraw(&mut self, name: &str, now: u64) -> Result<(), Failure> {
        self.link.execute(
            "DELETE FROM invitations WHERE name = $1 OR expires_at <= $2",
            &[&name, &signed(now)],
        )?;
        Ok(())
    }
}

fn raw_client(row: &Row) -> Result<RawClient, tokio_postgres::Error> {
    Ok(RawClient {
        name: row.try_get(0)?,
        public_key: row.try_get(1)?,
        preshared_key: row.try_get::<_, Option<String>>(2)?.map(Zeroizing::new),
        allowed_ips: row.try_get(3)?,
        rates: [row.try_get(4)?, row.try_get(5)?],
        added_at: row.try_get(6)?,
    })
}

fn raw_invitation(row: &Row) -> Result<RawInvitation, tokio_postgres::Error> {
    Ok(RawInvitation {
        name: row.try_get(0)?,
        key: Zeroizing::new(row.try_get(1)?),
        expires_at: row.try_get(2)?,
        addresses: row.try_get(3)?,
    })
}
