//! Listening sockets.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use tokio::net::TcpListener;

/// Listens on `address`. The unspecified IPv6 address accepts IPv4 connections too, unless `only_v6` is set.
pub(super) fn listen(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM.nonblocking().cloexec(),
        Some(socket2::Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        // `only_v6` is set if IPv4 has its own listener on the same port.
        socket.set_only_v6(only_v6)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;
