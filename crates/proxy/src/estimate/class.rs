//! Classification of the traffic of an application as real-time or bulk, and the sizes of its past connections.
//!
//! In DBAS (section II-B), process names and ports give a qualitative and past connections a quantitative description
//! of an application. [`classify`] uses these criteria, in this order:
//!
//! 1. The DSCP of the client's packets (RFC 4594, RFC 8622).
//! 2. Packet sizes and packet rate, once a connection has lasted `LEAST_TIME` and has sent `LEAST_SEGMENTS`. Small
//!    packets at a steady rate are real-time. A megabyte or more in full packets is bulk.
//! 3. The port of the server.
//!
//! A counter per application has a range of ±`CERTAIN`. Each connection that ends moves the counter one step towards
//! the class of the connection. A connection without a class does not move the counter. The segments counted are data
//! segments to the server, as counted by the kernel. At most [`MAX_KEYS`] applications and ports are stored. The least
//! recently used entry is removed first.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use pleach_core::time::Instant;

use super::application::{Demand, MAX_KEYS};

/// Kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Large transfers, for which throughput matters.
    Bulk,
    /// Little data, for which delay and loss matter.
    RealTime,
}

impl Class {
    /// Returns the name of the class in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::RealTime => "real-time",
        }
    }
}

/// Observed properties of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Port of the server.
    pub port: u16,
    /// DSCP of the client's packets, 0 to 63. `None` if it is not known.
    pub dscp: Option<u8>,
    /// Number of bytes sent to the server.
    pub up: u64,
    /// Number of bytes received from the server.
    pub down: u64,
    /// Number of data segments sent to the server. Zero if segments were not counted.
    pub segments: u32,
    /// Duration of the connection so far.
    pub lasted: Duration,
}

/// Returns the class of a connection. `None` if no criterion applies.
#[must_use]
pub fn classify(seen: &Seen) -> Option<Class> {
    by_dscp(seen.dscp)
        .or_else(|| by_packets(seen))
        .or_else(|| by_port(seen.port))
}

const fn by_dscp(dscp: Option<u8>) -> Option<Class> {
    match dscp {
        // CS4, AF41 to AF43, CS5, VOICE-ADMIT, EF.
        Some(32 | 34 | 36 | 38 | 40 | 44 | 46) => Some(Class::RealTime),
        // LE, CS1, AF11 to AF13.
        Some(1 | 8 | 10 | 12 | 14) => Some(Class::Bulk),
        Some(_) | None => None,
    }
}

fn by_packets(seen: &Seen) -> Option<Class> {
    if seen.up.max(seen.down) >= BULK_BYTES {
        let mean = seen.up / u64::from(seen.segments.max(1));
        // A download is bulk if its size is large. An upload must also have large packets.
        let is_full = seen.down >= BULK_BYTES || mean >= FULL_BYTES;
        return is_full.then_some(Class::Bulk);
    }
    if seen.lasted < LEAST_TIME || seen.segments < LEAST_SEGMENTS {
        return None;
    }
    let mean = seen.up / u64::from(seen.segments);
    let per_minute = u128::from(seen.segments) * 60_000 / seen.lasted.as_millis().max(1);
    (mean <= SMALL_BYTES && PACKETS_PER_MINUTE.contains(&per_minute)).then_some(Class::RealTime)
}

const fn by_port(port: u16) -> Option<Class> {
    match port {
        // SSH, telnet, H.323, RTMP, RDP, STUN and TURN, SIP, VNC.
        22 | 23 | 1720 | 1935 | 3389 | 3478 | 5060 | 5061 | 5349 | 5900 => Some(Class::RealTime),
        // FTP, NNTP, rsync, BitTorrent.
        20 | 21 | 119 | 563 | 873 | 6881..=6889 => Some(Class::Bulk),
        _ => None,
    }
}

/// Stored statistics of an application or port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// Number of connections that have ended.
    pub connections: u64,
    /// Number of bytes of each of the most recent connections, both directions together, oldest first, at most
    /// [`LAST`].
    pub last_bytes: VecDeque<u64>,
    /// Counter of classified connections: real-time ones increment it, bulk ones decrement it.
    leaning: i8,
    used_at: Option<Instant>,
}

impl Past {
    /// Returns the class of most recent connections. `None` if real-time and bulk connections balance, or if no
    /// connection had a class.
    #[must_use]
    pub const fn class(&self) -> Option<Class> {
        match self.leaning {
            1.. => Some(Class::RealTime),
            0 => None,
            ..0 => Some(Class::Bulk),
        }
    }
}

/// Statistics of applications by name, and by port if the name is not known.
#[derive(Debug, Default)]
pub struct Classes(BTreeMap<String, Past>);

impl Classes {
    /// Returns the expected class of a new connection.
    #[must_use]
    pub fn expected(&self, app: Option<&str>, port: u16, dscp: Option<u8>) -> Option<Class> {
        let past = app.and_then(|app| self.0.get(app)).and_then(Past::class);
        by_dscp(dscp).or(past).or_else(|| by_port(port))
    }

