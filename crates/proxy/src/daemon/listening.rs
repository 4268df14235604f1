//! Listening sockets.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use tokio::net::TcpListener;

/// Listens on `address`; the unspecified IPv6 address takes IPv4 too, unless it is to be `only_v6`.
pub(super) fn listen(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM.nonblocking().cloexec(),
        Some(socket2::Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        // Both families, or IPv6 alone where IPv4 has a listener of its own on the port.
        socket.set_only_v6(only_v6)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 1024;
