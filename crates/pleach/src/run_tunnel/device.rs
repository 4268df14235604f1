//! Packets between an engine and the TUN device.

use std::io;

use pleach_core::{endpoint::Endpoint, packet::PacketBuf};
use pleach_linux::tun::Tun;

/// Reads packets of the host, at most [`READS_PER_ROUND`] super-packets. `take` gets the engine and the packets of each
/// super-packet. `packets` is an empty buffer, and `take` leaves it empty.
///
/// # Errors
/// If the device is gone.
pub(super) fn read(
    endpoint: &mut Endpoint,
    tun: &mut Tun,
    packets: &mut Vec<PacketBuf>,
    mut take: impl FnMut(&mut Endpoint, &mut Vec<PacketBuf>),
) -> io::Result<()> {
    for _ in 0..READS_PER_ROUND {
        match tun.read_batch(endpoint.pool(), packets) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
        take(endpoint, packets);
    }
    Ok(())
}

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

/// Number of super-packets read from the TUN device before the sockets are served: 700 packets of a bulk flow.
const READS_PER_ROUND: usize = 16;
