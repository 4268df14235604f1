//! Status report of the equalizer.

use std::net::IpAddr;

use pleach_core::time::Instant;
use pleach_linux::{
    equalize::{Backend, HoldingDevice, Sent},
    procnet,
};

use super::{Daemon, Holding, LinkConfig};
use crate::weights::{LinkView, Source};

/// State of a link, for display.
#[derive(Clone, Debug)]
pub struct LinkReport {
    /// Name of the link.
    pub name: String,
    /// Name of the link's device.
    pub device: String,
    /// Weight, share, background and other values.
    pub view: LinkView,
    /// Packets and bytes sent over the link since the start.
    pub sent: Sent,
    /// Packets and bytes sent over the link since weights last changed.
    pub sent_since_change: Sent,
    /// Bytes that the device received since the start.
    pub rx_bytes: u64,
    /// Delays of the link's packets. `None` if packets are never delayed.
    pub holding: Option<Holding>,
}

/// State of the equalizer, for display.
#[derive(Clone, Debug)]
pub struct Report {
    /// The links in the order of the configuration.
    pub links: Vec<LinkReport>,
    /// The part of the kernel that chooses links.
    pub backend: Backend,
    /// Reason for this choice.
    pub backend_why: String,
    /// Source of the weights.
    pub source: Source,
    /// Reason and time of the last change of weights. `None` before the first change.
    pub last_change: Option<(String, Instant)>,
    /// State of delayed packets. `None` if packets are never delayed.
    pub hold: Option<HoldReport>,
}

/// State of delayed packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldReport {
    /// Host to which probes are sent to measure the links' delays.
    pub probe: Option<IpAddr>,
    /// Whether flows stay on their link because the hold times are not known yet.
    pub keeps_flows: bool,
    /// Packets that were sent early for lack of buffer space.
    pub not_held: u64,
    /// Packets that were lost because they arrived faster than they were read, or because the kernel did not accept
    /// them after the delay.
    pub lost: u64,
}

impl Daemon {
    /// Returns the current state.
    pub fn report(&mut self, now: Instant) -> Report {
        self.read_sent(now);
        let received = procnet::device_bytes().unwrap_or_default();
        let link = |(index, link): (usize, &LinkConfig)| {
            let (rx, _) = received.get(&link.device).copied().unwrap_or_default();
            let before = self.rx_at_start.get(&link.device).copied().unwrap_or(0);
            let (sent, base) = (self.sent[index], self.sent_at_change[index]);
            Some(LinkReport {
                name: link.name.clone(),
                device: link.device.clone(),
                view: self.control.view(index)?,
                sent,
                sent_since_change: Sent {
                    packets: sent.packets.saturating_sub(base.packets),
                    bytes: sent.bytes.saturating_sub(base.bytes),
                },
                rx_bytes: rx.checked_sub(before).unwrap_or(rx),
                holding: self.keeper.as_ref().map(|keeper| keeper.holding(index)),
            })
        };
        Report {
            links: self
                .settings
                .links
                .iter()
                .enumerate()
                .filter_map(link)
                .collect(),
            backend: self.kernel.backend(),
            backend_why: self.backend_why.clone(),
            source: self.control.source(),
            last_change: self
                .last_change
                .as_ref()
                .map(|(change, why)| (why.clone(), change.at)),
            hold: self.keeper.as_ref().map(|keeper| {
                let (not_held, lost) = keeper.failures();
                HoldReport {
                    probe: self.probe.map(|(host, _)| host),
                    keeps_flows: self.waiting.keeps_flows,
                    not_held,
                    lost: lost + HoldingDevice::overflows().unwrap_or(0),
                }
            }),
        }
    }
}
