//! What the links of the host look like, and when that changes.
//!
//! A thread listens to the kernel's notifications and takes them only as a hint: after each burst it reads links,
//! addresses, default routes and ways to the addresses in question ([`super::lookup`]) anew and hands out the whole picture if it differs from the last. So lost
//! notifications, and the IPv4 routes that vanish without one when a link goes down, do no harm. A link is known by its
//! index for as long as it lives; a new index under an old name is another link.
//!
//! Bounds: a burst ends after 25 ms of silence or 100 ms; without any notification the picture is read every 5 s. A
//! connection to the kernel that ends is opened again, at most once a second.

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

/// One link, as of now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSnapshot {
    /// Its index: its identity while it lives.
    pub ifindex: u32,
    /// Its name now.
    pub name: String,
    /// The administrator switched it on.
    pub is_up: bool,
    /// It has a carrier: the cable is in, the modem is connected.
    pub has_carrier: bool,
    /// The loopback device.
    pub is_loopback: bool,
    /// Another program's tunnel: TUN or WireGuard.
    pub is_tunnel: bool,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Addresses that can be a source, with the length of their prefix, sorted; no link-local IPv6 ones.
    pub addresses: Vec<IpNet>,
    /// Some table has an IPv4 default route over it.
    pub has_default_v4: bool,
    /// Some table has an IPv6 default route over it.
    pub has_default_v6: bool,
    /// From this link to the addresses in question, sorted; none while the link is down, and from the loopback device.
    pub ways: Vec<Way>,
}

impl LinkSnapshot {
    /// The links of the calling thread's namespace, sorted by index, with their ways to `targets`.
    ///
    /// # Errors
    /// The error of the kernel.
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

/// A watch over all links of a namespace. Dropping it ends its thread.
#[derive(Debug)]
pub struct LinkWatch {
    snapshots: mpsc::Receiver<Vec<LinkSnapshot>>,
    waker: Waker,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LinkWatch {
    /// Starts to watch the namespace of the calling thread. The first picture comes at once.
    ///
    /// # Errors
    /// If the sockets or the thread cannot be made.
    pub fn start() -> io::Result<Self> {
        Self::start_towards(Targets::default())
    }

    /// The same, with the links' [ways](LinkSnapshot::ways) to `targets`.
    ///
    /// # Errors
    /// As [`Self::start`].
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

    /// The newest picture since the last call, all links sorted by index; `None` if nothing changed.
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

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The kernel's side is gone.
    Disconnected,
    /// Nobody listens.
    Unheard,
}

/// Publishes pictures until `publish` says that nobody listens or the connection ends.
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
        // A failed read is tried again after the same silence.
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

/// Reads the whole picture.
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
        // Tables may be long: look at each route and keep none.
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

/// The address of ours in `message`, if packets may be sent from it.
pub(super) fn address(message: &AddressMessage) -> Option<IpNet> {
    let mut own = None;
    for attribute in &message.attributes {
        if let AddressAttribute::Local(ip) = attribute {
            // On a point-to-point link `Address` is the other end.
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

/// What may change a picture.
const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// One change of a link makes several notifications within a few milliseconds; this is the silence that ends them.
const SILENCE: Duration = Duration::from_millis(25);

/// A host that changes all the time is still read ten times a second.
const BURST_LIMIT: Duration = Duration::from_millis(100);

/// Time before another attempt to be told of changes.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// How long a lost notification can go unnoticed.
const REREAD_INTERVAL: Duration = Duration::from_secs(5);
