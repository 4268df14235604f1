//! Tests of sweep files: the cases they describe, and mistakes in them.

use pleach_core::{endpoint::Endpoint, sched::SchedulerSettings};

use super::*;
use crate::{run::EngineOnly, scenario::End};

const BASE: &str = r#"name = "base"
duration = "1s"
[[link]]
name = "dsl"
rate = "10Mbit"
delay = "5ms"
[[link]]
name = "lte"
rate = "5Mbit"
delay = "20ms"
[tunnel]
policy = "weighted"
[[traffic]]
kind = "tcp"
name = "download"
"#;

const SWEEP: &str = r#"name = "test"
base = "base.toml"
draws = 3
[vary]
link.dsl.rate = { draw = "log", from = "1Mbit", to = "100Mbit" }
link.lte.delay = { from = "10ms", to = "40ms", count = 3, scale = "log" }
"link.lte.loss" = { draw = "uniform", from = 0.001, to = 0.01, chance = 0.5 }
seed = [1, 2]
tunnel.policy = ["weighted", "min-rtt"]
"#;

fn parse(text: &str) -> Result<Sweep, ScenarioError> {
    let read = |path: &Path| match path.to_str() {
        Some("dir/base.toml") => Ok(BASE.to_owned()),
        Some("dir/slow.csv") => Ok("seconds,slow\n0,1\n1,2\n".to_owned()),
        _ => Err(io::ErrorKind::NotFound.into()),
    };
    let mut files = Files {
        scenario: Path::new("dir/sweep.toml"),
        traces: None,
        read: &mut { read },
    };
    Sweep::parse(text, &mut files)
}

/// Returns the message about the first mistake in the sweep or in its first case.
fn mistake(text: &str) -> String {
    let checked = parse(text).and_then(|sweep| {
        let case = sweep.case(0)?;
        sweep.check_case(&case, &EngineOnly)
    });
    checked.expect_err("a mistake").to_string()
}

#[test]
fn cases_are_all_combinations_for_each_draw() {
    let sweep = parse(SWEEP).expect("valid");
    assert_eq!(sweep.cases(), 3 * 3 * 2 * 2);
    let value = |number: u64, key: &str| sweep.parameters(number)[key].clone();
    // The last parameter changes first.
    assert_eq!(value(0, "tunnel.policy"), Some("weighted".into()));
    assert_eq!(value(1, "tunnel.policy"), Some("min-rtt".into()));
    assert_eq!(value(2, "seed"), Some(2.into()));
    assert_eq!(value(4, "link.lte.delay"), Some("20ms".into()));
    assert_eq!(value(8, "link.lte.delay"), Some("40ms".into()));
    // Within a draw, drawn parameters do not change.
    assert_eq!(value(0, "link.dsl.rate"), value(11, "link.dsl.rate"));
    assert_ne!(value(0, "link.dsl.rate"), value(12, "link.dsl.rate"));
    let case = sweep.case(35).expect("valid");
    assert_eq!(case.scenario.seed, 2);
    assert_eq!(case.scenario.links[1].down.delay.as_millis(), 40);
}

#[test]
fn draws_depend_on_seed_name_and_number_only() {
    let sweep = parse(SWEEP).expect("valid");
    let rates = |sweep: &Sweep, step: usize| -> Vec<_> {
        let cases = (0..sweep.cases()).step_by(step);
        cases
            .map(|case| sweep.parameters(case)["link.dsl.rate"].clone())
            .collect()
    };
    let fewer = SWEEP.replace("seed = [1, 2]\n", "");
    let fewer = parse(&fewer).expect("valid");
    assert_eq!(rates(&sweep, 12), rates(&fewer, 6));
    let other = SWEEP.replace("draws = 3", "draws = 3\nseed = 2");
    assert_ne!(rates(&sweep, 12), rates(&parse(&other).expect("valid"), 12));
}

#[test]
fn drawn_values_are_in_range_and_chance_leaves_the_base_value() {
    let sweep = parse(&SWEEP.replace("draws = 3", "draws = 400")).expect("valid");
    let (mut drawn, mut below_ten) = (0, 0);
    for draw in 0..400 {
        let parameters = sweep.parameters(draw * 12);
        if let Some(loss) = &parameters["link.lte.loss"] {
            let loss = loss.as_float().expect("a number");
            assert!((0.001..=0.01).contains(&loss), "{loss}");
            drawn += 1;
        }
        let case = sweep.case(draw * 12).expect("valid");
        let crate::link::trace::Rate::Constant(rate) = case.scenario.links[0].down.rate else {
            panic!("the rate is not constant: {case:?}");
        };
        let rate = rate.as_bps();
        assert!((1_000_000..=100_000_000).contains(&rate), "{rate}");
        below_ten += u32::from(rate < 10_000_000);
    }
    // Binomial with n = 400 and p = 0.5: the standard deviation is 10.
    assert!((150..=250).contains(&drawn), "{drawn}");
    assert!((150..=250).contains(&below_ten), "{below_ten}");
}

