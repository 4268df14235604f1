//! A device through which packets go that have to wait for their time.
//!
//! No queueing discipline that every kernel has holds a packet for a given time, and BPF cannot wait. So the program at the
//! links' devices sends what has to wait into a TAP device, whole as it is, super-packets of segmentation offload included; the
//! daemon keeps it and writes it back unchanged, the header that tells of checksums and segments included, when its time has come. A program at the ingress of the same device sends
//! it to the next hop of its link before anything else of the host sees it. Which link that is stands in two bytes, in the order of
//! this host, where the frame had the address of the device it was to leave by, behind four bytes by which such frames are known.
//!
//! The device goes with its descriptor, and so with the process. The first program looks when the daemon last told
//! that it lives ([`super::ALIVE_FOR`]): what finds nobody there to hold it leaves at once.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use rustix::io::Errno;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::MAX_LINKS;
use crate::{procnet, tun::vnet::VNET_HEADER_LEN};

/// The device; gone when dropped.
pub struct HoldingDevice {
    device: SyncDevice,
    ifindex: u32,
    buffer: Box<[u8]>,
}

/// A packet that has to wait, with all that has to be written back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPacket {
    /// The link it is to leave by.
    pub link: usize,
    frame: Box<[u8]>,
}

impl HeldPacket {
    /// How much memory it takes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.frame.len()
    }

    /// Whether it is of IPv6.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.frame.get(TYPE_AT..TYPE_AT + 2) == Some(&[0x86, 0xdd])
    }

    /// Has it leave by another link.
    pub fn move_to(&mut self, link: usize) {
        debug_assert!(link < MAX_LINKS, "the kernel reads four bits of it");
        self.link = link;
        let number = u16::try_from(link).unwrap_or(0).to_ne_bytes();
        self.frame[LINK_AT..LINK_AT + 2].copy_from_slice(&number);
    }

    /// The packet in what the device gave; `None` if it is none of ours.
    fn parse(frame: &[u8]) -> Option<Self> {
        let address = frame.get(VNET_HEADER_LEN..)?.first_chunk::<6>()?;
        let [a, b, c, d, link @ ..] = *address;
        let link = usize::from(u16::from_ne_bytes(link));
        ([a, b, c, d] == MAGIC && link < MAX_LINKS).then(|| Self {
            link,
            frame: frame.into(),
        })
    }
}

impl HoldingDevice {
    /// Makes the device, switched off.
    pub(super) fn create() -> io::Result<Self> {
        let device = DeviceBuilder::new()
            .name(NAME)
            .layer(Layer::L2)
            .mtu(MTU)
            .enable(false)
            .with(|options| {
                options.offload(true);
            })
            .build_sync()
            .map_err(|error| {
                let text = format!("the device {NAME}, in which packets wait: {error}; spread = \"delay\" needs the kernel's TUN driver (`modprobe tun`)");
                io::Error::new(error.kind(), text)
            })?;
        device.set_nonblocking(true)?;
        Ok(Self {
            ifindex: device.if_index()?,
            device,
            buffer: vec![0; READ_LEN].into(),
        })
    }

    /// The index of the device.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Packets that came faster than they were read, and were lost.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn overflows() -> io::Result<u64> {
        Ok(procnet::device_drops()?.get(NAME).copied().unwrap_or(0))
    }

    /// The next packet; `None` if something else came, which is none of ours: call it again.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is nothing to read; any other if the device is gone.
    pub fn read(&mut self) -> io::Result<Option<HeldPacket>> {
        let len = loop {
            match rustix::io::read(borrow(&self.device), &mut *self.buffer) {
                Err(Errno::INTR) => {}
                result => break result?,
            }
        };
        Ok(HeldPacket::parse(&self.buffer[..len]))
    }

    /// Has a packet leave; `false` if the kernel has no room for it.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn write(&self, packet: &HeldPacket) -> io::Result<bool> {
        loop {
            match rustix::io::write(self.as_fd(), &packet.frame) {
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(error @ (Errno::BADF | Errno::BADFD | Errno::NODEV | Errno::NXIO)) => {
                    return Err(error.into());
                }
                Err(_) => return Ok(false),
            }
        }
    }
}

impl AsFd for HoldingDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        borrow(&self.device)
    }
}

fn borrow(device: &SyncDevice) -> BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as `device` lives, and the result borrows it.
    unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) }
}

impl std::fmt::Debug for HoldingDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HoldingDevice")
            .field("ifindex", &self.ifindex)
            .finish_non_exhaustive()
    }
}

/// One equalizer runs in a network namespace.
pub(super) const NAME: &str = "pleach-hold";
/// How the address begins that frames have in the device: local, not a group's.
pub(super) const MAGIC: [u8; 4] = *b"\x02ple";
/// The most that the kernel allows for such a device.
pub(super) const MTU: u16 = u16::MAX - ETHERNET_LEN;
const ETHERNET_LEN: u16 = 14;
/// Where the link stands in what is read.
const LINK_AT: usize = VNET_HEADER_LEN + MAGIC.len();
/// Where the type of the packet stands.
const TYPE_AT: usize = VNET_HEADER_LEN + 12;
/// Headers and the largest super-packet (`GSO_LEGACY_MAX_SIZE`).
const READ_LEN: usize = VNET_HEADER_LEN + ETHERNET_LEN as usize + 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    /// As the program in the kernel writes it: the link as a number of 16 bits in the order of this host.
    fn frame(link: u16, ethertype: u16) -> Vec<u8> {
        let mut frame = vec![0; VNET_HEADER_LEN];
        frame.extend(MAGIC);
        frame.extend(link.to_ne_bytes());
        frame.extend([0; 6]);
        frame.extend(ethertype.to_be_bytes());
        frame
    }

    #[test]
    fn a_packet_tells_its_link_and_family_and_can_be_moved() {
        let mut packet = HeldPacket::parse(&frame(3, 0x86dd)).expect("ours");
        assert_eq!((packet.link, packet.is_v6()), (3, true));
        packet.move_to(12);
        assert_eq!(HeldPacket::parse(&packet.frame), Some(packet));
        let packet = HeldPacket::parse(&frame(0, 0x0800)).expect("ours");
        assert!(!packet.is_v6());
    }

    #[test]
    fn what_is_not_ours_is_none() {
        assert_eq!(HeldPacket::parse(&frame(16, 0x0800)), None, "no such link");
        let mut other = frame(0, 0x0800);
        other[VNET_HEADER_LEN] ^= 1;
        assert_eq!(HeldPacket::parse(&other), None);
        assert_eq!(HeldPacket::parse(&other[..VNET_HEADER_LEN + 5]), None);
    }
}
