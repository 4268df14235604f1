//! Selection of the host to which probes are sent if none is configured: the host at the other end of the busiest
//! spread connection.
//!
//! The host stays the same while it is connected, because another host has other delays and all of them would have to
//! be measured again. It also stays the same after the connection ends until there is another connection, which then
//! begins with known delays. A host that never answers (many drop echo requests) is replaced by the host of the next
//! busiest connection, and not probed again for [`SILENT_FOR`]. Bound: [`MOST_SILENT`] hosts.

use core::time::Duration;
use std::{collections::VecDeque, net::IpAddr};

use pleach_core::time::Instant;

/// The remote and the local address of a connection.
pub(super) type Ends = (IpAddr, IpAddr);

/// The host that is probed, and the hosts that did not answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Asking {
    asked: Option<Ends>,
    silent: VecDeque<(IpAddr, Instant)>,
}

impl Asking {
    /// Returns the host to probe from now on, and the source address.
    ///
    /// `silent` is a host that never answered. `connections` are the number of segments that each connection has sent,
    /// and its ends.
    pub(super) fn choose(
        &mut self,
        now: Instant,
        silent: Option<IpAddr>,
        connections: impl Iterator<Item = (u32, Ends)> + Clone,
    ) -> Option<Ends> {
        self.silent
            .retain(|(_, since)| now.since(*since) < SILENT_FOR);
        if let Some((host, _)) = self.asked
            && silent == Some(host)
        {
            self.asked = None;
            self.silent.truncate(MOST_SILENT - 1);
            self.silent.push_front((host, now));
        }
        let is_silent = |host: IpAddr| self.silent.iter().any(|(known, _)| *known == host);
        let connections = connections.filter(|(_, (host, _))| !is_silent(*host));
        let is_connected = |asked: &Ends| connections.clone().any(|(_, ends)| ends == *asked);
        let kept = self.asked.filter(is_connected);
        let busiest = || connections.clone().max().map(|(_, ends)| ends);
        self.asked = kept.or_else(busiest).or(self.asked);
        self.asked
    }
}

/// Time for which a silent host is not probed again, because it may have been unreachable only temporarily.
const SILENT_FOR: Duration = Duration::from_secs(300);
const MOST_SILENT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(last: u8) -> Ends {
        (
            IpAddr::from([10, 20, 0, last]),
            IpAddr::from([10, 20, 0, 200]),
        )
    }

    const CONNECTIONS: [(u32, u8); 3] = [(5, 1), (9, 2), (7, 3)];

    fn choose(
        asking: &mut Asking,
        seconds: u64,
        silent: Option<u8>,
        connections: &[(u32, u8)],
    ) -> Option<Ends> {
        let connections = connections.iter().map(|(sent, last)| (*sent, ends(*last)));
        let silent = silent.map(|last| ends(last).0);
        asking.choose(Instant::from_millis(1000 * seconds), silent, connections)
    }

    #[test]
    fn who_is_asked_stays_while_connected_and_until_there_is_another() {
        let mut asking = Asking::default();
        assert_eq!(choose(&mut asking, 0, None, &[]), None);
        assert_eq!(
            choose(&mut asking, 0, None, &CONNECTIONS[..1]),
            Some(ends(1))
        );
        assert_eq!(choose(&mut asking, 1, None, &CONNECTIONS), Some(ends(1)));
        assert_eq!(choose(&mut asking, 2, None, &[]), Some(ends(1)));
        assert_eq!(
            choose(&mut asking, 3, None, &CONNECTIONS[1..]),
            Some(ends(2))
        );
    }

    #[test]
    fn who_never_answers_is_left_for_the_next_busiest_for_some_minutes() {
        let mut asking = Asking::default();
        assert_eq!(choose(&mut asking, 0, None, &CONNECTIONS), Some(ends(2)));
        assert_eq!(
            choose(&mut asking, 1, Some(1), &CONNECTIONS),
            Some(ends(2)),
            "another"
        );
        assert_eq!(choose(&mut asking, 3, Some(2), &CONNECTIONS), Some(ends(3)));
        assert_eq!(choose(&mut asking, 6, Some(3), &CONNECTIONS), Some(ends(1)));
        assert_eq!(choose(&mut asking, 9, Some(1), &CONNECTIONS), None);
        assert_eq!(choose(&mut asking, 302, None, &CONNECTIONS), None);
        assert_eq!(choose(&mut asking, 303, None, &CONNECTIONS), Some(ends(2)));
    }

    #[test]
    fn the_list_of_silent_hosts_is_bounded() {
        let mut asking = Asking::default();
        for last in 0..=199 {
            choose(&mut asking, 0, None, &[(1, last)]);
            choose(&mut asking, 0, Some(last), &[]);
        }
        assert_eq!(asking.silent.len(), MOST_SILENT);
    }
}
