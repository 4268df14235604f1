//! Active probes: what a link carries, asked of servers that the user names.
//!
//! Connections tell what links carry while they move much. A link of which they have told nothing for longer than an
//! estimate is taken as it is ([`Placer::is_stale`](crate::placer::Placer::is_stale)) is probed: one download over it,
//! 12 MB or 2 s of it, booked as any bulk connection's. Only while the proxy is in use, so that an idle
//! host stays idle; only over links that are free to use now, which one that is ahead of its budget is not; one at a time; and no link
//! more often than every 5 minutes, whether the server answers or not. The paper probes all the time.

use std::{io, time::Duration};

use pleach_core::time::Instant;
use pleach_linux::clock;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time,
};

use super::{connect, hub::Hub, settings::Probe};
use crate::{placer::Cost, sched::LinkId};

/// Probes links that want it, until dropped. Without servers to ask it does nothing.
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

/// The first link that is to be probed.
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

/// Downloads from `probe` over `link`; returns how much came.
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

/// A probe moves no more than this, enough for a first estimate of links up to 75 Mbit/s; faster ones stay as good as the best.
const MOST_BYTES: u64 = 12_000_000;
/// And takes no longer, from the answer's first byte on or before.
const MOST_TIME: Duration = Duration::from_secs(2);
/// No link is probed more often.
const PAUSE: Duration = Duration::from_secs(300);
/// Nobody has asked the proxy for anything for so long: it is not in use.
const IDLE: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
