//! Split TCP connections of a client. While there is a session, the module decides once per second whether new
//! connections are split.

use std::{io, time::Duration};

use pleach_core::{
    class::Class, endpoint::Endpoint, path::health::State, time::Instant, wire::control::LinkRole,
};
use pleach_linux::split_tcp::Exempt;

use super::links::ClientLink;
use crate::{
    config::TunnelConfig,
    control::SplitTcpStatus,
    split_tcp::{
        SplitTcp,
        decision::{Decision, LinkTrip},
        near::Near,
    },
};

/// The near end and the decision whether it splits new connections.
pub(super) struct Splitting {
    near: Near,
    mode: SplitTcp,
    decision: Decision,
    next: Instant,
}

impl Splitting {
    /// Starts the near end. Returns `None` if `config` disables the splitting of connections.
    ///
    /// # Errors
    /// The near end cannot be started.
    pub(super) fn start(now: Instant, config: &TunnelConfig) -> io::Result<Option<Self>> {
        if config.split_tcp == SplitTcp::Off {
            return Ok(None);
        }
        Ok(Some(Self {
            near: Near::start(&config.name, &config.addresses)?,
            mode: config.split_tcp,
            decision: Decision::default(),
            next: now,
        }))
    }

    /// Returns when [`Self::update`] is due.
    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// Decides again, from the present state of the `links` of `endpoint`. Connections to which one of `rules` could
    /// apply are not split, because inside the tunnel a split connection has other ports and addresses.
    pub(super) fn update<'a>(
        &mut self,
        now: Instant,
        endpoint: &Endpoint,
        links: &[ClientLink],
        rules: impl Iterator<Item = &'a Class>,
    ) {
        if now < self.next {
            return;
        }
        self.next = now + EVERY;
        let uplinks = links.iter().map(|link| link.device.clone()).collect();
        let exempt = rules.filter_map(exempt).collect();
        if !endpoint.is_up() {
            return self.near.want(false, uplinks, exempt);
        }
        let trips: Vec<LinkTrip> = endpoint
            .status()
            .flat_map(|(_, status)| status.paths)
            .filter(|path| path.state == State::Up && path.role == LinkRole::Active)
            .filter_map(|path| {
                Some(LinkTrip {
                    rtt: path.smoothed_rtt?.saturating_sub(path.queue_delay),
                    rate: path.rate.map(|rate| rate.as_bps()),
                })
            })
            .collect();
        let helps = self.decision.update(&trips);
        self.near
            .want(helps || self.mode == SplitTcp::On, uplinks, exempt);
    }

    /// Returns the state of split TCP for `status`.
    pub(super) fn status(&self) -> SplitTcpStatus {
        self.near.status()
    }
}

/// Returns the connections to which `rule` could apply; `None` if it applies to no TCP connection. The program of a
/// connection is not known before the connection exists, so a condition on it is ignored.
fn exempt(rule: &Class) -> Option<Exempt> {
    let matches = &rule.matches;
    let is_tcp = matches.protocol.is_none_or(|protocol| protocol == TCP);
    // A rule has at most one network and at most one range of ports.
    is_tcp.then(|| Exempt {
        network: matches.to.first().copied(),
        ports: matches.ports.first().cloned(),
    })
}

const TCP: u8 = 6;
/// Interval between two decisions. RTTs change slowly, and a decision only affects new connections.
const EVERY: Duration = Duration::from_secs(1);
