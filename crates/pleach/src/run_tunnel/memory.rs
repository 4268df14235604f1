//! Stores the estimated rates of links across a restart of the daemon and while a link is absent.
//!
//! Each tunnel has one file in the state directory, `NAME.rates`. It is read at the start, and written as a whole at
//! intervals and at the end. It is valid until the machine reboots, so its times are of the daemon's monotonic clock.
//! Its values describe the direction in which this end sends.
//!
//! An entry is found by peer, link and network. A client identifies the network by the prefix of its device's address
//! ([`super::links::network`]), a gateway by the source address of the client's datagrams ([`provider`]).
//!
//! Bounds: at most [`MOST_ENTRIES`], of which the oldest are replaced first. Entries older than [`MOST_AGE`] are not
//! used.

use std::{net::IpAddr, time::Duration};

use pleach_core::{
    endpoint::Endpoint,
    path::memory::{MOST_AGE, PathMemory},
    time::Instant,
    units::Bitrate,
};
use pleach_linux::state::StateDir;
use serde::{Deserialize, Serialize};

/// Stored estimates of the paths of a tunnel.
#[derive(Debug)]
pub(super) struct Memory {
    dir: StateDir,
    file: String,
    /// Entries, the latest last.
    entries: Vec<Entry>,
    save_at: Instant,
}

/// Key of an entry: peer, link and network of the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    pub(super) peer: String,
    pub(super) link: String,
    pub(super) network: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    key: Key,
    rate_bps: u64,
    min_rtt_us: u64,
    loss_ppm: u32,
    /// Time of the entry, in seconds since boot.
    at_s: u64,
}

impl Memory {
    /// Loads the file in `dir`. Starts empty if there is no file, or if it cannot be parsed.
    pub(super) fn load(now: Instant, dir: StateDir, tunnel: &str) -> Self {
        let file = format!("{tunnel}.rates");
        let mut entries: Vec<Entry> = dir.read(&file).unwrap_or_default();
        // The bounds are enforced again, whoever has written the file.
        entries.retain(|entry| {
            (1..=MOST_BPS).contains(&entry.rate_bps) && entry.loss_ppm <= 1_000_000
        });
        entries.sort_by_key(|entry| entry.at_s);
        entries.drain(..entries.len().saturating_sub(MOST_ENTRIES));
        Self {
            dir,
            file,
            entries,
            save_at: now + SAVE_EVERY,
        }
    }

    /// Returns the entry of `key` and its age.
    pub(super) fn find(&self, now: Instant, key: &Key) -> Option<(PathMemory, Duration)> {
        let entry = self.entries.iter().find(|entry| entry.key == *key)?;
        let age = seconds(now).checked_sub(entry.at_s);
        let age = age.map(Duration::from_secs).filter(|age| *age < MOST_AGE)?;
        let memory = PathMemory {
            rate: Bitrate::from_bps(entry.rate_bps),
            min_rtt: Duration::from_micros(entry.min_rtt_us),
            loss_ppm: entry.loss_ppm,
        };
        Some((memory, age))
    }

    /// Whether the rates of the paths are due to be stored.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.save_at;
        if is_due {
            self.save_at = now + SAVE_EVERY;
        }
        is_due
    }

    /// Notes the state of the path of `key`.
    pub(super) fn note(&mut self, now: Instant, key: Key, memory: &PathMemory) {
        self.entries.retain(|entry| entry.key != key);
        if self.entries.len() >= MOST_ENTRIES {
            self.entries.remove(0);
        }
        self.entries.push(Entry {
            key,
            rate_bps: memory.rate.as_bps(),
            min_rtt_us: u64::try_from(memory.min_rtt.as_micros()).unwrap_or(u64::MAX),
            loss_ppm: memory.loss_ppm,
            at_s: seconds(now),
        });
    }

    /// Returns a closure that writes the present entries to the file. Call it where waiting for a disk is permitted. A
    /// failure is only logged.
    pub(super) fn saving(&self) -> impl FnOnce() + Send + use<> {
        let (dir, file, entries) = (self.dir.clone(), self.file.clone(), self.entries.clone());
        move || {
            if let Err(error) = dir.write(&file, &entries) {
                tracing::warn!(file, %error, "what links carry cannot be saved");
            }
        }
    }
}

/// Returns the estimates of the paths of a gateway's clients that are worth storing, with their keys.
pub(super) fn of_clients(now: Instant, endpoint: &Endpoint) -> Vec<(Key, PathMemory)> {
    let memories: Vec<_> = endpoint.memories(now).collect();
    if memories.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (peer, status) in endpoint.status() {
        let own = memories.iter().filter(|(name, ..)| *name == peer.name);
        for (_, id, carries) in own {
            let path = status.paths.iter().find(|path| path.id == *id);
            let Some((path, remote)) = path.and_then(|path| Some((path, path.remote?))) else {
                continue;
            };
            let key = Key {
                peer: peer.name.clone(),
                link: path.name.clone(),
                network: provider(remote.ip()),
            };
            found.push((key, *carries));
        }
    }
    found
}

