//! Byte budgets of a client's links, by the rules of the proxy ([`pleach_proxy::budget`]).
//!
//! Once a second a budget is charged what the link's device has carried as the kernel counts it, so probes, copies, repairs and
//! what other programs send over it count, too. When a budget is spent, its link is put aside as `at_limit` says; when the next
//! month begins, it is used again. Accounts are in a file over restarts; what a device carries while no daemon runs is not counted.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use pleach_core::{path::link::Link, time::Instant, wire::control::LinkRole};
use pleach_linux::{clock, procnet};
use pleach_proxy::budget::{Account, Standing};

use super::{data_path::DataPath, links};
use crate::{
    config::{AtLimit, ClientConfig, LinkConfig, Role},
    control::BudgetStatus,
    onboard::durable::{self, Existing},
};

/// See the module's head.
#[derive(Debug)]
pub(super) struct Budgets {
    file: PathBuf,
    /// By name of the link.
    accounts: BTreeMap<String, Account>,
    /// Counters of devices when they were last looked at.
    seen: BTreeMap<String, u64>,
    /// Links that are put aside.
    spent: BTreeMap<String, bool>,
    next: Instant,
    save_at: Instant,
}

impl Budgets {
    /// The accounts that `file` has, or none if it is not there; `None` if no link of `client` has a budget.
    pub(super) fn load(now: Instant, client: &ClientConfig, tunnel: &str) -> Option<Self> {
        client.links.iter().find(|link| link.budget.is_some())?;
        let usual = || Path::new(DIRECTORY).join(format!("{tunnel}.budgets"));
        let file = client.state.clone().unwrap_or_else(usual);
        let accounts = read(&file).unwrap_or_else(|error| {
            tracing::warn!(file = %file.display(), %error, "what links have carried of their budgets is not known");
            BTreeMap::new()
        });
        Some(Self {
            file,
            accounts,
            seen: BTreeMap::new(),
            spent: BTreeMap::new(),
            next: now,
            save_at: now + SAVE_EVERY,
        })
    }

    /// When to look at the devices again.
    pub(super) const fn next_at(&self) -> Instant {
        self.next
    }

    /// Has every link be put aside, or used, anew: their settings have changed.
    pub(super) fn start_over(&mut self, now: Instant) {
        self.spent.clear();
        self.next = now;
    }

    /// Charges `links` what `counters` say, at `unix_s`; those that are to be put aside now, or used again.
    fn charge(
        &mut self,
        links: &[LinkConfig],
        counters: &BTreeMap<String, (u64, u64)>,
        unix_s: u64,
    ) -> Vec<(LinkConfig, bool)> {
        let mut changed = Vec::new();
        for link in links {
            let Some(budget) = &link.budget else { continue };
            let account = self.accounts.entry(link.name.clone()).or_default();
            if let Some((received, sent)) = counters.get(&link.device) {
                let total = received.saturating_add(*sent);
                let seen = self.seen.insert(link.device.clone(), total);
                // A device that was plugged in again counts from 0.
                let bytes = seen.map_or(0, |seen| total.checked_sub(seen).unwrap_or(total));
                account.charge(budget, unix_s, bytes);
            }
            let is_spent = account.standing(budget, unix_s) == Standing::Spent;
            let was_spent = self.spent.insert(link.name.clone(), is_spent);
            if was_spent.unwrap_or(false) != is_spent {
                changed.push((link.clone(), is_spent));
            }
        }
        changed
    }

    /// How the links stand, for `status`.
    pub(super) fn report(&self, links: &[LinkConfig]) -> BTreeMap<String, BudgetStatus> {
        let now = clock::unix_seconds();
        let of = |link: &LinkConfig| {
            let budget = link.budget.as_ref()?;
            let account = self.accounts.get(&link.name)?;
            let status = BudgetStatus {
                bytes: budget.bytes.get(),
                used_bytes: account.used(budget, now).get(),
                standing: match account.standing(budget, now) {
                    Standing::Within => "within",
                    Standing::Ahead => "ahead",
                    Standing::Spent => "spent",
                }
                .to_owned(),
            };
            Some((link.name.clone(), status))
        };
        links.iter().filter_map(of).collect()
    }

    /// Writes the file as of now; call it where waiting for a disk does no harm. A failure is told and does no other harm.
    pub(super) fn saving(&self) -> impl FnOnce() + Send + use<> {
        let accounts: BTreeMap<String, BTreeMap<i32, u64>> = self
            .accounts
            .iter()
            .map(|(link, account)| (link.clone(), account.months().collect()))
            .collect();
        let file = self.file.clone();
        move || {
            let written = serde_json::to_vec(&accounts)
                .map_err(io::Error::from)
                .and_then(|bytes| durable::write(&file, &bytes, 0o600, Existing::Replace));
            if let Err(error) = written {
                tracing::warn!(file = %file.display(), %error, "what links have carried of their budgets is not kept");
            }
        }
    }
}

fn read(file: &Path) -> io::Result<BTreeMap<String, Account>> {
    let bytes = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        read => read?,
    };
    let kept: BTreeMap<String, BTreeMap<i32, u64>> = serde_json::from_slice(&bytes)?;
    let account = |months| {
        let mut account = Account::default();
        account.restore(months);
        account
    };
    let accounts = kept.into_iter();
    Ok(accounts
        .map(|(link, months)| (link, account(months)))
        .collect())
}

