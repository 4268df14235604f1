//! The nftables table of a tunnel while it runs: made, kept up to date, and made again if another program has removed it.
//!
//! `systemctl restart nftables` and other programs begin with `nft flush ruleset`, which removes the tables of all. So
//! [`Setup::look_around`] asks the kernel whether the table exists.
//!
//! Limits: until the next look nothing of the table is in force, and the counters start anew. A table that is emptied but not
//! removed is not noticed.

use std::{collections::BTreeMap, io};

use super::{Plan, Setup, state_file};
use crate::{
    nft::{self, Forward, Hold},
    surroundings::Surroundings,
};

impl Setup {
    /// Makes or replaces the nftables table for `plan`, for example after its MTU changed.
    ///
    /// # Errors
    /// See [`nft::apply`].
    pub fn apply_nft(&mut self, plan: &Plan) -> io::Result<()> {
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
        let rules = nft::Rules {
            mtu: plan.mtu,
            addresses: plan.addresses.clone(),
            masquerade: plan.masquerade.clone(),
            forward,
            hold,
            surroundings: Surroundings::read(&self.netlink, &self.name)?,
        };
        let is_first = !self.state.has_nft;
        self.note_nft(true)?;
        if let Err(error) = nft::apply(&self.name, &rules) {
            if is_first {
                // A transaction that failed has changed nothing: there is nothing to be removed.
                self.note_nft(false)?;
            }
            return Err(error);
        }
        self.rules = Some(rules);
        Ok(())
    }

    /// Writes down whether there may be a table.
    fn note_nft(&mut self, has_nft: bool) -> io::Result<()> {
        if self.state.has_nft != has_nft {
            self.state.has_nft = has_nft;
            self.dir.write(&state_file(&self.name), &self.state)?;
        }
        Ok(())
    }

    /// Tells the nftables table what lies around the tunnel now, if that has changed, and makes the table again if another program
    /// has removed it. Returns whether it was made again. Does nothing without a table.
    ///
    /// # Errors
    /// See [`Surroundings::read`], [`nft::update`] and [`nft::apply`].
    pub fn look_around(&mut self) -> io::Result<bool> {
        let Some(rules) = &mut self.rules else {
            return Ok(false);
        };
        let now = Surroundings::read(&self.netlink, &self.name)?;
        let is_lost = !nft::exists(&nft::table_name(&self.name))?;
        if is_lost {
            rules.surroundings = now;
            nft::apply(&self.name, rules)?;
        } else if rules.surroundings != now {
            nft::update(&self.name, &now)?;
            rules.surroundings = now;
        }
        Ok(is_lost)
    }

    /// What the nftables table has dropped, by reason, in packets; empty without a table.
    ///
    /// # Errors
    /// See [`nft::counters`].
    pub fn dropped(&self) -> io::Result<BTreeMap<String, u64>> {
        if self.rules.is_none() {
            return Ok(BTreeMap::new());
        }
        nft::counters(&self.name)
    }
}
