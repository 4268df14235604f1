//! The running equalizer: connects the weights with the kernel, its devices and its counters.
//!
//! This is a state machine like the other modules, but it acts immediately, by system calls that take micro- to
//! milliseconds. The caller waits for changes of links, for requests, and for [`Daemon::poll_timeout`].

use core::time::Duration;
use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use ipnet::IpNet;
use pleach_core::{
    time::Instant,
    units::{Bitrate, Bytes},
};
use pleach_linux::{
    clock,
    equalize::{self, Backend, Equalizer, Hop, Mode, Sent, Waiting},
    ethtool, ping, procnet, tcp_diag,
    watch::LinkSnapshot,
};

mod asking;
mod keeper;
mod report;

use asking::{Asking, Ends};
pub use keeper::Holding;
use keeper::{Keeper, Plan, Way};
pub use report::{HoldReport, LinkReport, Report};

use crate::{
    MAX_LINKS,
    auto::{AutoSettings, Counters},
    guideline::Rule,
    passive::{MAX_CONNECTIONS, Passive, Sample},
    sequence::{self, Sequence},
    weights::{Change, LinkSettings, Source, WeightControl, Why},
};

/// The settings of a configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Networks whose packets are spread.
    pub destinations: Vec<IpNet>,
    /// The part of the kernel that chooses links. `None`: the best one that works on this host.
    pub backend: Option<Backend>,
    /// Mode of spreading.
    pub mode: Mode,
    /// Host to which probes are sent to measure the links' delays, if packets are delayed. `None`: a host to which this
    /// host has connections.
    pub probe: Option<IpAddr>,
    /// Source of the weights.
    pub source: Source,
    /// Settings of automatic weights.
    pub auto: AutoSettings,
    /// Whether the guideline on loss and delay limits automatic weights.
    pub guideline: bool,
    /// The links, 1 to [`MAX_LINKS`].
    pub links: Vec<LinkConfig>,
    /// Directory of the state files.
    pub state_dir: PathBuf,
}

/// Configuration of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Name of the link.
    pub name: String,
    /// Name of the device, which may be absent.
    pub device: String,
    /// Next hop for IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Next hop for IPv6.
    pub v6: Option<Ipv6Addr>,
    /// Rate of the link, if configured.
    pub rate: Option<Bitrate>,
    /// Weight of the link, unless weights are automatic.
    pub weight: u32,
}

/// The running equalizer. Dropping this value undoes all changes.
#[derive(Debug)]
pub struct Daemon {
    settings: Settings,
    control: WeightControl,
    // Declared before `kernel`, so that delayed packets are sent before the kernel's part is removed.
    keeper: Option<Keeper>,
    /// Host to which probes are sent and the source address, to measure the links' delays.
    probe: Option<Ends>,
    asking: Asking,
    /// Whether delays are currently not needed.
    is_idle: bool,
    /// The links whose packets wait, as last set in the kernel.
    waiting: Waiting,
    kernel: Equalizer,
    backend_why: String,
    passive: Passive,
    /// Each link's device and next hops as found, whether or not the next hops answer.
    found: Vec<Option<Hop>>,
    /// Whether the device of each link had a carrier at the last check.
    running: Vec<bool>,
    running_at: Instant,
    /// Next hops in use. `None` if the link is down.
    hops: Vec<Option<Hop>>,
    /// Addresses of each link's device.
    addresses: Vec<Vec<IpNet>>,
    weights: Vec<u32>,
    last_change: Option<(Change, String)>,
    sent: Vec<Sent>,
    sent_at_change: Vec<Sent>,
    /// Bytes received by each device when it was first found.
    rx_at_start: BTreeMap<String, u64>,
    /// Time of the next attempt, if the kernel's state is incomplete.
    retry_at: Option<Instant>,
    /// Time of the next check whether next hops answer, and the interval after it.
    ask_at: Instant,
    ask_interval: Duration,
    look_at: Instant,
    check_at: Instant,
    /// Time before which repeated errors are not logged again.
    complain_at: Instant,
}

