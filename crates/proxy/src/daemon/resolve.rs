//! Resolves names to addresses by the host's own resolver.
//!
//! `getaddrinfo` blocks, so it runs on tokio's blocking threads. Answers, including failures, are cached for a short
//! time, because browsers look up one name many times at once. The cache holds at most [`MAX_NAMES`] names. A request
//! for a name that is already being looked up waits for the same answer. At most [`MAX_LOOKUPS`] look-ups run at a
//! time.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    net::{IpAddr, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use futures_util::{
    FutureExt as _,
    future::{LocalBoxFuture, Shared, WeakShared},
};
use pleach_core::time::Instant;
use pleach_linux::clock;
use tokio::{sync::Semaphore, task::spawn_blocking, time};

use crate::target::{Host, Target};

/// Looks names up and caches the answers.
#[derive(Debug)]
pub(crate) struct Resolver {
    known: RefCell<BTreeMap<String, (Answer, Instant)>>,
    /// Look-ups in progress. The references are weak, so that a look-up without waiting requests is dropped.
    running: RefCell<BTreeMap<String, WeakShared<Lookup>>>,
    places: Arc<Semaphore>,
}

type Answer = Result<Vec<IpAddr>, String>;
type Lookup = LocalBoxFuture<'static, Answer>;

impl Default for Resolver {
    fn default() -> Self {
        Self {
            known: RefCell::default(),
            running: RefCell::default(),
            places: Arc::new(Semaphore::new(MAX_LOOKUPS)),
        }
    }
}

impl Resolver {
    /// Returns the addresses of `target`, at least one, in the order in which to try them: the resolver's order, with
    /// address families alternating.
    ///
    /// # Errors
    /// Fails with a one-line reason if there is no address.
    pub(crate) async fn resolve(&self, target: &Target) -> Answer {
        let name = match &target.host {
            Host::Ip(ip) => return Ok(vec![*ip]),
            Host::Name(name) => name,
        };
        let now = clock::now();
        if let Some((answer, until)) = self.known.borrow().get(name)
            && now < *until
        {
            return answer.clone();
        }
        let running = self
            .running
            .borrow()
            .get(name)
            .and_then(WeakShared::upgrade);
        let lookup = running.unwrap_or_else(|| self.begin(name));
        let answer = lookup.await;
        let memory = if answer.is_ok() { MEMORY } else { BAD_MEMORY };
        let mut known = self.known.borrow_mut();
        known.retain(|_, (_, until)| now < *until);
        if known.len() < MAX_NAMES {
            known.insert(name.clone(), (answer.clone(), clock::now() + memory));
        }
        answer
    }

    fn begin(&self, name: &str) -> Shared<Lookup> {
        let lookup = look_up(Arc::clone(&self.places), name.to_owned());
        let lookup = lookup.boxed_local().shared();
        let mut running = self.running.borrow_mut();
        running.retain(|_, lookup| lookup.upgrade().is_some());
        running.extend(lookup.downgrade().map(|weak| (name.to_owned(), weak)));
        lookup
    }
}

/// Looks `name` up with the host's resolver.
async fn look_up(places: Arc<Semaphore>, name: String) -> Answer {
    let find = async {
        let place = places.acquire_owned().await.map_err(io::Error::other)?;
        let name = name.clone();
        let find = move || {
            let found = (name.as_str(), 0).to_socket_addrs();
            // Release the place only now: the thread stays in `getaddrinfo` even if no request waits for it any more.
            drop(place);
            found
        };
        spawn_blocking(find).await?
    };
    let addresses = match time::timeout(PATIENCE, find).await {
        Err(_) => {
            let limit = PATIENCE.as_secs();
            return Err(format!("looking up {name} took longer than {limit} s"));
        }
        Ok(Err(error)) => return Err(format!("{name} does not resolve: {}", plain(&error))),
        Ok(Ok(addresses)) => addresses,
    };
    let mut ips: Vec<IpAddr> = Vec::new();
    for address in addresses {
        let ip = address.ip().to_canonical();
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    if ips.is_empty() {
        Err(format!("{name} has no address"))
    } else {
        Ok(alternate(ips))
    }
}

/// Alternates address families, beginning with the family of the first address (RFC 8305, section 4).
fn alternate(ips: Vec<IpAddr>) -> Vec<IpAddr> {
    let first_is_v6 = ips.first().is_some_and(IpAddr::is_ipv6);
    let (one, other): (Vec<_>, Vec<_>) =
        ips.into_iter().partition(|ip| ip.is_ipv6() == first_is_v6);
    let mut sorted = Vec::with_capacity(one.len() + other.len());
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    loop {
        let pair = (one.next(), other.next());
        if pair == (None, None) {
            return sorted;
        }
        sorted.extend(pair.0);
        sorted.extend(pair.1);
    }
}

/// Returns the resolver's message without Rust's prefix.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.strip_prefix("failed to lookup address information: ")
        .unwrap_or(&text)
        .to_owned()
}

/// Maximum time to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
const MEMORY: Duration = Duration::from_secs(30);
/// Cache lifetime of failures: long enough for the many requests of one page, short enough for a network that has
/// just become available.
const BAD_MEMORY: Duration = Duration::from_secs(2);
const MAX_NAMES: usize = 1024;
/// Maximum number of concurrent look-ups. Fewer than the runtime's blocking threads, so that programs can be
/// identified while the resolver hangs.
const MAX_LOOKUPS: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_the_same_name_shares_one_look_up() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("runtime");
        runtime.block_on(async {
            let resolver = Resolver::default();
            let target = Target::new(Host::Name("localhost".to_owned()), 80).expect("port");
            // All places are taken, so no look-up completes until both requests wait and one of them is dropped.
            let limit = u32::try_from(MAX_LOOKUPS).expect("few");
            let all = resolver.places.acquire_many(limit).await.expect("open");
            let mut first = Box::pin(resolver.resolve(&target));
            let mut second = Box::pin(resolver.resolve(&target));
            assert!((&mut first).now_or_never().is_none());
            assert!((&mut second).now_or_never().is_none());
            assert_eq!(resolver.running.borrow().len(), 1);
            drop(first);
            drop(all);
            assert!(second.await.expect("found").iter().all(IpAddr::is_loopback));
            assert_eq!(resolver.places.available_permits(), MAX_LOOKUPS);
        });
    }

    #[test]
    fn families_alternate() {
        let ips = ["::1", "::2", "::3", "192.0.2.1", "192.0.2.2"];
        let ips = ips.map(|text| text.parse::<IpAddr>().expect("address"));
        let [a, b, c, x, y] = ips;
        assert_eq!(alternate(ips.to_vec()), [a, x, b, y, c]);
        assert_eq!(alternate(vec![x, y]), [x, y]);
        assert!(alternate(Vec::new()).is_empty());
    }
}
