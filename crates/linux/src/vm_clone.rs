//! Notice that this machine is a copy: a virtual machine that was cloned, or restored from a snapshot.
//!
//! Both copies hold the same session keys and the same counters, so each would seal other content under the same nonces.
//! The hypervisor changes the *generation id* of such a machine (the vmgenid device of QEMU, Hyper-V, VMware, Firecracker),
//! and since version 6.8 the kernel tells user space by a uevent with the line `NEW_VMGENID=1`. [`CloneWatch`] listens for
//! the event; no privilege is needed.
//!
//! Limits: without the device, or with an older kernel, the event never comes. Datagrams that leave between the copy and
//! the event, a few milliseconds, still repeat nonces.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind,
    netlink::{KOBJECT_UEVENT, SocketAddrNetlink},
    recvfrom, socket_with,
};

/// A socket that becomes readable at each event of the kernel.
#[derive(Debug)]
pub struct CloneWatch {
    fd: OwnedFd,
}

impl CloneWatch {
    /// Starts to listen, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel has no uevents, or a filter forbids the socket.
    pub fn start() -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(KOBJECT_UEVENT),
        )?;
        bind(&fd, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
        Ok(Self { fd })
    }

    /// Reads what has come; true if the machine has become a copy since the last call.
    ///
    /// An overrun of the socket counts as such an event, because one may have been lost.
    pub fn take(&self) -> bool {
        let mut is_copy = false;
        let mut buffer = [0_u8; MAX_UEVENT];
        for _ in 0..MAX_EVENTS_PER_CALL {
            match recvfrom(&self.fd, &mut buffer, RecvFlags::empty()) {
                Ok((len, _, source)) => {
                    let from_kernel = source
                        .and_then(|source| SocketAddrNetlink::try_from(source).ok())
                        .is_some_and(|source| source.pid() == 0);
                    is_copy |= from_kernel && tells_new_generation(&buffer[..len]);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::NOBUFS) => is_copy = true,
                Err(_) => break,
            }
        }
        is_copy
    }
}

impl AsFd for CloneWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether a uevent, lines that end with a zero byte, tells a new generation id.
fn tells_new_generation(event: &[u8]) -> bool {
    event
        .split(|byte| *byte == 0)
        .any(|line| line == b"NEW_VMGENID=1")
}

/// The multicast group of the kernel's own events; others are of udev.
const KERNEL_GROUP: u32 = 1;
/// `UEVENT_BUFFER_SIZE` of the kernel is 2048, and a head of at most 256 bytes comes before it.
const MAX_UEVENT: usize = 4096;
/// Events read in one call, so that a storm of them does not hold up packets.
const MAX_EVENTS_PER_CALL: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_generation_id_means_a_copy() {
        let event =
            b"change@/devices/platform/VMGENCTR:00\0ACTION=change\0NEW_VMGENID=1\0SEQNUM=7\0";
        assert!(tells_new_generation(event));
        assert!(!tells_new_generation(
            b"add@/devices/x\0ACTION=add\0XNEW_VMGENID=1\0"
        ));
        assert!(!tells_new_generation(b"NEW_VMGENID=10\0"));
        assert!(!tells_new_generation(b""));
    }

    #[test]
    fn nothing_is_told_while_nothing_happens() {
        // Where the sandbox has no uevents there is nothing to listen to.
        if let Ok(watch) = CloneWatch::start() {
            assert!(!watch.take());
        }
    }
}
