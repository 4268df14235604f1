//! Whether a tunnel may use packet trains ([`crate::path::train`]) now.
//!
//! The trains of a path take up to 1.2 MB in each direction. When thousands of clients reconnect at once, for example
//! after a restart of their gateway, their trains would take minutes of its link and of its processor, while handshakes
//! wait. A gateway therefore limits the clients that begin to use trains, all together ([`STARTS`]) and each of them
//! ([`CLIENT_STARTS`]). A client above the limit finds the rates of its paths with its first traffic.
//!
//! The decision is made when a path has a train to send, or when the first packet of the client's train arrives: both
//! happen only after the handshake. A permission is valid for [`PERMITTED_FOR`], because the paths of a client come up
//! together. A refusal concerns only the train for which permission was needed, as a whole.

use core::time::Duration;

use crate::{
    role::Role,
    session::limiter::{Bucket, Rate},
    time::Instant,
};

/// The permission of one tunnel.
#[derive(Debug)]
pub(super) struct Trains {
    /// Whether trains need a permission, at a gateway.
    is_limited: bool,
    permitted_until: Instant,
    /// Limits the permissions of this client.
    starts: Bucket,
}

impl Trains {
    /// Returns the state before the first train.
    pub(super) const fn new(role: Role) -> Self {
        Self {
            is_limited: matches!(role, Role::Gateway),
            permitted_until: Instant::ZERO,
            starts: Bucket::FULL,
        }
    }

    /// Whether a train may be sent or measured now. `starts`: limit of the permissions of all clients.
    pub(super) fn may_run(&mut self, now: Instant, starts: &mut Bucket) -> bool {
        if !self.is_limited || now < self.permitted_until {
            return true;
        }
        let (burst, interval) = CLIENT_STARTS;
        let mut own = self.starts;
        let is_permitted =
            own.take_every(now, interval, burst).is_ok() && starts.take(now, STARTS).is_ok();
        if is_permitted {
            self.starts = own;
            self.permitted_until = now + PERMITTED_FOR;
        }
        is_permitted
    }
}

/// Permissions of all clients: 20 a second, 40 at once.
const STARTS: Rate = Rate::new(20, 40);
/// Permissions of one client: number at once, and interval of further ones. A client whose links come up one by one
/// needs some; a client that restarts all the time must not use up the permissions of all clients.
const CLIENT_STARTS: (u32, Duration) = (4, Duration::from_secs(60));
/// Validity of a permission: longer than the paths of a client take to come up and the trains take to be measured.
const PERMITTED_FOR: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1_000)
    }

    #[test]
    fn a_refused_client_may_use_trains_later() {
        let mut starts = Bucket::FULL;
        let mut clients: Vec<Trains> = (0..100).map(|_| Trains::new(Role::Gateway)).collect();
        let mut permitted = |now: Instant| {
            let permitted = |client: &mut Trains| client.may_run(now, &mut starts);
            clients.iter_mut().map(permitted).collect::<Vec<_>>()
        };
        let count = |permitted: &[bool]| permitted.iter().filter(|is| **is).count();
        let first = permitted(at(1_000));
        assert_eq!(count(&first), 40);
        assert_eq!(permitted(at(1_000)), first, "permissions stay valid");
        assert_eq!(count(&permitted(at(1_001))), 60);
        assert_eq!(count(&permitted(at(1_003))), 100);
    }

    #[test]
    fn one_client_does_not_use_up_the_permissions_of_all() {
        let mut starts = Bucket::FULL;
        let mut restless = Trains::new(Role::Gateway);
        let mut count = 0;
        for try_at in (1_000..1_240).step_by(10) {
            count += u32::from(restless.may_run(at(try_at), &mut starts));
        }
        // Four at once, and one a minute.
        assert_eq!(count, 7);
        let mut others = (0..40).map(|_| Trains::new(Role::Gateway));
        assert!(others.all(|mut other| other.may_run(at(1_240), &mut starts)));
    }

    #[test]
    fn a_client_needs_no_permission() {
        let mut starts = Bucket::FULL;
        let mut client = Trains::new(Role::Client);
        assert!((0..100).all(|_| client.may_run(at(1_000), &mut starts)));
        assert_eq!(starts, Bucket::FULL);
    }
}
