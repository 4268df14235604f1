//! The inner packets of busy clients: UDP over IPv4 to the far end, which returns each packet to its sender.

use core::net::Ipv4Addr;
use std::{
    io,
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::Context as _;
use pleach_core::packet::{PacketBuf, ones_complement_sum};

use super::numbering::{INNER_GATEWAY, inner};
use crate::netns::Netns;

/// Length of a busy client's packets in bytes.
pub(crate) const LEN: usize = 1_200;
/// Port of both ends.
pub(crate) const PORT: u16 = 9_000;
/// Longest time that the far end waits before it checks whether it should end.
const PAUSE: Duration = Duration::from_millis(200);

/// Fills `packet` with a packet of a client to the far end.
pub(crate) fn write(packet: &mut PacketBuf, client: u32) {
    write_from(packet, client, PORT, LEN);
}

/// Fills `packet` with a packet of `len` bytes, [`HEADERS`] at least, from a port of a client to the far end.
pub(crate) fn write_from(packet: &mut PacketBuf, client: u32, port: u16, len: usize) {
    packet.resize(len);
    let bytes = packet.as_mut_slice();
    bytes[..HEADERS].fill(0);
    bytes[0] = 0x45;
    put(bytes, 2, len);
    bytes[8] = 64;
    bytes[9] = 17;
    bytes[12..16].copy_from_slice(&inner(client).octets());
    bytes[16..20].copy_from_slice(&INNER_GATEWAY.octets());
    let checksum = !ones_complement_sum(&[&bytes[..20]]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    put(bytes, 20, usize::from(port));
    put(bytes, 22, usize::from(PORT));
    // The checksum of UDP stays 0: none.
    put(bytes, 24, len - 20);
}

/// Writes a number of two bytes.
fn put(bytes: &mut [u8], at: usize, number: usize) {
    let number = u16::try_from(number).unwrap_or(u16::MAX);
    bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
}

/// The far end: a thread in the gateway's namespace that returns each datagram to its sender.
pub(crate) struct FarEnd {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl FarEnd {
    /// Starts the thread. The gateway's tunnel device must exist.
    pub(crate) fn start(gateway: &Netns) -> anyhow::Result<Self> {
        let socket = gateway.run(|| {
            let address = (Ipv4Addr::UNSPECIFIED, PORT);
            let socket = UdpSocket::bind(address).context("UDP socket of the far end")?;
            pleach_linux::udp::set_buffers(&socket2::SockRef::from(&socket), BUFFER_BYTES);
            socket.set_read_timeout(Some(PAUSE))?;
            Ok(socket)
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let thread = gateway.spawn("far-end", move || echo(&socket, &until))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its result only says how it ended.
            let _ = thread.join();
        }
    }
}

fn echo(socket: &UdpSocket, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut buffer = [0; 2_048];
    while !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut buffer) {
            // The device's queue may be full, or the tunnel be restarted: such packets are lost, as on any host.
            Ok((len, from)) => drop(socket.send_to(&buffer[..len], from)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error).context("far end"),
        }
    }
    Ok(())
}

/// Length in bytes of the headers of IPv4 and UDP.
pub(crate) const HEADERS: usize = 28;
/// Size of the far end's socket buffers in bytes.
const BUFFER_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_valid_and_come_from_the_client() {
        let mut packet = PacketBuf::default();
        write(&mut packet, 7);
        let view = packet.view().expect("a packet of IPv4");
        assert_eq!(view.source(), inner(7));
        assert_eq!(view.destination(), INNER_GATEWAY);
        assert_eq!(view.ports(), Some([PORT, PORT]));
        // The sum over a header with its checksum is all ones (RFC 1071).
        assert_eq!(!ones_complement_sum(&[&packet.as_slice()[..20]]), 0);
    }
}
