//! Devices and addresses of the host: those of the links, and the addresses that need no link.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    net::IpAddr,
};

use ipnet::IpNet;
use pleach_core::time::Instant;
use tokio::sync::Notify;

use super::{kept::Upstream, settings::LinkConfig};
use crate::sched::LinkId;

/// Devices and addresses of the host, as last seen.
#[derive(Debug, Default)]
pub(crate) struct Uplinks {
    /// Device and source addresses of each link, by id.
    pub(crate) devices: RefCell<Vec<Device>>,
    /// Subnets of devices that are not links, including the loopback device.
    pub(crate) locals: RefCell<Vec<IpNet>>,
    /// This host's own addresses on all its devices.
    pub(crate) own: RefCell<BTreeSet<IpAddr>>,
    /// For each link, the number of sockets that the kernel's hook in a cgroup has bound to it, and the bytes of its
    /// device. Empty without the hook.
    pub(crate) bound: RefCell<Vec<Bound>>,
    /// The link that is being probed, and the bytes received by the probe since the last window.
    pub(crate) probing: Cell<Option<(LinkId, u64)>>,
    /// Notified when links or their addresses may have changed.
    pub(crate) changed: Notify,
}

/// Device and addresses of a link.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) source: Vec<IpAddr>,
    /// Addresses that the device had in the last snapshot.
    pub(crate) addresses: Vec<IpNet>,
    /// Time since which the link leads nowhere, although the device and its address exist. `None` if the link works.
    pub(crate) silent_since: Option<Instant>,
}

/// Sockets and bytes of one link, when a hook in a cgroup binds sockets to links.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bound {
    /// Number of sockets that the hook bound to the link.
    pub(crate) sockets: u64,
    /// Bytes that the link's device has sent since the start, headers included.
    pub(crate) tx_bytes: u64,
    /// Bytes that the link's device has received since the start, headers included.
    pub(crate) rx_bytes: u64,
}

impl Uplinks {
    /// Creates the links that the user named. The state of their devices is not known yet.
    pub(super) fn new(links: &[LinkConfig]) -> Self {
        let device = |link: &LinkConfig| Device {
            name: link.device.clone(),
            source: link.source.clone(),
            addresses: Vec::new(),
            silent_since: None,
        };
        Self {
            devices: RefCell::new(links.iter().map(device).collect()),
            ..Self::default()
        }
    }

    /// Returns the device names of all links.
    pub(crate) fn device_names(&self) -> Vec<String> {
        let devices = self.devices.borrow();
        devices.iter().map(|device| device.name.clone()).collect()
    }

    /// Whether the link of `upstream` still has the local address of the connection.
    pub(super) fn has_address_of(&self, upstream: &Upstream) -> bool {
        let devices = self.devices.borrow();
        let device = upstream.link.and_then(|link| devices.get(link.0));
        let Ok(from) = upstream.stream.local_addr() else {
            return false;
        };
        let ip = from.ip().to_canonical();
        device.is_none_or(|device| device.addresses.iter().any(|net| net.addr() == ip))
    }
}
