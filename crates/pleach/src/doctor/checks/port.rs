//! Whether another program uses the gateway's port.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
};

use crate::{config::plain, doctor::problem::Problem};

/// Returns the error of binding `address`; `None` if binding succeeds.
pub(crate) fn observe(address: SocketAddr) -> Option<io::Error> {
    UdpSocket::bind(address).err()
}

pub(crate) fn verdict(address: SocketAddr, refused: Option<&io::Error>) -> Option<Problem> {
    let error = refused?;
    Some(if error.kind() == io::ErrorKind::AddrInUse {
        Problem::new(
            "port-taken",
            format!("another program uses UDP port {}", address.port()),
            "stop that program (`ss -lunp` shows it), or choose another port in [tunnel] listen",
        )
    } else {
        Problem::new(
            "port-taken",
            format!("pleach cannot listen on {address}: {}", plain(error)),
            "write listen = \"[::]:PORT\" for all addresses of this host",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_told_from_a_wrong_address() {
        let first = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = first.local_addr().expect("bound");
        let problem = verdict(address, observe(address).as_ref()).expect("found");
        assert!(
            problem.what.contains("another program uses"),
            "{}",
            problem.what
        );
        drop(first);
        let foreign = "203.0.113.77:7700".parse().expect("literal");
        let problem = verdict(foreign, observe(foreign).as_ref()).expect("found");
        assert!(problem.what.contains("cannot listen"), "{}", problem.what);
        assert_eq!(verdict(address, None), None);
    }
}
