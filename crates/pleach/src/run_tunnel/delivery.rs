//! Writes the packets that an engine delivers to the TUN device.

use std::io;

use pleach_core::{endpoint::Endpoint, packet::PacketBuf};
use pleach_linux::tun::Tun;

/// Writes all packets that the engine delivers. `packets` is an empty buffer, and is left empty. Returns the number of
/// packets that the device did not accept.
///
/// # Errors
/// If the device is gone.
pub(super) fn deliver(
    endpoint: &mut Endpoint,
    tun: &mut Tun,
    packets: &mut Vec<PacketBuf>,
) -> io::Result<u64> {
    while let Some(packet) = endpoint.poll_deliver() {
        packets.push(packet);
    }
    let (mut start, mut undelivered) = (0, 0);
    while start < packets.len() {
        let outcome = tun.write_batch(&packets[start..])?;
        if outcome.written + outcome.dropped == 0 {
            // The device accepts no packet at present.
            undelivered += (packets.len() - start) as u64;
            break;
        }
        undelivered += outcome.dropped as u64;
        start += outcome.written + outcome.dropped;
    }
    for packet in packets.drain(..) {
        endpoint.pool().recycle(packet);
    }
    Ok(undelivered)
}
