//! Links behind captive portals: checks ([`crate::portal`]) of links that have a route, but over which the gateway does
//! not answer.
//!
//! The first check of a link is made when the gateway has not answered over it for [`AFTER`]. Further checks follow at
//! growing intervals, from [`FIRST_INTERVAL`] to [`MAX_INTERVAL`], until the gateway answers. Each check runs in a
//! thread of its own, so packets do not wait for it. At most one check of a link runs at a time.

use std::{
    collections::BTreeMap,
    io,
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

use pleach_core::time::Instant;
use pleach_linux::poll::Waker;

use crate::{
    control::{LinkState, StatusReport},
    portal::{CheckUrl, Verdict, without_query},
    reasons,
};

/// The checks of a client's links.
#[derive(Debug)]
pub(super) struct Portals {
    url: CheckUrl,
    /// Firewall mark that keeps the checks out of the tunnel, whose device is `tunnel`.
    fwmark: u32,
    tunnel: String,
    sender: Sender<(String, Verdict)>,
    verdicts: Receiver<(String, Verdict)>,
    waker: Waker,
    /// Links over which the gateway does not answer, by name.
    silent: BTreeMap<String, Silent>,
    next_at: Instant,
}

/// A link over which the gateway does not answer.
#[derive(Debug)]
struct Silent {
    device: String,
    next_at: Instant,
    interval: Duration,
    is_asking: bool,
    /// Latest verdict that is known.
    verdict: Verdict,
}

impl Portals {
    /// Makes the checks, which request `url`; none is running yet.
    ///
    /// # Errors
    /// If no eventfd can be created.
    pub(super) fn new(url: CheckUrl, fwmark: u32, tunnel: &str) -> io::Result<Self> {
        let (sender, verdicts) = mpsc::channel();
        Ok(Self {
            url,
            fwmark,
            tunnel: tunnel.to_owned(),
            sender,
            verdicts,
            waker: Waker::new()?,
            silent: BTreeMap::new(),
            next_at: Instant::ZERO,
        })
    }

    /// Returns the waker, which is readable when a check has ended.
    pub(super) const fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns when [`Self::update`] is due.
    pub(super) const fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Starts the checks that are due. `silent`: names and devices of all links that have a route, but over which the
    /// gateway does not answer.
    pub(super) fn update(&mut self, now: Instant, silent: &[(String, String)]) {
        for (name, device) in self.due(now, silent) {
            let (url, link) = (self.url.clone(), name.clone());
            let (fwmark, tunnel) = (self.fwmark, self.tunnel.clone());
            let (sender, waker) = (self.sender.clone(), self.waker.clone());
            let checking = move || {
                let verdict = url.check(&device, Some(fwmark), &tunnel);
                // The receiver may be gone if the daemon is stopping.
                let _ = sender.send((link, verdict));
                waker.wake();
            };
            let thread = thread::Builder::new().name("portal".to_owned());
            if let Err(error) = thread.spawn(checking) {
                tracing::warn!(%error, "captive portals are not looked for");
                self.on_verdict(&name, Verdict::Unknown);
            }
        }
    }

    /// Returns the links, with their devices, whose check begins now.
    fn due(&mut self, now: Instant, silent: &[(String, String)]) -> Vec<(String, String)> {
        self.next_at = now + LOOK_EVERY;
        self.silent.retain(|name, known| {
            let mut links = silent.iter();
            links.any(|(link, device)| link == name && *device == known.device)
        });
        let mut due = Vec::new();
        for (name, device) in silent {
            let known = self.silent.entry(name.clone()).or_insert_with(|| Silent {
                device: device.clone(),
                next_at: now + AFTER,
                interval: FIRST_INTERVAL,
                is_asking: false,
                verdict: Verdict::Unknown,
            });
            if !known.is_asking && now >= known.next_at {
                known.is_asking = true;
                known.next_at = now + known.interval;
                known.interval = (known.interval * 2).min(MAX_INTERVAL);
                due.push((name.clone(), device.clone()));
            }
        }
        due
    }

    /// Takes the verdicts of checks that have ended.
    pub(super) fn collect(&mut self) {
        self.waker.clear();
        while let Ok((name, verdict)) = self.verdicts.try_recv() {
            self.on_verdict(&name, verdict);
        }
    }

    fn on_verdict(&mut self, name: &str, verdict: Verdict) {
        let Some(known) = self.silent.get_mut(name) else {
            return;
        };
        known.is_asking = false;
        if known.verdict == verdict {
            return;
        }
        match &verdict {
            Verdict::Open => {
                tracing::info!(
                    link = name,
                    "no captive portal, but the gateway does not answer"
                );
            }
            Verdict::Portal(url) => {
                let url = url.as_deref().map(without_query);
                tracing::warn!(link = name, url, "a captive portal: the link needs a login");
            }
            Verdict::Unknown => {}
        }
        known.verdict = verdict;
    }

    /// Adds the captive portals to `status`, and names them as the reason why their links are not used.
    pub(super) fn explain(&self, status: &mut StatusReport) {
        for (name, known) in &self.silent {
            let Verdict::Portal(url) = &known.verdict else {
                continue;
            };
            let mut links = status.links.iter_mut();
            let link = links.find(|link| link.name == *name && link.state == LinkState::Down);
            let Some(link) = link else {
                continue;
            };
            let place = url
                .as_ref()
                .map_or(String::new(), |url| format!(" at {url}"));
            link.idle_reason = Some(reasons::PORTAL.to_owned());
            link.why = Some(format!(
                "{name} is behind a captive portal: it asks for a login{place}"
            ));
            link.advice = reasons::advice(reasons::PORTAL).map(str::to_owned);
            status
                .portals
                .insert(name.clone(), url.clone().unwrap_or_default());
        }
    }
}

/// Time without an answer of the gateway after which a link is checked: longer than a start or a change of the network
/// takes.
const AFTER: Duration = Duration::from_secs(3);
const FIRST_INTERVAL: Duration = Duration::from_secs(10);
const MAX_INTERVAL: Duration = Duration::from_secs(300);
/// Interval at which the links are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::LinkStatus;

    fn portals() -> Portals {
        Portals::new(CheckUrl::default(), 1, "pleach0").expect("an eventfd")
    }

    fn silent() -> Vec<(String, String)> {
        vec![("wifi".to_owned(), "wlan0".to_owned())]
    }

    #[test]
    fn checks_of_a_silent_link_become_rare() {
        let mut portals = portals();
        let mut at = Vec::new();
        for second in 0..2_000 {
            let now = Instant::ZERO + Duration::from_secs(second);
            if !portals.due(now, &silent()).is_empty() {
                at.push(second);
                portals.on_verdict("wifi", Verdict::Unknown);
            }
        }
        assert_eq!(at, [3, 13, 33, 73, 153, 313, 613, 913, 1213, 1513, 1813]);
        // A link that has worked meanwhile begins anew, and so does one with another device.
        let now = Instant::ZERO + Duration::from_secs(2_000);
        assert!(portals.due(now, &[]).is_empty());
        assert!(portals.due(now, &silent()).is_empty());
        assert_eq!(portals.due(now + AFTER, &silent()), silent());
        let other = [("wifi".to_owned(), "wlan1".to_owned())];
        assert!(portals.due(now + AFTER * 9, &other).is_empty());
    }

    #[test]
    fn one_check_of_a_link_runs_at_a_time() {
        let mut portals = portals();
        assert!(portals.due(Instant::ZERO, &silent()).is_empty());
        assert_eq!(portals.due(Instant::ZERO + AFTER, &silent()).len(), 1);
        let late = Instant::ZERO + Duration::from_secs(3_600);
        assert!(portals.due(late, &silent()).is_empty());
        portals.on_verdict("wifi", Verdict::Open);
        assert_eq!(portals.due(late, &silent()).len(), 1);
    }

    #[test]
    fn only_a_portal_is_the_reason_of_its_link() {
        let mut portals = portals();
        let _ = portals.due(Instant::ZERO, &silent());
        let explained = |portals: &Portals| {
            let mut status = StatusReport {
                links: vec![
                    LinkStatus::bare("wifi", "wlan0"),
                    LinkStatus::bare("dsl", "eth1"),
                ],
                ..StatusReport::default()
            };
            portals.explain(&mut status);
            assert_eq!(status.links[1], LinkStatus::bare("dsl", "eth1"));
            (status.portals, status.links[0].idle_reason.clone())
        };
        portals.on_verdict("wifi", Verdict::Open);
        assert_eq!(explained(&portals), (BTreeMap::new(), None));
        portals.on_verdict("wifi", Verdict::Portal(None));
        let expected = BTreeMap::from([("wifi".to_owned(), String::new())]);
        assert_eq!(
            explained(&portals),
            (expected, Some("captive-portal".to_owned()))
        );
    }
}
