//! Active probes: measure the capacity of a link by downloads from servers that the user names.
//!
//! Connections show the capacity of a link only while they move much data. A link whose capacity estimate has become
//! too old ([`Placer::is_stale`](crate::placer::Placer::is_stale)) is probed: one download over it, at most 12 MB or
//! 2 s. The estimator treats the bytes of this download like the bytes of any bulk connection. These rules limit the
//! probes:
//!
//! - Links are probed only while the proxy is in use, so that an idle host stays idle.
//! - Only links in ordinary use (`Cost::Rank`) are probed, not standby links or links that are ahead of their budget.
//! - Only one link is probed at a time.
//! - A link is probed at most every 5 minutes, whether or not the server answers.
//!
//! The DBAS paper probes all the time.

use std::{io, time::Duration};

use pleach_core::time::Instant;
use pleach_linux::clock;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time,
};

use super::{connect, hub::Hub, settings::Probe};
use crate::{placer::Cost, sched::LinkId};

/// Probes links that need it, until the future is dropped. Returns at once if no servers are configured.
pub(super) async fn run(hub: &Hub) -> io::Result<()> {
    let probes = &hub.settings.probes;
    let mut turns = probes.iter().cycle();
    let mut probed: Vec<Option<Instant>> = Vec::new();
    let mut last = (hub.table.asked(), clock::now());
    while !probes.is_empty() {
        time::sleep(LOOK_INTERVAL).await;
        let now = clock::now();
        if hub.table.asked() != last.0 {
            last = (hub.table.asked(), now);
        } else if now.since(last.1) > IDLE || last.0 == 0 {
            continue;
        }
        let Some(link) = next(hub, now, &probed) else {
            continue;
        };
        probed.resize(probed.len().max(link.0 + 1), None);
        probed[link.0] = Some(now);
        let Some(probe) = turns.next() else { break };
        let name = hub.placer.borrow().links()[link.0].settings.name.clone();
        match time::timeout(MOST_TIME * 4, download(hub, link, probe)).await {
            Ok(Ok(bytes)) => tracing::debug!(link = name, bytes, "probed"),
            Ok(Err(error)) => {
                tracing::debug!(link = name, server = %probe.server, "no probe: {error}")
            }
            Err(_) => tracing::debug!(link = name, server = %probe.server, "no probe: too slow"),
        }
    }
    Ok(())
}

/// Returns the first link that is to be probed.
fn next(hub: &Hub, now: Instant, probed: &[Option<Instant>]) -> Option<LinkId> {
    let placer = hub.placer.borrow();
    let mut links = placer.links().iter().enumerate();
    let found = links.find(|(index, link)| {
        let is_free = matches!(placer.price(link).cost, Cost::Rank(_));
        let rested = probed.get(*index).copied().flatten();
        is_free
            && !link.reach.is_nothing()
            && !placer.is_suspect(now, LinkId(*index))
            && rested.is_none_or(|at| now.since(at) >= PAUSE)
            && placer.is_stale(now, LinkId(*index))
    });
    found.map(|(index, _)| LinkId(index))
}

/// Downloads from `probe` over `link`. Returns the number of bytes received.
async fn download(hub: &Hub, link: LinkId, probe: &Probe) -> io::Result<u64> {
    let addresses = hub.resolver.resolve(&probe.server).await;
    let addresses = addresses.map_err(io::Error::other)?;
    let opened = connect::open(hub, &[link], &addresses, probe.server.port).await;
    let mut stream = opened.map_err(|error| io::Error::other(error.text))?.stream;
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAccept-Encoding: identity\r\n\r\n",
        probe.path, probe.server
    );
    stream.write_all(request.as_bytes()).await?;
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0;
    let reading = async {
        while total < MOST_BYTES {
            let len = stream.read(&mut buffer).await? as u64;
            if len == 0 {
                break;
            }
            total += len;
            let (_, waiting) = hub.uplinks.probing.get().unwrap_or((link, 0));
            hub.uplinks.probing.set(Some((link, waiting + len)));
        }
        io::Result::Ok(())
    };
    match time::timeout(MOST_TIME, reading).await {
        Ok(Err(error)) => Err(error),
        Ok(Ok(())) | Err(_) => Ok(total),
    }
}

/// Maximum number of bytes per probe: enough for a first estimate of links up to 75 Mbit/s. Faster links remain
/// indistinguishable from each other.
const MOST_BYTES: u64 = 12_000_000;
/// Maximum duration of the download, from sending the request.
const MOST_TIME: Duration = Duration::from_secs(2);
/// Minimum interval between probes of one link.
const PAUSE: Duration = Duration::from_secs(300);
/// Time without new requests after which the proxy counts as not in use.
const IDLE: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
