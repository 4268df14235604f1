//! Links, addresses, routes and rules of the kernel, set and read over rtnetlink.
//!
//! Only this module and its submodules use the rtnetlink crate. Calls block: each runs a single-threaded runtime of
//! its own for its duration. Therefore calls belong in the start and stop of a tunnel, not in its data path. A
//! [`Netlink`] communicates with the network namespace of the thread that opened it.
//!
//! Deleting an object that no longer exists is not an error, so that an undo can be repeated.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily, IpProtocol,
    link::LinkAttribute,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage, RulePortRange},
};
use rtnetlink::{Handle, IpVersion, LinkMessageBuilder, LinkUnspec, RouteMessageBuilder};
use tokio::runtime::Runtime;

pub(crate) mod clsact;
mod devices;
pub(crate) mod hops;
pub(crate) mod lookup;
pub(crate) mod watch;

/// A connection to the kernel's routing configuration.
pub struct Netlink {
    runtime: Runtime,
    handle: Handle,
}

/// A policy rule, which selects the table that decides about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whether the rule is for IPv6 instead of IPv4.
    pub is_v6: bool,
    /// Priority. Rules with lower values are evaluated first.
    pub priority: u32,
    /// Mark that a packet must carry for the rule to apply. `None`: the rule applies to packets with any mark.
    pub fwmark: Option<u32>,
    /// Mark that excludes a packet: the rule applies only to packets that do *not* carry it. `None`: the rule applies
    /// to all packets.
    pub not_fwmark: Option<u32>,
    /// The table to look up.
    pub table: u32,
    /// Prefix length up to which routes of the table are ignored. `None`: no route is ignored.
    pub suppress_prefix_len: Option<u8>,
    /// The packets to which the rule applies. `None`: to all of them.
    pub selector: Option<Selector>,
}

/// Conditions on the header of a packet, all of which must hold; absent ones always hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Network of the destination.
    pub destination: Option<IpNet>,
    /// Number of the IP protocol.
    pub protocol: Option<u8>,
    /// First and last destination port, of TCP and UDP.
    pub ports: Option<(u16, u16)>,
}

impl Netlink {
    /// Opens a connection.
    ///
    /// # Errors
    /// Fails if the socket cannot be created.
    pub fn open() -> io::Result<Self> {
        let runtime = runtime()?;
        let handle = {
            let _guard = runtime.enter();
            let (connection, handle, _) = rtnetlink::new_connection_with_strict_check()?;
            runtime.spawn(connection);
            handle
        };
        Ok(Self { runtime, handle })
    }

