//! The policy rules of a tunnel, and their replacement without a gap.
//!
//! A tunnel owns a slot: a routing table, a mark and [`PRIORITIES_PER_SLOT`] rule priorities, which are divided into
//! two banks of equal length. One bank contains the rules in force. New rules are added to the other bank, then the old
//! rules are removed:
//!
//! - The rules of a bank look up long prefixes first. An incomplete bank that has only the first rules gives correct
//!   results for long prefixes; other packets fall through to the other bank. So rules are added from first to last,
//!   and removed from last to first.
//! - At each moment one bank is complete. Every packet finds a rule, and none finds a rule for a shorter prefix before
//!   a rule for a longer one.
//! - The complete bank is recorded in a file between the two steps, so that a process that finds both banks knows which
//!   one to remove.

use std::{io, ops::RangeInclusive};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::netlink::{Netlink, Rule, Selector};

/// One half of a slot's priorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Bank {
    /// The half that is evaluated first.
    #[default]
    First,
    /// The half that is evaluated after [`Bank::First`].
    Second,
}

impl Bank {
    /// Returns the other half.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// Returns the priorities of this half of `slot`.
    pub(crate) fn priorities(self, slot: u32) -> RangeInclusive<u32> {
        let first = *priorities(slot).start();
        let half = PRIORITIES_PER_SLOT / 2;
        match self {
            Self::First => first..=first + half - 1,
            Self::Second => first + half..=first + 2 * half - 1,
        }
    }
}

/// Adds the rules for `routes` and `past` to `bank` of `slot`, which must be empty. If a rule is refused, the rules added before
/// are removed.
///
/// # Errors
/// Returns an error that names the refused priority. Fails if there are too many prefix lengths, see [`rules`].
pub(super) fn fill(
    netlink: &Netlink,
    slot: u32,
    bank: Bank,
    (routes, past): (&[IpNet], &[Selector]),
) -> io::Result<()> {
    for rule in &rules(slot, bank, routes, past)? {
        if let Err(error) = netlink.add_rule(rule) {
            empty(netlink, slot, bank)?;
            return Err(super::context(&error, &format!("rule {}", rule.priority)));
        }
    }
    Ok(())
}

/// Removes the rules of `bank`, from last to first.
///
/// # Errors
/// Returns the error of the kernel.
pub(super) fn empty(netlink: &Netlink, slot: u32, bank: Bank) -> io::Result<()> {
    netlink.delete_rules(bank.priorities(slot), table(slot))
}

