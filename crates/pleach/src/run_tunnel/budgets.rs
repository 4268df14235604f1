//! Byte budgets of a client's links, by the rules of the proxy ([`pleach_proxy::budget`]).
//!
//! Once a second each budget is charged with the bytes that the kernel has counted on the link's device. So probes,
//! copies, repairs and the traffic of other programs count, too. When a budget is spent, its link is restricted as
//! `at_limit` says. When the next month begins, the link is used without restriction again. The used bytes are stored
//! in a file over restarts; traffic of a device while no daemon runs is not counted.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use pleach_core::{path::link::Link, time::Instant, wire::control::LinkRole};
use pleach_linux::{clock, procnet};
use pleach_proxy::budget::{Account, Standing};

use super::{data_path::DataPath, links};
use crate::{
    config::{AtLimit, ClientConfig, Cost, LinkConfig, Role},
    control::{BudgetStatus, LinkStatus},
    onboard::durable::{self, Existing},
    reasons,
};

/// Budgets of a client's links; see the module's documentation.
#[derive(Debug)]
pub(super) struct Budgets {
    file: PathBuf,
    /// Used bytes, by name of the link.
    accounts: BTreeMap<String, Account>,
    /// Byte counters of devices at the last check, by device.
    seen: BTreeMap<String, u64>,
    /// Whether the budget of a link is spent, by name of the link.
    spent: BTreeMap<String, bool>,
    next: Instant,
    save_at: Instant,
}

impl Budgets {
    /// Loads the used bytes from the file, or starts with none if the file does not exist. Returns `None` if no link of
    /// `client` has a budget.
    pub(super) fn load(now: Instant, client: &ClientConfig, tunnel: &str) -> Option<Self> {
        client.links.iter().find(|link| link.budget.is_some())?;
        let file = file(client, tunnel);
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

    /// Returns the time of the next check.
    pub(super) const fn next_at(&self) -> Instant {
        self.next
    }

    /// Makes the next check restrict links again, because the settings of the links have changed.
    pub(super) fn start_over(&mut self, now: Instant) {
        self.spent.clear();
        self.next = now;
    }

    /// Charges `links` with the bytes in `counters`, at the time `unix_s`. Returns the links whose restriction begins
    /// (`true`) or ends (`false`).
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
                // The counter of a device that was plugged in again starts at 0.
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

    /// Returns the state of the budgets, for `status`.
    pub(super) fn report(&self, links: &[LinkConfig]) -> BTreeMap<String, BudgetStatus> {
        let now = clock::unix_seconds();
        let of = |link: &LinkConfig| {
            let budget = link.budget.as_ref()?;
            let account = self.accounts.get(&link.name)?;
            let status = account.report(budget, now);
            Some((link.name.clone(), status.into()))
        };
        links.iter().filter_map(of).collect()
    }

    /// Names the spent budget as the reason why a link is not used, in place of the cost that it has for this reason.
    pub(super) fn explain(&self, links: &[LinkConfig], report: &mut [LinkStatus]) {
        for status in report {
            let is_spent = self.spent.get(&status.name).copied().unwrap_or(false);
            let link = links.iter().find(|link| link.name == status.name);
            let Some(link) = link.filter(|_| is_spent) else {
                continue;
            };
            let is_put_aside = match (status.idle_reason.as_deref(), link.at_limit, link.cost) {
                (Some("never"), AtLimit::Off, Cost::Rank(_) | Cost::Standby)
                | (Some("standby"), AtLimit::Standby, Cost::Rank(_)) => true,
                (_, AtLimit::Off | AtLimit::Standby | AtLimit::Slower(_), _) => false,
            };
            if is_put_aside {
                status.idle_reason = Some(reasons::BUDGET.to_owned());
                status.why = Some(format!("{} has spent its budget", link.name));
                status.advice = reasons::advice(reasons::BUDGET).map(str::to_owned);
            }
        }
    }

    /// Returns a closure that writes the present state to the file. Call it where waiting for a disk is permitted. A
    /// failure is only logged.
    pub(super) fn saving(&self) -> impl FnOnce() + Send + use<> {
        let accounts: BTreeMap<String, BTreeMap<i32, u64>> = self
            .accounts
            .iter()
            .map(|(link, account)| (link.clone(), account.months().collect()))
            .collect();
        let file = self.file.clone();
        move || {
            if let Err(error) = write(&file, &accounts) {
                tracing::warn!(
                    file = %file.display(),
                    %error,
                    "what links have carried of their budgets is not kept; [tunnel] state can name another file"
                );
            }
        }
    }
}

/// Writes the used bytes to `file`. Creates the directory of `file` if no package has created it.
fn write(file: &Path, accounts: &BTreeMap<String, BTreeMap<i32, u64>>) -> io::Result<()> {
    let bytes = serde_json::to_vec(accounts)?;
    if let Some(directory) = file.parent() {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory)?;
    }
    durable::write(file, &bytes, 0o600, Existing::Replace)
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
    /// Charges budgets if a check is due, and restricts links or ends the restriction.
    pub(super) fn charge_budgets(&mut self, now: Instant) {
        let Role::Client(client) = &self.config.role else {
            return;
        };
        // While one link is used alone, that mode sets the roles of all links.
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
            // Other settings, such as the weight, are kept, because a command may have changed them.
            self.endpoint.update_links(now, &settings.name, |link| {
                link.role = settings.role;
                link.upload = settings.upload;
                link.download = settings.download;
            });
        }
    }

    /// Returns when [`Self::charge_budgets`] is due.
    pub(super) fn budgets_due(&self) -> Option<Instant> {
        let budgets = self.budgets.as_ref().filter(|_| self.solo.is_none());
        budgets.map(Budgets::next_at)
    }
}

/// Returns the file that stores the used bytes of the links of the tunnel called `tunnel`.
pub(crate) fn file(client: &ClientConfig, tunnel: &str) -> PathBuf {
    let usual = || Path::new(DIRECTORY).join(format!("{tunnel}.budgets"));
    client.state.clone().unwrap_or_else(usual)
}

fn put_aside(link: &mut Link, at_limit: AtLimit) {
    match at_limit {
        AtLimit::Off => link.role = LinkRole::Never,
        AtLimit::Slower(rate) => {
            for limit in [&mut link.upload, &mut link.download] {
                *limit = Some(limit.map_or(rate, |own| own.min(rate)));
            }
        }
        // A link that is never used remains so.
        AtLimit::Standby if link.role == LinkRole::Active => link.role = LinkRole::Standby,
        AtLimit::Standby => {}
    }
}

/// Directory of state files, as in systemd's unit.
const DIRECTORY: &str = "/var/lib/pleach";
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval between two writes. If the daemon is killed, the traffic since the last write is not counted.
const SAVE_EVERY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use pleach_core::units::{Bitrate, Bytes};
    use pleach_proxy::budget::Budget;

    use super::*;

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
        let file = directory.path().join("not/there/yet/budgets");
        let links = [link(AtLimit::Standby)];
        let counters = |received, sent| BTreeMap::from([("wwan0".to_owned(), (received, sent))]);
        // Noon of 2026-03-15 and of 2026-04-01, in seconds since 1970.
        let (march, april) = (1_773_576_000, 1_775_044_800);
        let mut first = budgets(file.clone());
        // Earlier traffic of the device is not the tunnel's.
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
        // The device was plugged in again between two checks.
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
