//! A device for packets that must be delayed.
//!
//! No queueing discipline that every kernel has delays a packet for a given time, and BPF cannot wait. So the program
//! at the links' devices sends packets that must wait into a TAP device, unchanged and complete, including
//! super-packets of segmentation offload. The daemon buffers each packet and writes it back unchanged when it is due,
//! including the vnet header, which describes checksums and segments. Then a program at the ingress of the same
//! device sends the packet to the next hop of its link before any other part of the host sees it. The frame names its
//! link in place of the destination address: four bytes that identify such frames, then the link in two bytes, in the
//! byte order of this host.
//!
//! The device is removed with its descriptor, and so with the process. The program at the links' devices checks when
//! the daemon last showed that it is alive ([`super::ALIVE_FOR`]). If the daemon is not alive, packets are sent at
//! once.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use rustix::io::Errno;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::MAX_LINKS;
use crate::{procnet, tun::vnet::VNET_HEADER_LEN};

/// The device for delayed packets, removed when dropped.
pub struct HoldingDevice {
    device: SyncDevice,
    ifindex: u32,
    buffer: Box<[u8]>,
}

/// A delayed packet, with all data that must be written back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPacket {
    /// The link by which the packet is to leave.
    pub link: usize,
    frame: Box<[u8]>,
}

impl HeldPacket {
    /// Returns the memory that the packet uses, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.frame.len()
    }

    /// Whether the packet is an IPv6 packet.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.frame.get(TYPE_AT..TYPE_AT + 2) == Some(&[0x86, 0xdd])
    }

    /// Assigns the packet to another link.
    pub fn move_to(&mut self, link: usize) {
        debug_assert!(link < MAX_LINKS, "the kernel reads four bits of it");
        self.link = link;
        let number = u16::try_from(link).unwrap_or(0).to_ne_bytes();
        self.frame[LINK_AT..LINK_AT + 2].copy_from_slice(&number);
    }

    /// Parses a frame read from the device. `None` if the program did not send the frame to the device.
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
    /// Creates the device, switched off.
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

    /// Returns the index of the device.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Returns the number of packets that were lost because they arrived faster than they were read.
    ///
    /// # Errors
    /// Fails if there is no `/proc`.
    pub fn overflows() -> io::Result<u64> {
        Ok(procnet::device_drops()?.get(NAME).copied().unwrap_or(0))
    }

    /// Reads the next packet. `None` if another kind of frame arrived, which is ignored: read again.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::WouldBlock`] if there is nothing to read. Any other error means that the device is
    /// gone.
    pub fn read(&mut self) -> io::Result<Option<HeldPacket>> {
        let len = loop {
            match rustix::io::read(borrow(&self.device), &mut *self.buffer) {
                Err(Errno::INTR) => {}
                result => break result?,
            }
        };
        Ok(HeldPacket::parse(&self.buffer[..len]))
    }

    /// Sends a packet. Returns `false` if the kernel has no buffer space for it.
    ///
    /// # Errors
    /// Fails if the device is gone.
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

/// Name of the device, fixed because only one equalizer runs in a network namespace.
pub(super) const NAME: &str = "pleach-hold";
/// First bytes of the destination address of frames in the device: locally administered, not a group address.
pub(super) const MAGIC: [u8; 4] = *b"\x02ple";
/// Largest MTU that the kernel permits for such a device.
pub(super) const MTU: u16 = u16::MAX - ETHERNET_LEN;
const ETHERNET_LEN: u16 = 14;
/// Offset of the link in a frame as read.
const LINK_AT: usize = VNET_HEADER_LEN + MAGIC.len();
/// Offset of the packet type.
const TYPE_AT: usize = VNET_HEADER_LEN + 12;
/// Longest read in bytes: headers and the largest super-packet (`GSO_LEGACY_MAX_SIZE`).
const READ_LEN: usize = VNET_HEADER_LEN + ETHERNET_LEN as usize + 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a frame as the program in the kernel writes it: the link is a number of 16 bits in the byte order of
    /// this host.
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