/// Returns the network of a client's address, as a gateway identifies it: a prefix as large as one provider's, because
/// a provider assigns changing addresses. Private addresses (RFC 1918) are treated like all others.
pub(super) fn provider(remote: IpAddr) -> String {
    match remote.to_canonical() {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            format!("{first}.{second}.0.0/16")
        }
        IpAddr::V6(address) => {
            let [first, second, ..] = address.segments();
            format!("{first:x}:{second:x}::/32")
        }
    }
}

fn seconds(now: Instant) -> u64 {
    now.since(Instant::ZERO).as_secs()
}

/// Highest valid rate in bit/s: no path is faster.
const MOST_BPS: u64 = 400_000_000_000;
/// Maximum number of entries: enough for a household, or for a few hundred clients.
const MOST_ENTRIES: usize = 1024;
/// Interval between two writes. If the daemon is killed, the changes since the last write are lost.
const SAVE_EVERY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn key(network: &str) -> Key {
        Key {
            peer: "gateway".to_owned(),
            link: "wifi".to_owned(),
            network: network.to_owned(),
        }
    }

    fn carries(mbps: u64) -> PathMemory {
        PathMemory {
            rate: Bitrate::from_mbps(mbps),
            min_rtt: Duration::from_micros(23_400),
            loss_ppm: 120,
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn load(now: Instant, base: &TempDir) -> Memory {
        let dir = StateDir::open(base.path()).expect("a directory");
        Memory::load(now, dir, "pleach0")
    }

    #[test]
    fn networks_of_a_link_are_told_apart_over_a_restart() {
        let base = TempDir::new().expect("a directory");
        let mut memory = load(at(100), &base);
        memory.note(at(100), key("192.168.1.0/24"), &carries(300));
        memory.note(at(200), key("10.0.0.0/24"), &carries(8));
        memory.note(at(300), key("192.168.1.0/24"), &carries(290));
        memory.saving()();
        let memory = load(at(1_000), &base);
        let found = memory.find(at(1_000), &key("192.168.1.0/24"));
        assert_eq!(found, Some((carries(290), Duration::from_secs(700))));
        let found = memory.find(at(1_000), &key("10.0.0.0/24"));
        assert_eq!(found, Some((carries(8), Duration::from_secs(800))));
        assert_eq!(memory.find(at(1_000), &key("10.0.1.0/24")), None);
    }

    #[test]
    fn what_is_old_or_of_the_future_is_not_recalled() {
        let base = TempDir::new().expect("a directory");
        let mut memory = load(at(100), &base);
        memory.note(at(100), key("a"), &carries(8));
        assert!(memory.find(at(100 + 86_399), &key("a")).is_some());
        assert_eq!(memory.find(at(100 + 86_400), &key("a")), None);
        assert_eq!(memory.find(at(99), &key("a")), None, "of another boot");
    }

    #[test]
    fn a_file_that_makes_no_sense_is_ignored_and_replaced() {
        let base = TempDir::new().expect("a directory");
        let mut memory = load(at(1), &base);
        memory.note(at(1), key("a"), &carries(8));
        memory.saving()();
        let dir = fs::read_dir(base.path()).expect("a directory").next();
        let file = dir
            .expect("one")
            .expect("readable")
            .path()
            .join("pleach0.rates");
        for text in [
            "",
            "[{\"peer\":",
            "{\"peer\": 3}",
            "[{\"peer\": \"x\"}]",
            "[1e999]",
        ] {
            fs::write(&file, text).expect("writable");
            let mut memory = load(at(2), &base);
            assert_eq!(memory.find(at(2), &key("a")), None, "{text}");
            memory.note(at(2), key("a"), &carries(9));
            memory.saving()();
            assert!(load(at(3), &base).find(at(3), &key("a")).is_some());
        }
    }

    #[test]
    fn the_oldest_give_way() {
        let base = TempDir::new().expect("a directory");
        let mut memory = load(at(0), &base);
        for number in 0..=MOST_ENTRIES as u64 {
            memory.note(at(number), key(&number.to_string()), &carries(8));
        }
        let now = at(MOST_ENTRIES as u64);
        assert_eq!(memory.find(now, &key("0")), None);
        assert!(memory.find(now, &key("1")).is_some());
        assert_eq!(memory.entries.len(), MOST_ENTRIES);
    }

    #[test]
    fn a_gateway_knows_a_network_by_its_provider() {
        for (address, network) in [
            ("198.51.100.7", "198.51.0.0/16"),
            ("::ffff:198.51.100.7", "198.51.0.0/16"),
            ("2001:db8:1:2::3", "2001:db8::/32"),
        ] {
            assert_eq!(provider(address.parse().expect("address")), network);
        }
    }
}
