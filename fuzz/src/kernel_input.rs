//! Messages of the kernel and state files: netlink and `sock_diag(7)` answers, control messages, lines of `/proc/net`, and
//! the state of a tunnel. No input panics, and no list grows beyond its limit.

/// `data`: see the function that is called.
pub fn run(data: &[u8]) {
    pleach_linux::fuzzing::parse(data);
}
