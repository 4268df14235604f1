//! Why a path is idle.

use core::{fmt, time::Duration};

/// Why the path carried no packet in the last second, apart from copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleReason {
    /// The path does not work, or its link has no route.
    Down,
    /// The user has excluded the link.
    Never,
    /// There is nothing to send.
    NoTraffic,
    /// Quicker or cheaper paths have room for all packets.
    NotNeeded,
    /// The path's pacer or socket has no room.
    Paced,
    /// Paths of a lower rank of cost have room for all packets.
    Rank,
    /// The link is in reserve.
    Standby,
    /// No answer has arrived for too long, although packets are in flight.
    Suspect,
    /// Packets on the path would arrive too long after those on quicker paths.
    TooLate {
        /// Difference between the arrival times.
        by: Duration,
    },
    /// The path would add less capacity than its delay costs.
    WorthTooLittle {
        /// The path's share of the capacity of all paths, in percent.
        share_percent: u8,
        /// The share that a path with its delay needs, in percent.
        needed_percent: u8,
    },
}

impl IdleReason {
    /// The word for this reason in `status --json`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Never => "never",
            Self::NoTraffic => "no-traffic",
            Self::NotNeeded => "not-needed",
            Self::Paced => "paced",
            Self::Rank => "rank",
            Self::Standby => "standby",
            Self::Suspect => "suspect",
            Self::TooLate { .. } => "too-late-for-its-flows",
            Self::WorthTooLittle { .. } => "worth-too-little",
        }
    }
}

/// Writes a predicate whose subject is the link.
impl fmt::Display for IdleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("is down: no answer arrives over it"),
            Self::Never => f.write_str("is excluded by cost = \"never\""),
            Self::NoTraffic => f.write_str("is idle: there is nothing to send"),
            Self::NotNeeded => {
                f.write_str("is idle: quicker links have enough capacity for all packets")
            }
            Self::Paced => {
                f.write_str("cannot send at this moment: its pacer or its socket is full")
            }
            Self::Rank => {
                f.write_str("is idle: cheaper links have enough capacity for all packets")
            }
            Self::Standby => f.write_str("is on standby: it is used only when no other link works"),
            Self::Suspect => f.write_str("is silent: packets are in flight, but no answer arrives"),
            Self::TooLate { by } => write!(
                f,
                "is too slow: its packets would arrive {} ms after those of the quickest link",
                by.as_millis()
            ),
            Self::WorthTooLittle {
                share_percent,
                needed_percent,
            } => write!(
                f,
                "would add too little capacity for its delay: {share_percent} % of the total, but {needed_percent} % are needed"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_reads_as_a_sentence_behind_the_name_of_a_link() {
        let reason = IdleReason::TooLate {
            by: Duration::from_millis(400),
        };
        assert_eq!(
            format!("sat {reason}"),
            "sat is too slow: its packets would arrive 400 ms after those of the quickest link"
        );
        assert_eq!(reason.word(), "too-late-for-its-flows");
    }
}
