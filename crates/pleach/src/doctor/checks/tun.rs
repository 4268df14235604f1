//! Whether tunnels can be created: the TUN device exists, and this process may configure the network.

use std::{
    fs::{self, File},
    io,
};

use crate::{config::plain, doctor::problem::Problem};

/// Facts about the host.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Error of opening the device; `None` if it can be opened.
    refused: Option<io::Error>,
    /// Whether this process has `CAP_NET_ADMIN`.
    may_configure: bool,
}

pub(crate) fn observe() -> Facts {
    let opened = File::options().read(true).write(true).open(DEVICE);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    Facts {
        refused: opened.err(),
        may_configure: has_net_admin(&status),
    }
}

/// Whether `status`, the content of `/proc/PID/status`, has `CAP_NET_ADMIN` among the effective capabilities.
fn has_net_admin(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    mask.is_none_or(|mask| mask & (1 << CAP_NET_ADMIN) != 0)
}

pub(crate) fn verdicts(facts: &Facts) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(error) = &facts.refused {
        let remedy = if error.kind() == io::ErrorKind::PermissionDenied {
            "run this as root; in a container, allow the device in the container's settings"
        } else {
            "load the module (`modprobe tun`); in a container, add the device to the container"
        };
        problems.push(Problem::new(
            "tun",
            format!(
                "pleach cannot create a tunnel device: {DEVICE}: {}",
                plain(error)
            ),
            remedy,
        ));
    }
    if !facts.may_configure {
        problems.push(Problem::new(
            "capability",
            "this process lacks CAP_NET_ADMIN, which is required to set addresses and routes",
            "run it as root; in a container, add the capability NET_ADMIN",
        ));
    }
    problems
}

const DEVICE: &str = "/dev/net/tun";
/// Bit number of `CAP_NET_ADMIN`: capabilities(7).
const CAP_NET_ADMIN: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_and_a_missing_right_are_told_apart() {
        assert!(has_net_admin("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!has_net_admin("CapEff:\t0000000000000fff\n"));
        let codes = |refused: Option<io::ErrorKind>, may_configure| -> Vec<(&str, String)> {
            let facts = Facts {
                refused: refused.map(Into::into),
                may_configure,
            };
            let problems = verdicts(&facts).into_iter();
            problems
                .map(|problem| (problem.code, problem.remedy))
                .collect()
        };
        assert!(codes(None, true).is_empty());
        let missing = codes(Some(io::ErrorKind::NotFound), true);
        assert!(missing[0].0 == "tun" && missing[0].1.contains("modprobe"));
        let both = codes(Some(io::ErrorKind::PermissionDenied), false);
        assert_eq!(both.len(), 2);
        assert!(both[0].1.contains("root") && both[1].0 == "capability");
    }
}
