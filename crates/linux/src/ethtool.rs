//! Properties of a device: its speed (ethtool) and its kind.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use pleach_core::units::Bitrate;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Returns the rate that `device` has negotiated with the other end. `None` if there is no such device or it does not
/// report a rate, like radios and tunnels.
#[must_use]
pub fn speed(device: &str) -> Option<Bitrate> {
    // `struct ethtool_link_settings` is requested twice: first for the length of its masks (a negative number of
    // words), then for its content.
    let mut settings = [0_u8; 4096];
    settings[..4].copy_from_slice(&GLINKSETTINGS.to_ne_bytes());
    ask(device, &mut settings)?;
    let words = i8::from_ne_bytes([settings[MASK_WORDS]]).checked_neg()?;
    settings.fill(0);
    settings[..4].copy_from_slice(&GLINKSETTINGS.to_ne_bytes());
    settings[MASK_WORDS] = words.to_ne_bytes()[0];
    ask(device, &mut settings)?;
    let mbps = u32::from_ne_bytes(*settings[4..].first_chunk::<4>()?);
    (mbps > 0 && mbps != u32::MAX).then(|| Bitrate::from_mbps(mbps.into()))
}

/// Returns the link-layer type of `device` (`ARPHRD_…`). `None` if there is no such device.
#[must_use]
pub fn hardware_type(device: &str) -> Option<u16> {
    let socket = socket().ok()?;
    let mut request = request(device)?;
    // SAFETY: the kernel reads the name and writes the address of a live `ifreq`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) };
    // SAFETY: all members of this union are valid with any bytes; this is the one the kernel fills.
    let kind = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
    (result == 0).then_some(kind)
}

/// Executes one `SIOCETHTOOL` with the command and buffer `data`. The masks fit, because at most 127 words are
/// requested.
fn ask(device: &str, data: &mut [u8; 4096]) -> Option<()> {
    let socket = socket().ok()?;
    let mut request = request(device)?;
    request.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
    // SAFETY: `ifru_data` points to live memory longer than the data that the kernel writes: 48 bytes and three masks
    // of 127 words.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    (result == 0).then_some(())
}

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn request(device: &str) -> Option<libc::ifreq> {
    // SAFETY: all zeros are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte is reserved, because the name ends with a zero.
    if device.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Some(request)
}

const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_GLINKSETTINGS`
const GLINKSETTINGS: u32 = 0x4c;
/// Offset of `link_mode_masks_nwords`.
const MASK_WORDS: usize = 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_tell_nothing_have_no_speed() {
        assert_eq!(speed("lo"), None);
        assert_eq!(speed("no-such-device-at-all"), None);
        assert_eq!(hardware_type("lo"), Some(libc::ARPHRD_LOOPBACK));
        assert_eq!(hardware_type("none-such"), None);
    }
}