impl DataPath {
    /// Charges budgets if it is time, and puts links aside.
    pub(super) fn charge_budgets(&mut self, now: Instant) {
        let Role::Client(client) = &self.config.role else {
            return;
        };
        // What uses one link alone sets the roles of all.
        if self.solo.is_some() {
            return;
        }
        let Some(budgets) = self.budgets.as_mut().filter(|budgets| budgets.next <= now) else {
            return;
        };
        budgets.next = now + LOOK_EVERY;
        let Ok(counters) = procnet::device_bytes() else {
            return;
        };
        let changed = budgets.charge(&client.links, &counters, clock::unix_seconds());
        if !changed.is_empty() || budgets.save_at <= now {
            budgets.save_at = now + SAVE_EVERY;
            let saving = budgets.saving();
            self.host.run(move |_| saving());
        }
        for (link, is_spent) in changed {
            if is_spent {
                tracing::warn!(link = link.name, at_limit = ?link.at_limit, "its budget is spent");
            } else {
                tracing::info!(link = link.name, "within its budget again");
            }
            let mut settings = links::settings(&link, self.inner_mtu());
            if is_spent {
                put_aside(&mut settings, link.at_limit);
            }
            self.set_link(now, &settings);
        }
    }

    /// When [`Self::charge_budgets`] is due.
    pub(super) fn budgets_due(&self) -> Option<Instant> {
        let budgets = self.budgets.as_ref().filter(|_| self.solo.is_none());
        budgets.map(Budgets::next_at)
    }
}

fn put_aside(link: &mut Link, at_limit: AtLimit) {
    match at_limit {
        AtLimit::Off => link.role = LinkRole::Never,
        AtLimit::Slower(rate) => {
            for limit in [&mut link.upload, &mut link.download] {
                *limit = Some(limit.map_or(rate, |own| own.min(rate)));
            }
        }
        // One that is never used stays so.
        AtLimit::Standby if link.role == LinkRole::Active => link.role = LinkRole::Standby,
        AtLimit::Standby => {}
    }
}

/// Of systemd's unit.
const DIRECTORY: &str = "/var/lib/pleach";
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How much is forgotten if the daemon is killed.
const SAVE_EVERY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use pleach_core::units::{Bitrate, Bytes};
    use pleach_proxy::budget::Budget;

    use super::*;
    use crate::config::Cost;

    fn link(at_limit: AtLimit) -> LinkConfig {
        LinkConfig {
            name: "lte".to_owned(),
            device: "wwan0".to_owned(),
            cost: Cost::Rank(0),
            weight: 1,
            upload: Some(Bitrate::from_mbps(5)),
            download: None,
            budget: Some(Budget {
                bytes: Bytes::new(1000),
                billing_day: 1,
            }),
            carrier: None,
            http_proxy: None,
            at_limit,
        }
    }

    fn budgets(file: PathBuf) -> Budgets {
        Budgets {
            accounts: read(&file).expect("readable"),
            file,
            seen: BTreeMap::new(),
            spent: BTreeMap::new(),
            next: Instant::ZERO,
            save_at: Instant::ZERO,
        }
    }

    #[test]
    fn both_directions_count_and_a_link_comes_back_with_the_next_month() {
        let directory = tempfile::TempDir::new().expect("directory");
        let file = directory.path().join("budgets");
        let links = [link(AtLimit::Standby)];
        let counters = |received, sent| BTreeMap::from([("wwan0".to_owned(), (received, sent))]);
        // Noon of 2026-03-15 and of 2026-04-01.
        let (march, april) = (1_773_576_000, 1_775_044_800);
        let mut first = budgets(file.clone());
        // What the device carried before is not the tunnel's.
        assert!(
            first
                .charge(&links, &counters(9000, 9000), march)
                .is_empty()
        );
        assert!(
            first
                .charge(&links, &counters(9400, 9500), march)
                .is_empty()
        );
        first.saving()();
        let mut second = budgets(file);
        // The device was plugged in again between two looks.
        assert!(
            second
                .charge(&links, &counters(9400, 9500), march)
                .is_empty()
        );
        let changed = second.charge(&links, &counters(60, 40), march);
        assert_eq!(changed, [(links[0].clone(), true)]);
        assert!(second.charge(&links, &counters(60, 40), march).is_empty());
        let changed = second.charge(&links, &counters(60, 41), april);
        assert_eq!(changed, [(links[0].clone(), false)]);
    }

    #[test]
    fn a_link_is_put_aside_as_the_user_says() {
        let aside = |at_limit, cost| {
            let config = LinkConfig {
                cost,
                ..link(at_limit)
            };
            let mut settings = links::settings(&config, 1400);
            put_aside(&mut settings, at_limit);
            (settings.role, settings.upload, settings.download)
        };
        let own = Some(Bitrate::from_mbps(5));
        let rank = Cost::Rank(0);
        assert_eq!(aside(AtLimit::Off, rank), (LinkRole::Never, own, None));
        assert_eq!(
            aside(AtLimit::Standby, rank),
            (LinkRole::Standby, own, None)
        );
        assert_eq!(
            aside(AtLimit::Standby, Cost::Never),
            (LinkRole::Never, own, None)
        );
        let rate = Bitrate::from_bps(512_000);
        let slower = aside(AtLimit::Slower(rate), rank);
        assert_eq!(slower, (LinkRole::Active, Some(rate), Some(rate)));
        let faster = AtLimit::Slower(Bitrate::from_mbps(9));
        assert_eq!(aside(faster, rank).1, own, "its own limit stays");
    }
}
