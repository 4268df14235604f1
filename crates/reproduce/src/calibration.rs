//! What was fitted or inferred because the papers do not give it, and which targets it decides.

/// A parameter that is not published.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// The parameter and its value.
    pub parameter: &'static str,
    /// What it was chosen by.
    pub chosen_by: &'static str,
    /// The targets that depend on it.
    pub decides: &'static [&'static str],
}

/// All of them.
pub const CALIBRATIONS: &[Calibration] = &[
    Calibration {
        parameter: "rate of the DSL at IP level, 62.5 Mbit/s, and its queue, 256 packets",
        chosen_by: "the nine loss rates of section 5.2, which it fits best",
        decides: &[
            "R-L3-1", "R-L3-2", "R-L3-3", "R-L3-4", "R-L3-5", "R-L3-6", "R-L3-7", "R-L3-8",
            "R-L3-9", "R-L3-15", "R-L3-16",
        ],
    },
    Calibration {
        parameter: "UDP senders up to 1 ms late",
        chosen_by: "the rate of one TCP flow in section 5.4, after a first run without it",
        decides: &["R-L3-1", "R-L3-4", "R-L3-13", "R-L3-14"],
    },
    Calibration {
        parameter: "DWD re-arms after each step; weights are whole numbers, rounded",
        chosen_by: "the nine loss rates, of all readings of the text",
        decides: &["R-L3-1", "R-L3-4", "R-L3-7", "R-L3-10", "R-L3-11"],
    },
    Calibration {
        parameter: "demand of figure 4",
        chosen_by: "the two numbers in the text of section 5.3",
        decides: &["R-L3-11"],
    },
    Calibration {
        parameter: "the 3G's queue, 22 kB",
        chosen_by: "round robin's 10 to 20 % at 160 ms",
        decides: &["R-CSN-2", "R-CSN-5", "R-CSN-6"],
    },
    Calibration {
        parameter: "no jitter of the 3G (table I has 150 ms)",
        chosen_by: "ConSN \"similar to the single-path performance\", which jitter would exclude",
        decides: &["R-CSN-3", "R-CSN-5", "R-CSN-7"],
    },
    Calibration {
        parameter: "PDC moves at most two packets of a block off a path without exchange",
        chosen_by: "figure 7: more than 30 % in the jump without ConSN, nothing with it",
        decides: &["R-CSN-6", "R-CSN-7"],
    },
    Calibration {
        parameter: "rates of cross traffic, 30 % of the line's while it is on; flow-level as eight flows",
        chosen_by: "nothing published; chosen once, before any run",
        decides: &["R-OS-1", "R-OS-2", "R-OS-3"],
    },
    Calibration {
        parameter: "one-way delay of the loss experiments, 10 ms",
        chosen_by: "nothing published; that of the delay experiments",
        decides: &["R-NAT-5", "R-NAT-6", "R-NAT-7", "R-NAT-8", "R-NAT-9"],
    },
    Calibration {
        parameter: "bound of disorder of the kernel's TCP, 127 segments",
        chosen_by: "the source of Linux 2.6.11",
        decides: &["R-NAT-2", "R-NAT-3"],
    },
    Calibration {
        parameter: "background traffic of figure 7",
        chosen_by: "nothing published beyond a plot; ours",
        decides: &["R-NAT-10"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;

    #[test]
    fn what_is_decided_is_a_target() {
        let experiments = registry::all();
        let mut targets = experiments
            .iter()
            .flat_map(|experiment| &experiment.targets);
        let ids: Vec<&str> = targets.by_ref().map(|target| target.id).collect();
        for calibration in CALIBRATIONS {
            for id in calibration.decides {
                assert!(ids.contains(id), "{}: {id}", calibration.parameter);
            }
        }
    }
}
