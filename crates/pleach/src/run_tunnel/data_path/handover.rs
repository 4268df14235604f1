//! Change of a client from a gateway that works to another one, so that no packet is lost: make before break.
//!
//! A second engine begins a session with the next gateway over the same links and sockets, while the first one carries all
//! packets. When it is up, the two exchange their roles: packets of the host go to the next gateway, and the engine of the
//! previous one sends what is still in its queue, and receives what arrives until the network behind the gateways leads to
//! the next one. Then it says goodbye. Datagrams find their engine by their source address.
//!
//! Where TCP carries a link, or both gateways have a common address, the gateway is changed without a second session.
//! A change of the links ends a handover; the choice of a gateway then begins anew.

use std::{mem, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use pleach_core::{
    endpoint::{Endpoint, EndpointConfig, Event, Reach, Side, workers::Share},
    ids::PathId,
    packet::PacketBuf,
    path::{health::State, link::Link},
    time::Instant,
};
use pleach_linux::{clock, entropy::KernelEntropy};

use super::DataPath;
use crate::{
    config::Role,
    run_tunnel::{carried::Links, endpoint_config, gateway_peer},
};

/// The second engine of a client that changes its gateway.
pub(super) struct Handover {
    endpoint: Endpoint,
    /// Addresses of the gateway of this engine.
    addresses: Vec<SocketAddr>,
    phase: Phase,
    /// Events of the engine while it begins a session, at most [`MAX_EVENTS`].
    events: Vec<Event>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The engine begins a session with the next gateway.
    Making {
        /// When there was a session first.
        up_at: Option<Instant>,
        give_up_at: Instant,
    },
    /// The engine is that of the previous gateway.
    Leaving {
        since: Instant,
        /// When the last packet from the gateway was delivered.
        heard_at: Instant,
    },
}

/// What is to be done with a handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Adopt,
    End,
    GiveUp,
    Wait,
}

impl Handover {
    /// Returns the engine for datagrams from `source`, if it is this one.
    pub(super) fn engine_of(&mut self, source: &SocketAddr) -> Option<&mut Endpoint> {
        self.addresses
            .contains(source)
            .then_some(&mut self.endpoint)
    }

    /// Returns the engine.
    pub(super) const fn engine(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    /// Moves the packets for the host to `packets`.
    pub(super) fn deliver(&mut self, now: Instant, packets: &mut Vec<PacketBuf>) {
        let before = packets.len();
        packets.extend(core::iter::from_fn(|| self.endpoint.poll_deliver()));
        if let Phase::Leaving { heard_at, .. } = &mut self.phase
            && packets.len() > before
        {
            *heard_at = now;
        }
    }

    /// Returns when [`DataPath::settle_handover`] is due.
    pub(super) fn next_at(&self) -> Instant {
        let due = match self.phase {
            Phase::Making { up_at, give_up_at } => up_at.map_or(give_up_at, |at| at + SETTLE),
            Phase::Leaving { since, heard_at } => leave_at(since, heard_at),
        };
        self.endpoint.poll_timeout().map_or(due, |at| at.min(due))
    }

    /// Decides how to go on. `links_up`: returns the number of links over which the gateway in use is reached.
    fn step(&mut self, now: Instant, links_up: impl FnOnce() -> usize) -> Step {
        let is_up = self.endpoint.is_up();
        match &mut self.phase {
            Phase::Leaving { since, heard_at } => {
                // A gateway that says goodbye itself must not be connected to again.
                let is_over = !is_up || now >= leave_at(*since, *heard_at);
                if is_over { Step::End } else { Step::Wait }
            }
            Phase::Making { give_up_at, .. } if !is_up => {
                if now >= *give_up_at {
                    Step::GiveUp
                } else {
                    Step::Wait
                }
            }
            Phase::Making { up_at, .. } => {
                let up_at = *up_at.get_or_insert(now);
                let is_complete = now >= up_at + SETTLE || up_paths(&self.endpoint) >= links_up();
                if is_complete { Step::Adopt } else { Step::Wait }
            }
        }
    }
}

impl DataPath {
    /// Begins a session with the gateway `index`, while the one in use carries all packets.
    ///
    /// # Errors
    /// If the kernel gives no random numbers, or the gateway is changed at once and this fails.
    pub(super) fn prepare_gateway(&mut self, now: Instant, index: usize) -> anyhow::Result<()> {
        self.end_handover(now);
        let config = Arc::clone(&self.config);
        let (Role::Client(client), Some(gateways)) = (&config.role, &mut self.gateways) else {
            return Ok(());
        };
        let gateway = client.gateways.get(index).context("no such gateway")?;
        let (present, addresses) = (gateways.addresses(), gateways.addresses_of(index));
        let uses_tcp = self.carried.as_ref().is_some_and(Links::uses_tcp_anywhere);
        if uses_tcp || addresses.iter().any(|address| present.contains(address)) {
            return match gateways.adopt(now, false) {
                Some(index) => self.use_gateway(now, index),
                None => Ok(()),
            };
        }
        let mtu = self.inner_mtu();
        let settings = EndpointConfig {
            classes: self.rules.classes(&config),
            side: Side::Client {
                gateway: gateway_peer(&config, gateway),
                endpoints: addresses.clone(),
            },
            ..endpoint_config(&config, mtu, Share::new(0, 1))
        };
        let entropy = KernelEntropy::open().context("random numbers of the kernel")?;
        let mut endpoint = Endpoint::new(settings, entropy, now);
        if let Some(trace) = &self.trace {
            endpoint.observe(trace);
        }
        endpoint.set_time_of_day(now, clock::unix_nanos());
        self.add_links_to(now, &mut endpoint);
        endpoint.handle_timeout(now);
        tracing::info!(gateway = gateway.name, ?addresses, "next gateway");
        self.handover = Some(Box::new(Handover {
            endpoint,
            addresses,
            phase: Phase::Making {
                up_at: None,
                give_up_at: now + PATIENCE,
            },
            events: Vec::new(),
        }));
        self.transmit(now);
        Ok(())
    }

