//! What the equalizer says of itself.

use std::net::IpAddr;

use pleach_core::time::Instant;
use pleach_linux::{
    equalize::{Backend, HoldingDevice, Sent},
    procnet,
};

use super::{Daemon, Holding, LinkConfig};
use crate::weights::{LinkView, Source};

/// State of a link, for people.
#[derive(Clone, Debug)]
pub struct LinkReport {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// Weight, share, background and so on.
    pub view: LinkView,
    /// What was sent over it since the start.
    pub sent: Sent,
    /// The same since weights changed last.
    pub sent_since_change: Sent,
    /// Bytes its device received since the start.
    pub rx_bytes: u64,
    /// How its packets wait; `None` if none ever do.
    pub holding: Option<Holding>,
}

/// State of the equalizer, for people.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of the configuration.
    pub links: Vec<LinkReport>,
    /// Who chooses links.
    pub backend: Backend,
    /// Why this one.
    pub backend_why: String,
    /// Where weights come from.
    pub source: Source,
    /// Why weights changed last; `None` before the first time.
    pub last_change: Option<(String, Instant)>,
    /// Of packets that wait; `None` if none ever do.
    pub hold: Option<HoldReport>,
}

/// What there is to say of packets that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldReport {
    /// Who is asked how long each link's way is.
    pub probe: Option<IpAddr>,
    /// Whether flows keep their link, as long as it is not known how long packets have to wait.
    pub keeps_flows: bool,
    /// Packets that left early for want of room.
    pub not_held: u64,
    /// Packets that were lost: they came faster than they were taken, or the kernel did not take them back.
    pub lost: u64,
}

impl Daemon {
    /// How things are.
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
