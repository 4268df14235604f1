//! A host: addresses, routes, applications, and optionally one end of a tunnel. It forwards packets that are not
//! addressed to it.

use core::net::IpAddr;
use std::collections::VecDeque;

use ipnet::IpNet;
use pleach_core::{packet::PacketView, time::Instant};

use super::{
    daemon::Daemon,
    equalizer::{Equalizer, answer_echo},
    packet::{Datagram, Outbox, Packet, datagram},
};
use crate::traffic::{App, Io};

/// Target of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Equalizer,
    Port(usize),
    Tunnel,
}

/// An entry of a routing table. The first matching entry applies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// Source address of the packets to which the route applies, like a rule of policy routing. `None`: all packets.
    pub(crate) from: Option<IpAddr>,
    pub(crate) to: IpNet,
    pub(crate) via: Via,
}

/// A host.
#[derive(Debug, Default)]
pub(crate) struct Host {
    addresses: Vec<IpAddr>,
    routes: Vec<Route>,
    apps: Vec<App>,
    daemon: Option<Daemon>,
    equalizer: Option<Equalizer>,
    /// Packets that the host itself sends and that are not yet routed.
    sent: VecDeque<Packet>,
    /// Number of dropped packets: corrupt, without a route, or without a receiver.
    drops: u64,
}

impl Host {
    pub(crate) fn new(addresses: Vec<IpAddr>, routes: Vec<Route>) -> Self {
        Self {
            addresses,
            routes,
            ..Self::default()
        }
    }

    /// Adds an application.
    pub(crate) fn add_app(&mut self, app: App) {
        self.apps.push(app);
    }

    /// Removes and returns the applications, in the order in which they were added.
    pub(crate) fn take_apps(&mut self) -> Vec<App> {
        core::mem::take(&mut self.apps)
    }

    pub(crate) fn set_daemon(&mut self, daemon: Daemon) {
        self.daemon = Some(daemon);
    }

    pub(crate) fn set_equalizer(&mut self, equalizer: Equalizer) {
        self.equalizer = Some(equalizer);
    }

    pub(crate) fn equalizer(&self) -> Option<&Equalizer> {
        self.equalizer.as_ref()
    }

    pub(crate) fn equalizer_mut(&mut self) -> Option<&mut Equalizer> {
        self.equalizer.as_mut()
    }

    pub(crate) fn daemon(&self) -> Option<&Daemon> {
        self.daemon.as_ref()
    }

    pub(crate) fn daemon_mut(&mut self) -> Option<&mut Daemon> {
        self.daemon.as_mut()
    }

    /// Called when a port has lost or regained its carrier.
    pub(super) fn handle_carrier(&mut self, now: Instant, port: usize, has_carrier: bool) {
        if let Some(daemon) = &mut self.daemon {
            daemon.handle_carrier(now, port, has_carrier);
        }
        if let Some(equalizer) = &mut self.equalizer {
            equalizer.handle_carrier(now, port, has_carrier);
        }
    }

    pub(super) fn handle_packet(&mut self, now: Instant, packet: Packet, outbox: &mut Outbox) {
        if packet.is_corrupt() && !self.takes_damaged(&packet) {
            return self.drop(packet, outbox);
        }
        self.take_in(now, packet, outbox);
        self.send_all(now, outbox);
    }

    /// Whether a packet with an invalid checksum is for a socket that accepts such packets.
    fn takes_damaged(&self, packet: &Packet) -> bool {
        let Some(daemon) = self
            .daemon
            .as_ref()
            .filter(|daemon| daemon.config().parity.is_some())
        else {
            return false;
        };
        PacketView::parse(packet.bytes()).is_ok_and(|view| {
            let is_for = |datagram: Datagram<'_>| datagram.destination.port() == daemon.port();
            self.addresses.contains(&view.destination()) && datagram(&view).is_some_and(is_for)
        })
    }