    /// Adds this client's links, with their present settings, to another engine, under the same numbers.
    fn add_links_to(&mut self, now: Instant, endpoint: &mut Endpoint) {
        let last = self.links.iter().map(|link| link.id.0).max();
        let mut gaps = Vec::new();
        for number in 0..=last.unwrap_or(0) {
            let known = self.links.iter().find(|link| link.id.0 == number);
            let mut settings = Link::named("");
            if let Some(known) = known {
                self.endpoint
                    .update_links(now, &known.name, |link| settings = link.clone());
            } else {
                gaps.push(PathId(number));
            }
            endpoint.add_link(now, settings);
        }
        gaps.into_iter().for_each(|gap| endpoint.remove_link(gap));
        for link in &self.links {
            endpoint.handle_link(now, link.id, link.reach);
        }
    }

    /// Runs the timers of a handover, and continues it.
    pub(super) fn settle_handover(&mut self, now: Instant) {
        let Some(handover) = &mut self.handover else {
            return;
        };
        handover.endpoint.handle_timeout(now);
        while let Some(event) = handover.endpoint.poll_event() {
            if !matches!(handover.phase, Phase::Making { .. }) {
                continue;
            }
            if let Event::Found { peer, path, .. } = &event {
                // The line to the next gateway is mostly the same as that to the present one.
                let mut known = self.endpoint.memories(now);
                if let Some((.., memory)) = known.find(|(_, id, _)| id == path) {
                    handover.endpoint.recall(now, peer, *path, &memory);
                }
            }
            if handover.events.len() < MAX_EVENTS {
                handover.events.push(event);
            }
        }
        match handover.step(now, || up_paths(&self.endpoint)) {
            Step::Wait => {}
            Step::Adopt => {
                if let Err(error) = self.adopt_gateway(now) {
                    tracing::error!("change of the gateway: {error:#}");
                }
            }
            Step::GiveUp => {
                tracing::warn!("the next gateway gives no session: the present one stays in use");
                if let Some(gateways) = &mut self.gateways {
                    gateways.reject(now);
                }
                self.end_handover(now);
            }
            Step::End => self.end_handover(now),
        }
    }

    /// Exchanges the roles of the two engines.
    fn adopt_gateway(&mut self, now: Instant) -> anyhow::Result<()> {
        let Some(mut handover) = self.handover.take() else {
            return Ok(());
        };
        let Some(gateways) = &mut self.gateways else {
            return Ok(());
        };
        let previous = gateways.addresses();
        let Some(index) = gateways.adopt(now, true) else {
            return Ok(());
        };
        mem::swap(&mut self.endpoint, &mut handover.endpoint);
        let events = mem::take(&mut handover.events);
        handover.addresses = previous;
        handover.phase = Phase::Leaving {
            since: now,
            heard_at: now,
        };
        self.handover = Some(handover);
        self.announce_gateway(now, index);
        self.start_carrying(now, index)?;
        for event in events {
            self.tell_event(now, 0, event);
        }
        self.settle_carried(now);
        Ok(())
    }

    /// Ends a handover: says goodbye to the gateway of the second engine.
    pub(in crate::run_tunnel) fn end_handover(&mut self, now: Instant) {
        let Some(handover) = &mut self.handover else {
            return;
        };
        handover.endpoint.close();
        if let Some(gateways) = &mut self.gateways {
            gateways.postpone();
        }
        self.transmit(now);
        self.handover = None;
    }

    /// Tells a second engine which networks a link reaches.
    pub(super) fn mirror_link(&mut self, now: Instant, id: PathId, reach: Reach) {
        if let Some(handover) = &mut self.handover {
            handover.endpoint.handle_link(now, id, reach);
        }
    }
}

/// Returns the number of paths of a client that are up.
fn up_paths(endpoint: &Endpoint) -> usize {
    let paths = endpoint.status().flat_map(|(_, status)| status.paths);
    paths.filter(|path| path.state == State::Up).count()
}

/// Returns when the previous gateway is left for good. `since`: when the next one was used first. `heard_at`: when the last
/// packet came from the previous one.
fn leave_at(since: Instant, heard_at: Instant) -> Instant {
    (heard_at + QUIET).max(since + LEAST).min(since + MOST)
}

/// Time in which the next gateway must give a session.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time for all links to come up at the next gateway, after the first one.
const SETTLE: Duration = Duration::from_millis(500);
/// Time without a packet from the previous gateway after which the network leads to the next one.
const QUIET: Duration = Duration::from_secs(1);
/// Shortest and longest time for which the previous gateway is listened to. Routing daemons take up to some seconds.
const LEAST: Duration = Duration::from_secs(2);
const MOST: Duration = Duration::from_secs(5);
/// Largest number of events that are told when a gateway is used.
const MAX_EVENTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_previous_gateway_is_listened_to_until_it_is_quiet_in_bounded_time() {
        let since = Instant::ZERO + Duration::from_secs(100);
        let after = |millis| since + Duration::from_millis(millis);
        assert_eq!(leave_at(since, since), since + LEAST);
        assert_eq!(leave_at(since, after(500)), since + LEAST);
        assert_eq!(leave_at(since, after(1_500)), after(1_500) + QUIET);
        assert_eq!(leave_at(since, after(60_000)), since + MOST);
    }
}
