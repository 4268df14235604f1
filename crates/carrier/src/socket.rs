//! TCP sockets: bound to a link, with short queues.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
    time::Duration,
};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Connects to `to` by `device` from `source`, if given.
pub(crate) async fn connect(
    device: &str,
    source: Option<IpAddr>,
    fwmark: Option<u32>,
    to: SocketAddr,
) -> io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(to),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    socket.bind_device(Some(device.as_bytes()))?;
    if let Some(fwmark) = fwmark {
        // Where it is refused, the UDP sockets have warned already.
        let _ = socket.set_mark(fwmark);
    }
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    if let Some(source) = source.filter(|source| source.is_ipv4() == any.is_ipv4()) {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    tune(&socket)?;
    TcpSocket::from_std_stream(socket.into()).connect(to).await
}

/// Listens on `address`; an unspecified IPv6 address serves IPv4 too.
pub(crate) fn listen(address: SocketAddr, fwmark: Option<u32>) -> io::Result<TcpListener> {
    let new = |address| {
        let domain = Domain::for_address(address);
        Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))
    };
    let mut address = address;
    let socket = match new(address) {
        Err(_) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            address.set_ip(Ipv4Addr::UNSPECIFIED.into());
            new(address)?
        }
        result => result?,
    };
    if address.is_ipv6() {
        socket.set_only_v6(address.ip() != IpAddr::V6(Ipv6Addr::UNSPECIFIED))?;
    }
    if let Some(fwmark) = fwmark {
        let _ = socket.set_mark(fwmark);
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Little unsent data, no delay of small segments, an end of connections that are not acknowledged.
pub(crate) fn tune(socket: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(UNSENT_BYTES)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_FOR))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
}

/// Bytes that the kernel keeps beyond what the congestion window lets it send.
const UNSENT_BYTES: u32 = 16_384;
/// The engine knows of a dead link long before.
const UNACKNOWLEDGED_FOR: Duration = Duration::from_secs(8);
const KEEPALIVE: Duration = Duration::from_secs(45);
const BACKLOG: i32 = 128;
