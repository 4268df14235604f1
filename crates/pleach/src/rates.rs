//! Rates of links, computed from two statuses.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::control::{LinkStatus, StatusReport};

/// Rates sent and received, in 10^6 bit/s.
pub(crate) type Rates = (f64, f64);

/// Key of a link: the name of its client (empty: a link of this end), and the name of the link.
pub(crate) type Key = (String, String);

/// Returns all links of `status`, each with the name of its client.
pub(crate) fn links_of(status: &StatusReport) -> impl Iterator<Item = (&str, &LinkStatus)> {
    let own = status.links.iter().map(|link| ("", link));
    let clients = status.clients.iter();
    own.chain(clients.flat_map(|client| {
        let links = client.links.iter();
        links.map(|link| (client.name.as_str(), link))
    }))
}

/// Returns the rates of each link between `before` and `after`, which are `gap` apart. A link whose counters were reset
/// has no rates.
pub(crate) fn rates(
    before: &StatusReport,
    after: &StatusReport,
    gap: Duration,
) -> BTreeMap<Key, Rates> {
    let key = |client: &str, link: &LinkStatus| (client.to_owned(), link.name.clone());
    let known: BTreeMap<Key, (u64, u64)> = links_of(before)
        .map(|(client, link)| (key(client, link), (link.tx_bytes, link.rx_bytes)))
        .collect();
    #[expect(clippy::cast_precision_loss, reason = "bytes of a second")]
    let rate = |bytes: u64| bytes as f64 * 8e-6 / gap.as_secs_f64();
    links_of(after)
        .filter_map(|(client, link)| {
            let key = key(client, link);
            let (tx, rx) = known.get(&key)?;
            let sent = link.tx_bytes.checked_sub(*tx)?;
            let received = link.rx_bytes.checked_sub(*rx)?;
            Some((key, (rate(sent), rate(received))))
        })
        .collect()
}
