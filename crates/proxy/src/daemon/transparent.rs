//! Transparent mode: the redirect in the kernel, and the connections that it redirects to the proxy.
//!
//! Redirected connections arrive at separate listeners, one for each address family, on a port chosen by the kernel.
//! A connection to these listeners that was not redirected is closed.

use std::{
    cell::RefCell,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use ipnet::IpNet;
use pleach_linux::redirect::{self, Redirect};
use tokio::net::{TcpListener, TcpStream};

use super::listening::listen;

/// Listeners and redirect of the transparent mode.
#[derive(Debug)]
pub(crate) struct Transparent {
    v4: TcpListener,
    /// IPv6 listener. `None` on a host without IPv6.
    v6: Option<TcpListener>,
    port: u16,
    redirect: Redirect,
    /// Networks and devices that the applied redirect exempts.
    applied: RefCell<Option<(Vec<IpNet>, Vec<String>)>>,
}

impl Transparent {
    /// Opens the listeners and reserves the redirect of the proxy on port `name`. Nothing is redirected before
    /// [`Self::apply`].
    ///
    /// # Errors
    /// Fails as [`Redirect::begin`] does.
    pub(crate) fn start(base: &Path, name: u16) -> io::Result<Self> {
        let redirect = Redirect::begin(base, name)?;
        let v4 = listen((Ipv4Addr::UNSPECIFIED, 0).into(), false)?;
        let port = v4.local_addr()?.port();
        let v6 = listen((Ipv6Addr::UNSPECIFIED, port).into(), true).ok();
        Ok(Self {
            v4,
            v6,
            port,
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

    /// Redirects all connections except those to `direct`, the subnets of this host's devices, and those that arrive
    /// on `uplinks`, the devices of the links.
    pub(crate) fn apply(&self, mut direct: Vec<IpNet>, uplinks: Vec<String>) {
        direct.sort_unstable();
        direct.dedup();
        let wanted = (direct, uplinks);
        if self.applied.borrow().as_ref() == Some(&wanted) {
            return;
        }
        let (direct, uplinks) = &wanted;
        match self
            .redirect
            .apply(self.port, redirect::MARK, direct, uplinks)
        {
            Ok(()) => *self.applied.borrow_mut() = Some(wanted),
            Err(error) => tracing::error!(%error, "connections are not redirected"),
        }
    }
}
