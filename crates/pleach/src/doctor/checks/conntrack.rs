//! Whether the kernel's connection tracking table is full, or forgets UDP flows before an idle standby link is probed
//! again.

use std::{fs, time::Duration};

use crate::doctor::problem::Problem;

/// The settings under `/proc/sys/net/netfilter`; `None` without connection tracking.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    count: Option<u64>,
    max: Option<u64>,
    /// Timeout of a UDP flow with traffic in both directions, in seconds.
    udp_seconds: Option<u64>,
}

pub(crate) fn observe() -> Facts {
    let value = |key: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/netfilter/{key}"));
        text.ok()?.trim().parse().ok()
    };
    Facts {
        count: value("nf_conntrack_count"),
        max: value("nf_conntrack_max"),
        udp_seconds: value("nf_conntrack_udp_timeout_stream"),
    }
}

pub(crate) fn verdicts(facts: &Facts) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let (Some(count), Some(max)) = (facts.count, facts.max)
        && max > 0
        && count.saturating_mul(20) >= max.saturating_mul(19)
    {
        problems.push(Problem::new(
            "conntrack-full",
            format!("the kernel's connection tracking table has {count} of {max} entries: it drops packets of new connections"),
            format!("raise the limit: `sysctl net.netfilter.nf_conntrack_max={}`", max.saturating_mul(4)),
        ));
    }
    if let Some(seconds) = facts.udp_seconds
        && seconds < RESERVE.as_secs()
    {
        problems.push(Problem::new(
            "nat-timeout",
            format!("connection tracking on this host forgets an idle UDP flow after {seconds} s, but a standby link sends only every {} s: its NAT mapping is lost", RESERVE.as_secs()),
            "set net.netfilter.nf_conntrack_udp_timeout_stream to 120, the kernel's default",
        ));
    }
    problems
}

/// Interval between probes of a standby link: `PROBE_RESERVE` of the engine's `path/health.rs`.
const RESERVE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_full_from_95_percent_on() {
        let codes = |count, max, udp_seconds| -> Vec<&str> {
            let facts = Facts {
                count: Some(count),
                max: Some(max),
                udp_seconds: Some(udp_seconds),
            };
            let problems = verdicts(&facts).into_iter();
            problems.map(|problem| problem.code).collect()
        };
        assert_eq!(codes(900, 1000, 120), [""; 0]);
        assert_eq!(codes(950, 1000, 60), ["conntrack-full"]);
        assert_eq!(codes(0, 1000, 59), ["nat-timeout"]);
        assert_eq!(codes(0, 0, 120), [""; 0]);
        assert!(verdicts(&Facts::default()).is_empty());
    }
}
