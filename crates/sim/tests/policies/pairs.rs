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
        why: "two equal links: every policy should reach the total rate, in order and without loss",
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
        why: "the links of scenarios/pair.toml: similar rates and different delays, as in a typical household",
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
        why: "the second link adds a tenth of the capacity; using it must not cost more than that",
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
        why: "packets on the second link arrive 52 ms later, which is more than awi's t_lto of 50 ms",
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
        why: "queues of 15 packets: bursts cause losses",
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
        why: "queues of 1 MB, 200 to 400 ms: no losses; the delay shows the standing queue that the policy permits",
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
        why: "jitter of 3 ms must not be mistaken for a queue",
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
        why: "random loss of 0.5 % on one link must not be mistaken for a full link",
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
        why: "the rate of one link changes every 0.5 s, as in a mobile cell: 40, 12, 30, 6, 40, 12, 30, 6 Mbit/s; weights match the initial rates; UDP just below the lowest total rate",
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
        why: "the second link drops all packets from 0.5 s to 2.5 s, without any signal; UDP at 0.8 of the rate of the first link, and of both links",
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
        why: "the links for which awi was designed: a line of 62.5 Mbit/s with a queue of 256 packets, and LTE; UDP at 0.8 of both rates, and at 1.05 of the rate of the line on the wire",
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
