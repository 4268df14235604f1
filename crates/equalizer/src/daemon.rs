//! The running equalizer: joins weights to the kernel, its devices and its counters.
//!
//! A state machine like the others, but what it does it does at once, by system calls that take micro- to milliseconds. The
//! caller waits: for news of links, for requests, for [`Daemon::poll_timeout`].

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

/// Everything a configuration says.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is spread.
    pub destinations: Vec<IpNet>,
    /// Who chooses links; `None`: what works best here.
    pub backend: Option<Backend>,
    /// How.
    pub mode: Mode,
    /// If packets wait: who is asked how long each link's way is; `None`: whom this host has connections with.
    pub probe: Option<IpAddr>,
    /// Where weights come from.
    pub source: Source,
    /// How automatic ones follow.
    pub auto: AutoSettings,
    /// Whether loss and delay gate automatic weights.
    pub guideline: bool,
    /// 1 to [`MAX_LINKS`] links.
    pub links: Vec<LinkConfig>,
    /// Where state files lie.
    pub state_dir: PathBuf,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Its name.
    pub name: String,
    /// Its device; may be absent.
    pub device: String,
    /// Next hop for IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Next hop for IPv6.
    pub v6: Option<Ipv6Addr>,
    /// What it carries, if somebody told.
    pub rate: Option<Bitrate>,
    /// Its weight, unless weights are automatic.
    pub weight: u32,
}

/// The running equalizer; dropping it undoes what it changed.
#[derive(Debug)]
pub struct Daemon {
    settings: Settings,
    control: WeightControl,
    // Before the kernel's part: what waits leaves while that is still there.
    keeper: Option<Keeper>,
    /// Who is asked how long each link's way is, and from where; how that was chosen.
    probe: Option<Ends>,
    asking: Asking,
    /// Whether nobody seems to need that right now.
    is_idle: bool,
    /// Whose packets wait, as the kernel was told last.
    waiting: Waiting,
    kernel: Equalizer,
    backend_why: String,
    passive: Passive,
    /// What there is of each link, whether or not its next hops answer.
    found: Vec<Option<Hop>>,
    /// Whether the device of each link had a carrier when asked last.
    running: Vec<bool>,
    running_at: Instant,
    /// What packets go by, `None` where a link is down.
    hops: Vec<Option<Hop>>,
    /// Addresses of each link's device.
    addresses: Vec<Vec<IpNet>>,
    weights: Vec<u32>,
    last_change: Option<(Change, String)>,
    sent: Vec<Sent>,
    sent_at_change: Vec<Sent>,
    /// Bytes received by each device when it was first seen.
    rx_at_start: BTreeMap<String, u64>,
    /// The kernel does not have what it should: tried again then.
    retry_at: Option<Instant>,
    /// When next hops are asked again, and how long after that.
    ask_at: Instant,
    ask_interval: Duration,
    look_at: Instant,
    check_at: Instant,
    /// Before then, what goes wrong again and again is not said again.
    complain_at: Instant,
}

impl Daemon {
    /// Clears what a crashed equalizer left, and gets ready; packets are spread from the first [`Self::handle_links`] on.
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
            // Each change is a program that runs for some milliseconds.
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

    /// The back end at work, and why.
    #[must_use]
    pub fn backend(&self) -> (Backend, &str) {
        (self.kernel.backend(), &self.backend_why)
    }

    /// The links of the host are as in `snapshots`.
    pub fn handle_links(&mut self, now: Instant, snapshots: &[LinkSnapshot]) {
        for (index, link) in self.settings.links.iter().enumerate() {
            let found = snapshots
                .iter()
                .find(|snapshot| snapshot.name == link.device);
            // Of carriers the snapshot knows what the kernel has told: up to a second late, of their return as well.
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

    /// Looks which devices carry anything right now; `true` if that has changed.
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

    /// Has next hops asked, and goes by those that answer.
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
    /// A name that no link has.
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

    /// Does what is due.
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
            // The kernel walks a table whose size depends on the host's memory, whatever is in it.
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

    /// Tells who holds packets how things are, and looks whose packets wait; `true` if that has changed.
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
            // What waits still is not overtaken by what need not.
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

    /// When [`Self::handle_timeout`] is due.
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

    /// Undoes everything.
    ///
    /// # Errors
    /// What could not be undone.
    pub fn stop(mut self) -> io::Result<()> {
        if self.keeper.is_some() {
            // Nothing more is given to who holds packets, then all leaves that waits.
            self.waiting = Waiting::default();
            self.put_in_force()?;
            self.keeper = None;
        }
        self.kernel.undo()
    }

    /// Warns of `error`, or not, if there was a warning lately.
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

    /// How many connections there are.
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
            // Packets wait so that all come alike.
            for impairment in impairments.iter_mut().flatten() {
                impairment.delay = Duration::ZERO;
            }
        }
        self.control.handle_impairments(now, &impairments);
        connections.len()
    }

    /// Gives the kernel what has changed, or everything again.
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
        // Before the kernel forgets a link, so that what waits for it leaves by another.
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

    /// Gives the kernel everything.
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

/// Of the next hops `before`, those whose link was found, and is the same.
fn still_there(before: &[Option<Hop>], found: &[Option<Hop>]) -> Vec<Option<Hop>> {
    let both = before.iter().zip(found);
    let kept = both.map(|(before, found)| match (before, found) {
        (Some(before), Some(found)) if before.ifindex == found.ifindex => Some(before.clone()),
        _ => None,
    });
    kept.collect()
}

/// Between two looks which devices have a carrier: the kernel tells of a lost one within a second only. A look takes some ten
/// microseconds a link.
const RUNNING_INTERVAL: Duration = Duration::from_millis(40);
/// Between two looks whether next hops answer, once all are known.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// The first time to wait for an answer; doubled each time.
const FIRST_ASK_INTERVAL: Duration = Duration::from_millis(5);
/// Between two readings of counters where new weights take their time.
const LEAST_NFT_INTERVAL: Duration = Duration::from_millis(200);
/// Between two looks at TCP connections.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The same while nobody is known whom to ask about the links, and there are at most [`FEW_CONNECTIONS`].
const SOON_INTERVAL: Duration = Duration::from_millis(50);
/// To look at so many costs some tens of microseconds.
const FEW_CONNECTIONS: usize = 200;
/// Of its time it spends at most one part of this many looking at connections.
const LOOK_PART: u32 = 50;
/// Between two looks whether the routes are still there.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Between two warnings of what fails many times a second.
const COMPLAIN_INTERVAL: Duration = Duration::from_secs(10);
/// After what the kernel refused.
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
