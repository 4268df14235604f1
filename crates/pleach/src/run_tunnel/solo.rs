//! Restricts the tunnel to one link for a while, for measurements. The other links become standby links. They get their
//! roles back in time, even if the client that asked for this disappears.

use pleach_core::{endpoint::Endpoint, time::Instant, wire::control::LinkRole};

/// End of the restriction, and the former roles of the links.
#[derive(Debug)]
pub(super) struct Solo {
    until: Instant,
    /// Names of links and their former roles.
    roles: Vec<(String, LinkRole)>,
}

impl Solo {
    /// Makes all of `names` standby links except `link`, which becomes active whatever its role is.
    pub(super) fn start(
        now: Instant,
        endpoint: &mut Endpoint,
        names: &[String],
        link: &str,
        until: Instant,
    ) -> Self {
        let mut roles = Vec::new();
        for name in names {
            let wanted = if name == link {
                LinkRole::Active
            } else {
                LinkRole::Standby
            };
            endpoint.update_links(now, name, |link| {
                // A link that the user has excluded remains so.
                if link.role != LinkRole::Never || wanted == LinkRole::Active {
                    roles.push((name.clone(), link.role));
                    link.role = wanted;
                }
            });
        }
        Self { until, roles }
    }

    /// Returns when the restriction ends.
    pub(super) const fn until(&self) -> Instant {
        self.until
    }

    /// Restores the role of every link.
    pub(super) fn end(self, now: Instant, endpoint: &mut Endpoint) {
        for (name, role) in self.roles {
            endpoint.update_links(now, &name, |link| link.role = role);
        }
    }
}
