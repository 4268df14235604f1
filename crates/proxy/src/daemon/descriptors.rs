//! Descriptors of the sockets of UDP clients, and the places that these sockets take in the count of connections.
//!
//! `max_connections` is derived from the number of file descriptors, with three and a half for each connection. A UDP
//! client has a socket for each link and address family that it uses, and a sender of diverted datagrams also has
//! sockets for answers. So a client takes one place for [`PER_PLACE`] sockets, and returns it when they are closed.
//!
//! Senders of diverted datagrams have at most half of all places together ([`Quota`]). Those of one address have at
//! most an eighth of all places, so that one host with few addresses cannot use up the places of all. All hosts of a LAN
//! have addresses in one IPv6 network, so networks have no limit. Programs on this host have no limit of their own either,
//! because all have the same address.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::IpAddr,
    rc::Rc,
};

use super::hub::{Hub, Place};

/// The descriptors of one client.
#[derive(Debug)]
pub(crate) struct Descriptors {
    hub: Rc<Hub>,
    /// Quota of a sender of diverted datagrams, and its address. No address: a program on this host.
    quota: Option<(Rc<Quota>, Option<IpAddr>)>,
    /// Number of descriptors for which a place was taken elsewhere.
    given: usize,
    /// Number of places that the client keeps without sockets.
    minimum: usize,
    used: Cell<usize>,
    places: RefCell<Vec<Taken>>,
}

/// A place in the count of connections, with its share of the quota.
#[derive(Debug)]
struct Taken {
    _place: Place,
    _share: Option<Share>,
}

/// One descriptor. It is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Descriptor(Rc<Descriptors>);

impl Descriptors {
    /// Returns the descriptors of a UDP association. The place of its TCP connection covers that connection and the
    /// socket for the client.
    pub(crate) fn of_association(hub: &Rc<Hub>) -> Rc<Self> {
        Rc::new(Self {
            hub: Rc::clone(hub),
            quota: None,
            given: PER_PLACE - 2,
            minimum: 0,
            used: Cell::new(0),
            places: RefCell::default(),
        })
    }

    /// Takes the first place of a sender of diverted datagrams at `ip`.
    ///
    /// # Errors
    /// Returns the reason for the drop counters if no place is left.
    pub(super) fn of_sender(
        hub: &Rc<Hub>,
        quota: &Rc<Quota>,
        ip: IpAddr,
    ) -> Result<Rc<Self>, &'static str> {
        let is_own = ip.is_loopback() || hub.uplinks.own.borrow().contains(&ip.to_canonical());
        let descriptors = Self {
            hub: Rc::clone(hub),
            quota: Some((Rc::clone(quota), (!is_own).then(|| ip.to_canonical()))),
            given: 0,
            minimum: 1,
            used: Cell::new(0),
            places: RefCell::default(),
        };
        let first = descriptors.another()?;
        descriptors.places.borrow_mut().push(first);
        Ok(Rc::new(descriptors))
    }

    /// Takes a descriptor. `None` if this requires another place and none is left.
    pub(crate) fn take(self: &Rc<Self>) -> Option<Descriptor> {
        let used = self.used.get() + 1;
        if self.places_for(used) > self.places.borrow().len() {
            let another = self.another().ok()?;
            self.places.borrow_mut().push(another);
        }
        self.used.set(used);
        Some(Descriptor(Rc::clone(self)))
    }

    fn another(&self) -> Result<Taken, &'static str> {
        let share = self.quota.as_ref();
        let share = share.map(|(quota, ip)| quota.take(*ip)).transpose()?;
        let place = self.hub.try_place(None).ok_or("too-many-clients")?;
        Ok(Taken {
            _place: place,
            _share: share,
        })
    }

    fn places_for(&self, used: usize) -> usize {
        let places = used.saturating_sub(self.given).div_ceil(PER_PLACE);
        places.max(self.minimum)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let used = self.0.used.get().saturating_sub(1);
        self.0.used.set(used);
        let places = self.0.places_for(used);
        self.0.places.borrow_mut().truncate(places);
    }
}

/// Limits the places of the senders of diverted datagrams, in all and of each address.
#[derive(Debug)]
pub(super) struct Quota {
    max: usize,
    max_of_address: usize,
    taken: Cell<usize>,
    /// Number of places by address. An address without places is removed.
    by_address: RefCell<BTreeMap<IpAddr, usize>>,
}

/// One place of a sender.
#[derive(Debug)]
struct Share {
    quota: Rc<Quota>,
    address: Option<IpAddr>,
}

impl Quota {
    /// Returns the quota of a proxy with `max_connections` places.
    pub(super) fn new(max_connections: usize) -> Rc<Self> {
        Rc::new(Self {
            max: max_connections / 2,
            max_of_address: (max_connections / 8).max(1),
            taken: Cell::new(0),
            by_address: RefCell::default(),
        })
    }