    /// Returns the index of the link `name`. `None` if there is no such link.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn link_index(&self, name: &str) -> io::Result<Option<u32>> {
        let request = self.handle.link().get().match_name(name);
        let answer = self.runtime.block_on(request.execute().try_next());
        let link = absent_is_none(answer)?.flatten();
        Ok(link.map(|link| link.header.index))
    }

    /// Returns the MTU of the link `name` in bytes. `None` if there is no such link.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn link_mtu(&self, name: &str) -> io::Result<Option<u32>> {
        let request = self.handle.link().get().match_name(name);
        let answer = self.runtime.block_on(request.execute().try_next());
        let link = absent_is_none(answer)?.flatten();
        let mtu_of = |attribute: &LinkAttribute| {
            if let LinkAttribute::Mtu(mtu) = attribute {
                Some(*mtu)
            } else {
                None
            }
        };
        Ok(link.and_then(|link| link.attributes.iter().find_map(mtu_of)))
    }

    /// Switches link `ifindex` up with an MTU of `mtu` bytes.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn set_up(&self, ifindex: u32, mtu: u32) -> io::Result<()> {
        let message = LinkMessageBuilder::<LinkUnspec>::new()
            .index(ifindex)
            .mtu(mtu)
            .up()
            .build();
        let request = self.handle.link().set(message);
        self.runtime.block_on(request.execute()).map_err(to_io)
    }

    /// Adds an address to link `ifindex`. An existing address is not changed.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn add_address(&self, ifindex: u32, address: IpNet) -> io::Result<()> {
        let request = self.handle.address();
        let request = request.add(ifindex, address.addr(), address.prefix_len());
        self.runtime
            .block_on(request.replace().execute())
            .map_err(to_io)
    }

    /// Removes an address from link `ifindex`.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn delete_address(&self, ifindex: u32, address: IpNet) -> io::Result<()> {
        let mut request = self.handle.address();
        let message = request
            .add(ifindex, address.addr(), address.prefix_len())
            .message_mut()
            .clone();
        request = self.handle.address();
        let answer = self.runtime.block_on(request.del(message).execute());
        absent_is_none(answer).map(|_| ())
    }

    /// Adds a route to `destination` over link `ifindex` in `table`. Replaces an equal route.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn add_route(&self, destination: IpNet, ifindex: u32, table: u32) -> io::Result<()> {
        let destination = destination.trunc();
        let message = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination.addr(), destination.prefix_len())
            .map_err(io::Error::other)?
            .output_interface(ifindex)
            .table_id(table)
            .build();
        let request = self.handle.route().add(message).replace();
        self.runtime.block_on(request.execute()).map_err(to_io)
    }

    /// Adds a route to `destination` over link `ifindex` to the main table, with the protocol number [`HOST_PROTOCOL`].
    /// It precedes the routes of routing daemons. Replaces an equal route.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn add_host_route(&self, destination: IpNet, ifindex: u32) -> io::Result<()> {
        let message = host_route(destination)?.output_interface(ifindex).build();
        let request = self.handle.route().add(message).replace();
        self.runtime.block_on(request.execute()).map_err(to_io)
    }

    /// Removes the route of [`Self::add_host_route`] to `destination`. Does nothing if there is none.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn delete_host_route(&self, destination: IpNet) -> io::Result<()> {
        let message = host_route(destination)?.build();
        let request = self.handle.route().del(message);
        absent_is_none(self.runtime.block_on(request.execute())).map(|_| ())
    }

    /// Adds a route to `table` by which all packets of a family are delivered to this host itself. Replaces an equal
    /// route. `loopback` is the index of the loopback device.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn add_local_default(&self, is_v6: bool, loopback: u32, table: u32) -> io::Result<()> {
        let all = if is_v6 {
            IpAddr::from(Ipv6Addr::UNSPECIFIED)
        } else {
            IpAddr::from(Ipv4Addr::UNSPECIFIED)
        };
        let message = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(all, 0)
            .map_err(io::Error::other)?
            .kind(RouteType::Local)
            .scope(RouteScope::Host)
            .output_interface(loopback)
            .table_id(table)
            .build();
        let request = self.handle.route().add(message).replace();
        self.runtime.block_on(request.execute()).map_err(to_io)
    }

    /// Removes the route to `destination` from `table`. Does nothing if there is none.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn delete_route(&self, destination: IpNet, table: u32) -> io::Result<()> {
        let destination = destination.trunc();
        let message = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination.addr(), destination.prefix_len())
            .map_err(io::Error::other)?
            .table_id(table)
            .build();
        let request = self.handle.route().del(message);
        absent_is_none(self.runtime.block_on(request.execute())).map(|_| ())
    }

    /// Adds an unreachable route to `destination` in `table`, which applies if no other route of the table leads
    /// there. Replaces an equal route. The route remains when devices disappear.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn add_unreachable(&self, destination: IpNet, table: u32) -> io::Result<()> {
        let destination = destination.trunc();
        let message = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination.addr(), destination.prefix_len())
            .map_err(io::Error::other)?
            .kind(RouteType::Unreachable)
            .priority(LAST_METRIC)
            .table_id(table)
            .build();
        let request = self.handle.route().add(message).replace();
        self.runtime.block_on(request.execute()).map_err(to_io)
    }

    /// Removes the unreachable routes of `table` whose destinations are not in `kept`, for both families.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn delete_unreachable(&self, table: u32, kept: &[IpNet]) -> io::Result<()> {
        let is_kept = |route: &RouteMessage| {
            let is_it = |kept: &&IpNet| destination(route) == Some(kept.trunc());
            kept.iter().any(|kept| is_it(&kept))
        };
        let routes = self.routes(table)?;
        for route in routes
            .into_iter()
            .filter(|route| route.header.kind == RouteType::Unreachable && !is_kept(route))
        {
            let request = self.handle.route().del(route);
            absent_is_none(self.runtime.block_on(request.execute()))?;
        }
        Ok(())
    }

    /// Returns the number of routes to devices in `table`, for both families.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn route_count(&self, table: u32) -> io::Result<usize> {
        let routes = self.routes(table)?.into_iter();
        let leads_on = |route: &RouteMessage| route.header.kind != RouteType::Unreachable;
        Ok(routes.filter(leads_on).count())
    }

    /// Removes all routes of `table`, for both families.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn flush_table(&self, table: u32) -> io::Result<()> {
        for route in self.routes(table)? {
            let request = self.handle.route().del(route);
            absent_is_none(self.runtime.block_on(request.execute()))?;
        }
        Ok(())
    }

    /// Returns the destinations of all routes to other hosts, in all tables and for both families, without default
    /// routes.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn destinations(&self) -> io::Result<Vec<IpNet>> {
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut filter = RouteMessage::default();
            filter.header.address_family = family;
            let request = self.handle.route().get(filter);
            let answer = self.runtime.block_on(request.execute().try_collect());
            let routes: Vec<RouteMessage> = absent_is_none(answer)?.unwrap_or_default();
            let to_others = routes.iter().filter(|route| has_destination(route));
            found.extend(to_others.filter_map(destination));
        }
        Ok(found)
    }

    fn routes(&self, table: u32) -> io::Result<Vec<RouteMessage>> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut filter = RouteMessage::default();
            filter.header.address_family = family;
            filter.attributes.push(RouteAttribute::Table(table));
            let request = self.handle.route().get(filter);
            let answer = self.runtime.block_on(request.execute().try_collect());
            let found: Vec<RouteMessage> = absent_is_none(answer)?.unwrap_or_default();
            let in_table = RouteAttribute::Table(table);
            routes.extend(
                found
                    .into_iter()
                    .filter(|route| route.attributes.contains(&in_table)),
            );
        }
        Ok(routes)
    }

    /// Adds a rule.
    ///
    /// # Errors
    /// Returns the error of the kernel. An equal rule is an error.
    pub fn add_rule(&self, rule: &Rule) -> io::Result<()> {
        let mut request = self.handle.rule().add().priority(rule.priority);
        request = request.table_id(rule.table).action(RuleAction::ToTable);
        let message = request.message_mut();
        message.header.family = family(rule.is_v6);
        if let Some(mark) = rule.fwmark {
            message.attributes.push(RuleAttribute::FwMark(mark));
        }
        if let Some(mark) = rule.not_fwmark {
            message.header.flags |= RuleFlags::Invert;
            message.attributes.push(RuleAttribute::FwMark(mark));
        }
        if let Some(len) = rule.suppress_prefix_len {
            let suppress = RuleAttribute::SuppressPrefixLen(len.into());
            message.attributes.push(suppress);
        }
        if let Some(selector) = &rule.selector {
            if let Some(net) = selector.destination {
                message.header.dst_len = net.prefix_len();
                message
                    .attributes
                    .push(RuleAttribute::Destination(net.addr()));
            }
            let protocol = selector.protocol.map(IpProtocol::from);
            message
                .attributes
                .extend(protocol.map(RuleAttribute::IpProtocol));
            let ports = selector
                .ports
                .map(|(start, end)| RulePortRange { start, end });
            message
                .attributes
                .extend(ports.map(RuleAttribute::DestinationPortRange));
            message.attributes.push(OWNER);
        }
        self.runtime.block_on(request.execute()).map_err(to_io)
    }

    /// Returns the number of rules with a priority in `priorities`, for both families.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn rule_count(&self, priorities: RangeInclusive<u32>) -> io::Result<usize> {
        Ok(self.rules(&priorities)?.len())
    }

    /// Removes the rules with a priority in `priorities` that look up `table`, or the main table without its short
    /// prefixes or for some packets only ([`Rule::selector`]). This applies to both families, and the last rules are removed first. Other rules in that range
    /// belong to other programs.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn delete_rules(&self, priorities: RangeInclusive<u32>, table: u32) -> io::Result<()> {
        self.delete_matching(&priorities, |rule| {
            let suppresses = |attribute: &RuleAttribute| matches!(attribute, &RuleAttribute::SuppressPrefixLen(len) if len != u32::MAX);
            looks_up(rule, table)
                || rule.attributes.iter().any(suppresses)
                || rule.attributes.contains(&OWNER)
        })
    }

    /// Removes the rules with a priority in `priorities` that look up `table`, of both families, the last first.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub fn delete_rules_of_table(
        &self,
        priorities: RangeInclusive<u32>,
        table: u32,
    ) -> io::Result<()> {
        self.delete_matching(&priorities, |rule| looks_up(rule, table))
    }

    fn delete_matching(
        &self,
        priorities: &RangeInclusive<u32>,
        is_ours: impl Fn(&RuleMessage) -> bool,
    ) -> io::Result<()> {
        for rule in self.rules(priorities)?.into_iter().rev().filter(is_ours) {
            let request = self.handle.rule().del(rule);
            absent_is_none(self.runtime.block_on(request.execute()))?;
        }
        Ok(())
    }

    fn rules(&self, priorities: &RangeInclusive<u32>) -> io::Result<Vec<RuleMessage>> {
        let mut rules = Vec::new();
        for version in [IpVersion::V4, IpVersion::V6] {
            let request = self.handle.rule().get(version);
            let answer = self.runtime.block_on(request.execute().try_collect());
            let found: Vec<RuleMessage> = absent_is_none(answer)?.unwrap_or_default();
            let is_ours = |attribute: &RuleAttribute| matches!(attribute, RuleAttribute::Priority(priority) if priorities.contains(priority));
            rules.extend(
                found
                    .into_iter()
                    .filter(|rule| rule.attributes.iter().any(is_ours)),
            );
        }
        Ok(rules)
    }
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Netlink").finish_non_exhaustive()
    }
}