impl Daemon {
    /// Removes the remains of a crashed equalizer and prepares the kernel. Packets are spread from the first
    /// [`Self::handle_links`] on.
    ///
    /// # Errors
    /// See [`Equalizer::begin`].
    pub fn start(mut settings: Settings, now: Instant) -> io::Result<Self> {
        let devices: Vec<String> = settings
            .links
            .iter()
            .map(|link| link.device.clone())
            .collect();
        let (mut kernel, backend_why) = Equalizer::begin(
            &settings.state_dir,
            settings.backend,
            settings.mode,
            &settings.destinations,
            &devices,
        )?;
        let keeper = if settings.mode.hold {
            let (device, alive) = kernel.hold()?;
            Some(Keeper::start(device, alive)?)
        } else {
            None
        };
        if kernel.backend() == Backend::Nft {
            // Each change runs an external program for some milliseconds.
            settings.auto.interval = settings.auto.interval.max(LEAST_NFT_INTERVAL);
        }
        let links: Vec<LinkSettings> = settings
            .links
            .iter()
            .map(|link| LinkSettings {
                weight: link.weight,
                rate: link.rate,
            })
            .collect();
        let count = links.len();
        let rx_at_start = procnet::device_bytes()?;
        Ok(Self {
            control: WeightControl::new(
                settings.source,
                settings.auto,
                &links,
                settings.guideline,
                now,
            ),
            settings,
            keeper,
            probe: None,
            asking: Asking::default(),
            is_idle: false,
            waiting: Waiting::default(),
            kernel,
            backend_why,
            passive: Passive::default(),
            found: vec![None; count],
            running: vec![false; count],
            running_at: now,
            hops: vec![None; count],
            addresses: vec![Vec::new(); count],
            weights: vec![0; count],
            last_change: None,
            sent: vec![Sent::default(); count],
            sent_at_change: vec![Sent::default(); count],
            rx_at_start: rx_at_start
                .into_iter()
                .map(|(name, (rx, _))| (name, rx))
                .collect(),
            retry_at: None,
            ask_at: now,
            ask_interval: FIRST_ASK_INTERVAL,
            look_at: now + LOOK_INTERVAL,
            check_at: now + CHECK_INTERVAL,
            complain_at: now,
        })
    }

    /// Returns the back end in use, and the reason for its choice.
    #[must_use]
    pub fn backend(&self) -> (Backend, &str) {
        (self.kernel.backend(), &self.backend_why)
    }

    /// Processes the current state `snapshots` of the host's links.
    pub fn handle_links(&mut self, now: Instant, snapshots: &[LinkSnapshot]) {
        for (index, link) in self.settings.links.iter().enumerate() {
            let found = snapshots
                .iter()
                .find(|snapshot| snapshot.name == link.device);
            // The carrier state in a snapshot may be up to a second old, because the kernel reports changes late. So it
            // is not used here.
            let usable = found.filter(|snapshot| snapshot.is_up);
            self.addresses[index] =
                usable.map_or(Vec::new(), |snapshot| snapshot.addresses.clone());
            self.found[index] = usable.map(|snapshot| Hop {
                device: link.device.clone(),
                ifindex: snapshot.ifindex,
                mtu: snapshot.mtu,
                v4: link.v4,
                v6: link.v6,
            });
        }
        self.look_at_devices(now);
        self.ask_interval = FIRST_ASK_INTERVAL;
        self.ask(now);
    }

    /// Checks which devices have a carrier now. Returns true if this has changed.
    fn look_at_devices(&mut self, now: Instant) -> bool {
        self.running_at = now + RUNNING_INTERVAL;
        match self.kernel.running(&self.found) {
            Ok(running) => {
                let is_new = running != self.running;
                self.running = running;
                is_new
            }
            Err(error) => {
                self.complain(now, &error, "cannot tell which devices have a carrier");
                false
            }
        }
    }

    /// Checks which next hops answer, and uses only these next hops.
    fn ask(&mut self, now: Instant) {
        let there: Vec<Option<Hop>> = self
            .found
            .iter()
            .zip(&self.running)
            .map(|(hop, is_running)| hop.clone().filter(|_| *is_running))
            .collect();
        let (hops, all_known) = self
            .kernel
            .answering(&there, &self.hops)
            .unwrap_or_else(|error| {
                let text = "cannot tell which next hops answer; keeping those in use";
                self.complain(now, &error, text);
                (still_there(&self.hops, &there), false)
            });
        if all_known {
            self.ask_interval = ASK_INTERVAL;
        }
        self.ask_at = now + self.ask_interval;
        self.ask_interval = (self.ask_interval * 2).min(ASK_INTERVAL);
        let mut moved = false;
        for (index, hop) in hops.into_iter().enumerate() {
            if hop == self.hops[index] {
                continue;
            }
            moved = true;
            let link = &self.settings.links[index];
            let is_up = hop.is_some();
            if is_up != self.hops[index].is_some() {
                let there = there[index].is_some();
                tracing::info!(link = link.name, device = link.device, there, is_up, "link");
            }
            self.hops[index] = hop;
            if is_up && link.rate.is_none() {
                self.control
                    .handle_rate(now, index, ethtool::speed(&link.device));
            }
            self.control.handle_link(now, index, is_up);
        }
        self.apply(now, moved);
    }

