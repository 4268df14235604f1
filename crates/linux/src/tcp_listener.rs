//! TCP listeners on one device.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

use socket2::{Domain, Protocol, Socket, Type};

/// A listener for IPv6 and IPv4, or for IPv4 where there is no IPv6; on `device` if named. Port 0 lets the kernel choose one;
/// `backlog`: connections that wait to be accepted.
///
/// # Errors
/// The port is taken; there is no such device.
pub fn listen(device: Option<&str>, port: u16, backlog: i32) -> io::Result<TcpListener> {
    let open = |domain, address: SocketAddr| -> io::Result<Socket> {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if let Some(device) = device {
            socket.bind_device(Some(device.as_bytes()))?;
        }
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.listen(backlog)?;
        Ok(socket)
    };
    let v6 = open(Domain::IPV6, (Ipv6Addr::UNSPECIFIED, port).into());
    let v4 = |_| open(Domain::IPV4, (Ipv4Addr::UNSPECIFIED, port).into());
    v6.or_else(v4).map(TcpListener::from)
}
