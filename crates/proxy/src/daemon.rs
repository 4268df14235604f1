//! The running proxy. It accepts clients, connects them to servers, watches the links, and counts bytes.
//!
//! One thread runs everything ([`Daemon::run`] on a current-thread tokio runtime, inside a `LocalSet`). There is a task
//! for each client, a task that follows the links of the host, and a task that closes the windows of the estimators.
//! Payload moves in the kernel ([`crate::relay`]), so one thread is enough for several Gbit/s. Calls that may block,
//! such as the lookup of names and processes, run on a few additional threads.
//!
//! | module | content |
//! | --- | --- |
//! | [`settings`] | settings from the configuration |
//! | `hub` | state that all tasks share; windows, idle limits |
//! | `links` | networks that each link reaches, from the devices of the host |
//! | `client` | serves one client, from its first byte |
//! | `peers` | connections through other pleach proxies |
//! | `dialing` | dials the lanes to peers |
//! | `answering` | answers the connections of peers |
//! | `admission` | checks what peers may reach |
//! | `peer_flows` | UDP flows through other pleach proxies |
//! | `answering_flows` | answers the UDP flows of peers |
//! | [`known`] | list of trusted peers |
//! | [`enrolling`] | enrolment of a peer by an invitation |
//! | `kept` | idle connections that a client's next plain HTTP request can reuse |
//! | `connect` | connects to several addresses and over several links in parallel |
//! | `resolve` | resolves names to addresses |
//! | `apps` | finds the program of a connection |
//! | `probe` | measures the capacity of links with downloads from servers |
//! | `thrift` | budgets of links, and saving energy on battery |
//! | `transparent` | connections that the kernel redirects to the proxy |
//! | `diverted` | UDP datagrams that the kernel diverts to the proxy |
//! | `descriptors` | places of UDP clients and their sockets in the count of connections |
//! | [`cgroup`] | sockets of programs that the kernel binds to links |
//! | [`report`] | report for `pleach status` |

mod admission;
mod answering;
mod answering_flows;
mod apps;
pub mod cgroup;
mod change;
pub(crate) mod client;
pub(crate) mod connect;
pub(crate) mod descriptors;
mod dialing;
mod diverted;
pub(crate) mod drops;
pub mod enrolling;
mod flows;
pub(crate) mod hub;
pub(crate) mod kept;
pub mod known;
mod learnt;
mod links;
mod listening;
pub(crate) mod live;
pub(crate) mod peer_flows;
pub(crate) mod peers;
mod probe;
pub mod report;
mod resolve;
pub(crate) mod room;
pub mod settings;
pub(crate) mod share;
mod strangers;
mod stripe_place;
mod thrift;
mod transparent;
mod uplinks;
pub(crate) mod windows;

use std::{io, net::SocketAddr, rc::Rc, time::Duration};

use pleach_linux::{clock, readiness::Readiness, redirect, watch::LinkWatch};
use tokio::{net::TcpListener, task::spawn_local, time};

use crate::placer::WINDOW;
use cgroup::Cgroup;
pub use change::Change;
use hub::Hub;
pub use known::KnownPeer;
use listening::listen;
pub use report::Report;
pub use settings::{LinkConfig, Probe, SaveEnergy, Settings, StripeSettings, Transparency};
use thrift::Thrift;
use transparent::Transparent;

/// A proxy with open listening sockets.
#[derive(Debug)]
pub struct Daemon {
    hub: Rc<Hub>,
    listener: TcpListener,
    peers: Option<TcpListener>,
    transparent: Option<Transparent>,
    cgroup: Option<Cgroup>,
}

