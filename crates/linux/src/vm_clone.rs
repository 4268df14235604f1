//! Detects that this machine is a copy: a virtual machine that was cloned, or restored from a snapshot.
//!
//! Both copies have the same session keys and the same counters, so they would seal different content under the same
//! nonces. The hypervisor changes the *generation id* of such a machine (the vmgenid device of QEMU, Hyper-V, VMware,
//! Firecracker). Since version 6.8 the kernel notifies user space by a uevent with the line `NEW_VMGENID=1`.
//! [`CloneWatch`] listens for this event; no privilege is needed.
//!
//! The kernel sends every uevent to every socket that listens for uevents. Hundreds are sent within milliseconds when
//! many devices are scanned again (`udevadm trigger`), which is more than a socket's buffer can store. So a classic
//! BPF filter accepts only events of the generation id's device, and an overrun can only mean that such an event was
//! lost. If no such device is found, none of its events can have been lost.
//!
//! Limits: without the device, or with an older kernel, the event never arrives. Datagrams sent in the few milliseconds
//! between the copy and the event still repeat nonces.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind,
    netlink::{KOBJECT_UEVENT, SocketAddrNetlink},
    recvfrom, socket_with,
};
use socket2::{SockFilter, SockRef};

/// A socket that becomes readable at each event of the generation id's device.
#[derive(Debug)]
pub struct CloneWatch {
    fd: OwnedFd,
}

impl CloneWatch {
    /// Starts to listen, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Fails if the kernel has no uevents, or a filter forbids the socket.
    pub fn start() -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(KOBJECT_UEVENT),
        )?;
        if let Some(device) = device_path(Path::new(SYSFS)) {
            // If the filter is not permitted, all events arrive, as many as the buffer can store.
            let _ = SockRef::from(&fd).attach_filter(&filter(&event_head(&device)));
        }
        bind(&fd, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
        Ok(Self { fd })
    }

    /// Reads pending events. Returns true if the machine has become a copy since the last call.
    ///
    /// If a generation id's device exists, an overrun of the socket counts as such an event, because the event may have
    /// been lost.
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
                Err(rustix::io::Errno::NOBUFS) => {
                    is_copy |= device_path(Path::new(SYSFS)).is_some();
                }
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

/// Whether a uevent, lines that end with a zero byte, reports a new generation id.
fn tells_new_generation(event: &[u8]) -> bool {
    event
        .split(|byte| *byte == 0)
        .any(|line| line == b"NEW_VMGENID=1")
}

/// Returns the path of the generation id's device below `sysfs`, as in uevents. `None` if no such device has a driver.
fn device_path(sysfs: &Path) -> Option<Vec<u8>> {
    // Until Linux 6.9 the device is on the ACPI bus.
    let drivers = ["bus/platform/drivers/vmgenid", "bus/acpi/drivers/vmgenid"];
    let entries = drivers
        .into_iter()
        .filter_map(|driver| fs::read_dir(sysfs.join(driver)).ok());
    entries.flatten().flatten().find_map(|entry| {
        // The directory contains the devices and a link to the driver's module.
        let is_device = entry.file_type().ok()?.is_symlink() && entry.file_name() != "module";
        let device = is_device.then(|| fs::canonicalize(entry.path()).ok())??;
        let below = device.strip_prefix(fs::canonicalize(sysfs).ok()?).ok()?;
        Some([b"/", below.as_os_str().as_bytes()].concat())
    })
}

/// Returns the beginning of events of `device` that report a change.
fn event_head(device: &[u8]) -> Vec<u8> {
    [b"change@", device, b"\0"].concat()
}

