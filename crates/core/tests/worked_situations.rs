//! Tests that the policy acts as the worked situations of `docs/adaptive.md` describe.

use core::time::Duration;

use pleach_core::{
    flows::FlowId,
    ids::PathId,
    sched::{Adaptive, PacketInfo, PathView, Pick, Scheduler as _},
    time::Instant,
    units::{Bitrate, Bytes},
};

const PAGE: &str = include_str!("../../../docs/adaptive.md");

/// One row of the table of situations.
struct Situation<'a> {
    number: &'a str,
    paths: Vec<PathView>,
    packet: PacketInfo,
    choice: &'a str,
}

/// Returns the path described by a text like `10, 30 busy`: capacity in Mbit/s, excess of the delay over the minimum in
/// ms, and properties.
fn path(id: u8, text: &str) -> PathView {
    let (rate, rest) = text.split_once(", ").expect("capacity, delay");
    let mut words = rest.split_whitespace();
    let delay: u64 = words.next().expect("a delay").parse().expect("ms");
    let mut path = PathView {
        ready: true,
        usable: true,
        smoothed_rtt: Some(Duration::from_millis(20 + 2 * delay)),
        extra_delay: Duration::from_millis(delay),
        rate: Some(Bitrate::from_mbps(rate.parse().expect("Mbit/s"))),
        least_rtt: Some(Duration::from_millis(20 + 2 * delay)),
        ..PathView::unmeasured(PathId(id))
    };
    while let Some(word) = words.next() {
        match word {
            "busy" => path.ready = false,
            "searched" => path.is_searching = true,
            "queue" => {
                let ms: u64 = words.next().expect("a queue").parse().expect("ms");
                path.queue_delay = Duration::from_millis(ms);
            }
            "loses" => {
                let percent: u32 = words.next().expect("a share").parse().expect("percent");
                assert_eq!(words.next(), Some("%"));
                path.loss_ppm = percent * 10_000;
            }
            other => panic!("what is {other:?}?"),
        }
    }
    path
}

/// Returns the packet described by a text like `waits 40 kB, others 10 kB`.
fn packet(text: &str) -> PacketInfo {
    let (mut own, mut others) = (0, 0);
    for part in text.split(", ").filter(|part| !part.is_empty()) {
        let words: Vec<&str> = part.split_whitespace().collect();
        let [what, kilobytes, "kB"] = words[..] else {
            panic!("what is {part:?}?");
        };
        let bytes = kilobytes.parse::<u64>().expect("kB") * 1_000;
        match what {
            "waits" => own = bytes,
            "others" => others = bytes,
            other => panic!("what is {other:?}?"),
        }
    }
    PacketInfo {
        flow: FlowId::of_hash(7),
        backlog: Bytes::new(own + others),
        own_backlog: Bytes::new(own),
        to_last: Bytes::new(own),
        has_behind: own > 0,
        ..PacketInfo::of_len(Bytes::new(1_250))
    }
}

fn situations() -> Vec<Situation<'static>> {
    let table = PAGE.split("## Worked situations").nth(1);
    let rows = table.expect("the table").lines();
    let rows = rows.filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit());
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let paths = (0..).zip(cells[2].split("; "));
        Situation {
            number: cells[1],
            paths: paths.map(|(id, text)| path(id, text)).collect(),
            packet: packet(cells[3]),
            choice: cells[4],
        }
    })
    .collect()
}

/// Returns a choice in the words of the table.
fn words(pick: Pick) -> String {
    match pick {
        Pick::Wait => "wait".to_owned(),
        Pick::One(index) => format!("path {}", index + 1),
        Pick::Behind { index, .. } => format!("behind on path {}", index + 1),
        Pick::Shadowed { index, copies, .. } => {
            let on = copies.trailing_zeros() + 1;
            format!("path {}, copies on {on}", index + 1)
        }
        Pick::Copies(set) => format!("copies on {set:b}"),
    }
}

#[test]
fn the_policy_does_what_its_page_says() {
    let situations = situations();
    assert!(situations.len() >= 10);
    let wrong: Vec<String> = situations
        .iter()
        .filter_map(|situation| {
            let mut policy = Adaptive::new();
            // The burst began long ago.
            let now = Instant::from_millis(500);
            let pick = words(policy.pick(now, &situation.paths, &situation.packet));
            let number = situation.number;
            (pick != situation.choice).then(|| format!("{number}: {pick}"))
        })
        .collect();
    assert_eq!(wrong, [""; 0]);
}
