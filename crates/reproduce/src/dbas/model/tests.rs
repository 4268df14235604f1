use super::{
    arrivals::{App, arrivals},
    chooser::Chooser,
    *,
};

/// Returns the text of a workload with two links, whose rates the proxy is told.
fn text(choice: &str, rates: [&str; 2], more: &str) -> String {
    format!(
        "name = \"test\"\nchoice = \"{choice}\"\nseconds = 60.0\nrepeat = 3\nlab = {{ seconds = 9.0, repeat = 1 }}\nrtt_ms = 50\nsmall = \"22380B\"\n\
         large = \"285kB\"\n{more}\n[[case]]\nname = \"a\"\nsmall_per_s = 13.0\nlarge_per_s = 1.0\n\
         link = [{{ rate = \"{}\" }}, {{ rate = \"{}\" }}]\n",
        rates[0], rates[1]
    )
}

fn workload(choice: &str, rates: [&str; 2]) -> Workload {
    Workload::parse(&text(choice, rates, "sizes = \"fixed\"")).expect("valid")
}

/// Returns the throughput until all connections are done.
fn mbps(workload: &Workload) -> f64 {
    let results = run(workload);
    let flow = results.flows.iter().find(|flow| flow.name == "a");
    flow.expect("the case").goodput_mbps
}

fn near(value: f64, wanted: f64, by: f64) -> bool {
    (value / wanted - 1.0).abs() < by
}

#[test]
fn a_link_is_shared_alike() {
    let settings = workload("optimal", ["8Mbit", "1Mbit"]).case[0].link[0];
    let mut link = link::Link::new(&settings, 50);
    let mut done = Vec::new();
    // The link carries 1 MB/s: one connection alone for a second, then two with half each.
    link.add(0, 2e6);
    link.advance(1.0, &mut done);
    link.add(1, 0.5e6);
    assert!(near(link.next_done_s().expect("busy"), 1.0, 1e-9));
    link.advance(1.0, &mut done);
    assert_eq!(done, [1]);
    assert!(near(link.next_done_s().expect("busy"), 0.5, 1e-9));
    link.advance(0.5, &mut done);
    assert_eq!((done, link.next_done_s()), (vec![1, 0], None));
}

#[test]
fn loss_holds_a_connection_down_and_many_fill_the_link() {
    let mut settings = workload("optimal", ["1Mbit", "1Mbit"]).case[0].link[0];
    let seconds_of = |settings: &LinkSettings, connections: usize| {
        let mut link = link::Link::new(settings, 50);
        (0..connections).for_each(|number| link.add(number, 1e6));
        link.next_done_s().expect("busy")
    };
    assert!(near(seconds_of(&settings, 1), 8.0, 1e-9));
    settings.loss = 0.1;
    // The formula by hand: 50 ms sqrt(4/30) + 300 ms · 3 sqrt(0.075) · 0.1 · 1.32 per segment.
    let by_hand = (0.05 * (4.0_f64 / 30.0).sqrt() + 0.3 * 3.0 * 0.075_f64.sqrt() * 0.132) / 1460.0;
    assert!(near(seconds_of(&settings, 1), 1e6 * by_hand, 1e-9));
    assert!(seconds_of(&settings, 1) > 30.0);
    assert!(near(seconds_of(&settings, 100), 800.0 / 0.9, 1e-9));
}

#[test]
fn arrivals_are_as_many_and_as_long_as_asked() {
    for (sizes, by) in [("fixed", 1e-9), ("exponential", 0.05), ("pareto", 0.25)] {
        let more = format!("sizes = \"{sizes}\"");
        let mut workload =
            Workload::parse(&text("optimal", ["2Mbit", "1Mbit"], &more)).expect("valid");
        workload.seconds = 3_000.0;
        let all = arrivals(&workload, &workload.case[0], 1);
        assert!(all.is_sorted_by(|a, b| a.at_s <= b.at_s));
        for (app, per_s, mean) in [(App::Small, 13.0, 22_380.0), (App::Large, 1.0, 285_000.0)] {
            let sizes = all.iter().filter(|arrival| arrival.app == app);
            let sizes: Vec<f64> = sizes.map(|arrival| arrival.bytes).collect();
            let count = sizes.len() as f64;
            assert!(near(count / 3_000.0, per_s, 0.06), "{sizes:?}");
            let sum: f64 = sizes.iter().sum();
            assert!(near(sum / count, mean, by), "{app:?} {}", sum / count);
        }
    }
}

#[test]
fn more_large_connections_leave_the_small_as_they_are() {
    let workload = workload("optimal", ["2Mbit", "1Mbit"]);
    let mut case = workload.case[0].clone();
    let small = |case: &Case| -> Vec<f64> {
        let all = arrivals(&workload, case, 7).into_iter();
        all.filter(|arrival| arrival.app == App::Small)
            .map(|arrival| arrival.at_s)
            .collect()
    };
    let before = small(&case);
    case.large_per_s = 5.0;
    assert_eq!(small(&case), before);
}

#[test]
fn one_link_carries_its_rate_and_two_their_sum() {
    let rates = ["2Mbit", "1Mbit"];
    assert!(near(mbps(&workload("only-first", rates)), 2.0, 0.01));
    assert!(near(mbps(&workload("only-last", rates)), 1.0, 0.01));
    assert!(near(mbps(&workload("optimal", rates)), 3.0, 0.01));
}

