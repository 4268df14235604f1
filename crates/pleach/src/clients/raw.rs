//! Rows of `clients` and `invitations` as they are in a database, and the checks that every row must pass, because other
//! programs write rows as well.

use std::net::IpAddr;

use ipnet::IpNet;
use pleach_core::{endpoint::accounts::Caps, units::Bitrate};
use zeroize::Zeroizing;

use super::{StoreError, StoredClient};
use crate::{
    config,
    keys::{self, SecretKey},
    onboard::store::Invitation,
};

/// A row of `clients`.
pub(super) struct RawClient {
    pub(super) name: String,
    pub(super) public_key: String,
    pub(super) preshared_key: Option<Zeroizing<String>>,
    pub(super) allowed_ips: String,
    /// Caps in bit/s, up and down.
    pub(super) rates: [Option<i64>; 2],
    pub(super) added_at: i64,
}

impl RawClient {
    /// Returns the client.
    ///
    /// # Errors
    /// [`StoreError::BadRow`] if a column does not have the documented form.
    pub(super) fn checked(self) -> Result<StoredClient, StoreError> {
        let bad = |what: &str| StoreError::BadRow {
            name: self.name.clone(),
            what: what.to_owned(),
        };
        check_name(&self.name)?;
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
        let rate = |stored: Option<i64>| {
            let Some(stored) = stored else {
                return Ok(None);
            };
            let rate = u64::try_from(stored).ok().filter(|rate| *rate > 0);
            let rate = rate.map(Bitrate::from_bps);
            rate.map(Some)
                .ok_or_else(|| bad("rate_up or rate_down is not above 0"))
        };
        let [up, down] = self.rates;
        Ok(StoredClient {
            public_key: *public_key,
            preshared_key,
            allowed_ips,
            caps: Caps {
                up: rate(up)?,
                down: rate(down)?,
            },
            added_at: self.added_at.unsigned_abs(),
            name: self.name,
        })
    }
}

/// A row of `invitations`, without its id.
pub(super) struct RawInvitation {
    pub(super) name: String,
    pub(super) key: Zeroizing<String>,
    pub(super) expires_at: i64,
    pub(super) addresses: String,
}

impl RawInvitation {
    /// Returns the invitation.
    ///
    /// # Errors
    /// [`StoreError::BadRow`] if a column does not have the documented form.
    pub(super) fn checked(self) -> Result<Invitation, StoreError> {
        let bad = |what: &str| StoreError::BadRow {
            name: self.name.clone(),
            what: what.to_owned(),
        };
        check_name(&self.name)?;
        let key = keys::decode(&self.key);
        let key = key.map_err(|_| bad("the key of its invitation is no key"))?;
        let addresses: Result<Vec<IpAddr>, _> = self
            .addresses
            .split(',')
            .map(|address| address.trim().parse())
            .collect();
        let addresses =
            addresses.map_err(|_| bad("addresses of its invitation are no addresses"))?;
        Ok(Invitation {
            key: SecretKey::new(key),
            expires_at: u64::try_from(self.expires_at).unwrap_or(0),
            addresses,
            name: self.name,
        })
    }
}

/// Refuses a name that a client of the configuration may not have.
fn check_name(name: &str) -> Result<(), StoreError> {
    if config::is_name(name) {
        return Ok(());
    }
    Err(StoreError::BadRow {
        name: name.to_owned(),
        what: "its name has other characters than A-Z a-z 0-9 . _ -".to_owned(),
    })
}

/// Returns the networks in `text`, separated by commas. An address without a length is a network of one host. `None` if
/// an element is neither, or has host bits set.
pub(super) fn nets(text: &str) -> Option<Vec<IpNet>> {
    text.split(',')
        .map(|item| {
            let item = item.trim();
            let host = item.parse::<IpAddr>().map(IpNet::from);
            let net = host.or_else(|_| item.parse::<IpNet>()).ok()?;
            (net.trunc() == net).then_some(net)
        })
        .collect()
}

/// Returns `items` as they are stored.
pub(super) fn list(items: &[impl ToString]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(", ")
}

/// Returns a rate as it is stored.
pub(super) fn bps(rate: Option<Bitrate>) -> Option<i64> {
    rate.map(|rate| signed(rate.as_bps()))
}

/// Returns `number` as it is stored; larger numbers than the largest become it.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
