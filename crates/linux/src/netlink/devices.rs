//! Devices with their kind, bridge and addresses, for [`crate::surroundings`].

use std::io;

use futures_util::TryStreamExt;
use netlink_packet_route::{
    address::AddressMessage,
    link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage},
};

use super::{Netlink, watch};
use crate::surroundings::{Device, Kind};

impl Netlink {
    /// All devices, sorted by index.
    ///
    /// # Errors
    /// The error of the kernel.
    pub(crate) fn devices(&self) -> io::Result<Vec<Device>> {
        let read = async {
            let links = self.handle.link().get().execute();
            let links: Vec<LinkMessage> = links.try_collect().await?;
            let addresses = self.handle.address().get().execute();
            let addresses: Vec<AddressMessage> = addresses.try_collect().await?;
            Ok((links, addresses))
        };
        let (links, addresses) = self.runtime.block_on(read).map_err(super::to_io)?;
        let mut devices: Vec<Device> = links.iter().map(device).collect();
        devices.sort_unstable_by_key(|device| device.ifindex);
        for message in &addresses {
            let index = message.header.index;
            if let Ok(at) = devices.binary_search_by_key(&index, |device| device.ifindex) {
                devices[at].addresses.extend(watch::address(message));
            }
        }
        Ok(devices)
    }
}

fn device(message: &LinkMessage) -> Device {
    let mut device = Device {
        ifindex: message.header.index,
        name: String::new(),
        kind: Kind::Other,
        bridge: None,
        addresses: Vec::new(),
    };
    for attribute in &message.attributes {
        if let LinkAttribute::IfName(name) = attribute {
            device.name.clone_from(name);
        } else if let LinkAttribute::Controller(bridge) = attribute {
            device.bridge = Some(*bridge);
        } else if let LinkAttribute::LinkInfo(infos) = attribute {
            let is = |wanted: &[InfoKind]| {
                let is_wanted =
                    |info: &LinkInfo| matches!(info, LinkInfo::Kind(kind) if wanted.contains(kind));
                infos.iter().any(is_wanted)
            };
            if is(&[InfoKind::Bridge]) {
                device.kind = Kind::Bridge;
            } else if is(&[InfoKind::Tun, InfoKind::Veth]) {
                device.kind = Kind::Inside;
            }
        }
    }
    device
}
