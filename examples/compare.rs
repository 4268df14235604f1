//! A scenario file under several policies, on one page.
//!
//! ```sh
//! cargo run --example compare -- scenarios/pair.toml adaptive earliest-arrival     # → compare.html
//! ```
#![expect(clippy::print_stdout, reason = "a program for the command line")]

use std::{env, error::Error, fs, path::Path};

use pleach_sim::{
    report,
    run::{self, EngineOnly, Options},
    scenario::{Files, Scenario},
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let usage = "usage: compare SCENARIO.toml POLICY ...";
    let path = arguments.next().ok_or(usage)?;
    let text = fs::read_to_string(&path)?;
    let mut runs = Vec::new();
    for policy in arguments {
        let mut files = Files {
            scenario: Path::new(&path),
            traces: env::var_os("PLEACH_TRACES").map(Into::into),
            read: &mut |path: &Path| fs::read_to_string(path),
        };
        let mut scenario = Scenario::parse(&text, &mut files)?;
        let tunnel = scenario
            .tunnel
            .as_mut()
            .ok_or("the scenario has no [tunnel]")?;
        tunnel.policy = policy;
        let options = Options {
            program: &EngineOnly,
            skip_baselines: true,
            progress: &|_| {},
        };
        runs.push(run::run(&scenario, &options)?);
    }
    if runs.is_empty() {
        return Err(usage.into());
    }
    print!("{}", report::beside_table(&runs));
    fs::write("compare.html", report::beside(&runs))?;
    println!("the plot: compare.html");
    Ok(())
}
