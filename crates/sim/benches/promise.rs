//! `./dev bench promise`: the test `tests/promise.rs` over more pairs of links.
//!
//! Arguments: seeds of the sweep and, as `--pairs N`, the number of pairs per seed (default: 60). The default seeds are
//! 301 to 304: 240 pairs, each with CUBIC and BBR. Prints every download below 0.95 of the better link, and the number
//! of downloads that are not in `tests/promise/reviewed.txt`. Fails if there is such a download.

#[path = "../tests/promise/reviewed.rs"]
mod reviewed;
#[path = "../tests/promise/share.rs"]
mod share;

use std::{env, process::ExitCode};

use pleach_sim::{bonds::Sweep, results};

use share::{FLOWS, NO_REGRET, Share};

const REVIEWED: &str = include_str!("../tests/promise/reviewed.txt");

#[expect(clippy::print_stdout, reason = "the table is what this program is for")]
fn main() -> ExitCode {
    let Some((mut seeds, pairs)) = arguments() else {
        eprintln!("usage: ./dev bench promise -- [--pairs N] [SEED ...]");
        return ExitCode::from(2);
    };
    if seeds.is_empty() {
        seeds.extend(301..=304);
    }
    let sweep = |seed| Sweep {
        seed,
        count: pairs,
        links: 2,
        asymmetric: false,
    };
    let cases: Vec<_> = seeds
        .into_iter()
        .flat_map(|seed| sweep(seed).cases())
        .collect();
    let shares = share::measure(&cases, &FLOWS);
    let entries = reviewed::parse(REVIEWED);
    let missed: Vec<&Share> = shares
        .iter()
        .filter(|share| share.of_best() < NO_REGRET)
        .collect();
    print!("{}", share::table(missed.iter().copied()));
    for flow in FLOWS {
        let of_flow = |share: &&Share| share.flow == flow;
        let all: Vec<f64> = shares.iter().filter(of_flow).map(Share::of_best).collect();
        println!(
            "{}: {} of {} below {NO_REGRET}, lowest {:.3}, median {:.3}",
            share::flow_name(flow),
            all.iter().filter(|share| **share < NO_REGRET).count(),
            all.len(),
            all.iter().copied().fold(f64::INFINITY, f64::min),
            results::median(&all).unwrap_or(f64::NAN)
        );
    }
    for share in reviewed::needless(&shares, &entries) {
        println!("keeps the promise and needs no entry in reviewed.txt: {share}");
    }
    let new = missed
        .iter()
        .filter(|share| !reviewed::is_accepted(share, &entries))
        .count();
    println!("{new} of them not in crates/sim/tests/promise/reviewed.txt, or worse than there");
    ExitCode::from(u8::from(new > 0))
}

/// Returns the seeds, and the number of pairs of each. `None` if the arguments are invalid.
fn arguments() -> Option<(Vec<u64>, u32)> {
    let (mut seeds, mut pairs) = (Vec::new(), 60);
    // Cargo adds an option.
    let mut words = env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        if word == "--pairs" {
            pairs = words.next()?.parse().ok()?;
        } else {
            seeds.push(word.parse().ok()?);
        }
    }
    Some((seeds, pairs))
}
