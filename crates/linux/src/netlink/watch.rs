//! State of the host's links, and notification of its changes.
//!
//! A thread listens to the kernel's notifications and uses them only as a hint. After each burst it reads links,
//! addresses, default routes and usable routes to the configured addresses ([`super::lookup`]) again, and publishes a
//! complete snapshot if it differs from the previous one. So lost notifications do no harm, nor do IPv4 routes that
//! disappear without notification when a link goes down. A link is identified by its index for as long as it exists;
//! a new index under an old name is another link.
//!
//! Bounds: a burst ends after 25 ms of silence or after 100 ms. Without notifications the state is read every 5 s. If
//! the connection to the kernel ends, it is opened again, at most once a second.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt};
use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressFlags, AddressMessage},
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    route::{RouteAttribute, RouteMessage, RouteType},
};
use rtnetlink::{Handle, MulticastGroup};
use tokio::{sync::oneshot, time};

use super::lookup::{self, Targets, Way};
use crate::poll::Waker;

/// Current state of one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSnapshot {
    /// Index of the link, which identifies it for as long as it exists.
    pub ifindex: u32,
    /// Current name of the link.
    pub name: String,
    /// Whether the administrator switched the link on.
    pub is_up: bool,
    /// Whether the link has a carrier: the cable is connected, or the modem is online.
    pub has_carrier: bool,
    /// Whether the link is the loopback device.
    pub is_loopback: bool,
    /// Whether the link is a tunnel of another program: TUN or WireGuard.
    pub is_tunnel: bool,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses that can be a source, with their prefix length, sorted. Without link-local IPv6 addresses.
    pub addresses: Vec<IpNet>,
    /// Whether some table has an IPv4 default route over the link.
    pub has_default_v4: bool,
    /// Whether some table has an IPv6 default route over the link.
    pub has_default_v6: bool,
    /// Usable routes from this link to the configured addresses, sorted. Empty while the link is down, and for the
    /// loopback device.
    pub ways: Vec<Way>,
}

impl LinkSnapshot {
    /// Returns the links of the calling thread's namespace, sorted by index, with their usable routes to `targets`.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn read_all(targets: &Targets) -> io::Result<Vec<Self>> {
        let runtime = super::runtime()?;
        let handle = {
            let _guard = runtime.enter();
            let (connection, handle, _) = rtnetlink::new_connection()?;
            runtime.spawn(connection);
            handle
        };
        runtime
            .block_on(read_links(&handle, targets))
            .map_err(super::to_io)
    }
}

