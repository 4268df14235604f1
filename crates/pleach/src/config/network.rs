//! Names, devices, addresses and prefixes in configuration files.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::{HostName, source::ConfigError, table::Value};

/// Reads the name of a link or client: 1 to 32 of `A-Z a-z 0-9 . _ -`.
///
/// # Errors
/// If the value is anything else.
pub(super) fn name(value: &Value<'_>) -> Result<String, ConfigError> {
    let what = "a name of 1 to 32 characters from A-Z a-z 0-9 . _ -";
    let remedy = "write a short name such as \"dsl\"";
    let text = value.text(what, remedy)?;
    if !is_name(text) {
        return Err(value.expected(what, remedy));
    }
    Ok(text.to_owned())
}

/// Whether `text` can be the name of a link or client.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(is_name_byte)
}

/// Reads the name of the tunnel's own device: a valid device name that is also safe in paths and nftables rule sets.
///
/// # Errors
/// If the name is too long, or has other characters.
pub(super) fn tunnel_name(value: &Value<'_>) -> Result<String, ConfigError> {
    let what = "a device name of 1 to 15 characters from A-Z a-z 0-9 . _ -";
    let remedy = "write a short name such as \"pleach0\"";
    let text = value.text(what, remedy)?;
    if !is_device_name(text) || !text.bytes().all(is_name_byte) {
        return Err(value.expected(what, remedy));
    }
    Ok(text.to_owned())
}

/// Reads the name of a network device, which need not exist.
///
/// # Errors
/// If the kernel does not permit such a device name.
pub(super) fn device(value: &Value<'_>) -> Result<String, ConfigError> {
    let what = "a device name of 1 to 15 characters without spaces, '/' and ':'";
    let remedy = "write the name of a network device; `ip link` lists them";
    let text = value.text(what, remedy)?;
    if !is_device_name(text) {
        return Err(value.expected(what, remedy));
    }
    Ok(text.to_owned())
}

/// Reads the inner addresses of this end with their prefix length.
///
/// # Errors
/// If an entry is not a valid CIDR, if no host can have the address, or if an address is given twice.
pub(super) fn addresses(value: &Value<'_>) -> Result<Vec<IpNet>, ConfigError> {
    let remedy = "write for example [\"10.77.0.2/24\"]";
    let mut addresses: Vec<IpNet> = Vec::new();
    for item in value.list(MAX_ADDRESSES, remedy)? {
        let net = cidr(&item)?;
        let addr = net.addr();
        if addr.is_unspecified() || addr.is_multicast() || addr.is_loopback() || is_broadcast(addr)
        {
            return Err(item.expected("a unicast address, not loopback", remedy));
        }
        if addresses.iter().any(|known| known.addr() == addr) {
            return Err(item.wrong(
                format!("address {addr} given twice"),
                "remove one of the two",
            ));
        }
        addresses.push(net);
    }
    Ok(addresses)
}

/// Reads prefixes of inner addresses: unicast networks without host bits.
///
/// # Errors
/// If an entry is not a valid CIDR, has host bits set, or is a loopback, link-local or multicast network.
pub(super) fn allowed_ips(value: &Value<'_>) -> Result<Vec<IpNet>, ConfigError> {
    let remedy =
        "write for example [\"10.77.0.2/32\"], or [\"0.0.0.0/0\", \"::/0\"] for everything";
    let mut prefixes = Vec::new();
    for item in value.list(MAX_ALLOWED_IPS, remedy)? {
        let net = cidr(&item)?;
        let bare = net.trunc();
        if bare != net {
            return Err(item.wrong(
                format!("{net} has host bits set"),
                &format!(
                    "write \"{bare}\" for the network, or \"{}\" for the one host",
                    IpNet::from(net.addr())
                ),
            ));
        }
        if let Some(space) = useless_space(net) {
            return Err(item.wrong(
                format!("{net} is {space} space, which a tunnel cannot carry"),
                "remove it",
            ));
        }
        prefixes.push(net);
    }
    Ok(prefixes)
}

/// Reads an outer address of the gateway.
///
/// # Errors
/// If the value is not `ADDRESS:PORT`, if the port is zero, or if a gateway cannot have the address.
pub(super) fn endpoint(value: &Value<'_>) -> Result<SocketAddr, ConfigError> {
    let remedy = "write for example \"203.0.113.5:7700\" or \"[2001:db8::5]:7700\"";
    address(value, remedy)
}

fn address(value: &Value<'_>, remedy: &str) -> Result<SocketAddr, ConfigError> {
    let what = "ADDRESS:PORT of the gateway";
    let addr: SocketAddr = value.parse(what, remedy)?;
    let ip = addr.ip();
    if addr.port() == 0 || ip.is_unspecified() || ip.is_multicast() || is_broadcast(ip) {
        return Err(value.expected(what, remedy));
    }
    Ok(addr)
}

/// A gateway's outer address or host name.
pub(super) enum Place {
    Address(SocketAddr),
    Name(HostName),
}