    /// Adds the properties of a connection of `app` that has ended.
    pub fn note(&mut self, now: Instant, app: Option<&str>, seen: &Seen) {
        let key = app.map_or_else(|| format!(":{}", seen.port), str::to_owned);
        let past = self.0.entry(key).or_default();
        past.connections = past.connections.saturating_add(1);
        if past.last_bytes.len() >= LAST {
            past.last_bytes.pop_front();
        }
        let moved = Demand {
            up: seen.up,
            down: seen.down,
        };
        past.last_bytes.push_back(moved.total().get());
        let step = match classify(seen) {
            Some(Class::RealTime) => 1,
            None => 0,
            Some(Class::Bulk) => -1,
        };
        past.leaning = (past.leaning + step).clamp(-CERTAIN, CERTAIN);
        past.used_at = Some(now);
        while self.0.len() > MAX_KEYS {
            let oldest = self.0.iter().min_by_key(|(_, past)| past.used_at);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            self.0.remove(&oldest);
        }
    }

    /// Returns all stored statistics, by the application's name or `:PORT`.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Past)> {
        self.0.iter().map(|(key, past)| (key.as_str(), past))
    }
}

/// Number of past connections whose sizes are stored.
pub const LAST: usize = 8;
/// Limit of the counter of classes, positive and negative. After `CERTAIN` + 1 connections of the other class, the
/// application's class has changed in any case.
const CERTAIN: i8 = 4;
/// Minimum duration of a connection that is classified by its packets.
const LEAST_TIME: Duration = Duration::from_secs(2);
/// Minimum number of segments from which a packet rate is computed.
const LEAST_SEGMENTS: u32 = 16;
/// Maximum mean number of bytes per segment of real-time traffic. Voice and keystrokes have smaller segments.
const SMALL_BYTES: u64 = 400;
/// Minimum mean number of bytes per segment of a bulk upload.
const FULL_BYTES: u64 = 1_000;
/// Minimum number of bytes of a bulk connection in one direction.
const BULK_BYTES: u64 = 1_000_000;
/// Packet rate of real-time traffic in packets per minute: from one packet in 2 s to 200 packets/s.
const PACKETS_PER_MINUTE: core::ops::RangeInclusive<u128> = 30..=12_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(port: u16, up: u64, down: u64, segments: u32, seconds: u64) -> Seen {
        Seen {
            port,
            dscp: None,
            up,
            down,
            segments,
            lasted: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn marks_come_before_packets_and_packets_before_ports() {
        // 50 packets/s of 160 bytes.
        let voice = seen(443, 80_000, 80_000, 500, 10);
        assert_eq!(classify(&voice), Some(Class::RealTime));
        let marked = |dscp, seen| Seen {
            dscp: Some(dscp),
            ..seen
        };
        assert_eq!(classify(&marked(8, voice)), Some(Class::Bulk));
        let download = seen(22, 2_000, 5_000_000, 40, 10);
        assert_eq!(classify(&download), Some(Class::Bulk), "scp");
        assert_eq!(classify(&marked(46, download)), Some(Class::RealTime));
        assert_eq!(classify(&seen(22, 500, 500, 5, 1)), Some(Class::RealTime));
        assert_eq!(classify(&seen(873, 0, 0, 0, 0)), Some(Class::Bulk));
        assert_eq!(classify(&seen(443, 900, 22_000, 3, 1)), None, "a page");
        assert_eq!(classify(&seen(443, 40_000, 0, 40, 10)), None, "a form");
        assert_eq!(
            classify(&seen(443, 5_000_000, 0, 4_000, 9)),
            Some(Class::Bulk)
        );
        let small_packets = seen(443, 2_000_000, 0, 20_000, 9);
        assert_eq!(classify(&small_packets), None, "much in small packets");
        assert_eq!(classify(&seen(443, 0, 0, u32::MAX, 0)), None);
    }

    #[test]
    fn an_application_is_what_most_of_its_connections_are_and_memory_is_bound() {
        let mut classes = Classes::default();
        let at = Instant::from_millis;
        let voice = seen(443, 80_000, 80_000, 500, 10);
        for n in 0..9 {
            classes.note(at(n), Some("call"), &voice);
        }
        let expected = |classes: &Classes| classes.expected(Some("call"), 443, None);
        assert_eq!(expected(&classes), Some(Class::RealTime));
        assert_eq!(
            classes.expected(Some("call"), 443, Some(8)),
            Some(Class::Bulk)
        );
        let update = seen(443, 1_000, 9_000_000, 10, 9);
        for _ in 0..4 {
            classes.note(at(9), Some("call"), &update);
        }
        assert_eq!(expected(&classes), None);
        classes.note(at(9), Some("call"), &update);
        assert_eq!(expected(&classes), Some(Class::Bulk));
        let (_, past) = classes.all().next().expect("one");
        assert_eq!((past.connections, past.last_bytes.len()), (14, LAST));
        for n in 0..2 * MAX_KEYS as u64 {
            classes.note(at(10 + n), Some(&format!("app{n}")), &update);
        }
        assert_eq!(classes.all().count(), MAX_KEYS);
        assert_eq!(expected(&classes), None, "the oldest went");
    }
}
