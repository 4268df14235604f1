//! The members of a gateway without a store of clients: the files of `[invitations]`.

use std::io;

use ipnet::IpNet;
use pleach_core::endpoint::accounts::Caps;

use super::{Members, StoreError, StoredClient};
use crate::onboard::store::{Enrolled, Invitation, Offer, Store};

impl Members for Store {
    fn clients(&mut self) -> Result<Vec<StoredClient>, StoreError> {
        let clients = Self::clients(self)?;
        Ok(clients.into_iter().map(StoredClient::from).collect())
    }

    fn invitations(&mut self) -> Result<Vec<Invitation>, StoreError> {
        let found = Self::invitations(self)?.into_iter();
        Ok(found.map(|(_, invitation)| invitation).collect())
    }

    fn invite(
        &mut self,
        offer: &Offer<'_>,
        now: u64,
        networks: &[IpNet],
        taken: &[IpNet],
    ) -> Result<Invitation, StoreError> {
        Self::invite(self, offer, now, networks, taken).map_err(|error| {
            if error.kind() == io::ErrorKind::AlreadyExists {
                StoreError::Exists
            } else if error.kind() == io::ErrorKind::QuotaExceeded {
                StoreError::Full
            } else {
                StoreError::Io(error)
            }
        })
    }

    fn remove(&mut self, name: &str) -> Result<bool, StoreError> {
        Ok(Self::remove(self, name)?)
    }
}

impl From<Enrolled> for StoredClient {
    fn from(client: Enrolled) -> Self {
        Self {
            allowed_ips: client.allowed_ips(),
            name: client.name,
            public_key: client.public_key,
            preshared_key: Some(client.preshared_key),
            caps: Caps::default(),
            added_at: client.enrolled_at,
        }
    }
}