/// Reads an outer address of the gateway, or a host name that resolves to such addresses.
///
/// # Errors
/// If the value is neither, if the port is zero, or if a gateway cannot have the address.
pub(super) fn place(value: &Value<'_>) -> Result<Place, ConfigError> {
    let split = value.as_text().and_then(|text| text.rsplit_once(':'));
    let name = split.filter(|(name, _)| is_host_name(name));
    let Some((name, port)) = name else {
        let remedy = "write for example \"203.0.113.5:7700\" or \"[2001:db8::5]:7700\", or a name such as \"gw.example.net:7700\"";
        return address(value, remedy).map(Place::Address);
    };
    let port = port.parse().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| {
        let what = "a name with a port from 1 to 65535";
        value.expected(what, "write for example \"gw.example.net:7700\"")
    })?;
    Ok(Place::Name(HostName {
        name: name.to_owned(),
        port,
    }))
}

/// Whether `text` is a host name (RFC 1123 section 2.1) that cannot be mistaken for an address.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    (1..=253).contains(&text.len())
        && text.split('.').all(is_label)
        && last.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Reads the outer address on which a gateway listens.
///
/// # Errors
/// If the value is not `ADDRESS:PORT`, or if the port is zero.
pub(super) fn listen(value: &Value<'_>) -> Result<SocketAddr, ConfigError> {
    let what = "ADDRESS:PORT to listen on";
    let remedy = "write \"[::]:7700\" for all addresses, or \"0.0.0.0:7700\" for IPv4 only";
    let addr: SocketAddr = value.parse(what, remedy)?;
    if addr.port() == 0 || addr.ip().is_multicast() || is_broadcast(addr.ip()) {
        return Err(value.expected(what, remedy));
    }
    Ok(addr)
}

/// Returns the first pair of overlapping prefixes that belong to different owners, as indices into `prefixes`, lower
/// index first.
///
/// `prefixes` contains owners and networks without host bits. O(n log n): in the order of address and length, an
/// enclosing prefix precedes the prefixes it contains, so a stack of the prefixes that enclose the current one is
/// enough. Only the prefix on top of the stack must be compared, because pairs below it were compared before.
pub(super) fn overlap(prefixes: &[(usize, IpNet)]) -> Option<(usize, usize)> {
    let mut order: Vec<usize> = (0..prefixes.len()).collect();
    order.sort_by_key(|&i| {
        let net = prefixes[i].1;
        (net.addr(), net.prefix_len(), i)
    });
    let mut enclosing: Vec<usize> = Vec::new();
    for i in order {
        let (owner, net) = prefixes[i];
        while enclosing
            .pop_if(|&mut outer| !prefixes[outer].1.contains(&net))
            .is_some()
        {}
        if let Some(&outer) = enclosing.last()
            && prefixes[outer].0 != owner
        {
            return Some((i.min(outer), i.max(outer)));
        }
        enclosing.push(i);
    }
    None
}

fn cidr(value: &Value<'_>) -> Result<IpNet, ConfigError> {
    let what = "ADDRESS/PREFIX";
    let text = value.text(what, "write for example \"10.77.0.2/24\"")?;
    if let Ok(net) = text.parse::<IpNet>() {
        return Ok(net);
    }
    if let Ok(addr) = text.parse::<IpAddr>() {
        let one_host = IpNet::from(addr);
        return Err(value.expected(
            what,
            &format!("add the prefix length, for example \"{one_host}\""),
        ));
    }
    let address = text
        .split_once('/')
        .map(|(address, _)| address.parse::<IpAddr>());
    let remedy = match address {
        Some(Ok(IpAddr::V4(_))) => "write a prefix length from 0 to 32",
        Some(Ok(IpAddr::V6(_))) => "write a prefix length from 0 to 128",
        Some(Err(_)) | None => "write for example \"10.77.0.2/24\" or \"fd77::2/64\"",
    };
    Err(value.expected(what, remedy))
}

/// Returns the kind of address space that makes `net` useless in a tunnel, if any. A prefix that is larger than this
/// space is accepted.
fn useless_space(net: IpNet) -> Option<&'static str> {
    let spaces = [
        ("unspecified", "0.0.0.0/8"),
        ("unspecified", "::/128"),
        ("multicast", "224.0.0.0/4"),
        ("multicast", "ff00::/8"),
        ("loopback", "127.0.0.0/8"),
        ("loopback", "::1/128"),
        ("link-local", "169.254.0.0/16"),
        ("link-local", "fe80::/10"),
        ("reserved", "240.0.0.0/4"),
    ];
    spaces
        .into_iter()
        .find(|(_, space)| {
            space
                .parse::<IpNet>()
                .is_ok_and(|space| space.contains(&net))
        })
        .map(|(kind, _)| kind)
}

fn is_broadcast(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => addr.is_broadcast(),
        IpAddr::V6(_) => false,
    }
}

/// Whether the kernel permits `name` as a device name (`dev_valid_name`).
fn is_device_name(text: &str) -> bool {
    let forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    (1..=15).contains(&text.len()) && text != "." && text != ".." && !text.contains(forbidden)
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Maximum number of addresses, more than any tunnel has.
const MAX_ADDRESSES: usize = 64;

/// Maximum number of prefixes: a full table of one country's prefixes fits.
const MAX_ALLOWED_IPS: usize = 65_536;
