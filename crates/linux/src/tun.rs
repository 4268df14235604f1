//! The TUN device: whole batches of IP packets with one system call each.
//!
//! The device has a vnet header (`IFF_VNET_HDR`), so the kernel delivers and accepts super-packets: several segments
//! of a flow with one header (GSO, GRO), up to 64 KiB long. Reading splits them into single packets with complete
//! checksums, because the tunnel spreads single packets over paths. Writing merges consecutive packets of a flow
//! again and passes them to the kernel with `writev`: the headers are built in a scratch buffer, and the payloads are
//! written from their buffers, so no byte is copied in user space.
//!
//! Up to 500 packets, including super-packets, wait in front of the device: the default of the kernel's driver. The
//! tunnel reads at once and has its own queue after the device, with AQM, so no standing queue builds up there. With
//! a shorter limit, small packets would be lost whenever the thread is late by a millisecond.
//!
//! Usually there is one queue. A gateway with several data threads has a queue for each ([`Tun::create_queues`]). The device
//! is removed when the value is dropped, or the last of its queues.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use pleach_core::packet::{PacketBuf, Pool};
use rustix::io::Errno;
use tun_rs::{DeviceBuilder, SyncDevice};

pub(crate) mod checksum;
pub(crate) mod merge;
pub(crate) mod split;
pub(crate) mod vnet;

use merge::{Headers, MAX_SEGMENTS, Merger};
use vnet::{VNET_HEADER_LEN, VnetHeader};

/// A TUN device that this process created.
pub struct Tun {
    device: SyncDevice,
    name: String,
    ifindex: u32,
    merge_udp: bool,
    read_buffer: Box<[u8]>,
    merger: Merger,
    malformed_reads: u64,
}

/// Result of [`Tun::write_batch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Number of packets that the kernel accepted.
    pub written: usize,
    /// Number of packets that the kernel refused because they were malformed, the device was down, or memory was short.
    /// `written + dropped` is the size of the batch.
    pub dropped: usize,
    /// Number of system calls.
    pub writes: usize,
}

impl Tun {
    /// Creates the device `name` with an MTU of `mtu` bytes, switched off and without an address.
    ///
    /// # Errors
    /// Returns an error with the remedy in its text if `/dev/net/tun` or the permission is missing, or the name is
    /// taken.
    pub fn create(name: &str, mtu: u16) -> io::Result<Self> {
        Self::new(build(name, mtu, false)?)
    }