    fn take(self: &Rc<Self>, address: Option<IpAddr>) -> Result<Share, &'static str> {
        if self.taken.get() >= self.max {
            return Err("too-many-udp-senders");
        }
        if let Some(address) = address {
            let mut by_address = self.by_address.borrow_mut();
            let count = by_address.entry(address).or_default();
            if *count >= self.max_of_address {
                return Err("too-many-udp-senders-of-source");
            }
            *count += 1;
        }
        self.taken.set(self.taken.get() + 1);
        Ok(Share {
            quota: Rc::clone(self),
            address,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let quota = &self.quota;
        quota.taken.set(quota.taken.get().saturating_sub(1));
        let Some(address) = &self.address else { return };
        let mut by_address = quota.by_address.borrow_mut();
        if let Some(count) = by_address.get_mut(address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                by_address.remove(address);
            }
        }
    }
}

/// Number of descriptors for one place: three and a half, rounded down.
const PER_PLACE: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::hub::tests::hub;

    /// Returns the number of places that are left.
    fn left(hub: &Rc<Hub>) -> usize {
        let places: Vec<_> = core::iter::from_fn(|| hub.try_place(None)).collect();
        places.len()
    }

    #[test]
    fn sockets_of_a_client_take_as_many_places_as_their_descriptors_need() {
        let hub = Rc::new(hub());
        let association = Descriptors::of_association(&hub);
        assert_eq!(left(&hub), 8, "its TCP connection has a place");
        let take = || association.take().expect("a place is left");
        let mut sockets = vec![take()];
        assert_eq!(left(&hub), 8);
        sockets.extend([take(), take(), take()]);
        assert_eq!(left(&hub), 7);
        sockets.push(take());
        assert_eq!(left(&hub), 6);
        sockets.truncate(4);
        assert_eq!(left(&hub), 7);
        let places: Vec<_> = core::iter::from_fn(|| hub.try_place(None)).collect();
        assert!(association.take().is_none());
        assert_eq!(association.used.get(), 4, "what is refused is not counted");
        drop(places);
        sockets.clear();
        assert_eq!(left(&hub), 8);
    }

    #[test]
    fn a_sender_has_a_place_without_sockets_and_all_are_returned() {
        let hub = Rc::new(hub());
        let quota = Quota::new(32);
        let sender = |ip: [u8; 4]| Descriptors::of_sender(&hub, &quota, ip.into());
        let one = sender([10, 0, 0, 1]).expect("places are left");
        assert_eq!((left(&hub), quota.taken.get()), (7, 1));
        let sockets: Vec<_> = (0..5).map_while(|_| one.take()).collect();
        assert_eq!(sockets.len(), 5);
        assert_eq!((left(&hub), quota.taken.get()), (6, 2));
        drop(sockets);
        assert_eq!((left(&hub), quota.taken.get()), (7, 1));
        drop(one);
        assert_eq!((left(&hub), quota.taken.get()), (8, 0));
        assert!(quota.by_address.borrow().is_empty());
    }

    #[test]
    fn one_address_cannot_take_the_places_of_all() {
        let quota = Quota::new(40);
        let taken_by = |ip: &dyn Fn(u8) -> Option<IpAddr>| {
            let places = (0..40).map(|n| quota.take(ip(n)));
            places.map_while(Result::ok).collect::<Vec<_>>()
        };
        let refusal = |ip: &str| {
            let refused = quota.take(Some(ip.parse().expect("literal")));
            refused.err()
        };
        let one = taken_by(&|_| Some([10, 0, 0, 1].into()));
        assert_eq!(one.len(), 5);
        assert_eq!(refusal("10.0.0.1"), Some("too-many-udp-senders-of-source"));
        assert_eq!(refusal("10.0.0.2"), None);
        // The hosts of a LAN are in one IPv6 network.
        let lan = taken_by(&|n| (n < 6).then(|| [0xfd00, 0, 0, 1, 0, 0, 0, u16::from(n)].into()));
        assert_eq!(one.len() + lan.len(), 20, "then programs of this host");
        assert_eq!(refusal("10.0.0.2"), Some("too-many-udp-senders"));
        drop(one);
        assert_eq!(refusal("10.0.0.1"), None);
    }

    #[test]
    fn programs_of_this_host_share_the_places_of_all() {
        let hub = Rc::new(hub());
        let quota = Quota::new(8);
        let sender = |ip: &str| Descriptors::of_sender(&hub, &quota, ip.parse().expect("literal"));
        let own = [sender("127.0.0.1"), sender("::1"), sender("127.0.0.1")];
        assert!(own.iter().all(Result::is_ok));
        assert!(sender("10.0.0.1").is_ok());
        let _other = sender("10.0.0.1").expect("a place");
        assert!(sender("10.0.0.1").is_err(), "an eighth of eight");
    }
}
