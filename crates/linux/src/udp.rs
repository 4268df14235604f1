//! UDP sockets of the tunnel, with segmentation offload for sending, coalesced datagrams for receiving, and source
//! address and ECN in both directions.
//!
//! One `sendmsg` sends a batch of equal datagrams (`UDP_SEGMENT`), one `recvmmsg` receives up to 32 messages of up to
//! 64 datagrams each (`UDP_GRO`). Sockets are non-blocking and never fragment: `IP_PMTUDISC_PROBE` ignores the kernel's
//! estimate of the path MTU. So a datagram above the MTU of the device fails with `EMSGSIZE`, and a datagram above the
//! path's MTU is lost. The engine detects such losses.
//!
//! Some devices refuse segments although the kernel offers them (quinn issues 1128, 2399). The datagrams of such a
//! batch are sent again one by one. If that works, segmentation was the cause, and the socket does not use it from
//! then on. Sending is implemented here, because the `send` of quinn-udp would permanently lose the ECN mark after
//! the first `EINVAL`, even if that error was caused by a source address that no longer exists. Receiving and the
//! socket options are implemented by quinn-udp.
//!
//! Addresses are plain: a dual-stack socket accepts and reports IPv4 addresses as IPv4.

use std::{
    cell::Cell,
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use pleach_core::packet::Ecn;
use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, UdpSockRef, UdpSocketState};
use socket2::{Domain, MsgHdr, Protocol, SockAddr, Socket, Type};

mod control;
mod steering;

use control::Control;

/// Options of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Address and port to bind. With port 0 the kernel chooses the port.
    pub bind: SocketAddr,
    /// For an IPv6 wildcard address: whether the socket also serves IPv4. On a host without IPv6, such a socket
    /// serves IPv4 only.
    pub dual_stack: bool,
    /// The device of all datagrams, regardless of the routes.
    pub device: Option<String>,
    /// Mark of all datagrams, for rules that keep them out of the tunnel. If the kernel refuses marks, a warning is
    /// logged and no mark is set.
    pub fwmark: Option<u32>,
    /// Whether other sockets of this user may have the same address and port, if they have this option too. The kernel
    /// delivers each datagram to one socket of the group (`SO_REUSEPORT`).
    pub is_shared: bool,
}

impl UdpOptions {
    /// Creates options that only bind the socket. Everything else is off.
    #[must_use]
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            dual_stack: false,
            device: None,
            fwmark: None,
            is_shared: false,
        }
    }
}

/// A batch of datagrams to one destination.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Destination of the datagrams.
    pub destination: SocketAddr,
    /// Source address. `None`: the kernel chooses it.
    pub src_ip: Option<IpAddr>,
    /// ECN code point; [`Ecn::Capable`] is sent as ECT(0).
    pub ecn: Ecn,
    /// Length of each datagram in `contents` except the last, which may be shorter. `None`: one datagram.
    pub segment_size: Option<usize>,
    /// The datagrams, one after the other. There may be more than one system call accepts; then several calls are used.
    pub contents: &'a [u8],
}

/// One message of the kernel: a datagram, or several of equal length from one sender.
#[derive(Debug)]
pub struct Received<'a> {
    /// Sender.
    pub source: SocketAddr,
    /// The local address to which the datagrams were sent.
    pub destination: Option<IpAddr>,
    /// Index of the device by which the datagrams arrived.
    pub ifindex: Option<u32>,
    /// ECN code point.
    pub ecn: Ecn,
    /// Length of each datagram except the last, which may be shorter. At least 1.
    pub stride: usize,
    /// The datagrams. Not empty.
    pub contents: &'a mut [u8],
}

/// Buffers for [`UdpSocket::recv`]: 2 MiB, which all sockets of a thread share.
pub struct RecvBatch {
    storage: Box<[u8]>,
}

impl Default for RecvBatch {
    fn default() -> Self {
        Self {
            storage: vec![0; BATCH_SIZE * MESSAGE_LEN].into(),
        }
    }
}

impl std::fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvBatch").finish_non_exhaustive()
    }
}

/// A UDP socket of one thread.
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
    state: UdpSocketState,
    is_v6: bool,
    segmentation: Cell<bool>,
    checksums: Cell<bool>,
    segmentation_refusals: Cell<u64>,
}

