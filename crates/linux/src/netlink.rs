//! Links, addresses, routes and rules of the kernel, set and read over rtnetlink.
//!
//! The only module, with those below it, that knows the rtnetlink crate. Calls block: they run an own
//! single-threaded runtime for the length of the call, and belong into start and stop of a tunnel, not into its data
//! path. A [`Netlink`] speaks to the network namespace of the thread that opened it.
//!
//! Deleting what is gone already is no error, so that an undo can be repeated.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily,
    link::LinkAttribute,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
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

/// A policy rule: which table decides about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// For IPv6 instead of IPv4.
    pub is_v6: bool,
    /// Lower is asked first.
    pub priority: u32,
    /// Only packets that do *not* carry this mark; `None`: all.
    pub not_fwmark: Option<u32>,
    /// The table to ask.
    pub table: u32,
    /// Answers with a prefix of at most this length do not count; `None`: all count.
    pub suppress_prefix_len: Option<u8>,
}

impl Netlink {
    /// Opens a connection.
    ///
    /// # Errors
    /// If the socket cannot be made.
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

    /// The index of the link `name`; `None` if there is none.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn link_index(&self, name: &str) -> io::Result<Option<u32>> {
        let request = self.handle.link().get().match_name(name);
        let answer = self.runtime.block_on(request.execute().try_next());
        let link = absent_is_none(answer)?.flatten();
        Ok(link.map(|link| link.header.index))
    }

    /// The largest packet of the link `name` in bytes; `None` if there is no such link.
    ///
    /// # Errors
    /// The error of the kernel.
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

    /// Switches link `ifindex` up with `mtu` bytes.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn set_up(&self, ifindex: u32, mtu: u32) -> io::Result<()> {
        let message = LinkMessageBuilder::<LinkUnspec>::new()
            .index(ifindex)
            .mtu(mtu)
            .up()
            .build();
        let request = self.handle.link().set(message);
        self.runtime.block_on(request.execute()).map_err(to_io)
    }

    /// Gives link `ifindex` an address; one that it has already is left.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn add_address(&self, ifindex: u32, address: IpNet) -> io::Result<()> {
        let request = self.handle.address();
        let request = request.add(ifindex, address.addr(), address.prefix_len());
        self.runtime
            .block_on(request.replace().execute())
            .map_err(to_io)
    }

    /// Takes an address from link `ifindex`.
    ///
    /// # Errors
    /// The error of the kernel.
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

    /// Routes `destination` to link `ifindex`, in `table`; replaces an equal route.
    ///
    /// # Errors
    /// The error of the kernel.
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

    /// Removes the route to `destination` from `table`; no error if there is none.
    ///
    /// # Errors
    /// The error of the kernel.
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

    /// Makes `destination` unreachable by `table` where no other route of it leads there; replaces an equal route. It outlives every
    /// device.
    ///
    /// # Errors
    /// The error of the kernel.
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

    /// Removes the unreachable routes of `table` whose destinations are not in `kept`, both families.
    ///
    /// # Errors
    /// The error of the kernel.
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

    /// How many routes `table` has to devices, both families.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn route_count(&self, table: u32) -> io::Result<usize> {
        let routes = self.routes(table)?.into_iter();
        let leads_on = |route: &RouteMessage| route.header.kind != RouteType::Unreachable;
        Ok(routes.filter(leads_on).count())
    }

    /// Removes all routes of `table`, both families.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn flush_table(&self, table: u32) -> io::Result<()> {
        for route in self.routes(table)? {
            let request = self.handle.route().del(route);
            absent_is_none(self.runtime.block_on(request.execute()))?;
        }
        Ok(())
    }

    /// The destinations of all routes to other hosts, in all tables and both families, without default routes.
    ///
    /// # Errors
    /// The error of the kernel.
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
    /// The error of the kernel; an equal rule is one.
    pub fn add_rule(&self, rule: &Rule) -> io::Result<()> {
        let mut request = self.handle.rule().add().priority(rule.priority);
        request = request.table_id(rule.table).action(RuleAction::ToTable);
        let message = request.message_mut();
        message.header.family = family(rule.is_v6);
        if let Some(mark) = rule.not_fwmark {
            message.header.flags |= RuleFlags::Invert;
            message.attributes.push(RuleAttribute::FwMark(mark));
        }
        if let Some(len) = rule.suppress_prefix_len {
            let suppress = RuleAttribute::SuppressPrefixLen(len.into());
            message.attributes.push(suppress);
        }
        self.runtime.block_on(request.execute()).map_err(to_io)
    }

    /// How many rules have a priority in `priorities`, both families.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn rule_count(&self, priorities: RangeInclusive<u32>) -> io::Result<usize> {
        Ok(self.rules(&priorities)?.len())
    }

    /// Removes the rules with a priority in `priorities` that ask `table`, or the main table without its short prefixes,
    /// both families, the last first. Others in that range are somebody else's.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn delete_rules(&self, priorities: RangeInclusive<u32>, table: u32) -> io::Result<()> {
        let is_ours = |rule: &RuleMessage| {
            let mut attributes = rule.attributes.iter();
            let suppresses = |attribute| matches!(attribute, &RuleAttribute::SuppressPrefixLen(len) if len != u32::MAX);
            attributes
                .clone()
                .any(|attribute| *attribute == RuleAttribute::Table(table))
                || attributes.any(suppresses)
        };
        for rule in self.rules(&priorities)?.into_iter().rev().filter(is_ours) {
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

fn has_destination(route: &RouteMessage) -> bool {
    let mut attributes = route.attributes.iter();
    attributes.any(|attribute| matches!(attribute, RouteAttribute::Destination(_)))
}

/// Where a route leads; a default route has no destination among its attributes.
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

/// What does not exist, or belongs to a family this host does not have, is no error but nothing.
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

/// Metric of a route that is taken only where there is no other.
const LAST_METRIC: u32 = u32::MAX - 1;
