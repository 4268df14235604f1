//! What a store decides when a client is added, invited or enrolled: the same for every kind of database.
//!
//! Each function runs in one transaction, which no other of these functions overlaps. A database contributes the single
//! steps ([`Rows`]).

use std::net::IpAddr;

use data_encoding::HEXLOWER;
use ipnet::IpNet;
use pleach_core::{
    endpoint::accounts::Caps,
    session::invitation::{Claim, InvitationKey},
};
use zeroize::Zeroizing;

use super::{StoreError, StoredClient};
use crate::{
    keys::{self, KEY_LEN, SecretKey},
    onboard::store::{Invitation, Offer, Refusal, free_address},
};

/// A transaction on the tables of a store.
pub(super) trait Rows {
    /// Why a step failed.
    type Error: From<StoreError>;

    /// Whether there is a client `name`.
    fn has_client(&mut self, name: &str) -> Result<bool, Self::Error>;

    /// Returns the client with the public key `public_key`.
    fn client_of(
        &mut self,
        public_key: &[u8; KEY_LEN],
    ) -> Result<Option<StoredClient>, Self::Error>;

    /// Returns the addresses of all clients and invitations, each with the name of its owner.
    fn all_nets(&mut self) -> Result<Vec<(String, IpNet)>, Self::Error>;

    /// Inserts a client, with the id of the invitation that it has used.
    fn insert_client(
        &mut self,
        client: &StoredClient,
        invitation: Option<&str>,
    ) -> Result<(), Self::Error>;

    /// Returns the public key, in base64, of the client that has used the invitation `id`.
    fn user_of(&mut self, id: &str) -> Result<Option<String>, Self::Error>;

    /// Returns the open or expired invitation `id`.
    fn invitation_of(&mut self, id: &str) -> Result<Option<Invitation>, Self::Error>;

    /// Inserts an invitation.
    fn insert_invitation(&mut self, id: &str, invitation: &Invitation) -> Result<(), Self::Error>;

    /// Deletes the invitation `id`.
    fn delete_invitation(&mut self, id: &str) -> Result<(), Self::Error>;

    /// Deletes the invitations for `name`, and those that have expired at `now`.
    fn withdraw(&mut self, name: &str, now: u64) -> Result<(), Self::Error>;
}

/// Adds `client`: see [`super::ClientStore::add`].
pub(super) fn add<R: Rows>(rows: &mut R, client: &StoredClient) -> Result<(), R::Error> {
    if rows.has_client(&client.name)? || rows.client_of(&client.public_key)?.is_some() {
        return Err(StoreError::Exists.into());
    }
    let known = rows.all_nets()?;
    for net in &client.allowed_ips {
        let overlaps = |other: &IpNet| other.contains(net) || net.contains(other);
        if let Some((owner, other)) = known.iter().find(|(_, other)| overlaps(other)) {
            let (net, other, owner) = (*net, *other, owner.clone());
            return Err(StoreError::Overlap { net, other, owner }.into());
        }
    }
    rows.insert_client(client, None)
}

/// Makes an invitation: see [`super::Members::invite`].
pub(super) fn invite<R: Rows>(
    rows: &mut R,
    offer: &Offer<'_>,
    now: u64,
    networks: &[IpNet],
    taken: &[IpNet],
) -> Result<Invitation, R::Error> {
    if rows.has_client(offer.name)? {
        return Err(StoreError::Exists.into());
    }
    rows.withdraw(offer.name, now)?;
    let mut in_use = taken.to_vec();
    in_use.extend(rows.all_nets()?.into_iter().map(|(_, net)| net));
    let addresses = networks.iter().map(|network| {
        let is_free = |address: &IpAddr| !in_use.iter().any(|net| net.contains(address));
        free_address(*network, is_free)
    });
    let addresses: Option<Vec<IpAddr>> = addresses.collect();
    let invitation = Invitation {
        name: offer.name.to_owned(),
        key: SecretKey::new(Zeroizing::new(*offer.key.expose())),
        expires_at: offer.expires_at,
        addresses: addresses.ok_or(StoreError::Full)?,
    };
    rows.insert_invitation(&HEXLOWER.encode(&offer.id), &invitation)?;
    Ok(invitation)
}

/// Uses an invitation up: see [`super::ClientStore::claim`].
pub(super) fn claim<R: Rows>(
    rows: &mut R,
    claim: &Claim,
    public_key: &[u8; KEY_LEN],
    gateway_key: &[u8; KEY_LEN],
    now: u64,
) -> Result<Result<(StoredClient, bool), Refusal>, R::Error> {
    let id = HEXLOWER.encode(&claim.id);
    let Some(invitation) = rows.invitation_of(&id)? else {
        let user = rows.user_of(&id)?;
        let is_same = user.is_some_and(|key| key == keys::encode_public(public_key));
        let client = rows.client_of(public_key)?.filter(|_| is_same);
        return Ok(client.map(|client| (client, false)).ok_or(Refusal::Unknown));
    };
    let key = InvitationKey::from_kept(invitation.key.expose().into());
    if !key.fits(claim, public_key, gateway_key) {
        return Ok(Err(Refusal::WrongProof));
    }
    if invitation.expires_at <= now {
        rows.delete_invitation(&id)?;
        return Ok(Err(Refusal::Expired));
    }
    if rows.has_client(&invitation.name)? || rows.client_of(public_key)?.is_some() {
        return Ok(Err(Refusal::Store(StoreError::Exists)));
    }
    let nets = invitation.addresses.iter().copied().map(IpNet::from);
    let client = StoredClient {
        allowed_ips: nets.collect(),
        name: invitation.name,
        public_key: *public_key,
        preshared_key: Some(SecretKey::new(Zeroizing::new(*key.psk().expose()))),
        caps: Caps::default(),
        added_at: now,
    };
    rows.delete_invitation(&id)?;
    rows.insert_client(&client, Some(&id))?;
    Ok(Ok((client, true)))
}
