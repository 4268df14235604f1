//! One link for a while, for measuring it: the others are held back as reserve, and get their parts back in time whatever
//! becomes of who asked.

use pleach_core::{endpoint::Endpoint, time::Instant, wire::control::LinkRole};

/// The others, and until when.
#[derive(Debug)]
pub(super) struct Solo {
    until: Instant,
    /// Names and roles from before.
    roles: Vec<(String, LinkRole)>,
}

impl Solo {
    /// Holds back all of `names` but `link`, which is used whatever its role.
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
                // A link that the user forbids stays so.
                if link.role != LinkRole::Never || wanted == LinkRole::Active {
                    roles.push((name.clone(), link.role));
                    link.role = wanted;
                }
            });
        }
        Self { until, roles }
    }

    /// When it ends.
    pub(super) const fn until(&self) -> Instant {
        self.until
    }

    /// Gives every link its part back.
    pub(super) fn end(self, now: Instant, endpoint: &mut Endpoint) {
        for (name, role) in self.roles {
            endpoint.update_links(now, &name, |link| link.role = role);
        }
    }
}