    /// Sets weights by the names of links: all of them or none.
    ///
    /// # Errors
    /// Returns a name that no link has.
    pub fn handle_weights(
        &mut self,
        now: Instant,
        weights: &BTreeMap<String, u32>,
    ) -> Result<(), String> {
        let mut indexed = Vec::new();
        for (name, weight) in weights {
            let index = self
                .settings
                .links
                .iter()
                .position(|link| link.name == *name);
            let index = index.ok_or_else(|| {
                let names: Vec<&str> = self
                    .settings
                    .links
                    .iter()
                    .map(|link| link.name.as_str())
                    .collect();
                format!(
                    "no link is called \"{name}\"; there are: {}",
                    names.join(", ")
                )
            })?;
            indexed.push((index, *weight));
        }
        self.control.handle_weights(now, &indexed);
        self.apply(now, false);
        Ok(())
    }

    /// Runs everything that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now >= self.control.poll_timeout() {
            self.read_counters(now);
        }
        if now >= self.running_at && self.look_at_devices(now) {
            self.ask_interval = FIRST_ASK_INTERVAL;
            self.ask(now);
        }
        if now >= self.ask_at {
            self.ask(now);
        }
        if now >= self.look_at {
            self.look_at = now + LOOK_INTERVAL;
            let began_at = clock::now();
            let seen = if self.settings.guideline || self.keeper.is_some() {
                self.look_at_connections(now)
            } else {
                0
            };
            if self.keeper.is_some() && self.probe.is_none() && seen <= FEW_CONNECTIONS {
                self.look_at = now + SOON_INTERVAL;
            }
            // The kernel iterates over a table whose size depends on the host's memory, not on its content.
            let took = clock::now().since(began_at);
            self.look_at = self.look_at.max(now + took * LOOK_PART);
        }
        let mut again = self.retry_at.is_some_and(|retry_at| now >= retry_at);
        again |= self.tell_keeper();
        if now >= self.check_at {
            self.check_at = now + CHECK_INTERVAL;
            match self.kernel.check_routes() {
                Ok(complete) => again |= !complete,
                Err(error) => tracing::warn!(%error, "cannot read the routes"),
            }
        }
        self.apply(now, again);
    }

    /// Passes the current state to the thread that delays packets, and checks which links' packets wait. Returns true
    /// if this has changed.
    fn tell_keeper(&mut self) -> bool {
        let Some(keeper) = &mut self.keeper else {
            return false;
        };
        let way = |(link, (hop, weight)): (usize, (&Option<Hop>, &u32))| {
            let hop = hop.as_ref().filter(|_| *weight > 0)?;
            Some(Way {
                device: hop.device.clone(),
                families: [hop.v4.is_some(), hop.v6.is_some()],
                rate: self.control.view(link).and_then(|view| view.load.rate),
            })
        };
        let ways = self.hops.iter().zip(&self.weights).enumerate();
        keeper.set(Plan {
            ways: ways.map(way).collect(),
            probe: self.probe,
            is_idle: self.is_idle,
        });
        let waits = |link| {
            let holding = keeper.holding(link);
            // As long as packets of a link are waiting, later packets must not overtake them.
            !holding.hold.is_zero() || holding.waiting > Bytes::ZERO
        };
        let waiting = Waiting {
            links: core::array::from_fn(waits),
            keeps_flows: !keeper.knows_all(),
        };
        let is_new = waiting != self.waiting;
        self.waiting = waiting;
        is_new
    }

    /// Returns the time at which [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let due = self
            .control
            .poll_timeout()
            .min(self.running_at)
            .min(self.ask_at)
            .min(self.look_at)
            .min(self.check_at);
        self.retry_at.map_or(due, |retry_at| due.min(retry_at))
    }

    /// Undoes all changes.
    ///
    /// # Errors
    /// Returns the error if a change could not be undone.
    pub fn stop(mut self) -> io::Result<()> {
        if self.keeper.is_some() {
            // First no more packets are passed to the thread that delays them. Then all waiting packets are sent.
            self.waiting = Waiting::default();
            self.put_in_force()?;
            self.keeper = None;
        }
        self.kernel.undo()
    }

    /// Logs `error` as a warning, unless there was a warning recently.
    fn complain(&mut self, now: Instant, error: &io::Error, text: &str) {
        if now >= self.complain_at {
            self.complain_at = now + COMPLAIN_INTERVAL;
            tracing::warn!(%error, "{text}");
        } else {
            tracing::debug!(%error, "{text}");
        }
    }

    fn read_sent(&mut self, now: Instant) {
        match self.kernel.sent() {
            Ok(sent) if sent.len() == self.sent.len() => self.sent = sent,
            Ok(_) => {}
            Err(error) => self.complain(now, &error, "cannot read what was sent"),
        }
    }

    fn read_counters(&mut self, now: Instant) {
        self.read_sent(now);
        let devices = procnet::device_bytes().unwrap_or_else(|error| {
            self.complain(now, &error, "cannot read the counters of devices");
            BTreeMap::new()
        });
        let others = self.kernel.others(&self.hops);
        let counters = |index: usize| {
            self.hops[index].as_ref()?;
            let (_, total) = devices.get(&self.settings.links[index].device)?;
            Some(Counters {
                total: Bytes::new(*total),
                own: Bytes::new(self.sent[index].bytes),
                others: others[index].map(Bytes::new),
            })
        };
        let counters: Vec<Option<Counters>> = (0..self.hops.len()).map(counters).collect();
        self.control.handle_counters(now, &counters);
    }

    /// Examines the TCP connections and returns their number.
    fn look_at_connections(&mut self, now: Instant) -> usize {
        let connections = match tcp_diag::connections(MAX_CONNECTIONS) {
            Ok(connections) => connections,
            Err(error) => {
                tracing::debug!(%error, "cannot list connections");
                return MAX_CONNECTIONS;
            }
        };
        let is_spread = |ip: IpAddr| {
            self.settings
                .destinations
                .iter()
                .any(|net| net.contains(&ip))
        };
        let link_of = |ip: IpAddr| {
            let has = |addresses: &Vec<IpNet>| addresses.iter().any(|net| net.addr() == ip);
            self.addresses.iter().position(has)
        };
        if let Some(keeper) = &self.keeper {
            let spread = connections
                .iter()
                .filter(|connection| is_spread(connection.remote.ip()));
            let ends = spread.map(|connection| {
                let (remote, local) = (connection.remote.ip(), connection.local.ip());
                (connection.info.segments, (remote, local))
            });
            self.is_idle = self.settings.probe.is_none() && ends.clone().next().is_none();
            self.probe = match self.settings.probe {
                Some(host) => ping::source_to(host).ok().map(|source| (host, source)),
                None => self.asking.choose(now, keeper.silent(), ends),
            };
        }
        let samples: Vec<Sample> = connections
            .iter()
            .filter(|connection| !is_spread(connection.remote.ip()))
            .filter_map(|connection| {
                Some(Sample {
                    link: link_of(connection.local.ip())?,
                    local: connection.local,
                    remote: connection.remote,
                    min_rtt: connection.info.min_rtt,
                    segments: connection.info.segments,
                    retransmitted: connection.info.retransmitted,
                })
            })
            .collect();
        self.passive.handle_samples(now, &samples);
        if !self.settings.guideline {
            return connections.len();
        }
        let mut impairments = self.passive.impairments(self.settings.links.len());
        if self.keeper.is_some() {
            // Packets are delayed so that all links have the same delay.
            for impairment in impairments.iter_mut().flatten() {
                impairment.delay = Duration::ZERO;
            }
        }
        self.control.handle_impairments(now, &impairments);
        connections.len()
    }

    /// Passes changes to the kernel, or everything if `again` is set.
    fn apply(&mut self, now: Instant, again: bool) {
        let change = self.control.poll_change();
        let mut is_change = false;
        if change.is_none() && !again {
            return;
        }
        if let Some(change) = change {
            is_change = true;
            self.weights.clone_from(&change.weights);
            let why = self.why(change.why);
            tracing::debug!(weights = ?change.weights, why, "weights");
            self.last_change = Some((change, why));
        }
        self.retry_at = None;
        // This precedes the change in the kernel, so that packets that wait for a removed link are sent over another
        // link.
        self.tell_keeper();
        if let Err(error) = self.put_in_force() {
            tracing::warn!(%error, "not all of the weights are in force; trying again");
            self.retry_at = Some(now + RETRY_INTERVAL);
        }
        if is_change {
            self.read_sent(now);
            self.sent_at_change.clone_from(&self.sent);
        }
    }

    /// Passes the complete state to the kernel.
    fn put_in_force(&mut self) -> io::Result<()> {
        let of_family = |is_v6: bool| -> Vec<u32> {
            let weight = |(weight, hop): (&u32, &Option<Hop>)| {
                let has = hop.as_ref().is_some_and(|hop| {
                    if is_v6 {
                        hop.v6.is_some()
                    } else {
                        hop.v4.is_some()
                    }
                });
                if has { *weight } else { 0 }
            };
            self.weights.iter().zip(&self.hops).map(weight).collect()
        };
        let weights = [of_family(false), of_family(true)];
        let shares = [sequence::shares(&weights[0]), sequence::shares(&weights[1])];
        let turns = weights.each_ref().map(|weights| Sequence::new(weights));
        let slots = turns
            .each_ref()
            .map(|turns| turns.as_ref().map_or(&[][..], Sequence::slots));
        self.kernel.set(&self.hops, &shares, slots, self.waiting)
    }

    fn why(&self, why: Why) -> String {
        let name = |index: usize| {
            self.settings
                .links
                .get(index)
                .map_or("", |link| link.name.as_str())
        };
        match why {
            Why::Background => "other traffic on the links, or their rates, changed".to_owned(),
            Why::Down(index) => format!("{} is down", name(index)),
            Why::Guideline(Rule::BestOnly) => {
                "loss or delay is too different: only the best link".to_owned()
            }
            Why::Guideline(Rule::Overweight) => {
                "loss or delay is different: more on the best link".to_owned()
            }
            Why::Guideline(Rule::Proportional) => "loss and delay are alike again".to_owned(),
            Why::Set => "set by hand".to_owned(),
            Why::Start => "start".to_owned(),
            Why::Up(index) => format!("{} is up", name(index)),
        }
    }
}