/// Returns the rules that look up the table of `slot` for `routes`. For each prefix length, longest first, there is one
/// rule for the main table and one for the tunnel's table. Before them, there are rules that look up the main table for
/// the packets `past`.
///
/// # Errors
/// Fails if there are more than 49 different prefix lengths in a family.
pub(crate) fn rules(
    slot: u32,
    bank: Bank,
    routes: &[IpNet],
    past: &[Selector],
) -> io::Result<Vec<Rule>> {
    let mut rules: Vec<Rule> = Vec::new();
    for is_v6 in [false, true] {
        let first = *bank.priorities(slot).start();
        for selector in past {
            let is_of_family = |net: IpNet| net.addr().is_ipv6() == is_v6;
            let rule = Rule {
                is_v6,
                priority: first,
                fwmark: None,
                not_fwmark: None,
                table: MAIN_TABLE,
                suppress_prefix_len: None,
                selector: Some(*selector),
            };
            if selector.destination.is_none_or(is_of_family) && !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        let of_family = routes
            .iter()
            .filter(|route| route.addr().is_ipv6() == is_v6);
        let mut lens: Vec<u8> = of_family.map(IpNet::prefix_len).collect();
        lens.sort_unstable_by(|a, b| b.cmp(a));
        lens.dedup();
        let mut priorities = bank.priorities(slot).skip(1);
        if lens.len() > MAX_LENGTHS {
            let text = "allowed_ips has more than 49 different prefix lengths: use fewer";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        for len in lens {
            let mut rule = |table, not_fwmark, suppress_prefix_len| {
                rules.extend(priorities.next().map(|priority| Rule {
                    is_v6,
                    priority,
                    fwmark: None,
                    not_fwmark,
                    table,
                    suppress_prefix_len,
                    selector: None,
                }));
            };
            rule(MAIN_TABLE, None, Some(len));
            rule(table(slot), Some(table(slot)), len.checked_sub(1));
        }
    }
    Ok(rules)
}

/// Returns the preferred slot of `name`, computed by FNV-1a, so that a name has the same slot in every run.
pub(super) fn preferred_slot(name: &str) -> u32 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash % SLOTS
}

pub(crate) fn table(slot: u32) -> u32 {
    TABLE_BASE + slot
}

/// Returns all priorities of `slot`.
pub(crate) fn priorities(slot: u32) -> RangeInclusive<u32> {
    let first = PRIORITY_BASE + slot * PRIORITIES_PER_SLOT;
    first..=first + PRIORITIES_PER_SLOT - 1
}

/// Table number and mark of slot 0: the letters "pl".
pub const TABLE_BASE: u32 = 0x706c;
/// Highest number of tunnels in a namespace.
pub(crate) const SLOTS: u32 = 100;
/// Priority of the first rule of slot 0, after rules of the administrator. 102 slots, two of them for the equalizer,
/// end before the main table (32766).
const PRIORITY_BASE: u32 = 12_000;
/// Number of priorities in a slot: two banks with one for packets past the tunnel, and two for each prefix length.
const PRIORITIES_PER_SLOT: u32 = 200;
/// Highest number of prefix lengths per family: with two rules each they fit into a bank.
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
        let rules = rules(3, Bank::First, &networks(&["0.0.0.0/0"]), &[]).expect("few lengths");
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
        let rules = rules(0, Bank::Second, &routes, &[]).expect("few lengths");
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
    fn packets_past_the_tunnel_find_the_main_table_first() {
        let past = [
            Selector {
                destination: Some("192.0.2.0/24".parse().expect("literal")),
                ..Selector::default()
            },
            Selector {
                ports: Some((25, 25)),
                ..Selector::default()
            },
        ];
        // The second one is given twice.
        let past = [past[0], past[1], past[1]];
        let rules = rules(0, Bank::First, &networks(&["0.0.0.0/0", "::/0"]), &past);
        let rules = rules.expect("few lengths");
        let of = |is_v6| rules.iter().filter(move |rule| rule.is_v6 == is_v6);
        for (is_v6, count) in [(false, 2), (true, 1)] {
            let (selected, others): (Vec<&Rule>, Vec<&Rule>) =
                of(is_v6).partition(|rule| rule.selector.is_some());
            assert!(selected.len() == count && others.len() == 2, "{rules:?}");
            for rule in selected {
                assert!(rule.table == MAIN_TABLE && rule.priority < others[0].priority);
            }
        }
    }

    #[test]
    fn too_many_prefix_lengths_are_refused() {
        let routes: Vec<_> = (20..70)
            .map(|len| IpNet::new("fd00::".parse().expect("literal"), len).expect("length"))
            .collect();
        assert!(rules(0, Bank::First, &routes, &[]).is_err());
        let most =
            rules(0, Bank::First, &routes[1..], &[]).expect("as many as a bank has room for");
        let second = *Bank::Second.priorities(0).start();
        assert!(most.len() == 98 && most.iter().all(|rule| rule.priority < second));
    }

    #[test]
    fn slots_and_banks_share_nothing() {
        // Two more slots belong to the equalizer.
        for slot in 1..SLOTS + 2 {
            assert!(priorities(slot).start() > priorities(slot - 1).end());
        }
        let [first, second] = [Bank::First, Bank::Second].map(|bank| bank.priorities(7));
        assert!(first.end() < second.start() && second.end() == priorities(7).end());
        assert!(*priorities(SLOTS + 1).end() < 32_766);
        assert_eq!(preferred_slot("pleach0"), preferred_slot("pleach0"));
    }
}