/// Watches all links of a namespace. Dropping this value ends its thread.
#[derive(Debug)]
pub struct LinkWatch {
    snapshots: mpsc::Receiver<Vec<LinkSnapshot>>,
    waker: Waker,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LinkWatch {
    /// Starts to watch the namespace of the calling thread. The first snapshot is available at once.
    ///
    /// # Errors
    /// Fails if the sockets or the thread cannot be created.
    pub fn start() -> io::Result<Self> {
        Self::start_towards(Targets::default())
    }

    /// Starts to watch the namespace of the calling thread, including the links' [usable routes](LinkSnapshot::ways)
    /// to `targets`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::start`].
    pub fn start_towards(targets: Targets) -> io::Result<Self> {
        let waker = Waker::new()?;
        let (sender, snapshots) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let runtime = super::runtime()?;
        let mut connected = {
            let _guard = runtime.enter();
            Some(rtnetlink::new_multicast_connection(&GROUPS)?)
        };
        let wake = waker.clone();
        let watch = async move {
            let mut publish = |links| {
                let sent = sender.send(links).is_ok();
                wake.wake();
                sent
            };
            let watch = async {
                loop {
                    if let Some((connection, handle, notifications)) = connected.take() {
                        let connection = tokio::spawn(connection);
                        let end = run(handle, notifications, &targets, &mut publish).await;
                        connection.abort();
                        if end == End::Unheard {
                            return;
                        }
                    }
                    time::sleep(RECONNECT_INTERVAL).await;
                    tracing::warn!(
                        "the connection to the kernel's link notifications ended; opening it again"
                    );
                    connected = rtnetlink::new_multicast_connection(&GROUPS)
                        .inspect_err(|error| tracing::warn!(%error, "cannot watch the links"))
                        .ok();
                }
            };
            tokio::select! {
                () = watch => {}
                _ = stopped => {}
            }
        };
        let thread = thread::Builder::new()
            .name("link-watch".into())
            .spawn(move || runtime.block_on(watch))?;
        Ok(Self {
            snapshots,
            waker,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the newest snapshot since the last call, with all links sorted by index. `None` if nothing changed.
    ///
    /// The descriptor is readable from a change until this call.
    pub fn take(&self) -> Option<Vec<LinkSnapshot>> {
        self.waker.clear();
        self.snapshots.try_iter().last()
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reason why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The kernel closed the connection.
    Disconnected,
    /// The receiver of snapshots is gone.
    Unheard,
}

/// Publishes snapshots until `publish` reports that the receiver is gone, or the connection ends.
async fn run<M>(
    handle: Handle,
    mut notifications: impl StreamExt<Item = M> + Unpin,
    targets: &Targets,
    mut publish: impl FnMut(Vec<LinkSnapshot>) -> bool,
) -> End {
    let mut last = None;
    loop {
        match read_links(&handle, targets).await {
            Ok(links) => {
                if last.as_ref() != Some(&links) {
                    last = Some(links.clone());
                    if !publish(links) {
                        return End::Unheard;
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "cannot read the links"),
        }
        // A failed read is repeated after the same interval.
        match time::timeout(REREAD_INTERVAL, notifications.next()).await {
            Ok(None) => return End::Disconnected,
            Err(_) => continue,
            Ok(Some(_)) => {}
        }
        let burst_end = time::Instant::now() + BURST_LIMIT;
        while time::Instant::now() < burst_end {
            match time::timeout(SILENCE, notifications.next()).await {
                Ok(None) => return End::Disconnected,
                Ok(Some(_)) => {}
                Err(_) => break,
            }
        }
    }
}

/// Reads a complete snapshot.
async fn read_links(
    handle: &Handle,
    targets: &Targets,
) -> Result<Vec<LinkSnapshot>, rtnetlink::Error> {
    let found: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
    let mut links: Vec<_> = found.iter().filter_map(snapshot).collect();
    links.sort_unstable_by_key(|link| link.ifindex);

    let addresses: Vec<AddressMessage> = handle.address().get().execute().try_collect().await?;
    for message in &addresses {
        if let (Some(link), Some(address)) =
            (find(&mut links, message.header.index), address(message))
        {
            link.addresses.push(address);
        }
    }
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut filter = RouteMessage::default();
        filter.header.address_family = family;
        let mut routes = Box::pin(handle.route().get(filter).execute());
        // Tables may be long, so routes are examined one by one and not stored.
        while let Some(route) = routes.try_next().await? {
            if route.header.destination_prefix_length == 0
                && route.header.kind == RouteType::Unicast
            {
                mark_default(&mut links, family, &route);
            }
        }
    }
    for link in &mut links {
        link.addresses.sort_unstable();
        if link.is_up && link.has_carrier && !link.is_loopback {
            link.ways = lookup::ways(handle, link.ifindex, &link.addresses, targets).await?;
            link.ways.sort_unstable();
        }
    }
    Ok(links)
}

fn snapshot(message: &LinkMessage) -> Option<LinkSnapshot> {
    let flags = message.header.flags;
    let mut link = LinkSnapshot {
        ifindex: message.header.index,
        name: String::new(),
        is_up: flags.contains(LinkFlags::Up),
        has_carrier: flags.contains(LinkFlags::LowerUp | LinkFlags::Running),
        is_loopback: flags.contains(LinkFlags::Loopback),
        is_tunnel: false,
        mtu: 0,
        addresses: Vec::new(),
        has_default_v4: false,
        has_default_v6: false,
        ways: Vec::new(),
    };
    for attribute in &message.attributes {
        if let LinkAttribute::IfName(name) = attribute {
            link.name.clone_from(name);
        } else if let LinkAttribute::Mtu(mtu) = attribute {
            link.mtu = *mtu;
        } else if let LinkAttribute::LinkInfo(infos) = attribute {
            let is_tunnel = |info: &LinkInfo| {
                matches!(info, LinkInfo::Kind(InfoKind::Tun | InfoKind::Wireguard))
            };
            link.is_tunnel = infos.iter().any(is_tunnel);
        }
    }
    (!link.name.is_empty()).then_some(link)
}

/// Returns this host's address in `message`, if packets may be sent from this address.
pub(super) fn address(message: &AddressMessage) -> Option<IpNet> {
    let mut own = None;
    for attribute in &message.attributes {
        if let AddressAttribute::Local(ip) = attribute {
            // On a point-to-point link `Address` is the other end's address.
            own = Some(*ip);
        } else if let AddressAttribute::Address(ip) = attribute {
            own = own.or(Some(*ip));
        } else if let AddressAttribute::Flags(flags) = attribute
            && flags.intersects(AddressFlags::Tentative | AddressFlags::Dadfailed)
            && !flags.contains(AddressFlags::Optimistic)
        {
            return None;
        }
    }
    let own = own?;
    if matches!(own, std::net::IpAddr::V6(ip) if ip.is_unicast_link_local()) {
        return None;
    }
    IpNet::new(own, message.header.prefix_len).ok()
}

fn mark_default(links: &mut [LinkSnapshot], family: AddressFamily, route: &RouteMessage) {
    let mut mark = |ifindex| {
        if let Some(link) = find(links, ifindex) {
            if family == AddressFamily::Inet6 {
                link.has_default_v6 = true;
            } else {
                link.has_default_v4 = true;
            }
        }
    };
    for attribute in &route.attributes {
        if let RouteAttribute::Oif(ifindex) = attribute {
            mark(*ifindex);
        } else if let RouteAttribute::MultiPath(hops) = attribute {
            hops.iter().for_each(|hop| mark(hop.interface_index));
        }
    }
}

fn find(links: &mut [LinkSnapshot], ifindex: u32) -> Option<&mut LinkSnapshot> {
    let at = links.binary_search_by_key(&ifindex, |link| link.ifindex);
    links.get_mut(at.ok()?)
}

/// Notifications that may change a snapshot.
const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// Silence that ends a burst: one change of a link causes several notifications within a few milliseconds.
const SILENCE: Duration = Duration::from_millis(25);

/// Longest burst: the state of a host that changes permanently is read ten times a second.
const BURST_LIMIT: Duration = Duration::from_millis(100);

/// Time until the next attempt to subscribe to notifications.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time for which a lost notification can remain undetected.
const REREAD_INTERVAL: Duration = Duration::from_secs(5);