impl UdpSocket {
    /// Creates and binds a socket.
    ///
    /// # Errors
    /// If a permission, device or address is missing, the error contains the remedy. Otherwise returns the error of the
    /// system call.
    pub fn bind(options: &UdpOptions) -> io::Result<Self> {
        let mut address = options.bind;
        let new = |address| {
            let domain = Domain::for_address(address);
            Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))
        };
        let socket = match new(address) {
            Err(error)
                if error.raw_os_error() == Some(libc::EAFNOSUPPORT) && options.dual_stack =>
            {
                // A host without IPv6 serves IPv4 only.
                address.set_ip(Ipv4Addr::UNSPECIFIED.into());
                new(address)
            }
            result => result,
        };
        let socket = socket.map_err(|error| explain(&error, &address.to_string()))?;
        let is_v6 = address.is_ipv6();
        if is_v6 {
            socket.set_only_v6(!options.dual_stack)?;
        }
        if let Some(device) = &options.device {
            let bound = socket.bind_device(Some(device.as_bytes()));
            bound.map_err(|error| explain(&error, &format!("device {device}")))?;
        }
        if let Some(mark) = options.fwmark {
            match socket.set_mark(mark) {
                // A socket bound to a device does not use routes through the tunnel, with or without a mark.
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => tracing::warn!(
                    "SO_MARK is refused: rules cannot tell the tunnel's own datagrams from others; grant CAP_NET_ADMIN"
                ),
                marked => marked.map_err(|error| explain(&error, "SO_MARK"))?,
            }
        }
        if options.is_shared {
            let shared = socket.set_reuse_port(true);
            shared.map_err(|error| explain(&error, "SO_REUSEPORT"))?;
        }
        enlarge_buffers(&socket);
        let bound = socket.bind(&address.into());
        bound.map_err(|error| explain(&error, &address.to_string()))?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        disable_timestamps(&socket)?;
        if is_v6 {
            // IPv4 accepts datagrams without checksum in any case. For IPv6 this must be enabled (RFC 6935, RFC 6936).
            let allowed = set_option(&socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1);
            allowed.map_err(|error| explain(&error, "UDP_NO_CHECK6_RX"))?;
        }
        Ok(Self {
            segmentation: Cell::new(state.max_gso_segments() > 1),
            checksums: Cell::new(true),
            socket,
            state,
            is_v6,
            segmentation_refusals: Cell::new(0),
        })
    }

    /// Returns the address to which the socket is bound.
    ///
    /// # Errors
    /// Returns the error of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?.as_socket();
        address.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Returns the number of datagrams that one system call can send: 64, or 1 after a device refused segments. Also 1
    /// while checksums are off, because the kernel does not segment without checksums.
    #[must_use]
    pub fn max_segments(&self) -> usize {
        if self.segmentation.get() && self.checksums.get() {
            self.state.max_gso_segments()
        } else {
            1
        }
    }

    /// Returns how often a device refused a batch of segments whose datagrams were then sent one by one.
    #[must_use]
    pub fn segmentation_refusals(&self) -> u64 {
        self.segmentation_refusals.get()
    }

    /// Sends a batch. Returns the number of bytes accepted: all, or some whole datagrams if the socket's buffer became
    /// full.
    ///
    /// # Errors
    /// If nothing was accepted: [`io::ErrorKind::WouldBlock`] if the socket's buffer is full; `EMSGSIZE` if the
    /// datagrams are longer than the MTU of the device; `EINVAL` or `ENETUNREACH` if the source address no longer
    /// exists; other errors of `sendmsg(2)` if there is no route.
    pub fn send(&self, transmit: &Transmit<'_>) -> io::Result<usize> {
        let total = transmit.contents.len();
        let segment = transmit
            .segment_size
            .unwrap_or(total)
            .clamp(1, total.max(1));
        let mut sent = 0;
        loop {
            let rest = &transmit.contents[sent..];
            let segments = self.max_segments().min(MAX_PAYLOAD / segment).max(1);
            let batch = &rest[..rest.len().min(segments * segment)];
            match self.send_batch(transmit, batch, segment) {
                Ok(taken) => sent += taken,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => return Ok(sent),
            }
            if sent >= total {
                return Ok(sent);
            }
        }
    }

    /// Sends a batch by one system call, or by one call for each datagram if segmentation was refused.
    fn send_batch(
        &self,
        transmit: &Transmit<'_>,
        batch: &[u8],
        segment: usize,
    ) -> io::Result<usize> {
        if batch.len() <= segment {
            return self.send_message(transmit, batch, None);
        }
        let refusal = match self.send_message(transmit, batch, Some(segment)) {
            Err(error) if is_refusal(&error) => error,
            result => return result,
        };
        let mut sent = 0;
        let mut too_long = 0;
        for datagram in batch.chunks(segment) {
            match self.send_message(transmit, datagram, None) {
                Ok(taken) => sent += taken,
                // Shorter datagrams that follow may still be accepted.
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    too_long += datagram.len();
                }
                // A single datagram fails too, so segmentation was not the cause.
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if too_long > 0 {
            // Some datagrams were too long even without segmentation, so segmentation was not the cause.
            return if sent == 0 {
                Err(refusal)
            } else {
                Ok(sent + too_long)
            };
        }
        self.segmentation.set(false);
        self.segmentation_refusals
            .set(self.segmentation_refusals.get() + 1);
        tracing::info!(
            destination = %transmit.destination,
            error = %refusal,
            "the device does not take UDP segments; sending datagrams one by one"
        );
        Ok(sent)
    }

    fn send_message(
        &self,
        transmit: &Transmit<'_>,
        contents: &[u8],
        segment: Option<usize>,
    ) -> io::Result<usize> {
        let mut control = Control::new();
        control.push_ecn(transmit.destination.is_ipv6(), transmit.ecn);
        if let Some(source) = transmit.src_ip {
            control.push_source(source);
        }
        if let Some(segment) = segment {
            control.push_segment(u16::try_from(segment).unwrap_or(u16::MAX));
        }
        let destination = SockAddr::from(if self.is_v6 {
            to_mapped(transmit.destination)
        } else {
            transmit.destination
        });
        let contents = [IoSlice::new(contents)];
        let message = MsgHdr::new()
            .with_addr(&destination)
            .with_buffers(&contents)
            .with_control(control.as_slice());
        loop {
            match self.socket.sendmsg(&message, 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Receives at most 32 messages that have arrived, and passes each to `handle`. Returns the number of messages.
    ///
    /// Fewer than 32 messages do not mean that the socket is empty; the poller reports remaining messages.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::WouldBlock`] if nothing has arrived, or other errors of `recvmmsg(2)`.
    pub fn recv(
        &self,
        batch: &mut RecvBatch,
        mut handle: impl FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let mut chunks = batch.storage.chunks_exact_mut(MESSAGE_LEN);
        let mut buffers: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let socket = UdpSockRef::from(&self.socket);
        let count = self.state.recv(socket, &mut buffers, &mut metas)?;
        for (buffer, meta) in buffers.iter_mut().zip(&metas[..count]) {
            if meta.len == 0 {
                continue;
            }
            handle(Received {
                source: SocketAddr::new(meta.addr.ip().to_canonical(), meta.addr.port()),
                destination: meta.dst_ip.map(|ip| ip.to_canonical()),
                ifindex: meta.interface_index,
                ecn: match meta.ecn {
                    None => Ecn::NotCapable,
                    Some(EcnCodepoint::Ect0 | EcnCodepoint::Ect1) => Ecn::Capable,
                    Some(EcnCodepoint::Ce) => Ecn::Congested,
                },
                stride: meta.stride.clamp(1, meta.len),
                contents: &mut buffer[..meta.len],
            });
        }
        Ok(count)
    }

    /// Returns the number of sent bytes that still wait in this host (`SIOCOUTQ`), with the kernel's overhead, by one
    /// cheap system call.
    ///
    /// # Errors
    /// Returns the error of `ioctl(2)`.
    pub fn queued_bytes(&self) -> io::Result<usize> {
        let mut queued: libc::c_int = 0;
        // SAFETY: the descriptor is open, and TIOCOUTQ (the same number as SIOCOUTQ) writes one int.
        let result =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(usize::try_from(queued).unwrap_or(0))
    }

    /// Sets whether datagrams sent from now on have a UDP checksum. Initially, datagrams have a checksum. Without
    /// checksums, datagrams with bit errors are delivered; over IPv6 only to sockets that accept such datagrams, like
    /// the sockets of this module. Needs a system call if the setting changes.
    ///
    /// # Errors
    /// Returns the error of `setsockopt(2)`.
    pub fn set_checksums(&self, are_wanted: bool) -> io::Result<()> {
        if self.checksums.get() == are_wanted {
            return Ok(());
        }
        let off = libc::c_int::from(!are_wanted);
        set_option(&self.socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, off)?;
        if self.is_v6 {
            set_option(&self.socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, off)?;
        }
        self.checksums.set(are_wanted);
        Ok(())
    }

    /// Lets the kernel deliver the datagrams of sessions to the sockets that share this socket's address, by receiver
    /// index: the sockets belong to `workers` workers ([`pleach_core::endpoint::workers`]) in the order in which they
    /// were bound. All other datagrams go to the first socket. Applies to the whole group.
    ///
    /// # Errors
    /// Returns the error of `setsockopt(2)`.
    pub fn steer(&self, workers: u32) -> io::Result<()> {
        steering::attach(&self.socket, workers)
    }

    /// Sends only single datagrams from now on, as after a refusal.
    pub fn disable_segmentation(&self) {
        self.segmentation.set(false);
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether the cause of `error` may be a device or kernel that cannot segment.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}

/// Converts IPv4 destinations of an IPv6 socket to `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2).
fn to_mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => {
            let ip: Ipv6Addr = v4.ip().to_ipv6_mapped();
            SocketAddrV6::new(ip, v4.port(), 0, 0).into()
        }
        SocketAddr::V6(_) => address,
    }
}

/// Enlarges the buffers for bursts: above the system's limit if permitted, otherwise up to it.
fn enlarge_buffers(socket: &Socket) {
    set_buffers(socket, BUFFER_LEN);
    if socket.recv_buffer_size().is_ok_and(|len| len < BUFFER_LEN) {
        tracing::info!(
            "small socket buffers: raise net.core.rmem_max and wmem_max to 4194304, or run with CAP_NET_ADMIN"
        );
    }
}

/// Sets the buffers of `socket` for both directions to `len` bytes if permitted, otherwise to the system's limit.
pub fn set_buffers(socket: &Socket, len: usize) {
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(socket, len).is_err() {
        let _ = socket.set_recv_buffer_size(len);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, len).is_err() {
        let _ = socket.set_send_buffer_size(len);
    }
}

/// Disables the receive timestamps that quinn-udp 0.6 enables. With them, its buffer of 88 bytes for control messages
/// is too short for the ECN mark of coalesced IPv4 datagrams.
fn disable_timestamps(socket: &Socket) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0)
}

