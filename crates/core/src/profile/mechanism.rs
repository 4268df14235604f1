//! Rules inside the engine that an experiment can switch off one at a time.

/// A set of [`Mechanism`]s; empty by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mechanisms(u64);

impl Mechanisms {
    /// Every mechanism.
    pub const ALL: Self = {
        let mut all = Self(0);
        let mut index = 0;
        while index < Mechanism::ALL.len() {
            all = all.with(Mechanism::ALL[index]);
            index += 1;
        }
        all
    };

    /// Whether `mechanism` is in the set.
    #[must_use]
    pub const fn has(self, mechanism: Mechanism) -> bool {
        self.0 & 1 << mechanism as u32 != 0
    }

    /// Returns the set with `mechanism` added.
    #[must_use]
    pub const fn with(self, mechanism: Mechanism) -> Self {
        Self(self.0 | 1 << mechanism as u32)
    }

    /// Returns the set without the mechanisms in `others`.
    #[must_use]
    pub const fn minus(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

/// Generates the enum, the list of all mechanisms and their names from one table.
macro_rules! mechanisms {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal,)+) => {
        /// A rule inside the engine that can be switched off. Each variant's documentation describes its rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mechanism {
            $($(#[$doc])+ $variant,)+
        }

        impl Mechanism {
            /// All mechanisms, in the order of their names.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name of the mechanism in configurations and tables.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns the mechanism called `name`.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|mechanism| mechanism.name() == name)
            }
        }
    };
}

mechanisms! {
    /// If more than a small number of a flow's ACKs wait in the tunnel queue, only the newest ACK is kept
    /// (`queue.rs`).
    AckThinning = "ack-thinning",
    /// The tunnel queue may hold enough packets to fill a path at the highest rate of the last 30 s
    /// (`tunnel/targets.rs`).
    Allowance = "allowance",
    /// A large flow may wait for the quickest of its paths while a burst lasts (`sched/adaptive.rs`).
    BurstPatience = "burst-patience",
    /// Several flows divide the near paths and the later ones among themselves (`sched/adaptive/crowd.rs`).
    Crowds = "crowds",
    /// Packets with a deadline are placed by their deadline (`sched/adaptive/urgent.rs`).
    Deadlines = "deadlines",
    /// A queue that does not shrink when it is drained counts as the path's own delay (`path/control/drain.rs`).
    DrainTest = "drain-test",
    /// Repair symbols follow the end of each video frame (`tunnel/fec/frames.rs`).
    FecFrames = "fec-frames",
    /// A large flow leaves the near paths for a group of later paths that carries much more
    /// (`sched/adaptive/groups.rs`).
    Groups = "groups",
    /// Thresholds of the standing queue grow with the jitter (`path/model.rs`).
    JitterThresholds = "jitter-thresholds",
    /// A path too late to be mixed with the quickest path takes later packets of a flow (`sched/adaptive.rs`).
    LatePaths = "late-paths",
    /// Congestion detected by loss limits the pacing rate (`path/control/limit.rs`).
    LossCeiling = "loss-ceiling",
    /// Packets in flight on a path that has become slow are also sent on another path (`tunnel.rs`).
    Overdue = "overdue",
    /// Startup begins with the remembered rate of a network (`path/control/recalled.rs`).
    Recall = "recall",
    /// The usual age of reports, together with the RTT, decides when a path is overdue (`path/report_age.rs`).
    ReportAge = "report-age",
    /// A packet train whose measurement is reliable ends startup (`path/pipeline.rs`).
    SureTrains = "sure-trains",
    /// The end of a burst is announced, so that losses at the end of the burst are detected at once (`path/tail.rs`).
    Tails = "tails",
    /// A large flow takes a path only if the path's share of the total capacity outweighs its delay
    /// (`sched/adaptive/paths.rs`).
    WorthShare = "worth-share",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_unique_and_found() {
        let names: Vec<&str> = Mechanism::ALL
            .iter()
            .map(|mechanism| mechanism.name())
            .collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(names.len(), sorted.len());
        for mechanism in Mechanism::ALL {
            assert_eq!(Mechanism::from_name(mechanism.name()), Some(*mechanism));
        }
        assert_eq!(Mechanism::from_name("no such rule"), None);
        assert!(Mechanism::ALL.len() <= 64, "one bit each");
    }
}
