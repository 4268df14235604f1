//! Transparent mode: connections that the kernel redirects here, and the redirect itself.
//!
//! They come to listeners of their own, on a port the kernel chose, one for each family; whoever connects there without
//! having been redirected is sent away.

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

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Transparent {
    v4: TcpListener,
    /// `None` on a host without IPv6.
    v6: Option<TcpListener>,
    port: u16,
    redirect: Redirect,
    /// The networks and devices left alone by what is applied now.
    applied: RefCell<Option<(Vec<IpNet>, Vec<String>)>>,
}

impl Transparent {
    /// Opens the listeners and reserves the redirect of the proxy on port `name`; nothing is redirected yet.
    ///
    /// # Errors
    /// As [`Redirect::begin`].
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

    /// The next redirected connection: with whom, and where it wanted to go.
    ///
    /// # Errors
    /// Out of descriptors or memory.
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

    /// Redirects all but what goes to `direct`, the networks beside this host, and what comes in by `uplinks`, the
    /// devices of the links.
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
