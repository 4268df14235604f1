//! Data of `/proc/net` for the calling process's network namespace: routes, and counters of devices.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;

/// Returns the destinations of at most `limit` routes: for IPv4 those of the main table, for IPv6 those of all
/// tables. Default routes are excluded.
///
/// # Errors
/// Fails if there is no `/proc`.
pub fn own_routes(limit: usize) -> io::Result<Vec<IpNet>> {
    let v4 = fs::read_to_string("/proc/net/route")?;
    // The file does not exist on a host without IPv6.
    let v6 = fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    let routes = v4.lines().skip(1).filter_map(route_v4);
    let routes = routes.chain(v6.lines().filter_map(route_v6));
    let mut routes: Vec<IpNet> = routes
        .filter(|net| net.prefix_len() > 0)
        .take(limit)
        .collect();
    routes.sort_unstable();
    routes.dedup();
    Ok(routes)
}

/// Returns the bytes that each device has received and sent so far.
///
/// # Errors
/// Fails if there is no `/proc`.
pub fn device_bytes() -> io::Result<BTreeMap<String, (u64, u64)>> {
    let text = fs::read_to_string("/proc/net/dev")?;
    Ok(text.lines().skip(2).filter_map(device).collect())
}

/// Returns the number of packets that each device should have sent but dropped so far.
///
/// # Errors
/// Fails if there is no `/proc`.
pub fn device_drops() -> io::Result<BTreeMap<String, u64>> {
    let text = fs::read_to_string("/proc/net/dev")?;
    Ok(text.lines().skip(2).filter_map(drops).collect())
}

pub(crate) fn route_v4(line: &str) -> Option<IpNet> {
    let mut fields = line.split_whitespace().skip(1);
    // The address is in network byte order, printed as a number in the byte order of this host.
    let word = |text| {
        Some(Ipv4Addr::from(
            u32::from_str_radix(text, 16).ok()?.to_ne_bytes(),
        ))
    };
    let destination = word(fields.next()?)?;
    let mask = word(fields.nth(5)?)?;
    IpNet::with_netmask(destination.into(), mask.into()).ok()
}

pub(crate) fn route_v6(line: &str) -> Option<IpNet> {
    let mut fields = line.split_whitespace();
    let destination = u128::from_str_radix(fields.next()?, 16).ok()?;
    let len = u8::from_str_radix(fields.next()?, 16).ok()?;
    IpNet::new(IpAddr::V6(Ipv6Addr::from(destination)), len).ok()
}

pub(crate) fn device(line: &str) -> Option<(String, (u64, u64))> {
    let (name, counters) = line.split_once(':')?;
    let mut counters = counters.split_whitespace();
    let received = counters.next()?.parse().ok()?;
    let sent = counters.nth(7)?.parse().ok()?;
    Some((name.trim().to_owned(), (received, sent)))
}

fn drops(line: &str) -> Option<(String, u64)> {
    let (name, counters) = line.split_once(':')?;
    let dropped = counters.split_whitespace().nth(11)?.parse().ok()?;
    Some((name.trim().to_owned(), dropped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let route = "wifi\t0001640A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0 ";
        if cfg!(target_endian = "little") {
            let net = route_v4(route).expect("a route");
            assert_eq!(net.to_string(), "10.100.1.0/24");
        }
        let route = "fd990000000000000000000000000000 40 00000000000000000000000000000000 00 \
                     00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0";
        assert_eq!(
            route_v6(route).map(|net| net.to_string()).as_deref(),
            Some("fd99::/64")
        );
        let line = "  wifi: 1500 2 0 0 0 0 0 0 700 1 0 5 0 0 0 0";
        assert_eq!(device(line), Some(("wifi".to_owned(), (1500, 700))));
        assert_eq!(drops(line), Some(("wifi".to_owned(), 5)));
        assert_eq!(
            (route_v4("Iface Destination"), device("nonsense")),
            (None, None)
        );
    }

    #[test]
    fn the_loopback_device_is_there() {
        assert!(device_bytes().expect("/proc").contains_key("lo"));
        let routes = own_routes(1000).expect("/proc");
        assert!(routes.iter().all(|net| net.prefix_len() > 0));
    }
}