    /// Runs timers and sends all packets that may be sent.
    pub(super) fn settle(&mut self, now: Instant, outbox: &mut Outbox) {
        for app in &mut self.apps {
            if app.poll_timeout().is_some_and(|at| at <= now) {
                app.handle_timeout(&mut Io::new(now, &mut self.sent, &mut outbox.buffers));
            }
        }
        self.send_all(now, outbox);
        if let Some(equalizer) = &mut self.equalizer {
            equalizer.settle(now, outbox);
        }
        // Answers of applications to delivered packets are sent in the same round.
        let mut delivered = VecDeque::new();
        while let Some(daemon) = &mut self.daemon {
            daemon.settle(now, &mut delivered, &mut self.sent, &mut outbox.buffers);
            let is_over = delivered.is_empty();
            for packet in delivered.drain(..) {
                self.take_in(now, packet, outbox);
            }
            self.send_all(now, outbox);
            if is_over {
                break;
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let apps = self.apps.iter().filter_map(App::poll_timeout);
        let daemon = self.daemon.as_ref().and_then(Daemon::poll_timeout);
        let equalizer = self.equalizer.as_ref().and_then(Equalizer::poll_timeout);
        apps.chain(daemon).chain(equalizer).min()
    }

    /// Passes a packet to its receiver, or forwards it.
    fn take_in(&mut self, now: Instant, mut packet: Packet, outbox: &mut Outbox) {
        let Ok(view) = PacketView::parse(packet.bytes()) else {
            return self.drop(packet, outbox);
        };
        if !self.addresses.contains(&view.destination()) {
            return self.route(now, packet, outbox);
        }
        let is_taken = match (datagram(&view), &mut self.daemon) {
            (Some(datagram), Some(daemon)) if daemon.port() == datagram.destination.port() => {
                let (source, destination) = (datagram.source, datagram.destination);
                let start = packet.bytes().len() - datagram.payload.len();
                let payload = &mut packet.bytes_mut()[start..];
                daemon.handle_datagram(now, source, destination, payload);
                true
            }
            _ if let Some(answer) = answer_echo(&view, outbox) => {
                self.sent.push_back(answer);
                true
            }
            _ if let Some(equalizer) = &mut self.equalizer
                && equalizer.handle_echo_reply(now, &view) =>
            {
                true
            }
            _ => {
                let mut io = Io::new(now, &mut self.sent, &mut outbox.buffers);
                self.apps
                    .iter_mut()
                    .any(|app| app.handle_packet(&mut io, &view))
            }
        };
        self.drops += u64::from(!is_taken);
        outbox.buffers.recycle(packet);
    }

    fn send_all(&mut self, now: Instant, outbox: &mut Outbox) {
        while let Some(packet) = self.sent.pop_front() {
            self.route(now, packet, outbox);
        }
    }

    fn route(&mut self, now: Instant, packet: Packet, outbox: &mut Outbox) {
        let via = PacketView::parse(packet.bytes()).ok().and_then(|view| {
            let (source, destination) = (view.source(), view.destination());
            let mut routes = self.routes.iter();
            let route = routes.find(|route| {
                route.from.is_none_or(|from| from == source) && route.to.contains(&destination)
            })?;
            Some(route.via)
        });
        match (via, &mut self.daemon, &mut self.equalizer) {
            (Some(Via::Port(port)), _, equalizer) => {
                if let Some(equalizer) = equalizer {
                    equalizer.on_other(port, packet.bytes().len());
                }
                outbox.send(port, packet);
            }
            (Some(Via::Equalizer), _, Some(equalizer)) => {
                if let Err(packet) = equalizer.handle_packet(now, packet, outbox) {
                    self.drop(packet, outbox);
                }
            }
            (Some(Via::Tunnel), Some(daemon), _) => {
                daemon.handle_packet(now, packet.bytes());
                outbox.buffers.recycle(packet);
            }
            (Some(Via::Equalizer | Via::Tunnel) | None, _, _) => self.drop(packet, outbox),
        }
    }

    fn drop(&mut self, packet: Packet, outbox: &mut Outbox) {
        self.drops += 1;
        outbox.buffers.recycle(packet);
    }
}