fn set_option(
    socket: &Socket,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    // SAFETY: the descriptor is open, and the pointer and length describe the live int.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            len,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn explain(error: &io::Error, what: &str) -> io::Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "run as root or with CAP_NET_ADMIN and CAP_NET_RAW",
        Some(libc::ENODEV) => "there is no such device now",
        Some(libc::EADDRINUSE) => "another program has that port: stop it or choose another",
        Some(libc::EADDRNOTAVAIL) => "this host has no such address",
        Some(libc::EAFNOSUPPORT) => "IPv6 is switched off on this host: use an IPv4 address",
        _ => return io::Error::new(error.kind(), format!("UDP socket, {what}: {error}")),
    };
    io::Error::new(
        error.kind(),
        format!("UDP socket, {what}: {error}; {remedy}"),
    )
}

/// Length in bytes of the buffer for one message: the longest coalesced message.
const MESSAGE_LEN: usize = 65_536;

/// Largest payload in bytes of one `sendmsg`: 65 535 minus IPv4 and UDP headers. IPv6 permits 20 bytes more, which does
/// not matter.
const MAX_PAYLOAD: usize = 65_535 - 28;

/// Size of socket buffers in bytes: 30 ms at 1 Gbit/s. The kernel doubles this value for its overhead.
const BUFFER_LEN: usize = 4 << 20;
