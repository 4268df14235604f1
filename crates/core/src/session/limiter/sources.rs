//! Token buckets for each source address: a /32 of IPv4 or a /64 of IPv6, which is what one subscriber has.
//!
//! *Claimed* sources have not been proved, so a stranger can claim any of them. Their buckets are a fixed array,
//! indexed by a keyed hash. Two sources may share a bucket, and no bucket is ever evicted, so a flood of invented
//! addresses affects only the buckets that it hits. *Proved* sources have separate buckets in a table of at most
//! [`MAX_PROVED`]. When the table is full, the bucket that will be full soonest is removed. It is already full unless
//! all sources in the table are busy.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet};

use super::bucket::{Bucket, Rate};
use crate::{session::hash::mac128, session::secret::Secret, time::Instant};

/// An address prefix that a limit treats as one sender: a /32 of IPv4, even if it is mapped into IPv6, or a /64 of
/// IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    is_v6: bool,
    prefix: u64,
}

impl From<SocketAddr> for Source {
    fn from(address: SocketAddr) -> Self {
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => Self {
                is_v6: false,
                prefix: u64::from(ip.to_bits()),
            },
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Self {
                    is_v6: true,
                    prefix: [a, b, c, d]
                        .into_iter()
                        .fold(0, |all, part| all << 16 | u64::from(part)),
                }
            }
        }
    }
}

/// Buckets of one claimed source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimed {
    /// Bucket of the initiations read.
    pub(super) reads: Bucket,
    /// Bucket of the cookie replies.
    pub(super) cookies: Bucket,
}

/// Buckets of claimed sources; 128 KiB.
#[derive(Debug)]
pub(super) struct ClaimedSources {
    key: Secret,
    cells: Vec<Claimed>,
}

impl ClaimedSources {
    pub(super) fn new(key: Secret) -> Self {
        let full = Claimed {
            reads: Bucket::FULL,
            cookies: Bucket::FULL,
        };
        Self {
            key,
            cells: vec![full; CLAIMED_CELLS],
        }
    }

    pub(super) fn of(&mut self, source: Source) -> &mut Claimed {
        let parts: [&[u8]; 2] = [&[u8::from(source.is_v6)], &source.prefix.to_be_bytes()];
        let [low, high, ..] = mac128(self.key.expose(), &parts);
        let cell = usize::from(u16::from_be_bytes([high, low])) % CLAIMED_CELLS;
        &mut self.cells[cell]
    }
}

/// Buckets of proved sources.
#[derive(Debug, Default)]
pub(super) struct ProvedSources {
    buckets: BTreeMap<Source, Bucket>,
    by_fullness: BTreeSet<(Bucket, Source)>,
}

impl ProvedSources {
    /// Takes a token of `source`. Returns how long the source must wait if no token is available. O(log n).
    pub(super) fn take(
        &mut self,
        now: Instant,
        source: Source,
        rate: Rate,
    ) -> Result<(), core::time::Duration> {
        let known = self.buckets.get(&source).copied();
        let mut bucket = known.unwrap_or(Bucket::FULL);
        bucket.take(now, rate)?;
        match known {
            Some(old) => {
                self.by_fullness.remove(&(old, source));
            }
            None if self.buckets.len() >= MAX_PROVED => {
                if let Some((_, fullest)) = self.by_fullness.pop_first() {
                    self.buckets.remove(&fullest);
                }
            }
            None => {}
        }
        self.buckets.insert(source, bucket);
        self.by_fullness.insert((bucket, source));
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.buckets.len(), self.by_fullness.len());
        self.buckets.len()
    }
}

/// Number of buckets of claimed sources. If 200 000 initiations per second arrive from invented addresses, each bucket
/// gets 24 per second.
const CLAIMED_CELLS: usize = 8192;
/// Maximum number of proved sources with a bucket; 0.3 MiB.
pub(super) const MAX_PROVED: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_subscriber_are_one_source() {
        let source = |text: &str| Source::from(text.parse::<SocketAddr>().unwrap());
        assert_eq!(source("192.0.2.1:1"), source("192.0.2.1:2"));
        assert_eq!(source("192.0.2.1:1"), source("[::ffff:192.0.2.1]:2"));
        assert_ne!(source("192.0.2.1:1"), source("192.0.2.2:1"));
        assert_eq!(
            source("[2001:db8:1:2::3]:1"),
            source("[2001:db8:1:2:ffff::]:2")
        );
        assert_ne!(source("[2001:db8:1:2::3]:1"), source("[2001:db8:1:3::3]:1"));
        assert_ne!(source("0.0.0.1:1"), source("[0:0:0:1::]:1"));
    }

    #[test]
    fn a_limited_source_stays_limited_however_many_others_come() {
        let mut sources = ProvedSources::default();
        let rate = Rate::new(1, 5);
        let now = Instant::from_millis(1);
        let busy = Source {
            is_v6: true,
            prefix: u64::MAX,
        };
        while sources.take(now, busy, rate).is_ok() {}
        for prefix in 0..3 * MAX_PROVED as u64 {
            let source = Source {
                is_v6: true,
                prefix,
            };
            assert!(sources.take(now, source, rate).is_ok());
        }
        assert_eq!(sources.len(), MAX_PROVED);
        assert!(sources.take(now, busy, rate).is_err());
    }
}