/// Returns a filter program that accepts datagrams which begin with `head`.
fn filter(head: &[u8]) -> Vec<SockFilter> {
    let (word, byte) = (libc::BPF_W, libc::BPF_B);
    let words = head.chunks_exact(4);
    let (at, rest) = (head.len() - words.remainder().len(), words.remainder());
    let words = (0..).step_by(4).zip(words).map(|(at, bytes)| {
        let value = bytes
            .iter()
            .fold(0, |all, byte| all << 8 | u32::from(*byte));
        (word, at, value)
    });
    let rest = (at..)
        .zip(rest)
        .map(|(at, value)| (byte, at, u32::from(*value)));
    let statement = |code: u32, if_equal: u8, value: u32| {
        SockFilter::new(u16::try_from(code).unwrap_or(0), if_equal, 0, value)
    };
    // A datagram that is shorter than a loaded offset is dropped.
    let compare = |(size, at, value): (u32, usize, u32)| {
        [
            statement(
                libc::BPF_LD | size | libc::BPF_ABS,
                0,
                u32::try_from(at).unwrap_or(u32::MAX),
            ),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, value),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0),
        ]
    };
    let compared = words.chain(rest).flat_map(compare);
    let accepted = statement(libc::BPF_RET | libc::BPF_K, 0, u32::MAX);
    compared.chain([accepted]).collect()
}

const SYSFS: &str = "/sys";
/// Multicast group of the kernel's own events. Other groups are used by udev.
const KERNEL_GROUP: u32 = 1;
/// Length in bytes of the longest event: `UEVENT_BUFFER_SIZE` of the kernel is 2048, and a header of at most 256 bytes
/// precedes it.
const MAX_UEVENT: usize = 4096;
/// Highest number of events read in one call, so that many events do not delay packets.
const MAX_EVENTS_PER_CALL: usize = 64;

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixDatagram};

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
    fn only_events_of_the_device_pass_the_filter() {
        for device in [
            "/devices/platform/VMGENCTR:00",
            "/devices/LNXSYSTM:00/a",
            "/d",
        ] {
            let (sender, receiver) = UnixDatagram::pair().expect("a pair of sockets");
            receiver.set_nonblocking(true).expect("an own socket");
            let head = event_head(device.as_bytes());
            let attached = SockRef::from(&receiver).attach_filter(&filter(&head));
            attached.expect("a valid program");
            let event = [&head, b"ACTION=change\0NEW_VMGENID=1\0".as_slice()].concat();
            sender.send(&event).expect("room");
            let mut others = vec![
                format!("add@{device}\0ACTION=add\0"),
                format!("change@{device}0\0ACTION=change\0"),
                format!("change@{device}"),
                String::new(),
            ];
            others.extend((0..head.len()).map(|at| {
                let mut other = event.clone();
                other[at] ^= 1;
                String::from_utf8(other).expect("ASCII")
            }));
            for other in others {
                sender.send(other.as_bytes()).expect("room");
            }
            let mut buffer = [0; MAX_UEVENT];
            let len = receiver.recv(&mut buffer).expect("its event");
            assert_eq!(buffer[..len], event);
            assert!(receiver.recv(&mut buffer).is_err(), "and no other");
        }
    }

    #[test]
    fn the_device_is_found_on_either_bus() {
        for bus in ["platform", "acpi"] {
            let sysfs = tempfile::tempdir().expect("temporary directory");
            assert_eq!(device_path(sysfs.path()), None);
            let driver = sysfs.path().join(format!("bus/{bus}/drivers/vmgenid"));
            let device = sysfs.path().join("devices/platform/GEN:00");
            for directory in [&driver, &device, &sysfs.path().join("module")] {
                fs::create_dir_all(directory).expect("an own directory");
            }
            fs::write(driver.join("bind"), "").expect("an own directory");
            symlink(sysfs.path().join("module"), driver.join("module")).expect("an own directory");
            assert_eq!(device_path(sysfs.path()), None, "a driver without a device");
            symlink(&device, driver.join("GEN:00")).expect("an own directory");
            let found = device_path(sysfs.path()).expect("a device");
            assert_eq!(found, b"/devices/platform/GEN:00");
        }
    }

    #[test]
    fn nothing_is_told_while_nothing_happens() {
        // In a sandbox without uevents, the watch cannot start.
        if let Ok(watch) = CloneWatch::start() {
            assert!(!watch.take());
        }
    }
}
