//! Whether the CPU is too slow for the rate of the links: the daemon's thread that moves packets uses a whole core, or
//! waits for a core.
//!
//! This is found only while traffic flows, because an idle daemon does not show how much CPU time a rate takes.

use std::{fs, io, os::unix::net::UnixStream, path::Path, time::Duration};

use rustix::net::sockopt::socket_peercred;

use crate::doctor::problem::Problem;

/// Time for which the daemon's packet thread has run and has waited for a core, in nanoseconds since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    ran: u64,
    waited: u64,
}

/// Reads the times of the first thread of the daemon that answers on `control`.
pub(crate) fn observe(control: &Path) -> io::Result<Times> {
    let stream = UnixStream::connect(control)?;
    let pid = socket_peercred(&stream)?.pid.as_raw_nonzero();
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat"))?;
    let mut fields = text.split_whitespace().map(|field| field.parse().ok());
    let (Some(Some(ran)), Some(Some(waited))) = (fields.next(), fields.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    Ok(Times { ran, waited })
}

/// Judges two readings of the times, taken `elapsed` apart.
pub(crate) fn verdict(before: Times, after: Times, elapsed: Duration) -> Option<Problem> {
    let elapsed = u64::try_from(elapsed.as_nanos()).ok()?.max(1);
    let percent = |more: u64, less: u64| more.saturating_sub(less).saturating_mul(100) / elapsed;
    let ran = percent(after.ran, before.ran);
    let waited = percent(after.waited, before.waited);
    if ran + waited < SATURATED_PERCENT {
        return None;
    }
    Some(if waited > ran {
        Problem::new(
            "cpu",
            format!(
                "the tunnel waits for a core {waited} % of the time: other programs use the processor"
            ),
            "stop these programs, or give the service more weight (`CPUWeight=1000` in its unit)",
        )
    } else {
        Problem::new(
            "cpu",
            format!(
                "the thread of the tunnel uses {ran} % of a core: the processor is too slow for this rate"
            ),
            "reduce `upload` and `download` of the links, or use a faster processor with AES instructions",
        )
    })
}

/// Sum of running and waiting time, in percent, from which on no capacity is left for bursts.
const SATURATED_PERCENT: u64 = 92;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_busy_all_the_time_is_too_slow() {
        let second = Duration::from_secs(1);
        let after = |ran: u64, waited: u64| {
            let before = Times { ran: 7, waited: 7 };
            let after = Times {
                ran: 7 + ran * 10_000_000,
                waited: 7 + waited * 10_000_000,
            };
            verdict(before, after, second)
        };
        assert_eq!(after(50, 10), None);
        assert!(after(95, 3).expect("found").what.contains("95 %"));
        assert!(after(30, 65).expect("found").what.contains("waits"));
    }
}
