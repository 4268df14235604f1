//! UDP sockets of the tunnel: segmentation offload out, coalesced datagrams in, source address and ECN both ways.
//!
//! One `sendmsg` sends a batch of equal datagrams (`UDP_SEGMENT`), one `recvmmsg` takes up to 32 messages of up to 64
//! datagrams each (`UDP_GRO`). Sockets are non-blocking and never fragment: `IP_PMTUDISC_PROBE` ignores the kernel's
//! guess of the path MTU, so a datagram above the MTU of the device fails with `EMSGSIZE`, and one above the path's is
//! lost; the engine finds out which.
//!
//! Some devices refuse segments although the kernel offers them (quinn issues 1128, 2399). Such a batch is sent again
//! one by one; if that works, it was the segmentation, and the socket does without from then on. Sending is therefore
//! our own; receiving and the socket options are quinn-udp's, whose `send` would lose the ECN mark for ever after the
//! first `EINVAL`, even one that only means a vanished source address.
//!
//! Addresses are plain: a dual-stack socket takes and reports IPv4 addresses as IPv4.

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

use control::Control;

/// How to make a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Address and port to bind; port 0 lets the kernel choose.
    pub bind: SocketAddr,
    /// For an IPv6 wildcard: serve IPv4 on the same socket, and only IPv4 on a host without IPv6.
    pub dual_stack: bool,
    /// The device all datagrams use, whatever the routes say.
    pub device: Option<String>,
    /// Mark of all datagrams, for rules that keep them out of the tunnel. Where the kernel refuses marks, there is a
    /// warning and no mark.
    pub fwmark: Option<u32>,
}

impl UdpOptions {
    /// Only bind; everything else off.
    #[must_use]
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            dual_stack: false,
            device: None,
            fwmark: None,
        }
    }
}

/// A batch of datagrams to one destination.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Where to.
    pub destination: SocketAddr,
    /// Source address; `None` lets the kernel choose.
    pub src_ip: Option<IpAddr>,
    /// ECN code point; [`Ecn::Capable`] is sent as ECT(0).
    pub ecn: Ecn,
    /// Length of each datagram in `contents` but the last, which may be shorter; `None`: one datagram.
    pub segment_size: Option<usize>,
    /// The datagrams, one after the other. Any number: what the kernel takes at once is sent at once.
    pub contents: &'a [u8],
}

/// One message of the kernel: a datagram, or several of equal length from one sender.
#[derive(Debug)]
pub struct Received<'a> {
    /// Sender.
    pub source: SocketAddr,
    /// The address of ours it was sent to.
    pub destination: Option<IpAddr>,
    /// The device it came in by.
    pub ifindex: Option<u32>,
    /// The congestion mark.
    pub ecn: Ecn,
    /// Length of each datagram but the last, which may be shorter; at least 1.
    pub stride: usize,
    /// The datagrams; not empty.
    pub contents: &'a mut [u8],
}

