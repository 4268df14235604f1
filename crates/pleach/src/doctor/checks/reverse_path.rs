//! Whether the kernel's reverse path filter drops packets that arrive on a link because the route back leads over
//! another link.
//!
//! The daemon sets the strict filter of its links to loose. So the strict filter is a problem only if it is in force
//! while the daemon runs, or if the setting cannot be written.

use std::fs::{self, File};

use crate::doctor::problem::Problem;

/// Facts about a link's device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// The larger of the device's and the host's `rp_filter`, which is the effective one.
    level: u8,
    is_writable: bool,
    is_running: bool,
}

/// Collects the facts. `is_running`: whether the daemon runs.
pub(crate) fn observe(device: &str, is_running: bool) -> Facts {
    let path = |device: &str| format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
    let level = |device: &str| -> u8 {
        let text = fs::read_to_string(path(device)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    Facts {
        level: level(device).max(level("all")),
        is_writable: File::options().write(true).open(path(device)).is_ok(),
        is_running,
    }
}

pub(crate) fn verdict(device: &str, facts: Facts) -> Option<Problem> {
    let is_left = facts.is_running || !facts.is_writable;
    (facts.level == STRICT && is_left).then(|| {
        Problem::new(
            CODE,
            format!("the kernel drops packets that arrive on {device} if the route back uses another link (rp_filter is 1, strict)"),
            format!("run `sysctl net.ipv4.conf.{device}.rp_filter=2`, and remove the setting 1 from /etc/sysctl.d"),
        )
    })
}

/// Code of this problem.
pub(crate) const CODE: &str = "reverse-path-filter";
/// Value of `rp_filter` for the strict mode (RFC 3704 section 2.2).
const STRICT: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_is_a_problem_where_the_daemon_cannot_help_it() {
        let found = |level, is_writable, is_running| {
            let facts = Facts {
                level,
                is_writable,
                is_running,
            };
            verdict("l0", facts).is_some()
        };
        assert!(found(1, true, true) && found(1, false, false));
        assert!(!found(1, true, false), "the daemon will set it");
        assert!(!found(2, true, true) && !found(0, false, true));
    }
}