#[test]
fn in_turn_the_slower_link_decides_and_chunks_by_weight_fill_both() {
    let rates = ["2Mbit", "250kbit"];
    let turns = mbps(&workload("chunks-round-robin", rates));
    // Slightly more than twice the slower rate: each small connection has 16 chunks, and the slower link gets the
    // short last one.
    assert!((0.5..0.523).contains(&turns), "{turns}");
    let weighted = mbps(&workload("chunks-weighted-round-robin", rates));
    assert!(near(weighted, 2.25, 0.01), "{weighted}");
}

#[test]
fn a_striped_connection_is_as_far_as_its_slowest_part() {
    let text = "name = \"t\"\nchoice = \"CHOICE\"\nseconds = 10.0\nrepeat = 1\nlab = { seconds = 9.0, repeat = 1 }\nrtt_ms = 50\nsizes = \"fixed\"\n\
                small = \"22380B\"\nlarge = \"285kB\"\n[[case]]\nname = \"a\"\nsmall_per_s = 0.0\nlarge_per_s = 0.0\n\
                long = true\nlink = [{ rate = \"2Mbit\" }, { rate = \"1Mbit\" }]\n";
    let long = |choice: &str| {
        let results = run(&Workload::parse(&text.replace("CHOICE", choice)).expect("valid"));
        let name = Reading::LongOne.flow("a");
        let flow = results.flows.iter().find(|flow| flow.name == name);
        flow.expect("the long one").goodput_mbps
    };
    assert!(near(long("chunks-round-robin"), 2.0, 0.01));
    assert!(near(long("chunks-weighted-round-robin"), 3.0, 0.01));
    assert!(near(long("max-throughput"), 2.0, 0.01));
}

#[test]
fn whole_connections_are_placed_by_the_proxys_placer() {
    let workload = workload("weighted-round-robin", ["2Mbit", "1Mbit"]);
    let mut chooser = Chooser::new(&workload, &workload.case[0]);
    let mut links = [0, 0];
    for number in 0..30 {
        let at = pleach_core::time::Instant::ZERO;
        let parts = chooser.place(at, number, App::Small, 1_000.0);
        assert_eq!((parts.len(), parts[0].1), (1, 1_000.0));
        links[parts[0].0] += 1;
    }
    assert_eq!(links, [20, 10]);
    assert!(chooser.placer().is_some());
}

#[test]
fn estimators_find_out_what_they_are_not_told() {
    let rates = ["2Mbit", "1Mbit"];
    let more = "sizes = \"exponential\"\nlearns = true";
    let learned = Workload::parse(&text("max-throughput", rates, more)).expect("valid");
    let gained = mbps(&learned);
    assert!(gained > 2.7, "{gained}");
}

#[test]
fn warm_estimators_begin_with_the_right_rates() {
    // At the first connections, a slow link of unknown rate counts as much as the other.
    let rates = ["2Mbit", "250kbit"];
    let links = |more: &str| {
        let text = text("weighted-round-robin", rates, more);
        let workload = Workload::parse(&text).expect("valid");
        let mut chooser = Chooser::new(&workload, &workload.case[0]);
        let mut links = [0, 0];
        for number in 0..18 {
            let at = pleach_core::time::Instant::ZERO;
            links[chooser.place(at, number, App::Small, 1_000.0)[0].0] += 1;
        }
        links
    };
    let learns = "sizes = \"fixed\"\nlearns = true\n";
    assert_eq!(links(learns), [9, 9]);
    assert_eq!(links(&format!("{learns}warm = true\n")), [16, 2]);
}

#[test]
fn the_same_seed_gives_the_same_and_another_another() {
    let mut workload = workload("max-throughput", ["2Mbit", "1Mbit"]);
    let once = mbps(&workload);
    assert_eq!(mbps(&workload), once);
    workload.seed = 9;
    assert_ne!(mbps(&workload), once);
}

#[test]
fn mistakes_in_files_are_named() {
    let good = text("optimal", ["2Mbit", "1Mbit"], "sizes = \"fixed\"");
    assert!(Workload::parse(&good).is_ok());
    for (from, to, wanted) in [
        ("repeat = 3", "repeat = 0", "repeat"),
        ("seconds = 9.0", "seconds = 0.0", "seconds"),
        ("seconds = 60.0", "seconds = nan", "seconds"),
        ("rtt_ms = 50", "rtt_ms = 0", "rtt_ms"),
        ("small_per_s = 13.0", "small_per_s = -1.0", "small_per_s"),
        ("rate = \"2Mbit\"", "rate = \"1bit\"", "rate"),
        ("rate = \"2Mbit\"", "rate = \"2Mbit\", loss = 1.0", "loss"),
        ("\"optimal\"", "\"best\"", "best"),
        ("sizes", "colour = 1\nsizes", "colour"),
    ] {
        let bad = good.replacen(from, to, 1);
        let error = Workload::parse(&bad).expect_err(to).to_string();
        assert!(error.contains(wanted), "{to}: {error}");
    }
}
