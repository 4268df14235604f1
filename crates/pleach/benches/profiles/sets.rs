//! The fixed sets of links.
//!
//! `profiles`: sixteen pairs of a published benchmark of another multipath tunnel, as configured in netem. The delay is
//! one way and applies to each direction, ±x is uniform jitter, and loss applies to both directions. Queues have two
//! lengths: *deep*, netem's 1000 packets, and *shallow*, one bandwidth-delay product of the link. Jitter occurs in two
//! variants: without reordering, as radio links deliver, and with reordering, as netem does it.
//!
//! `pairs`: pairs over which kernel MPTCP and other tunnels have been measured. `many`: four and seven mobile and fixed
//! links, as on a van or a ship. `recordings`: links recorded in moving cars.

use pleach_sim::bonds::{Case, Link, PACKET_BYTES, Rate};

/// Deep queue in bytes: 1000 packets.
const DEEP_BYTES: f64 = 1000.0 * PACKET_BYTES;
/// Minimum length in bytes of a shallow queue.
const SHALLOW_MIN_BYTES: f64 = 20.0 * PACKET_BYTES;

/// A profile's name, its links, and the share of the sum of their goodputs that the tunnel should reach.
type Profile = (&'static str, [Link; 2], Option<f64>);

/// Makes a link of `mbps` with a one-way delay of `delay_ms` ± `jitter_ms` and a loss of `loss_percent`.
fn link(mbps: f64, delay_ms: f64, jitter_ms: f64, loss_percent: f64) -> Link {
    Link::new("", mbps, delay_ms)
        .vary(jitter_ms)
        .lossy(loss_percent / 1e2)
}

fn table() -> Vec<Profile> {
    let plain = |mbps, delay_ms| link(mbps, delay_ms, 0.0, 0.0);
    let twice = |link: Link| [link.clone(), link];
    // Targets: the first for equal links, and links that can add their full rate; the second for links with heavy loss
    // or jitter.
    let (most, much) = (Some(0.92), Some(0.85));
    vec![
        ("baseline", twice(plain(50.0, 20.0)), most),
        ("rtt_40", [plain(50.0, 20.0), plain(50.0, 40.0)], most),
        ("rtt_70", [plain(50.0, 20.0), plain(50.0, 70.0)], most),
        ("rtt_120", [plain(50.0, 20.0), plain(50.0, 120.0)], None),
        ("rtt_320", [plain(50.0, 20.0), plain(50.0, 320.0)], None),
        ("jit_5", twice(link(50.0, 20.0, 5.0, 0.0)), most),
        ("jit_20", twice(link(50.0, 20.0, 20.0, 0.0)), much),
        ("loss_05", twice(link(50.0, 20.0, 0.0, 0.5)), most),
        ("loss_2", twice(link(50.0, 20.0, 0.0, 2.0)), much),
        ("bw_4to1", [plain(50.0, 20.0), plain(12.0, 20.0)], most),
        ("bw_10to1", [plain(100.0, 20.0), plain(10.0, 20.0)], most),
        (
            "dual_lte",
            [link(40.0, 30.0, 5.0, 0.5), link(25.0, 45.0, 8.0, 0.5)],
            most,
        ),
        (
            "fiber_lte",
            [plain(300.0, 8.0), link(30.0, 40.0, 8.0, 0.5)],
            most,
        ),
        (
            "lte_starlink",
            [link(40.0, 35.0, 8.0, 0.0), link(100.0, 50.0, 25.0, 1.0)],
            much,
        ),
        (
            "lte_geo",
            [plain(40.0, 35.0), link(20.0, 320.0, 20.0, 0.5)],
            None,
        ),
        (
            "congested",
            [link(20.0, 50.0, 20.0, 2.0), link(15.0, 60.0, 25.0, 2.0)],
            much,
        ),
    ]
}

/// Returns all profiles with all their variants.
pub(crate) fn profiles() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, links, target) in table() {
        let has_jitter = links.iter().any(|link| link.jitter_ms > 0.0);
        let orders: &[(&str, bool)] = match has_jitter {
            true => &[("-fifo", false), ("-reorder", true)],
            false => &[("", false)],
        };
        for (queue, queue_of) in [("deep", deep as fn(&Link) -> f64), ("shallow", shallow)] {
            for &(order, reorder) in orders {
                let links = links.clone().map(|link| Link {
                    queue_bytes: queue_of(&link),
                    reorder: reorder && link.jitter_ms > 0.0,
                    ..link
                });
                cases.push(Case {
                    target,
                    ..Case::new("profiles", format!("{name}-{queue}{order}"), named(links))
                });
            }
        }
    }
    cases
}

