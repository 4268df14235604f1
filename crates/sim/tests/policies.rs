//! Behaviour of every policy over every pair of links, as a reviewed table: `policies/table.txt`.
//!
//! A change of behaviour appears as a changed line. If it is intended, accept it with `PLEACH_BLESS=1 cargo test -p
//! pleach-sim --test policies` and commit the table with the reason. Lines of a new policy are added automatically.

#[path = "policies/pairs.rs"]
mod pairs;
#[path = "policies/table.rs"]
mod table;

use core::time::Duration;
use std::{env, fs};

use pleach_core::sched::Policy;
use similar::TextDiff;

use table::Lengths;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policies/table.txt");

/// Duration of the runs, short because the test runs unoptimised on small machines. `./dev bench policies` has longer
/// runs.
const LENGTHS: Lengths = Lengths {
    tcp: Duration::from_secs(4),
    udp: Duration::from_secs(4),
};

const HEAD: &str = "\
Results of every policy over pairs of links, in the simulator; checked by crates/sim/tests/policies.rs. One flow for 4 s
towards the client. Times in ms: smoothed RTT of TCP, one-way delay of UDP. `resent`: retransmitted TCP segments.
`reorder`: highest number of later datagrams that arrived before a datagram. `gap`: longest time without payload.
";

#[test]
fn every_policy_does_over_every_pair_what_the_table_says() {
    let text = format!("{HEAD}{}", table::text(&table::measure(LENGTHS, |_| true)));
    for name in Policy::<String>::NAMES {
        assert!(
            text.contains(&format!("\n    {name} ")),
            "{name} is not in the table"
        );
    }
    if env::var_os("PLEACH_BLESS").is_some() {
        fs::write(FILE, text).expect("the table can be written");
        return;
    }
    let accepted = fs::read_to_string(FILE).unwrap_or_default();
    if text != accepted {
        let diff = TextDiff::from_lines(&accepted, &text);
        let diff = diff
            .unified_diff()
            .header("accepted", "measured")
            .to_string();
        panic!(
            "the results differ from crates/sim/tests/policies/table.txt:\n{diff}\nto accept them: \
             PLEACH_BLESS=1 cargo test -p pleach-sim --test policies"
        );
    }
}
