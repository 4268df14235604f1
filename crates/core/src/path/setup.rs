//! Changes of a path caused by the user, the peer, the host, or the owner of the path.

use core::{net::IpAddr, time::Duration};

use super::{
    Path, PeerDown,
    control::aim::Aim,
    delay::OneWayDelay,
    estimators::Estimators,
    health::{LinkEvent, State},
    link::Link,
    mtu::Tokens,
    receiver::Receiver,
    sender::Sender,
};
use crate::{
    packet::Pool,
    profile::Profile,
    role::Role,
    time::Instant,
    transmit::Route,
    wire::{Kind, control::LinkInfo},
};

/// The counters of a removed path. If the path returns, they continue under the same keys, because the other end also
/// continues its counters.
#[derive(Debug)]
pub(crate) struct Former {
    sender: Sender,
    receiver: Receiver,
    version: u32,
}

impl Path {
    /// Ends the path and returns its buffers.
    pub(crate) fn retire(mut self, pool: &mut Pool) -> Former {
        self.sender.forget(pool);
        Former {
            sender: self.sender,
            receiver: self.receiver,
            version: self.announced.version,
        }
    }

    /// Continues the counters of a removed path of the same id.
    pub(crate) fn resume(&mut self, former: Former) {
        self.sender = former.sender;
        self.receiver = former.receiver;
        self.announced.version = former.version.wrapping_add(1);
    }

    /// Resets the path, including its counters, after a restart of the other end; settings and route stay.
    pub(crate) fn restart(&mut self, now: Instant) {
        let route = self.route;
        *self = Self::new(now, self.id, self.link.clone(), self.role, self.profile);
        self.route = route;
        if route.is_none() {
            self.health.on_link(now, LinkEvent::Down);
        }
    }

    /// Applies the user's change of the link's settings, and schedules a link description.
    pub fn configure(&mut self, now: Instant, change: impl FnOnce(&mut Link)) {
        change(&mut self.link);
        self.announced.version = self.announced.version.wrapping_add(1);
        self.announced.due = Some(now);
        self.pace(now);
    }

    /// Applies the client's description of the link. Returns whether it is new.
    pub fn describe(&mut self, now: Instant, version: u32, info: &LinkInfo<'_>) -> bool {
        let is_news = self.announced.due.is_some() || self.announced.version <= version;
        if is_news {
            self.announced.version = version;
            self.announced.due = None;
            self.link.update(info);
            self.pace(now);
            self.link_ack = Some(version);
            if self.health.state() == State::Up {
                self.train_sender.on_up(now);
            }
        }
        is_news
    }

    /// Records that the other end acknowledged the description `version`.
    pub fn on_description_acked(&mut self, version: u32) {
        if self.announced.version == version {
            self.announced.due = None;
        }
    }

    /// Schedules a link description.
    pub fn announce(&mut self, now: Instant) {
        self.announced.due = Some(now);
    }

    /// Sets the route of datagrams. Returns whether it changed.
    pub fn set_route(&mut self, now: Instant, route: Option<Route>) -> bool {
        if self.route == route {
            return false;
        }
        self.route = route;
        self.found = None;
        self.mtu.restart();
        let event = if route.is_some() {
            LinkEvent::Up
        } else {
            LinkEvent::Down
        };
        self.health.on_link(now, event);
        true
    }

    /// Processes the other end's message that its interface under this path went down. `counter`: the counter of its
    /// next control datagram on this path. Returns whether the path was Up.
    ///
    /// The message is ignored if a datagram of that counter or a higher one has arrived: the interface works again.
    /// Answers to datagrams that were sent before now are no evidence that the path works.
    pub fn on_peer_link_down(&mut self, now: Instant, counter: u64) -> bool {
        if self.newest[Kind::Control as usize].is_some_and(|newest| newest >= counter) {
            return false;
        }
        self.peer_down = Some(PeerDown {
            at: now,
            next_data: self.sender.next_data(),
        });
        self.health.on_peer_link_down(now)
    }

    /// Sets whether the send buffer of the local socket is full.
    pub fn set_blocked(&mut self, is_blocked: bool) {
        self.is_blocked = is_blocked;
    }

    /// Sets the profile of this end and the user's target for the path's standing queue. Both take effect with the
    /// next report.
    pub fn set_profile(&mut self, profile: Profile, aim: Aim) {
        self.profile = profile;
        self.model.set_mechanisms(profile.mechanisms);
        self.control.set_aim(aim);
    }

    /// Sets the factory of the path's estimators. If it differs from the present one, the delivery rate is forgotten.
    pub fn set_estimators(&mut self, estimators: &Estimators) {
        self.model.set_estimators(estimators);
    }

    /// Sets whether the tunnel rests, so that the path is probed rarely while it is up. The one-way delays of the sending
    /// direction are forgotten at its beginning: samples will be so rare that the clocks of the two ends may drift apart.
    pub(crate) fn set_resting(&mut self, is_resting: bool) {
        self.health.set_resting(is_resting);
        if is_resting {
            self.model.delay = OneWayDelay::new();
            self.model.queue.forget_delays();
        }
    }

    /// Frees the memory that an idle path does not need.
    pub(crate) fn release_memory(&mut self) {
        self.sender.release_memory();
        self.probes.release_memory();
    }

    /// Samples the RTT every `interval` until `until`.
    pub fn sample_rtt(&mut self, interval: Duration, until: Instant) {
        self.health.sample(interval, until);
    }

    /// Makes the health transitions that are due, and ends an overdue MTU probe. Returns the previous health state.
    /// `is_reserve`: whether the path is in reserve while other paths carry the data.
    pub fn on_timeout(&mut self, now: Instant, is_reserve: bool) -> State {
        self.health.set_reserve(is_reserve);
        self.health.set_second(self.role == Role::Gateway);
        if self.mtu.is_probing() {
            self.mtu.on_timeout(now, &self.mtu_conditions());
        }
        let was = self.health.state();
        self.health.on_timeout(now);
        was
    }

    /// The previous and the present health state, if the state changed since the last call.
    pub fn take_health_change(&mut self) -> Option<(State, State)> {
        let state = self.health.state();
        let before = core::mem::replace(&mut self.told, state);
        (before != state).then_some((before, state))
    }

    /// Returns the remote address if it changed since the last call. At a gateway, returns `None` until the client has
    /// described the link, because the gateway does not know the link's name before.
    pub fn take_found(&mut self, now: Instant) -> Option<IpAddr> {
        let to = self.route?.remote.ip();
        let is_named = self.role == Role::Client || self.announced.due.is_none();
        let is_new = self.found.is_none_or(|(known, _)| known != to);
        (is_named && is_new).then(|| {
            self.found = Some((to, now));
            to
        })
    }

    /// Whether the MTU changed since the last call.
    pub fn take_mtu_change(&mut self) -> bool {
        let found = self.mtu.found();
        core::mem::replace(&mut self.told_mtu, found) != found
    }

    /// Starts the MTU probe that is due, if any, with at most `longest` bytes. Returns its length and the tokens of
    /// its two pings.
    pub(crate) fn start_mtu_probe(
        &mut self,
        now: Instant,
        longest: usize,
    ) -> Option<(usize, Tokens)> {
        let len = self.mtu.due(now, longest)?;
        let tokens = Tokens {
            long: self.probes.start(now),
            short: self.probes.start(now),
        };
        self.mtu.on_probe(now, len, tokens);
        Some((len, tokens))
    }
}