/// Returns the pairs for which measurements of other systems exist; jitter without reordering.
pub(crate) fn pairs() -> Vec<Case> {
    let of_profile = |name: &str, label: &str, queue_of: fn(&Link) -> f64| {
        let found = table().into_iter().find(|profile| profile.0 == name);
        found.map(|(_, links, target)| {
            (label.to_owned(), links.map(|l| queued(l, queue_of)), target)
        })
    };
    let given = [
        Link {
            queue_bytes: 130e3,
            ..link(64.0, 6.5, 0.0, 0.0)
        },
        Link {
            queue_bytes: 200e3,
            ..link(60.0, 17.5, 0.0, 0.0)
        },
    ];
    let twins = [(); 2].map(|()| queued(link(100.0, 25.0, 0.0, 0.0), deep));
    let rows = [
        Some(("dsl_lte-given".to_owned(), given, None)),
        of_profile("rtt_70", "rtt_70-deep", deep),
        of_profile("bw_4to1", "bw_4to1-deep", deep),
        of_profile("fiber_lte", "fiber_lte-deep", deep),
        of_profile("lte_starlink", "lte_starlink-deep", deep),
        of_profile("congested", "congested-deep", deep),
        Some(("twins_100-deep".to_owned(), twins, None)),
        of_profile("bw_10to1", "bw_10to1-deep", deep),
        of_profile("rtt_70", "rtt_70-bdp", shallow),
    ];
    rows.into_iter()
        .flatten()
        .map(|(name, links, target)| Case {
            target,
            ..Case::new("pairs", format!("pair-{name}"), named(links))
        })
        .collect()
}

/// Returns sets of four and seven links; jitter without reordering.
pub(crate) fn many() -> Vec<Case> {
    let four = vec![
        link(40.0, 25.0, 5.0, 0.0),
        link(30.0, 35.0, 8.0, 0.3),
        link(25.0, 45.0, 10.0, 0.5),
        link(60.0, 20.0, 0.0, 0.0),
    ];
    let modems = |count, modem: Link| vec![modem; count];
    let seven = [
        modems(3, link(60.0, 30.0, 8.0, 0.1)),
        modems(3, link(20.0, 45.0, 10.0, 0.0)),
        vec![link(50.0, 10.0, 0.0, 0.0)],
    ]
    .concat();
    let mut cases = Vec::new();
    for (name, links, target) in [("four", four, 0.92), ("seven", seven, 0.90)] {
        for (queue, queue_of) in [("deep", deep as fn(&Link) -> f64), ("shallow", shallow)] {
            let links = links.iter().map(|link| queued(link.clone(), queue_of));
            cases.push(Case {
                target: Some(target),
                ..Case::new("many", format!("{name}-{queue}"), named(links))
            });
        }
    }
    cases
}

/// Returns pairs, triples and quadruples of links that were recorded at the same time in one car, and two LTE traces.
pub(crate) fn recordings() -> Vec<Case> {
    let operators = ["starlink", "att", "tmobile", "verizon"];
    let mut cases = Vec::new();
    let mut add = |name: String, links: Vec<Link>| {
        cases.push(Case {
            duration_s: 60,
            warm_up_s: 2,
            ..Case::new("recordings", name, links)
        });
    };
    for drive in ["rural-1", "suburban-1", "urban-1"] {
        for chosen in combinations(&operators) {
            let links = chosen.iter().map(|operator| {
                let rate = Rate::Csv {
                    file: format!("drive-{drive}.csv"),
                    column: format!("{operator}_mbps"),
                };
                recorded(operator, rate)
            });
            add(format!("{drive}-{}", chosen.join("-")), links.collect());
        }
    }
    let lte = |name: &str, trace: &str| recorded(name, Rate::Trace(trace.to_owned()));
    add(
        "lte-verizon-tmobile".to_owned(),
        vec![
            lte("verizon", "Verizon-LTE-short"),
            lte("tmobile", "TMobile-LTE-short"),
        ],
    );
    cases
}

/// Returns all choices of two and more of `items`, the shorter ones first.
fn combinations<'a>(items: &[&'a str]) -> Vec<Vec<&'a str>> {
    let masks = 0..1_u32 << items.len();
    let chosen = masks.map(|mask| {
        let items = items.iter().enumerate();
        let chosen = items.filter(|(index, _)| mask >> index & 1 == 1);
        chosen.map(|(_, item)| *item).collect::<Vec<_>>()
    });
    let mut chosen: Vec<_> = chosen.filter(|chosen| chosen.len() > 1).collect();
    chosen.sort_by_key(Vec::len);
    chosen
}

/// Makes a recorded link. The recordings contain rates only, so delay and queue have typical values.
fn recorded(operator: &str, rate: Rate) -> Link {
    let (delay_ms, queue_bytes) = match operator {
        "starlink" => (25.0, 1e6),
        _ => (30.0, DEEP_BYTES),
    };
    Link {
        rate,
        queue_bytes,
        ..Link::new(operator, 0.0, delay_ms)
    }
}

fn deep(_: &Link) -> f64 {
    DEEP_BYTES
}

fn shallow(link: &Link) -> f64 {
    link.bdp_bytes().max(SHALLOW_MIN_BYTES)
}

fn queued(link: Link, queue_of: fn(&Link) -> f64) -> Link {
    Link {
        queue_bytes: queue_of(&link),
        ..link
    }
}

/// Names the links `a`, `b` and so on.
fn named(links: impl IntoIterator<Item = Link>) -> Vec<Link> {
    let names = ('a'..='z').map(String::from);
    let named = links.into_iter().zip(names);
    named.map(|(link, name)| Link { name, ..link }).collect()
}
