//! The table of policies over pairs of links (`tests/policies/`) from longer runs.

#[path = "../tests/policies/pairs.rs"]
mod pairs;
#[path = "../tests/policies/table.rs"]
mod table;

use core::time::Duration;

const LENGTHS: table::Lengths = table::Lengths {
    tcp: Duration::from_secs(20),
    udp: Duration::from_secs(10),
};

#[expect(clippy::print_stdout, reason = "the table is what this program is for")]
fn main() {
    print!("{}", table::text(&table::measure(LENGTHS, |_| true)));
}
