//! Whether two links lead to the same next hop. Next hops are compared by hardware address, because all modems of one
//! model have the same IP address.
//!
//! Limits: IPv4 only, routes of the main table, and next hops that are in the kernel's ARP table. Two modems in one
//! mobile cell are not detected.

use std::{collections::BTreeMap, fs};

use crate::doctor::problem::Problem;

/// Contents of `/proc/net/route` and `/proc/net/arp`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    routes: String,
    neighbours: String,
}

pub(crate) fn observe() -> Facts {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    Facts {
        routes: read("/proc/net/route"),
        neighbours: read("/proc/net/arp"),
    }
}

/// Returns a problem for each of the links' `devices` that has the same next hop as an earlier device in the list.
pub(crate) fn verdicts(facts: &Facts, devices: &[&str]) -> Vec<Problem> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let mut problems = Vec::new();
    for device in devices {
        let hardware = facts
            .hops(device)
            .find_map(|hop| facts.hardware(device, &hop));
        let Some(hardware) = hardware else { continue };
        match first.get(hardware) {
            Some(other) if other != device => problems.push(Problem::new(
                "same-upstream",
                format!("{other} and {device} lead to the same router ({hardware}): they share one line, so two links give no more capacity than one"),
                format!("connect {device} to another modem or router, or remove one of the two links"),
            )),
            Some(_) => {}
            None => {
                first.insert(hardware, device);
            }
        }
    }
    problems
}

impl Facts {
    /// Returns the next hops of a device's default routes.
    fn hops(&self, device: &str) -> impl Iterator<Item = String> {
        let lines = self.routes.lines().skip(1).filter_map(move |line| {
            let mut fields = line.split_whitespace();
            let is_of = fields.next() == Some(device) && fields.next() == Some("00000000");
            let hop = u32::from_str_radix(fields.next()?, 16).ok()?;
            // The address is in network byte order, but printed as a number of this host.
            let hop = std::net::Ipv4Addr::from(hop.to_ne_bytes());
            (is_of && !hop.is_unspecified()).then(|| hop.to_string())
        });
        lines.collect::<Vec<_>>().into_iter()
    }

    fn hardware(&self, device: &str, hop: &str) -> Option<&str> {
        self.neighbours.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [address, _, _, hardware, _, on] = fields.as_slice() else {
                return None;
            };
            let is_known = *hardware != "00:00:00:00:00:00";
            (*address == hop && *on == device && is_known).then_some(*hardware)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_hops_are_told_by_their_hardware() {
        let line = |device: &str, hop: [u8; 4]| {
            format!(
                "{device}\t00000000\t{:08X}\t0003\t0\t0\t100\t00000000\t0\t0\t0\n",
                u32::from_ne_bytes(hop)
            )
        };
        let head = "Iface\tDestination\tGateway \n".to_owned();
        let routes = head
            + &line("eth0", [192, 168, 8, 1])
            + &line("eth1", [192, 168, 8, 1])
            + &line("wifi", [10, 0, 0, 1]);
        let arp = |eth1: &str| {
            format!(
                "IP address  HW type  Flags  HW address  Mask  Device\n\
                192.168.8.1  0x1  0x2  02:00:00:00:00:01  *  eth0\n\
                192.168.8.1  0x1  0x2  {eth1}  *  eth1\n\
                10.0.0.1     0x1  0x2  02:00:00:00:00:01  *  wifi\n"
            )
        };
        let facts = |eth1| Facts {
            routes: routes.clone(),
            neighbours: arp(eth1),
        };
        let all = ["eth0", "eth1", "wifi"];
        let found = verdicts(&facts("02:00:00:00:00:02"), &all);
        assert_eq!(found.len(), 1, "two modems of one make are two");
        assert!(
            found[0].what.starts_with("eth0 and wifi"),
            "{}",
            found[0].what
        );
        assert!(verdicts(&facts("02:00:00:00:00:02"), &all[..2]).is_empty());
        assert_eq!(verdicts(&facts("02:00:00:00:00:01"), &all).len(), 2);
        assert!(verdicts(&facts("00:00:00:00:00:00"), &all[..2]).is_empty());
    }
}
