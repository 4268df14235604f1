//! The policy rules of a tunnel, and their exchange without a gap.
//!
//! A tunnel owns a slot: a routing table, a mark and [`PRIORITIES_PER_SLOT`] rule priorities, which are two banks of equal length.
//! One bank holds the rules in force. New rules are added to the other bank, then the old ones are removed:
//!
//! - The rules of a bank ask for long prefixes first. A beginning of such a list answers right as far as it answers, and what it
//!   does not answer falls through to the other bank. So rules are added from the first on, and removed from the last on.
//! - At each moment one bank is complete. No packet finds no rule, and none finds a rule for a shorter prefix before one for a longer.
//! - Which bank is complete is written down between the two steps, so that a process that finds both knows which one to remove.

use std::{io, ops::RangeInclusive};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::netlink::{Netlink, Rule};

/// One half of a slot's priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Bank {
    /// The half that is asked first.
    #[default]
    First,
    /// The half that is asked after it.
    Second,
}

impl Bank {
    /// The other half.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// The priorities of this half of `slot`.
    pub(crate) fn priorities(self, slot: u32) -> RangeInclusive<u32> {
        let first = *priorities(slot).start();
        let half = PRIORITIES_PER_SLOT / 2;
        match self {
            Self::First => first..=first + half - 1,
            Self::Second => first + half..=first + 2 * half - 1,
        }
    }
}

/// Adds the rules for `routes` to `bank` of `slot`, which must be empty. If one is refused, removes those added before it.
///
/// # Errors
/// With the priority that was refused; too many prefix lengths, see [`rules`].
pub(super) fn fill(netlink: &Netlink, slot: u32, bank: Bank, routes: &[IpNet]) -> io::Result<()> {
    for rule in &rules(slot, bank, routes)? {
        if let Err(error) = netlink.add_rule(rule) {
            empty(netlink, slot, bank)?;
            return Err(super::context(&error, &format!("rule {}", rule.priority)));
        }
    }
    Ok(())
}

/// Removes the rules of `bank`, the last first.
///
/// # Errors
/// The error of the kernel.
pub(super) fn empty(netlink: &Netlink, slot: u32, bank: Bank) -> io::Result<()> {
    netlink.delete_rules(bank.priorities(slot), table(slot))
}

/// The rules that ask the table of `slot` for `routes`: for each prefix length, the longest first, one for the main table and one for
/// the tunnel's.
///
/// # Errors
/// More than 49 different prefix lengths in a family.
pub(crate) fn rules(slot: u32, bank: Bank, routes: &[IpNet]) -> io::Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for is_v6 in [false, true] {
        let of_family = routes
            .iter()
            .filter(|route| route.addr().is_ipv6() == is_v6);
        let mut lens: Vec<u8> = of_family.map(IpNet::prefix_len).collect();
        lens.sort_unstable_by(|a, b| b.cmp(a));
        lens.dedup();
        let mut priorities = bank.priorities(slot);
        if lens.len() > MAX_LENGTHS {
            let text = "allowed_ips has more than 49 different prefix lengths: use fewer";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        for len in lens {
            let mut rule = |table, not_fwmark, suppress_prefix_len| {
                rules.extend(priorities.next().map(|priority| Rule {
                    is_v6,
                    priority,
                    not_fwmark,
                    table,
                    suppress_prefix_len,
                }));
            };
            rule(MAIN_TABLE, None, Some(len));
            rule(table(slot), Some(table(slot)), len.checked_sub(1));
        }
    }
    Ok(rules)
}

/// FNV-1a, so that a name has the same slot in every run.
pub(super) fn preferred_slot(name: &str) -> u32 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash % SLOTS
}

pub(crate) fn table(slot: u32) -> u32 {
    TABLE_BASE + slot
}

/// All priorities of `slot`.
pub(crate) fn priorities(slot: u32) -> RangeInclusive<u32> {
    let first = PRIORITY_BASE + slot * PRIORITIES_PER_SLOT;
    first..=first + PRIORITIES_PER_SLOT - 1
}

/// Table and mark of slot 0: the letters "pl".
pub const TABLE_BASE: u32 = 0x706c;
/// How many tunnels a namespace can have.
pub(crate) const SLOTS: u32 = 100;
/// Priority of the first rule of slot 0: after rules of the administrator. 102 slots, two of them the equalizer's, end before the
/// main table (32766).
const PRIORITY_BASE: u32 = 12_000;
/// Two banks of two rules for each prefix length.
const PRIORITIES_PER_SLOT: u32 = 200;
/// Prefix lengths of a family: two rules each fit into a bank.
const MAX_LENGTHS: usize = 49;
const MAIN_TABLE: u32 = 254;

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> Vec<IpNet> {
        let parse = |text: &&str| text.parse().expect("literal");
        texts.iter().map(parse).collect()
    }

    #[test]
    fn a_default_route_needs_the_two_rules_of_wg_quick() {
        let rules = rules(3, Bank::First, &networks(&["0.0.0.0/0"])).expect("few lengths");
        let [main, own] = rules[..] else {
            panic!("{rules:?}");
        };
        assert_eq!((main.table, main.suppress_prefix_len), (254, Some(0)));
        assert_eq!(main.not_fwmark, None);
        assert_eq!((own.table, own.suppress_prefix_len), (0x706f, None));
        assert_eq!(own.not_fwmark, Some(0x706f));
        assert!(main.priority < own.priority);
    }

    #[test]
    fn longer_prefixes_are_asked_first_in_either_table() {
        let routes = networks(&[
            "0.0.0.0/0",
            "10.0.0.0/8",
            "10.2.0.0/16",
            "10.3.0.0/16",
            "fd00::/8",
        ]);
        let rules = rules(0, Bank::Second, &routes).expect("few lengths");
        let of = |is_v6| {
            let rules = rules.iter().filter(move |rule| rule.is_v6 == is_v6);
            rules
                .map(|rule| (rule.table, rule.suppress_prefix_len))
                .collect::<Vec<_>>()
        };
        let own = TABLE_BASE;
        let v4 = [
            (254, Some(16)),
            (own, Some(15)),
            (254, Some(8)),
            (own, Some(7)),
            (254, Some(0)),
            (own, None),
        ];
        assert_eq!(of(false), v4);
        assert_eq!(of(true), [(254, Some(8)), (own, Some(7))]);
    }

    #[test]
    fn too_many_prefix_lengths_are_refused() {
        let routes: Vec<_> = (20..70)
            .map(|len| IpNet::new("fd00::".parse().expect("literal"), len).expect("length"))
            .collect();
        assert!(rules(0, Bank::First, &routes).is_err());
        let most = rules(0, Bank::First, &routes[1..]).expect("as many as a bank has room for");
        let second = *Bank::Second.priorities(0).start();
        assert!(most.len() == 98 && most.iter().all(|rule| rule.priority < second));
    }

    #[test]
    fn slots_and_banks_share_nothing() {
        // Two more are the equalizer's.
        for slot in 1..SLOTS + 2 {
            assert!(priorities(slot).start() > priorities(slot - 1).end());
        }
        let [first, second] = [Bank::First, Bank::Second].map(|bank| bank.priorities(7));
        assert!(first.end() < second.start() && second.end() == priorities(7).end());
        assert!(*priorities(SLOTS + 1).end() < 32_766);
        assert_eq!(preferred_slot("pleach0"), preferred_slot("pleach0"));
    }
}
