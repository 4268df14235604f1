//! Names to addresses, by the host's own resolver.
//!
//! `getaddrinfo` blocks, so it runs on tokio's blocking threads. Answers, bad ones too, are kept for a short time,
//! because browsers ask for one name many times at once; at most [`MAX_NAMES`] of them.

use std::{cell::RefCell, collections::BTreeMap, io, net::IpAddr, time::Duration};

use pleach_core::time::Instant;
use pleach_linux::clock;
use tokio::{net::lookup_host, time};

use crate::target::{Host, Target};

/// Remembers answers.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    known: RefCell<BTreeMap<String, (Answer, Instant)>>,
}

type Answer = Result<Vec<IpAddr>, String>;

impl Resolver {
    /// The addresses of `target`, at least one, in the order to try them: the resolver's, families alternating.
    ///
    /// # Errors
    /// A line on why there is none.
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
        let found = time::timeout(PATIENCE, lookup_host((name.as_str(), target.port))).await;
        let answer = match found {
            Err(_) => Err(format!(
                "looking up {name} took longer than {} s",
                PATIENCE.as_secs()
            )),
            Ok(Err(error)) => Err(format!("{name} does not resolve: {}", plain(&error))),
            Ok(Ok(addresses)) => {
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
        };
        let memory = if answer.is_ok() { MEMORY } else { BAD_MEMORY };
        let mut known = self.known.borrow_mut();
        known.retain(|_, (_, until)| now < *until);
        if known.len() < MAX_NAMES {
            known.insert(name.clone(), (answer.clone(), clock::now() + memory));
        }
        answer
    }
}

/// RFC 8305, section 4: families in turn, beginning with the first address's.
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

/// The resolver's own words.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.strip_prefix("failed to lookup address information: ")
        .unwrap_or(&text)
        .to_owned()
}

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
const MEMORY: Duration = Duration::from_secs(30);
/// Long enough for the many requests of one page, short enough for a network that has just come.
const BAD_MEMORY: Duration = Duration::from_secs(2);
const MAX_NAMES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

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
