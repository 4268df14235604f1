//! Whether the links have routes to the gateway that nothing blocks: no other VPN, no rule that forbids them, at least
//! one uplink.

use std::net::IpAddr;

use pleach_linux::watch::LinkSnapshot;

use crate::doctor::problem::Problem;

/// Judges the routes.
///
/// - `links`: all links of the host, with their routes to the gateway at `endpoints`.
/// - `tunnel`: the device of this tunnel.
/// - `used`: devices of the configured links; if empty, all devices with a route.
pub(crate) fn verdicts(
    links: &[LinkSnapshot],
    endpoints: &[IpAddr],
    tunnel: &str,
    used: &[&str],
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let others = links.iter().filter(|link| {
        let leads_out = link.has_default_v4 || link.has_default_v6 || !link.ways.is_empty();
        link.is_tunnel && link.is_up && link.name != tunnel && leads_out
    });
    for other in others {
        let name = &other.name;
        problems.push(Problem::new(
            "other-vpn",
            format!("another tunnel, {name}, has a default route or a route to the gateway: it and pleach capture each other's packets"),
            format!("stop that VPN, or restrict its networks (AllowedIPs or routes); `ip route show table all dev {name}` shows its routes"),
        ));
    }
    let is_used = |link: &&LinkSnapshot| {
        let is_ours = used.is_empty() || used.contains(&link.name.as_str());
        is_ours && !link.is_tunnel && !link.is_loopback && link.name != tunnel
    };
    let candidates: Vec<&LinkSnapshot> = links.iter().filter(is_used).collect();
    for link in &candidates {
        let is_family = |is_v4: bool| move |address: &IpAddr| address.is_ipv4() == is_v4;
        let blocked = [(true, link.has_default_v4), (false, link.has_default_v6)]
            .into_iter()
            .filter(|(_, has_default)| *has_default)
            .filter_map(|(is_v4, _)| {
                let has_address = link
                    .addresses
                    .iter()
                    .any(|net| is_family(is_v4)(&net.addr()));
                let has_way = link.ways.iter().any(|way| is_family(is_v4)(&way.target));
                let endpoint = endpoints.iter().find(|address| is_family(is_v4)(address))?;
                (has_address && !has_way).then_some(endpoint)
            });
        if link.is_up && link.has_carrier {
            for endpoint in blocked {
                let name = &link.name;
                problems.push(
                    Problem::new(
                        "policy-route",
                        format!("{name} has a default route, but no route to the gateway {endpoint}: a rule or another route for this address takes precedence"),
                        format!("find this rule or route with `ip rule` and `ip route get {endpoint} oif {name}`, and remove it or exclude {endpoint} from it"),
                    )
                    .on(name),
                );
            }
        }
    }
    if !endpoints.is_empty()
        && candidates.iter().all(|link| link.ways.is_empty())
        && problems.is_empty()
    {
        let names: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        problems.push(Problem::new(
            "no-uplink",
            format!(
                "no link has an address and a route to the gateway ({})",
                names.join(", ")
            ),
            "connect a link; `ip route get ADDRESS oif DEVICE` shows its route",
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use pleach_linux::watch::Way;

    use super::*;

    fn link(name: &str, has_default_v4: bool, has_way: bool) -> LinkSnapshot {
        let target = IpAddr::from([203, 0, 113, 5]);
        LinkSnapshot {
            ifindex: 1,
            name: name.to_owned(),
            is_up: true,
            has_carrier: true,
            is_loopback: false,
            is_tunnel: name.starts_with("wg") || name.starts_with("pleach"),
            mtu: 1500,
            addresses: vec!["10.0.0.2/24".parse().expect("net")],
            has_default_v4,
            has_default_v6: false,
            ways: if has_way {
                vec![Way {
                    target,
                    source: None,
                }]
            } else {
                vec![]
            },
        }
    }

    fn codes(links: &[LinkSnapshot], used: &[&str]) -> Vec<&'static str> {
        let endpoint = IpAddr::from([203, 0, 113, 5]);
        let problems = verdicts(links, &[endpoint], "pleach0", used).into_iter();
        problems.map(|problem| problem.code).collect()
    }

    #[test]
    fn what_is_in_the_way_is_told_apart() {
        let (eth0, own) = (link("eth0", true, true), link("pleach0", true, true));
        assert!(codes(&[eth0.clone(), own.clone()], &[]).is_empty());
        assert_eq!(
            codes(&[eth0.clone(), link("wg0", true, false)], &[]),
            ["other-vpn"]
        );
        assert!(
            codes(&[eth0.clone(), link("wg0", false, false)], &[]).is_empty(),
            "a VPN to a few networks"
        );
        assert_eq!(codes(&[link("eth0", true, false)], &[]), ["policy-route"]);
        assert!(
            codes(&[eth0.clone(), link("eth1", true, false)], &["eth0"]).is_empty(),
            "not our link"
        );
        assert_eq!(
            codes(&[link("eth0", false, false), own], &[]),
            ["no-uplink"]
        );
        assert!(codes(&[eth0, link("lan", false, false)], &[]).is_empty());
    }
}