/// Marks rules with a [`Selector`] as ours. The number is the letter "p".
const OWNER: RuleAttribute = RuleAttribute::Protocol(RouteProtocol::Other(HOST_PROTOCOL));

/// Returns the common part of the messages about a route to `destination` that routing daemons learn.
fn host_route(destination: IpNet) -> io::Result<RouteMessageBuilder<IpAddr>> {
    let destination = destination.trunc();
    let message = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(destination.addr(), destination.prefix_len())
        .map_err(io::Error::other)?
        .protocol(RouteProtocol::Other(HOST_PROTOCOL))
        .priority(HOST_METRIC);
    Ok(message)
}

fn has_destination(route: &RouteMessage) -> bool {
    let mut attributes = route.attributes.iter();
    attributes.any(|attribute| matches!(attribute, RouteAttribute::Destination(_)))
}

/// Returns the destination of a route. A default route has no destination among its attributes.
fn destination(route: &RouteMessage) -> Option<IpNet> {
    let len = route.header.destination_prefix_length;
    let address = route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Destination(RouteAddress::Inet(address)) = attribute {
            Some(IpAddr::from(*address))
        } else if let RouteAttribute::Destination(RouteAddress::Inet6(address)) = attribute {
            Some(IpAddr::from(*address))
        } else {
            None
        }
    });
    let all = if route.header.address_family == AddressFamily::Inet6 {
        IpAddr::from(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::from(Ipv4Addr::UNSPECIFIED)
    };
    IpNet::new(address.unwrap_or(all), len).ok()
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

fn family(is_v6: bool) -> AddressFamily {
    if is_v6 {
        AddressFamily::Inet6
    } else {
        AddressFamily::Inet
    }
}

fn to_io(error: rtnetlink::Error) -> io::Error {
    if let rtnetlink::Error::NetlinkError(message) = &error {
        message.to_io()
    } else {
        io::Error::other(error)
    }
}

fn looks_up(rule: &RuleMessage, table: u32) -> bool {
    rule.attributes.contains(&RuleAttribute::Table(table))
}

/// Converts the errors for objects that do not exist, or that belong to a family this host does not have, to `None`.
fn absent_is_none<T>(answer: Result<T, rtnetlink::Error>) -> io::Result<Option<T>> {
    match answer.map_err(to_io) {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.raw_os_error() {
            Some(
                libc::ENOENT
                | libc::ESRCH
                | libc::ENODEV
                | libc::EADDRNOTAVAIL
                | libc::EAFNOSUPPORT
                | libc::EOPNOTSUPP,
            ) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Protocol number (`rtm_protocol`) of the routes that routing daemons are to learn: the letter "p". No number below 192
/// that other programs use (`/etc/iproute2/rt_protos`) is the same.
pub const HOST_PROTOCOL: u8 = 0x70;
/// Metric of these routes: below 32, that of BIRD.
const HOST_METRIC: u32 = 16;
/// Metric of a route that is used only if there is no other route.
const LAST_METRIC: u32 = u32::MAX - 1;
