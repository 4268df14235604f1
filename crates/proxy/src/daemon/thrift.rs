//! Makes links temporarily more expensive: when their budget runs short, and when the host runs on battery. Both are
//! checked once a second.
//!
//! All bytes that a device carries are charged to its link's budget, as the kernel counts them: the packets of all
//! programs with their headers, as the provider sees them. Bytes carried while no proxy runs are not counted.

use std::{collections::BTreeMap, path::Path};

use pleach_linux::{clock, power, procnet};

use super::{hub::Hub, settings::SaveEnergy};
use crate::{budget::Standing, placer::Placer, sched::LinkId};

/// Budgets and power supply: see the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Thrift {
    /// Byte counters of the devices at the last check.
    seen: BTreeMap<String, u64>,
    windows: u32,
}

impl Thrift {
    /// Called once per window of the estimators. Every fourth call checks.
    pub(super) fn handle_window(&mut self, hub: &Hub) {
        self.windows = self.windows.wrapping_add(1);
        if self.windows % WINDOWS_EACH != 1 {
            return;
        }
        let mut placer = hub.placer.borrow_mut();
        placer.saves_energy = match hub.settings.save_energy {
            SaveEnergy::Always => true,
            SaveEnergy::Never => false,
            // A host that reports no power supplies has no battery.
            SaveEnergy::OnBattery => {
                power::is_on_battery(Path::new(power::SUPPLIES)).unwrap_or(false)
            }
        };
        if hub
            .settings
            .links
            .iter()
            .any(|link| link.settings.budget.is_some())
        {
            self.charge(hub, &mut placer);
        }
    }

    fn charge(&mut self, hub: &Hub, placer: &mut Placer) {
        let Ok(counters) = procnet::device_bytes() else {
            return;
        };
        let now = clock::unix_seconds();
        for (index, name) in hub.uplinks.device_names().into_iter().enumerate() {
            let bytes = counters.get(&name).map_or(0, |(received, sent)| {
                let total = received.saturating_add(*sent);
                let seen = self.seen.insert(name, total).unwrap_or(total);
                // A device that was unplugged and plugged in again counts from 0.
                total.checked_sub(seen).unwrap_or(total)
            });
            let Some(standing) = placer.charge(LinkId(index), now, bytes) else {
                continue;
            };
            let link = placer.links()[index].settings.name.as_str();
            match standing {
                Standing::Within => tracing::info!(link, "within its budget again"),
                Standing::Ahead => {
                    tracing::info!(
                        link,
                        "has carried more than it has earned of its budget: only used where others are not enough"
                    );
                }
                Standing::Spent => {
                    tracing::warn!(
                        link,
                        "its budget is spent: only used while no other link is up"
                    );
                }
            }
        }
    }
}

const WINDOWS_EACH: u32 = 4;