/// Returns the next hops of `before` whose link was found and is unchanged.
fn still_there(before: &[Option<Hop>], found: &[Option<Hop>]) -> Vec<Option<Hop>> {
    let both = before.iter().zip(found);
    let kept = both.map(|(before, found)| match (before, found) {
        (Some(before), Some(found)) if before.ifindex == found.ifindex => Some(before.clone()),
        _ => None,
    });
    kept.collect()
}

/// Time between two checks of the devices' carriers: the kernel reports a lost carrier only within a second. A check
/// takes about ten microseconds per link.
const RUNNING_INTERVAL: Duration = Duration::from_millis(40);
/// Time between two checks whether next hops answer, once all are known.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// First time to wait for an answer of a next hop. The time is doubled at each further attempt.
const FIRST_ASK_INTERVAL: Duration = Duration::from_millis(5);
/// Shortest time between two readings of counters with the nftables back end, where new weights take some time.
const LEAST_NFT_INTERVAL: Duration = Duration::from_millis(200);
/// Time between two examinations of the TCP connections.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two examinations while no host for probes is known and there are at most [`FEW_CONNECTIONS`].
const SOON_INTERVAL: Duration = Duration::from_millis(50);
/// Number of connections whose examination takes some tens of microseconds.
const FEW_CONNECTIONS: usize = 200;
/// Divisor of the part of time spent on examining connections: at most one part of this many.
const LOOK_PART: u32 = 50;
/// Time between two checks of the routes.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two warnings about errors that occur many times a second.
const COMPLAIN_INTERVAL: Duration = Duration::from_secs(10);
/// Time until the next attempt after the kernel has refused a change.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

const _: () = assert!(
    equalize::MAX_LINKS == MAX_LINKS
        && equalize::SHARE_BITS == sequence::SHARE_BITS
        && equalize::MAX_DEBT == sequence::MAX_DEBT,
    "the kernel's part has the same measures"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_in_use_stays_as_long_as_its_link() {
        let hop = |ifindex: u32| {
            Some(Hop {
                device: "eth".to_owned(),
                ifindex,
                mtu: 1500,
                v4: None,
                v6: None,
            })
        };
        let before = [hop(1), hop(2), hop(3), None];
        let found = [hop(1), None, hop(4), hop(5)];
        assert_eq!(still_there(&before, &found), [hop(1), None, None, None]);
    }
}
