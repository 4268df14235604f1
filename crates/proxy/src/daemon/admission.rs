//! Admits the connections and UDP flows that peers request: checks whether the peer is allowed to reach the requested
//! address, and takes places in the counts.

use std::{
    net::{IpAddr, SocketAddr},
    rc::Rc,
};

use ipnet::IpNet;
use pleach_linux::nft::denied;

use super::{hub::Hub, live::Purpose, settings::StripeSettings, stripe_place::StripePlace};
use crate::{handshake::Protocol, stripe::frame::Refusal, target::Target};

/// Checks whether peer `who`, which connected from `from`, may use `to`, and takes places for it, which are free again
/// when they are dropped. Returns the places and the purpose.
pub(super) fn admit(
    hub: &Rc<Hub>,
    settings: &StripeSettings,
    (from, who): (SocketAddr, usize),
    to: SocketAddr,
) -> Result<(impl Sized + use<>, Purpose), Refusal> {
    let peer = settings.known.get(who).ok_or(Refusal::NotAllowed)?;
    check(hub, settings, &peer.name, to)?;
    let places = (
        StripePlace::take(hub, settings).ok_or(Refusal::Busy)?,
        hub.admit_redirected().ok_or(Refusal::Busy)?,
    );
    let purpose = Purpose {
        dscp: None,
        client: from,
        app: Some(peer.name.clone()),
        target: Target::from(to),
        protocol: Protocol::Striped,
        warm: Vec::new(),
    };
    Ok((places, purpose))
}

/// Checks whether the peer `name` may connect to `to`, or send datagrams to it. A refusal is logged.
fn check(hub: &Hub, settings: &StripeSettings, name: &str, to: SocketAddr) -> Result<(), Refusal> {
    if is_allowed(hub, settings, to) {
        return Ok(());
    }
    tracing::info!(
        peer = name,
        %to,
        "a peer may not go there: this host has no such address, and [peer] allow does not list it"
    );
    Err(Refusal::NotAllowed)
}

/// Whether a peer may connect to `to`, or send datagrams to it.
fn is_allowed(hub: &Hub, settings: &StripeSettings, to: SocketAddr) -> bool {
    let ip = to.ip();
    let is_own = hub.uplinks.own.borrow().contains(&ip) && !ip.is_loopback();
    // Through the ports of this proxy, a peer could reach any destination.
    let is_proxy = to.port() == hub.settings.listen.port()
        || settings
            .listen
            .is_some_and(|listen| listen.port() == to.port());
    let is_listed = settings.allow.iter().any(|net| lists(net, ip));
    let is_here = is_own || ip.is_loopback();
    // A connection to the unspecified address reaches this host, whatever `allow` contains.
    (is_own || is_listed) && !(is_here && is_proxy) && !ip.is_unspecified()
}

/// Whether the entry `net` of `allow` lets peers connect to `ip`. Loopback and link-local addresses and the addresses
/// of the metadata services of clouds are allowed only by a network within these ranges, not by a larger network such
/// as `0.0.0.0/0`.
fn lists(net: &IpNet, ip: IpAddr) -> bool {
    let loopback = ["127.0.0.0/8", "::1/128"];
    let loopback = loopback.iter().filter_map(|text| text.parse().ok());
    let within = loopback.chain(denied()).find(|inner| inner.contains(&ip));
    net.contains(&ip) && within.is_none_or(|within| within.contains(net))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::hub::tests::{hub, striping};

    #[test]
    fn a_peer_gets_to_what_it_may_and_never_round_about() {
        let mut hub = hub();
        hub.settings.listen = ([127, 0, 0, 1], 1080).into();
        hub.uplinks.own.borrow_mut().insert([192, 0, 2, 7].into());
        let mut settings = striping();
        let allows = |settings: &StripeSettings, to: &str| {
            is_allowed(&hub, settings, to.parse().expect("address"))
        };
        assert!(allows(&settings, "192.0.2.7:80"));
        assert!(!allows(&settings, "192.0.2.8:80"));
        assert!(!allows(&settings, "127.0.0.1:80"));
        settings.allow = ["0.0.0.0/0", "::/0"]
            .map(|net| net.parse().expect("network"))
            .into();
        assert!(allows(&settings, "192.0.2.8:1080"));
        for to in [
            "192.0.2.7:1080",
            "192.0.2.7:7701",
            "127.0.0.1:1080",
            "127.0.0.1:80",
            "[::1]:80",
            "169.254.169.254:80",
            "100.100.100.200:80",
            "168.63.129.16:80",
            "[fd00:ec2::254]:80",
            "[fd20:ce::254]:80",
            "[fe80::1]:80",
            "0.0.0.0:80",
            "0.0.0.0:1080",
            "[::]:1080",
        ] {
            assert!(!allows(&settings, to), "{to}");
        }
        settings.allow = [
            "127.0.0.0/8",
            "169.254.0.0/16",
            "fe80::/64",
            "168.63.129.16/32",
        ]
        .map(|net| net.parse().expect("network"))
        .into();
        for to in [
            "127.0.0.1:80",
            "169.254.169.254:80",
            "[fe80::1]:80",
            "168.63.129.16:80",
        ] {
            assert!(allows(&settings, to), "{to}");
        }
    }
}