impl Daemon {
    /// Opens the listening sockets, and redirects or binds connections as the settings say. Call it inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// A port is already in use, or connections cannot be redirected or bound as the settings say.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let listener = listen(settings.listen, false)?;
        let name = listener.local_addr()?.port();
        let base = settings.state_dir.as_path();
        let transparent = if let Transparency::Redirect { udp } = settings.transparent {
            Some(Transparent::start(base, name, udp)?)
        } else {
            redirect::recover(base, name)?;
            None
        };
        let cgroup = match &settings.transparent {
            Transparency::Cgroup(path) => Some(Cgroup::start(path.as_deref())?),
            Transparency::Off | Transparency::Redirect { .. } => None,
        };
        let asked = settings.stripe.as_ref().and_then(|stripe| stripe.listen);
        let peers = asked
            .map(|address| {
                let name = |error: io::Error| {
                    io::Error::new(error.kind(), format!("[peer] listen {address}: {error}"))
                };
                listen(address, false).map_err(name)
            })
            .transpose()?;
        let hub = Rc::new(Hub::new(settings));
        Ok(Self {
            hub,
            listener,
            peers,
            transparent,
            cgroup,
        })
    }

    /// Returns the address on which the proxy listens for clients.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until dropped. Run it inside a `LocalSet`.
    ///
    /// # Errors
    /// The links cannot be watched.
    pub async fn run(&self) -> io::Result<()> {
        tokio::try_join!(
            self.accept(),
            self.accept_peers(),
            self.accept_redirected(),
            self.forward_diverted(),
            self.follow_links(),
            self.close_windows(),
            self.divide_links(),
            probe::run(&self.hub)
        )
        .map(drop)
    }

    /// Returns the present state.
    #[must_use]
    pub fn report(&self) -> Report {
        report::report(&self.hub)
    }

    /// Changes the scheduler, a rule or weights. Existing connections stay on their links.
    ///
    /// # Errors
    /// The link does not exist, or there is no rule to remove. The text is one line for the user.
    pub fn change(&self, change: Change) -> Result<(), String> {
        change::apply(&self.hub, change)
    }

    /// Returns the estimates that are to be stored on disk.
    #[must_use]
    pub fn learnt(&self) -> report::Learnt {
        report::learnt(&self.hub)
    }

    /// Replaces the list of trusted peers by `peers`. Connections to peers that are no longer trusted end. Returns one
    /// sentence per change.
    pub fn set_known(&self, peers: Vec<KnownPeer>) -> Vec<String> {
        let Some(settings) = &self.hub.settings.stripe else {
            return Vec::new();
        };
        let (put, removed) = settings.known.replace(peers);
        for (number, _) in &removed {
            self.hub.peering.forget(*number);
        }
        let put = put.iter().map(|name| format!("peer {name} is known"));
        let removed = removed
            .iter()
            .map(|(_, name)| format!("peer {name} is removed"));
        put.chain(removed).collect()
    }

    /// Restores estimates that an earlier process stored.
    pub fn restore(&self, learnt: report::Learnt) {
        self.hub.restore(learnt);
    }

    async fn accept(&self) -> io::Result<()> {
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    if let Some(place) = self.hub.admit(from.ip()) {
                        let hub = Rc::clone(&self.hub);
                        spawn_local(async move {
                            client::serve(&hub, stream, from).await;
                            drop(place);
                        });
                    }
                }
                Err(error) => {
                    // The process is out of file descriptors or memory. Wait until other connections have released
                    // some.
                    tracing::warn!(%error, "connection not accepted");
                    time::sleep(BREATHER).await;
                }
            }
        }
    }

    async fn accept_peers(&self) -> io::Result<()> {
        let Some(peers) = &self.peers else {
            return Ok(());
        };
        loop {
            match peers.accept().await {
                Ok((stream, from)) => {
                    let hub = Rc::clone(&self.hub);
                    spawn_local(async move { answering::serve(&hub, stream, from).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    time::sleep(BREATHER).await;
                }
            }
        }
    }

    async fn accept_redirected(&self) -> io::Result<()> {
        let Some(transparent) = &self.transparent else {
            return Ok(());
        };
        loop {
            match transparent.accept().await {
                Ok((_, _, None)) => self.hub.count_drop("not-redirected"),
                Ok((stream, from, Some(wanted))) => {
                    if let Some(place) = self.hub.admit_redirected() {
                        let hub = Rc::clone(&self.hub);
                        spawn_local(async move {
                            client::serve_redirected(&hub, stream, from, wanted).await;
                            drop(place);
                        });
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    time::sleep(BREATHER).await;
                }
            }
        }
    }

    async fn forward_diverted(&self) -> io::Result<()> {
        match &self.transparent {
            Some(transparent) => diverted::run(&self.hub, transparent).await,
            None => Ok(()),
        }
    }

    async fn follow_links(&self) -> io::Result<()> {
        let watch = LinkWatch::start()?;
        let changes = Readiness::of(&watch)?;
        loop {
            changes.changed().await?;
            if let Some(snapshot) = watch.take() {
                links::apply(&self.hub, &snapshot);
                if let Some(cgroup) = &self.cgroup {
                    cgroup.apply(&self.hub, &snapshot);
                }
                if let Some(transparent) = &self.transparent {
                    transparent.apply(links::beside(&snapshot), self.hub.uplinks.device_names());
                }
            }
        }
    }

    async fn close_windows(&self) -> io::Result<()> {
        let mut ticks = time::interval(WINDOW);
        ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let mut thrift = Thrift::default();
        loop {
            ticks.tick().await;
            let now = clock::now();
            self.hub.handle_window(now);
            thrift.handle_window(&self.hub);
            if let Some(cgroup) = &self.cgroup {
                cgroup.handle_window(&self.hub, now);
            }
        }
    }

    async fn divide_links(&self) -> io::Result<()> {
        if !self.hub.settings.short_queues {
            return Ok(());
        }
        let mut ticks = time::interval(windows::LOOK);
        ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let mut last = clock::now();
        loop {
            ticks.tick().await;
            let now = clock::now();
            windows::divide_links(&self.hub, now, now.since(last));
            last = now;
        }
    }
}

/// Pause after a failed accept.
const BREATHER: Duration = Duration::from_millis(50);