/// Buffers for [`UdpSocket::recv`]: 2 MiB, shared by all sockets of a thread.
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
    /// Makes and binds a socket.
    ///
    /// # Errors
    /// With the remedy in the text for a missing right, device or address; else the error of the system call.
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
                // A host without IPv6: the other half is what it can have.
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
                // A socket bound to a device finds no route through the tunnel, marked or not.
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => tracing::warn!(
                    "SO_MARK is refused: rules cannot tell the tunnel's own datagrams from others; grant CAP_NET_ADMIN"
                ),
                marked => marked.map_err(|error| explain(&error, "SO_MARK"))?,
            }
        }
        enlarge_buffers(&socket);
        let bound = socket.bind(&address.into());
        bound.map_err(|error| explain(&error, &address.to_string()))?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        disable_timestamps(&socket)?;
        if is_v6 {
            // IPv4 takes datagrams without checksum in any case; IPv6 must be told (RFC 6935, RFC 6936).
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

    /// The address it is bound to.
    ///
    /// # Errors
    /// The error of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?.as_socket();
        address.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// How many datagrams one system call can send: 64, or 1 once a device refused segments, and while there are no
    /// checksums, without which the kernel does not segment.
    #[must_use]
    pub fn max_segments(&self) -> usize {
        if self.segmentation.get() && self.checksums.get() {
            self.state.max_gso_segments()
        } else {
            1
        }
    }

    /// How often a device refused a batch of segments that then went out one by one.
    #[must_use]
    pub fn segmentation_refusals(&self) -> u64 {
        self.segmentation_refusals.get()
    }

    /// Sends a batch and returns how many bytes of it were taken: all, or whole datagrams of it when the socket
    /// filled up in the middle.
    ///
    /// # Errors
    /// When nothing was taken: [`io::ErrorKind::WouldBlock`] if the socket is full; `EMSGSIZE` if the datagrams are
    /// longer than the MTU of the device; `EINVAL` or `ENETUNREACH` if the source address is gone; others of
    /// `sendmsg(2)` if there is no way.
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

    /// One system call; or one for each datagram if the segmentation was refused.
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
                // Shorter ones behind it may pass.
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    too_long += datagram.len();
                }
                // Not the segmentation, then.
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if too_long > 0 {
            // Not the segmentation either.
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

    /// Takes what has arrived, at most 32 messages, and gives each to `handle`; returns how many messages.
    ///
    /// Fewer than 32 does not mean that nothing is left; the poller tells.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if nothing has arrived; others of `recvmmsg(2)`.
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

    /// Bytes sent that still wait in this host (`SIOCOUTQ`), with the kernel's overhead; one cheap system call.
    ///
    /// # Errors
    /// The error of `ioctl(2)`.
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

    /// Whether what is sent from now on has a UDP checksum, as at first. Without one, datagrams with wrong bits arrive; over
    /// IPv6 only at a socket that takes such datagrams, as these do. A system call if it changes.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
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

    /// Sends single datagrams from now on, as after a refusal.
    pub fn disable_segmentation(&self) {
        self.segmentation.set(false);
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether `error` may come from a device or kernel that cannot segment.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
    )
}

/// IPv4 destinations of an IPv6 socket are written as `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2).
fn to_mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => {
            let ip: Ipv6Addr = v4.ip().to_ipv6_mapped();
            SocketAddrV6::new(ip, v4.port(), 0, 0).into()
        }
        SocketAddr::V6(_) => address,
    }
}

/// Buffers for bursts: above the limit of the system if we may, else up to it.
fn enlarge_buffers(socket: &Socket) {
    use rustix::net::sockopt;
    if sockopt::set_socket_recv_buffer_size_force(socket, BUFFER_LEN).is_err() {
        let _ = socket.set_recv_buffer_size(BUFFER_LEN);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, BUFFER_LEN).is_err() {
        let _ = socket.set_send_buffer_size(BUFFER_LEN);
    }
    if socket.recv_buffer_size().is_ok_and(|len| len < BUFFER_LEN) {
        tracing::info!(
            "small socket buffers: raise net.core.rmem_max and wmem_max to 4194304, or run with CAP_NET_ADMIN"
        );
    }
}

/// Takes back an option that quinn-udp 0.6 sets: with receive timestamps, the 88 bytes it has for control messages do
/// not hold the ECN mark of coalesced IPv4 datagrams any more.
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

/// Buffer for one message: the longest coalesced one.
const MESSAGE_LEN: usize = 65_536;

/// The most payload of one `sendmsg`: 65 535 less IPv4 and UDP headers; IPv6 allows more, and 20 bytes do not matter.
const MAX_PAYLOAD: usize = 65_535 - 28;

/// Socket buffers in bytes: 30 ms at 1 Gbit/s. The kernel doubles the number for its overhead.
const BUFFER_LEN: usize = 4 << 20;
