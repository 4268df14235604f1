//! A plain TUN or TAP device: each read and write transfers one whole IP packet or Ethernet frame, without a virtual
//! header.

use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
    os::unix::fs::OpenOptionsExt as _,
};

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ethernet frames: for daemons that need link-layer addresses.
    Tap,
    /// IP packets.
    Tun,
}

impl Kind {
    /// Returns the length in bytes of the header before the IP packet.
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::Tap => 14,
            Self::Tun => 0,
        }
    }
}

/// Creates a device called `name` in the calling thread's network namespace. Reads and writes do not block. The
/// device is removed when the descriptor and its clones are closed.
///
/// # Errors
/// Fails if `name` is too long or the kernel refuses.
pub fn open(name: &str, kind: Kind) -> io::Result<OwnedFd> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let kind = match kind {
        Kind::Tap => libc::IFF_TAP,
        Kind::Tun => libc::IFF_TUN,
    };
    request.ifr_ifru.ifru_flags =
        i16::try_from(kind | libc::IFF_NO_PI).map_err(io::Error::other)?;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives here.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file.into())
}

/// Sets the carrier of the device, as its host sees it.
///
/// # Errors
/// Fails if the kernel refuses.
pub(crate) fn set_carrier(device: BorrowedFd<'_>, is_up: bool) -> io::Result<()> {
    let value = libc::c_int::from(is_up);
    // SAFETY: TUNSETCARRIER reads one int, which lives here.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETCARRIER, &raw const value) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
