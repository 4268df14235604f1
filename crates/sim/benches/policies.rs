//! The table of policies over pairs of links (`tests/policies/`) from longer runs: TCP for 20 s, UDP for 10 s.
//!
//! Arguments are names of policies and of pairs: `cargo bench -p pleach-sim --bench policies -- far shallow min-rtt`.

#[path = "../tests/policies/pairs.rs"]
mod pairs;
#[path = "../tests/policies/table.rs"]
mod table;

use core::time::Duration;
use std::env;

use pleach_core::sched::Policy;

const LENGTHS: table::Lengths = table::Lengths {
    tcp: Duration::from_secs(20),
    udp: Duration::from_secs(10),
};

#[expect(clippy::print_stdout, reason = "the table is what this program is for")]
fn main() {
    // Cargo adds options.
    let names: Vec<String> = env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let is_policy = |name: &str| Policy::<String>::NAMES.contains(&name);
    // If no policy is named, all policies are measured. The same applies to pairs.
    let wanted = |name: &str| {
        let mut alike = names
            .iter()
            .filter(|other| is_policy(other) == is_policy(name))
            .peekable();
        alike.peek().is_none() || alike.any(|other| other == name)
    };
    print!("{}", table::text(&table::measure(LENGTHS, wanted)));
}
