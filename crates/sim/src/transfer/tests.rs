use super::*;

/// Table 1 of the OSIA paper.
const CASES: &str = r#"
[[case]]
name = "1"
line = [{ rate = "4Mbit", delay_ms = 60 }]
[[case]]
name = "2"
line = [{ rate = "3Mbit", delay_ms = 40 }, { rate = "1Mbit", delay_ms = 80 }]
[[case]]
name = "3"
line = [{ rate = "2Mbit", delay_ms = 40 }, { rate = "1.25Mbit", delay_ms = 80 }, { rate = "750kbit", delay_ms = 60 }]
[[case]]
name = "4"
line = [{ rate = "1.25Mbit", delay_ms = 40 }, { rate = "1Mbit", delay_ms = 20 }, { rate = "1Mbit", delay_ms = 100 }, { rate = "750kbit", delay_ms = 80 }]
"#;

fn transfer(order: &str, more: &str) -> Transfer {
    let head =
        format!("name = \"t\"\npackets = 2000\npacket = \"1000B\"\norder = \"{order}\"\n{more}\n");
    Transfer::parse(&(head + CASES)).expect("valid")
}

/// Returns events, goodput and highest number of buffered packets, for 1 to 4 lines.
fn numbers(order: &str, more: &str) -> Vec<(f64, f64, u64)> {
    let results = run(&transfer(order, more));
    let numbers = results.flows.iter().map(|flow| {
        let events = flow.dup_ack_events.expect("counted");
        (events, flow.goodput_mbps, flow.reorder_depth_max)
    });
    numbers.collect()
}

/// The expected values were counted by another program from the same definitions.
#[test]
fn events_of_table_1_are_those_known() {
    let near = |order: &str, known: [f64; 3]| {
        for ((events, ..), known) in numbers(order, "")[1..].iter().zip(known) {
            let off = (events - known).abs();
            assert!(off <= known * 0.02, "{order}: {events}, not {known}");
        }
    };
    near("round-robin", [325.0, 247.0, 318.0]);
    near("earliest-arrival", [0.0; 3]);
    near("osia", [0.0; 3]);
}

#[test]
fn one_line_keeps_order_whatever_the_order() {
    for order in ["round-robin", "window", "flow", "osia-random"] {
        let (events, goodput, held) = numbers(order, "reacts = true")[0];
        assert_eq!((events, held), (0.0, 0), "{order}");
        // 2000 packets of 8 kbit at 4 Mbit/s, plus 60 ms.
        assert!((goodput - 16.0 / 4.06).abs() < 0.01, "{order}: {goodput}");
    }
}

#[test]
fn what_reacts_pays_for_disorder_and_what_is_in_order_does_not() {
    let free = numbers("round-robin", "");
    let pays = numbers("round-robin", "reacts = true");
    for ((_, free, _), (_, pays, _)) in free.iter().zip(&pays).skip(1) {
        assert!(pays < &(0.9 * free), "{pays} of {free}");
    }
    assert_eq!(numbers("osia", "reacts = true"), numbers("osia", ""));
}

#[test]
fn losses_are_repaired_and_cross_traffic_takes_its_share() {
    let lossy = run(&transfer("osia", "reacts = true\nloss = 0.02"));
    for flow in &lossy.flows {
        // 2 % of 2000 packets are lost and detected by events or timeouts. The file is complete.
        let found = flow.dup_ack_events.zip(flow.timeouts).map(|(a, b)| a + b);
        assert!(found.is_some_and(|found| found > 25.0), "{found:?}");
        assert!(flow.retransmits.is_some_and(|again| again >= 25));
        assert!(flow.goodput_mbps > 0.5 && flow.duration_s < 60.0);
    }
    let alone = numbers("weighted", "")[0].1;
    let crossed = numbers("weighted", "cross = 0.4\nrepeat = 20")[0].1;
    let share = crossed / alone;
    // The sender uses the average remaining share, 0.8, and loses some of it to full queues.
    assert!((0.65..0.81).contains(&share), "{share}");
}

#[test]
fn the_same_seed_gives_the_same_and_another_another() {
    let more = "reacts = true\nloss = 0.02\ncross = 0.3";
    assert_eq!(numbers("osia", more), numbers("osia", more));
    let other = format!("{more}\nseed = 2");
    assert_ne!(numbers("osia", more), numbers("osia", &other));
}

#[test]
fn mistakes_are_told() {
    let broken = |from: &str, to: &str| {
        let head =
            "name = \"t\"\npackets = 2000\npacket = \"1000B\"\norder = \"osia\"\nloss = 0.1\n";
        let text = (head.to_owned() + CASES).replacen(from, to, 1);
        Transfer::parse(&text).expect_err(to).to_string()
    };
    assert_eq!(
        broken("loss = 0.1", "loss = 0.9"),
        "loss: expected 0 to 0.5"
    );
    assert_eq!(
        broken("packets = 2000", "packets = 0"),
        "packets: expected 1 to 1000000"
    );
    assert!(broken("4Mbit", "1bit").contains("1 kbit"));
    assert!(broken("delay_ms = 60", "delay_ms = 60000").contains("10000"));
    assert!(broken("\"osia\"", "\"fastest\"").contains("earliest-arrival"));
    assert!(broken("loss", "lose").contains("unknown field"));
}

#[test]
fn lines_that_lose_almost_all_end() {
    let hopeless = transfer("round-robin", "reacts = true\nloss = 0.5\ncross = 0.9");
    let results = run(&hopeless);
    assert!(results.flows.iter().all(|flow| flow.duration_s <= 3_700.0));
}
