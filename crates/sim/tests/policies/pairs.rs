//! The pairs of links, each with the reason for its presence.

/// Two links, their events, and the traffic that is sent over them.
pub(crate) struct Pair {
    pub(crate) name: &'static str,
    /// Property that the pair tests.
    pub(crate) why: &'static str,
    /// `[[link]]` and `[[event]]` of the scenario. Weights are the rates, unless the pair tests weights.
    pub(crate) links: &'static str,
    /// Payload rates of the constant UDP flows, each in a separate run: 0.8 of the sum of the links, or the rates that
    /// the pair requires.
    pub(crate) udp: &'static [&'static str],
}

/// All pairs, in the order of the table.
pub(crate) const PAIRS: &[Pair] = &[
    Pair {
        name: "equal",
        why: "no policy has an excuse: the sum in order, without loss",
        links: r#"
[[link]]
name = "one"
rate = "40Mbit"
delay = "10ms"
queue = "100kB"
weight = 40
[[link]]
name = "two"
rate = "40Mbit"
delay = "10ms"
queue = "100kB"
weight = 40
"#,
        udp: &["64Mbit"],
    },
    Pair {
        name: "pair",
        why: "the links of scenarios/pair.toml: like rates, unlike delays, what a house has",
        links: r#"
[[link]]
name = "dsl"
rate = "64Mbit"
delay = "6.5ms"
queue = "130kB"
weight = 64
[[link]]
name = "lte"
rate = "60Mbit"
delay = "17.5ms"
queue = "200kB"
weight = 60
"#,
        udp: &["99Mbit"],
    },
    Pair {
        name: "uneven",
        why: "the second link adds a tenth and must not cost more than that",
        links: r#"
[[link]]
name = "wide"
rate = "64Mbit"
delay = "10ms"
queue = "130kB"
weight = 64
[[link]]
name = "thin"
rate = "6Mbit"
delay = "20ms"
queue = "40kB"
weight = 6
"#,
        udp: &["56Mbit"],
    },
    Pair {
        name: "far",
        why: "what takes the far link arrives 52 ms late: holding and waiting; too late for awi's t_lto of 50 ms",
        links: r#"
[[link]]
name = "near"
rate = "30Mbit"
delay = "8ms"
queue = "100kB"
weight = 30
[[link]]
name = "far"
rate = "30Mbit"
delay = "60ms"
queue = "300kB"
weight = 30
"#,
        udp: &["48Mbit"],
    },
    Pair {
        name: "shallow",
        why: "queues of 15 packets: bursts are losses",
        links: r#"
[[link]]
name = "one"
rate = "40Mbit"
delay = "8ms"
queue = "22kB"
weight = 40
[[link]]
name = "two"
rate = "30Mbit"
delay = "16ms"
queue = "22kB"
weight = 30
"#,
        udp: &["56Mbit"],
    },
    Pair {
        name: "deep",
        why: "queues of 1 MB, 200 to 400 ms: nothing is lost, and delay is what a policy lets stand",
        links: r#"
[[link]]
name = "one"
rate = "40Mbit"
delay = "10ms"
queue = "1MB"
weight = 40
[[link]]
name = "two"
rate = "20Mbit"
delay = "20ms"
queue = "1MB"
weight = 20
"#,
        udp: &["48Mbit"],
    },
    Pair {
        name: "jittery",
        why: "3 ms of jitter are no queue, and no sign of anything",
        links: r#"
[[link]]
name = "calm"
rate = "30Mbit"
delay = "10ms"
queue = "100kB"
weight = 30
[[link]]
name = "jittery"
rate = "30Mbit"
delay = "15ms"
jitter = "3ms"
queue = "150kB"
weight = 30
"#,
        udp: &["48Mbit"],
    },
    Pair {
        name: "lossy",
        why: "0.5 % of random loss on one link is no sign of a full one",
        links: r#"
[[link]]
name = "clean"
rate = "30Mbit"
delay = "10ms"
queue = "100kB"
weight = 30
[[link]]
name = "lossy"
rate = "30Mbit"
delay = "15ms"
loss = 0.005
queue = "150kB"
weight = 30
"#,
        udp: &["48Mbit"],
    },
    Pair {
        name: "cellular",
        why: "one link's rate steps from 40 to 12, 30, 6, 40, 12, 30, 6 Mbit/s every half second, as a cell's does; weights are of the start; UDP just below the least sum",
        links: r#"
[[link]]
name = "dsl"
rate = "30Mbit"
delay = "10ms"
queue = "100kB"
weight = 30
[[link]]
name = "cell"
rate = "40Mbit"
delay = "25ms"
queue = "300kB"
weight = 40
[[event]]
at = "500ms"
link = "cell"
rate = "12Mbit"
[[event]]
at = "1s"
link = "cell"
rate = "30Mbit"
[[event]]
at = "1500ms"
link = "cell"
rate = "6Mbit"
[[event]]
at = "2s"
link = "cell"
rate = "40Mbit"
[[event]]
at = "2500ms"
link = "cell"
rate = "12Mbit"
[[event]]
at = "3s"
link = "cell"
rate = "30Mbit"
[[event]]
at = "3500ms"
link = "cell"
rate = "6Mbit"
"#,
        udp: &["32Mbit"],
    },
    Pair {
        name: "blackhole",
        why: "the second link is silent from 0.5 s to 2.5 s, and nobody is told; UDP of 0.8 of the first and of both",
        links: r#"
[[link]]
name = "dsl"
rate = "30Mbit"
delay = "8ms"
queue = "100kB"
weight = 30
[[link]]
name = "lte"
rate = "30Mbit"
delay = "20ms"
queue = "150kB"
weight = 30
[[event]]
at = "500ms"
link = "lte"
state = "blackhole"
[[event]]
at = "2500ms"
link = "lte"
state = "up"
"#,
        udp: &["24Mbit", "48Mbit"],
    },
    Pair {
        name: "awi",
        why: "what awi is made for: a line of 62.5 Mbit/s with a queue of 256 packets, and LTE; UDP of 0.8 of both, and of 1.05 of the line on the wire",
        links: r#"
[[link]]
name = "dsl"
rate = "62.5Mbit"
delay = "10ms"
queue = "384kB"
weight = 62
[[link]]
name = "lte"
rate = "60Mbit"
delay = "20ms"
queue = "384kB"
weight = 60
"#,
        udp: &["98Mbit", "62.2Mbit"],
    },
];