#[test]
fn ranges_include_their_ends() {
    let sweep = "name = \"x\"\nbase = \"base.toml\"\n[vary]\n\
                 link.dsl.rate = { from = \"10Mbit\", to = \"50Mbit\", step = \"10Mbit\" }\n\
                 link.dsl.queue = [\"0.5bdp\"]\n\
                 seed = { from = 1, to = 7, step = 3 }\n";
    let sweep = parse(sweep).expect("valid");
    assert_eq!(sweep.cases(), 15);
    assert_eq!(sweep.parameters(14)["link.dsl.rate"], Some("50Mbit".into()));
    assert_eq!(sweep.parameters(14)["seed"], Some(7.into()));
    let case = sweep.case(14).expect("valid");
    // 50 Mbit/s × 10 ms / 2 = 31.25 kB.
    assert_eq!(case.scenario.links[0].down.queue.get(), 31_250);
}

#[test]
fn traces_are_read_once_and_belong_to_the_files() {
    let text = "name = \"x\"\nbase = \"base.toml\"\n[vary]\n\
                tunnel.policy = [\"min-rtt\"]\nlink.lte.csv = [\"slow.csv\"]\n";
    let sweep = parse(text).expect("readable");
    let names: Vec<_> = sweep.files().map(|(path, _)| path.to_owned()).collect();
    assert_eq!(
        names[1..],
        ["dir/base.toml", "dir/slow.csv"].map(PathBuf::from)
    );
    assert!(mistake(text).contains("keep one"), "rate and csv");
    let message = mistake(&text.replace("slow.csv", "fast.csv"));
    assert!(
        message.starts_with("dir/sweep.toml:5: link.lte.csv: cannot read"),
        "{message}"
    );
}

#[test]
fn mistakes_name_file_line_key_and_remedy() {
    let change = |from: &str, to: &str| mistake(&SWEEP.replace(from, to));
    for (message, expected) in [
        (
            change("draws", "drafts"),
            "dir/sweep.toml:3: drafts: unknown field `drafts`; expected one of",
        ),
        (
            change("base.toml", "bass.toml"),
            "dir/sweep.toml:2: base: cannot read dir/bass.toml: entity not found; the path is relative",
        ),
        (
            change("link.dsl.rate", "link.dls.rate"),
            "dir/sweep.toml:5: link.dls.rate: there is no [[link]] called \"dls\"; the base scenario has: dsl, lte",
        ),
        (
            change("link.dsl.rate", "link.dsl.rte"),
            "dir/sweep.toml:5: link.dsl.rte: case 0 (",
        ),
        (
            change("to = \"100Mbit\"", "to = \"100ms\""),
            "dir/sweep.toml:5: link.dsl.rate: `from` and `to` have different units; write",
        ),
        (
            // Which of the two rates is wrong is not known.
            change(
                "draws = 3\n[vary]\n",
                "draws = 3\n[vary]\nlink.lte.rate = [\"fast\"]\n",
            ),
            "dir/sweep.toml:4: vary: case 0 (",
        ),
        (
            change("to = \"100Mbit\"", "too = \"100ms\""),
            "dir/sweep.toml:5: link.dsl.rate: unknown field `too`; expected one of",
        ),
        (
            change("[1, 2]", "[]"),
            "dir/sweep.toml:8: seed: the list is empty; write",
        ),
        (
            change("[1, 2]", "1"),
            "dir/sweep.toml:8: seed: a single value; write a list",
        ),
        (
            change("count = 3, ", ""),
            "dir/sweep.toml:6: link.lte.delay: the range has no step; write",
        ),
        (
            change("[\"weighted\", ", "[\"fastest\", "),
            "dir/sweep.toml:9: tunnel.policy: case 0 (",
        ),
        (
            change("draws = 3\n", ""),
            "dir/sweep.toml:1: draws: the number of draws is missing; add draws = 100",
        ),
        (
            change("draws = 3\n", "draws = 0\n"),
            "dir/sweep.toml:3: draws: there is no draw; use 1 or more",
        ),
        (
            change("draws = 3\n", "draws = 1000000\n"),
            "dir/sweep.toml:3: draws: the sweep has more than 1000000 cases; use fewer",
        ),
        (
            change("draws = 3\n", "draws = 3\nwarm_up = \"1h\"\n"),
            "dir/sweep.toml:4: warm_up: it leaves out the whole run of",
        ),
        (
            change("chance = 0.5", "chance = 1.5"),
            "dir/sweep.toml:7: link.lte.loss: `chance` is out of range; use 0 to 1",
        ),
        (
            change("from = 0.001", "from = 0.1"),
            "dir/sweep.toml:7: link.lte.loss: `to` is below `from`; exchange them",
        ),
    ] {
        assert!(
            message.starts_with(expected),
            "{message}\nexpected {expected}"
        );
    }
}

