//! What the host's devices give: the links' side of the host, and which addresses need no link.

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

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Uplinks {
    /// Device and source addresses of each link, by id.
    pub(crate) devices: RefCell<Vec<Device>>,
    /// Networks directly on devices that are no links, the loopback device's among them.
    pub(crate) locals: RefCell<Vec<IpNet>>,
    /// This host's own addresses on all its devices.
    pub(crate) own: RefCell<BTreeSet<IpAddr>>,
    /// What the kernel's hook did, by link; empty without it.
    pub(crate) bound: RefCell<Vec<Bound>>,
    /// The link that is being probed, and what came by the probe since the last window.
    pub(crate) probing: Cell<Option<(LinkId, u64)>>,
    /// Links lead elsewhere than before.
    pub(crate) changed: Notify,
}

/// A link's side of the host.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) source: Vec<IpAddr>,
    /// What it was seen to have.
    pub(crate) addresses: Vec<IpNet>,
    /// Since when it leads nowhere, though the device and its address are there.
    pub(crate) silent_since: Option<Instant>,
}

/// What the hook did, by link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bound {
    /// Sockets bound to it.
    pub(crate) sockets: u64,
    /// What its device sent since the start, headers included.
    pub(crate) tx_bytes: u64,
    /// What its device received.
    pub(crate) rx_bytes: u64,
}

impl Uplinks {
    /// The links that the user named, on devices of which nothing is known yet.
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

    /// Devices of all links.
    pub(crate) fn device_names(&self) -> Vec<String> {
        let devices = self.devices.borrow();
        devices.iter().map(|device| device.name.clone()).collect()
    }

    /// Whether the link of `upstream` has its address still.
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
