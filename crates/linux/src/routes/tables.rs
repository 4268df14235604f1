//! Creates and updates the nftables table of a running tunnel, and restores it if another program has removed it.
//!
//! `systemctl restart nftables` and other programs begin with `nft flush ruleset`, which removes the tables of all
//! programs. So each call of [`Setup::look_around`] asks the kernel whether the table exists.
//!
//! Limits: between the removal and the next call, no rule of the table is in force. The counters of a restored table
//! begin at 0. If another program empties the table without removing it, the table is not restored.

use std::{collections::BTreeMap, io};

use super::{Plan, Setup, state_file};
use crate::{
    nft::{self, Forward, Hold},
    surroundings::Surroundings,
};

impl Setup {
    /// Creates or replaces the nftables table for `plan`, for example after its MTU changed.
    ///
    /// If `nft` was killed, the kernel can have either state. Then [`Setup::look_around`] applies the rules again.
    ///
    /// # Errors
    /// Returns the errors of [`Surroundings::read`] and [`nft::apply`]. Also fails if the state file cannot be written.
    pub fn apply_nft(&mut self, plan: &Plan) -> io::Result<()> {
        let rules = self.nft_rules(plan)?;
        let is_first = !self.state.has_nft;
        self.note_nft(true)?;
        let applied = nft::apply(&self.name, &rules);
        if let Err(error) = &applied
            && nft::has_changed_nothing(error)
        {
            if is_first {
                // There is no table to be removed.
                self.note_nft(false)?;
            }
            return applied;
        }
        self.is_doubtful = applied.is_err();
        self.rules = Some(rules);
        applied
    }

    /// Returns the rules of the nftables table for `plan`.
    pub(super) fn nft_rules(&self, plan: &Plan) -> io::Result<nft::Rules> {
        let [others_v4, others_v6] = self.others.clone();
        let forward = plan.forward.then_some(Forward {
            isolate: plan.isolate,
            others_v4,
            others_v6,
        });
        let hold = plan.kill_switch.then(|| Hold {
            mark: self.fwmark(),
            routes: plan.routes.clone(),
        });
        Ok(nft::Rules {
            mtu: plan.mtu,
            addresses: plan.addresses.clone(),
            masquerade: plan.masquerade.clone(),
            forward,
            hold,
            surroundings: Surroundings::read(&self.netlink, &self.name)?,
        })
    }

    /// Stores in the state file whether a table can exist.
    fn note_nft(&mut self, has_nft: bool) -> io::Result<()> {
        if self.state.has_nft != has_nft {
            self.state.has_nft = has_nft;
            self.dir.write(&state_file(&self.name), &self.state)?;
        }
        Ok(())
    }

    /// Updates the surroundings of the tunnel in the nftables table if they have changed. Makes the table again if it is
    /// missing because another program has removed it, or if `nft` was killed while it made the table. Returns whether
    /// the table was made again. Does nothing without a table.
    ///
    /// # Errors
    /// Returns the errors of [`Surroundings::read`], [`nft::update`] and [`nft::apply`]. Returns the error of the
    /// kernel if it cannot be asked whether the table exists.
    pub fn look_around(&mut self) -> io::Result<bool> {
        let Some(rules) = &mut self.rules else {
            return Ok(false);
        };
        let now = Surroundings::read(&self.netlink, &self.name)?;
        let is_lost = self.is_doubtful || !nft::exists(&nft::table_name(&self.name))?;
        if is_lost {
            rules.surroundings = now;
            nft::apply(&self.name, rules)?;
            self.is_doubtful = false;
        } else if rules.surroundings != now {
            nft::update(&self.name, &now)?;
            rules.surroundings = now;
        }
        Ok(is_lost)
    }

    /// Returns the number of packets that the nftables table has dropped, by reason. Empty without a table.
    ///
    /// # Errors
    /// Returns the errors of [`nft::counters`].
    pub fn dropped(&self) -> io::Result<BTreeMap<String, u64>> {
        if self.rules.is_none() {
            return Ok(BTreeMap::new());
        }
        nft::counters(&self.name)
    }
}