#[test]
fn rows_compare_the_bond_with_each_link() {
    let sweep = parse(&SWEEP.replace("from = \"1Mbit\"", "from = \"10Mbit\"")).expect("valid");
    let case = sweep.case(0).expect("valid");
    let row = sweep.measure(&case, &EngineOnly);
    assert_eq!(
        (row.error.as_deref(), row.policy.as_str()),
        (None, "weighted")
    );
    let dsl = row.links_mbps["dsl"].expect("measured");
    let lte = row.links_mbps["lte"].expect("measured");
    let rate = row.rate_mbps.expect("measured");
    assert!(dsl > 5.0 && lte > 1.0, "{row:?}");
    let share = row.share_of_best.expect("measured");
    assert!((share - rate / dsl.max(lte)).abs() < 1e-3, "{row:?}");
    let share = row.share_of_sum.expect("measured");
    assert!((share - rate / (dsl + lte)).abs() < 1e-3, "{row:?}");
    // The row survives its file.
    assert_eq!(Row::parse(1, &row.line()), Ok(row.clone()));
    // The case with another policy has the same links alone.
    let other = sweep.measure(&sweep.case(1).expect("valid"), &EngineOnly);
    assert_eq!(other.links_mbps, row.links_mbps);
    assert_eq!(other.policy, "min-rtt");
}

#[test]
fn a_case_that_fails_has_a_row_with_an_error() {
    let text = SWEEP.replace(
        "from = 0.001, to = 0.01, chance = 0.5",
        "from = 1, to = 1.0",
    ) + "link.dsl.loss = [1.0]\n";
    let sweep = parse(&text).expect("valid");
    let row = sweep.measure(&sweep.case(0).expect("valid"), &EngineOnly);
    assert!(
        row.error
            .is_some_and(|error| error.contains("did not come up"))
    );
    assert_eq!((row.rate_mbps, row.case, row.cases), (None, 0, 36));
}

/// A program with a defect.
struct Defective;

impl Program for Defective {
    fn scheduler(&self, _: &toml::Table) -> Result<SchedulerSettings<String>, String> {
        panic!("index out of bounds")
    }

    fn status(&self, _: End, _: &SchedulerSettings<String>, _: &Endpoint) -> serde_json::Value {
        serde_json::Value::Null
    }
}

#[test]
fn a_panic_ends_only_its_case() {
    let sweep = parse(SWEEP).expect("valid");
    let row = sweep.measure(&sweep.case(0).expect("valid"), &Defective);
    let error = row.error.expect("an error");
    assert_eq!(error, "the program panicked: index out of bounds");
    let row = sweep.measure(&sweep.case(0).expect("valid"), &EngineOnly);
    assert_eq!(row.error, None);
}

#[test]
fn a_row_with_an_impossible_number_of_cases_is_refused() {
    let row = Row {
        cases: MAX_CASES + 1,
        ..Row::default()
    };
    assert!(Row::parse(1, &row.line()).is_err());
}

#[test]
fn shards_cover_all_cases_once() {
    use shard::{NotAShard, Shard};

    for (cases, count) in [(24, 4), (7, 3), (2, 5), (1, 1)] {
        let shards = (1..=count).map(|index| format!("{index}/{count}"));
        let numbers: Vec<u64> = shards
            .flat_map(|shard| shard.parse::<Shard>().expect("a shard").cases(cases))
            .collect();
        assert_eq!(numbers, (0..cases).collect::<Vec<_>>());
    }
    let of = |text: &str| text.parse::<Shard>();
    assert_eq!(of("5/4"), Err(NotAShard::Index { index: 5, count: 4 }));
    assert_eq!(of("0/4"), Err(NotAShard::Index { index: 0, count: 4 }));
    assert_eq!(of("1/0"), Err(NotAShard::Count));
    for text in ["", "1", "1/x", "-1/4", "1/4/5"] {
        assert_eq!(of(text), Err(NotAShard::Form), "{text}");
    }
    assert!(Shard::is_file_name("shard-1-of-4.jsonl"));
    assert!(!Shard::is_file_name(".shard-1-of-4.jsonl.new"));
    assert!(!Shard::is_file_name("shard-5-of-4.jsonl"));
}
