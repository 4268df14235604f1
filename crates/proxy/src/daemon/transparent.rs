//! Transparent mode: the redirect in the kernel, and the connections and datagrams that it redirects to the proxy.
//!
//! Redirected connections arrive at separate listeners, one for each address family, on a port chosen by the kernel.
//! A connection to these listeners that was not redirected is closed. Datagrams arrive at sockets of their own. If the
//! kernel cannot divert datagrams, they go past the proxy, and connections are redirected nevertheless.

use std::{
    cell::{Cell, RefCell},
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use ipnet::IpNet;
use pleach_linux::{
    redirect::{self, Ports, Redirect, divert::Diverted},
    udp,
};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::listening::listen;

/// Listeners and redirect of the transparent mode.
#[derive(Debug)]
pub(crate) struct Transparent {
    v4: TcpListener,
    /// IPv6 listener. `None` on a host without IPv6.
    v6: Option<TcpListener>,
    /// Sockets for datagrams, IPv4 and IPv6. `None` if datagrams of the family are not diverted.
    datagrams: [Option<UdpSocket>; 2],
    ports: Cell<Ports>,
    redirect: Redirect,
    /// Networks and devices that the applied redirect exempts.
    applied: RefCell<Option<(Vec<IpNet>, Vec<String>)>>,
}

impl Transparent {
    /// Opens the listeners and reserves the redirect of the proxy on port `name`. Nothing is redirected before
    /// [`Self::apply`]. `udp`: whether datagrams are redirected as well.
    ///
    /// # Errors
    /// Fails as [`Redirect::begin`] does.
    pub(crate) fn start(base: &Path, name: u16, udp: bool) -> io::Result<Self> {
        let redirect = Redirect::begin(base, name)?;
        let v4 = listen((Ipv4Addr::UNSPECIFIED, 0).into(), false)?;
        let port = v4.local_addr()?.port();
        let v6 = listen((Ipv6Addr::UNSPECIFIED, port).into(), true).ok();
        let prepared = udp.then(|| prepare_datagrams(&redirect));
        let (datagrams, udp) = match prepared {
            Some(Ok((datagrams, port))) => (datagrams, Some(port)),
            Some(Err(error)) => {
                tracing::error!(%error, "UDP goes past the proxy");
                ([None, None], None)
            }
            None => ([None, None], None),
        };
        Ok(Self {
            v4,
            v6,
            datagrams,
            ports: Cell::new(Ports { tcp: port, udp }),
            redirect,
            applied: RefCell::new(None),
        })
    }

    /// Accepts the next redirected connection. Returns its stream, the client's address, and the original
    /// destination.
    ///
    /// # Errors
    /// Fails if the process is out of descriptors or memory.
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr, Option<SocketAddr>)> {
        let v6 = async {
            match &self.v6 {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        let (stream, from) = tokio::select! {
            accepted = self.v4.accept() => accepted?,
            accepted = v6 => accepted?,
        };
        let wanted = redirect::original_destination(&stream);
        Ok((stream, from, wanted))
    }

    /// Returns the sockets for datagrams, IPv4 and IPv6.
    pub(crate) fn datagrams(&self) -> [Option<&UdpSocket>; 2] {
        self.datagrams.each_ref().map(Option::as_ref)
    }

    /// Redirects all connections and datagrams except those to `direct`, the subnets of this host's devices, and those
    /// that arrive on `uplinks`, the devices of the links.
    pub(crate) fn apply(&self, mut direct: Vec<IpNet>, uplinks: Vec<String>) {
        direct.sort_unstable();
        direct.dedup();
        let wanted = (direct, uplinks);
        if self.applied.borrow().as_ref() == Some(&wanted) {
            return;
        }
        let (direct, uplinks) = &wanted;
        let apply = |ports: Ports| self.redirect.apply(ports, redirect::MARK, direct, uplinks);
        let ports = self.ports.get();
        let applied = apply(ports).or_else(|error| {
            let tcp_only = Ports { udp: None, ..ports };
            if ports == tcp_only {
                return Err(error);
            }
            // A kernel without TPROXY refuses the whole table.
            apply(tcp_only)?;
            tracing::error!(%error, "UDP goes past the proxy");
            self.ports.set(tcp_only);
            Ok(())
        });
        match applied {
            Ok(()) => *self.applied.borrow_mut() = Some(wanted),
            Err(error) => tracing::error!(%error, "connections are not redirected"),
        }
    }
}

/// Opens the sockets for datagrams, and adds the routes that lead datagrams to them. Also returns the port.
fn prepare_datagrams(redirect: &Redirect) -> io::Result<([Option<UdpSocket>; 2], u16)> {
    redirect::divert::check_host()?;
    let v4 = Diverted::bind(false, 0)?;
    let port = v4.port()?;
    let open = |diverted: Diverted| {
        let socket = diverted.into_socket();
        udp::set_buffers(&socket, BUFFER_LEN);
        UdpSocket::from_std(socket.into())
    };
    // A host without IPv6 has no such datagrams.
    let v6 = Diverted::bind(true, port).and_then(open).ok();
    redirect.prepare_divert()?;
    Ok(([Some(open(v4)?), v6], port))
}

/// Size in bytes of the buffers of the sockets for datagrams, which all senders share.
const BUFFER_LEN: usize = 4 << 20;
