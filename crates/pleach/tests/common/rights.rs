//! The rights of a running process, as the kernel reports them.

use std::fs;

use pleach_linux::confine::CapabilitySet;

/// Asserts that each thread of the process `pid` has exactly the capabilities `kept` (effective, permitted and bounding),
/// cannot gain any, and has a filter of system calls; and that the process leaves no core dump.
#[track_caller]
pub(crate) fn assert_confined(pid: u32, kept: CapabilitySet) {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let bits = format!("{:016x}", kept.bits());
    for thread in threads.flatten() {
        // A thread may end meanwhile.
        let Ok(text) = fs::read_to_string(thread.path().join("status")) else {
            continue;
        };
        for (key, wanted) in [
            ("CapEff", bits.as_str()),
            ("CapPrm", &bits),
            ("CapBnd", &bits),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            let value = line.map(|line| line.trim_start_matches(':').trim());
            assert_eq!(value, Some(wanted), "{key} of {text}");
        }
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let core = limits.lines().find(|line| line.contains("core file size"));
    let core: Vec<_> = core.expect("a limit").split_whitespace().collect();
    assert_eq!(core[4..6], ["0", "0"], "{limits}");
}