    /// Creates the device like [`Self::create`], with `count` queues of packets from the host, and returns a value for
    /// each queue. The device is removed when all of them are dropped.
    ///
    /// The host's packets of a flow are read from the queue by which a packet of this flow, in the other direction, was
    /// written last (`tun_automq_select_queue` in the kernel). Before that, and three seconds after the last write, a
    /// hash of the flow chooses the queue.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_queues(name: &str, mtu: u16, count: usize) -> io::Result<Vec<Self>> {
        if count <= 1 {
            return Ok(vec![Self::create(name, mtu)?]);
        }
        let first = Self::new(build(name, mtu, true)?)?;
        let mut queues = Vec::with_capacity(count);
        for _ in 1..count {
            let queue = first.device.try_clone();
            queues.push(Self::new(queue.map_err(|error| explain(name, &error))?)?);
        }
        queues.insert(0, first);
        Ok(queues)
    }

    fn new(device: SyncDevice) -> io::Result<Self> {
        device.set_nonblocking(true)?;
        let merge_udp = device.udp_gso();
        Ok(Self {
            name: device.name()?,
            ifindex: device.if_index()?,
            device,
            merge_udp,
            read_buffer: vec![0; READ_LEN].into(),
            merger: Merger::default(),
            malformed_reads: 0,
        })
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the index of the device.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Returns the number of invalid reads that were dropped since the device was created.
    #[must_use]
    pub fn malformed_reads(&self) -> u64 {
        self.malformed_reads
    }

    /// Reads once and appends the single packets to `out`, in buffers from `pool`. Returns their number.
    ///
    /// A read has up to 64 KiB of payload. An invalid read counts as zero packets; read again.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::WouldBlock`] if there is nothing to read. Any other error means that the device is
    /// gone.
    pub fn read_batch(&mut self, pool: &mut Pool, out: &mut Vec<PacketBuf>) -> io::Result<usize> {
        let len = loop {
            match rustix::io::read(borrow(&self.device), &mut *self.read_buffer) {
                Err(Errno::INTR) => {}
                result => break result?,
            }
        };
        let before = out.len();
        let count = self.read_buffer[..len]
            .split_first_chunk::<VNET_HEADER_LEN>()
            .and_then(|(header, packet)| {
                let header = VnetHeader::decode(*header)?;
                split::split(&header, packet, pool, out).ok()
            });
        Ok(count.unwrap_or_else(|| {
            self.malformed_reads += 1;
            out.drain(before..).for_each(|packet| pool.recycle(packet));
            0
        }))
    }

    /// Writes a batch of any length and merges consecutive packets of a flow.
    ///
    /// Order is preserved within each flow. A device does not block on writing unless memory is short. If memory is
    /// short or the device is down, packets are dropped and counted.
    ///
    /// # Errors
    /// Fails if the device is gone.
    pub fn write_batch(&mut self, packets: &[PacketBuf]) -> io::Result<WriteOutcome> {
        let mut outcome = WriteOutcome::default();
        self.merger.plan(packets, self.merge_udp);
        for index in 0..self.merger.len() {
            let run = self.merger.run(index);
            if run.count > 1 {
                let mut headers = Headers::new();
                let mut io = [IoSlice::new(&[]); MAX_SEGMENTS + 1];
                let used = self.merger.gather(run, packets, &mut headers, &mut io);
                let slices = &io[..used.unwrap_or(0)];
                if used.is_some() && write(&self.device, slices, run.count, &mut outcome)? {
                    continue;
                }
            }
            for member in self.merger.members(run) {
                let packet = packets[member].as_slice();
                let slices = [IoSlice::new(&[0; VNET_HEADER_LEN]), IoSlice::new(packet)];
                if !write(&self.device, &slices, 1, &mut outcome)? {
                    outcome.dropped += 1;
                }
            }
        }
        Ok(outcome)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        borrow(&self.device)
    }
}

impl std::fmt::Debug for Tun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tun")
            .field("name", &self.name)
            .field("ifindex", &self.ifindex)
            .finish_non_exhaustive()
    }
}

/// Creates the device, with one queue or with the first of several.
fn build(name: &str, mtu: u16, has_queues: bool) -> io::Result<SyncDevice> {
    DeviceBuilder::new()
        .name(name)
        .mtu(mtu)
        .enable(false)
        .with(|options| {
            // The length of the queue is not set: the kernel's default is right, and setting it needs rights outside of
            // the user namespace in which a lab without root runs.
            options.offload(true);
            if has_queues {
                options.multi_queue(true);
            }
        })
        .build_sync()
        .map_err(|error| explain(name, &error))
}

/// Writes one packet of `count` segments. Returns `Ok(false)` if the kernel refuses it.
fn write(
    device: &SyncDevice,
    slices: &[IoSlice<'_>],
    count: usize,
    outcome: &mut WriteOutcome,
) -> io::Result<bool> {
    loop {
        outcome.writes += 1;
        match rustix::io::writev(borrow(device), slices) {
            Ok(_) => {
                outcome.written += count;
                return Ok(true);
            }
            Err(Errno::INTR) => {}
            Err(error @ (Errno::BADF | Errno::BADFD | Errno::NODEV | Errno::NXIO)) => {
                return Err(error.into());
            }
            Err(_) => return Ok(false),
        }
    }
}

fn borrow(device: &SyncDevice) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as `device` lives, and the result borrows `device`.
    unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) }
}

fn explain(name: &str, error: &io::Error) -> io::Error {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "the kernel has no TUN driver: load it with `modprobe tun`, or in a container pass /dev/net/tun in"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "run as root, or give the program CAP_NET_ADMIN and access to /dev/net/tun"
        }
        Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) => {
            "a device of that name exists already: choose another [tunnel] name, or remove it with `ip link del`"
        }
        _ => "see the kernel log",
    };
    io::Error::new(
        error.kind(),
        format!("cannot make the TUN device {name}: {error}; {remedy}"),
    )
}

/// Longest read in bytes: header and the largest super-packet (`GSO_LEGACY_MAX_SIZE`).
const READ_LEN: usize = VNET_HEADER_LEN + 65_536;
