//! Netlink functions for an equalizer: routes over a next hop, rules for marks, and the longest offloaded packet.

use std::{io, net::IpAddr};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily,
    link::{LinkAttribute, LinkExtentMask, LinkFlags},
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
    },
    route::{RouteAttribute, RouteMessage, RouteMetric},
    rule::{RuleAction, RuleAttribute},
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, RouteMessageBuilder};

use super::{Netlink, absent_is_none, family, to_io};

/// A route over a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HopRoute {
    /// Destination of the route.
    pub(crate) destination: IpNet,
    /// Next hop, of the family of `destination`. It is assumed to be reachable directly over the link, regardless of
    /// the link's addresses.
    pub(crate) gateway: IpAddr,
    /// Index of the link.
    pub(crate) ifindex: u32,
    /// Number of the table that contains the route.
    pub(crate) table: u32,
    /// Metric. Routes with lower values are preferred.
    pub(crate) metric: u32,
    /// MTU in bytes, if it is below the link's MTU.
    pub(crate) mtu: Option<u32>,
}

/// Whether a next hop answers on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The next hop was probed and did not answer.
    No,
    /// The next hop is being probed.
    Unknown,
    /// The next hop answered, maybe some time ago.
    Yes,
}

impl Netlink {
    /// Returns whether each of `hops`, pairs of ifindex and address, answers. Next hops that have not answered recently
    /// are probed, and their answers are seen by a later call. If a next hop cannot be probed now, its known state is
    /// returned.
    ///
    /// # Errors
    /// Returns the error of the kernel if its neighbour table cannot be read.
    pub(crate) fn ask_next_hops(&self, hops: &[(u32, IpAddr)]) -> io::Result<Vec<Answer>> {
        let request = self.handle.neighbours().get();
        let known: Vec<NeighbourMessage> = self
            .runtime
            .block_on(request.execute().try_collect())
            .map_err(to_io)?;
        let answers = hops
            .iter()
            .map(|(ifindex, ip)| {
                let entry = known.iter().find(|entry| is_about(entry, *ifindex, *ip));
                let (answer, ask) = match entry.map(|entry| entry.header.state) {
                    Some(
                        NeighbourState::Reachable
                        | NeighbourState::Permanent
                        | NeighbourState::Noarp,
                    ) => (Answer::Yes, false),
                    Some(NeighbourState::Delay | NeighbourState::Probe) => (Answer::Yes, false),
                    Some(NeighbourState::Stale) => (Answer::Yes, true),
                    Some(NeighbourState::Failed) => (Answer::No, true),
                    Some(NeighbourState::Incomplete) => (Answer::Unknown, false),
                    Some(_) | None => (Answer::Unknown, true),
                };
                if ask && let Err(error) = self.ask(*ifindex, *ip) {
                    tracing::debug!(%ip, ifindex, %error, "cannot ask a next hop");
                }
                answer
            })
            .collect();
        Ok(answers)
    }

    /// Whether link `ifindex` currently exists, is up and has a carrier.
    ///
    /// The kernel notifies listeners of a lost carrier up to a second late, to avoid floods of notifications. A query
    /// returns the current state.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub(crate) fn is_running(&self, ifindex: u32) -> io::Result<bool> {
        // Statistics are skipped, because some devices read them from hardware.
        let request = self.handle.link().get().match_index(ifindex);
        let request =
            request.set_filter_mask(AddressFamily::Unspec, vec![LinkExtentMask::SkipStats]);
        let answer = self.runtime.block_on(request.execute().try_next());
        let running = LinkFlags::Up | LinkFlags::LowerUp;
        let link = absent_is_none(answer)?.flatten();
        Ok(link.is_some_and(|link| link.header.flags.contains(running)))
    }

    /// Requests that the kernel resolve the link-layer address of `ip`, unless it was confirmed recently.
    fn ask(&self, ifindex: u32, ip: IpAddr) -> io::Result<()> {
        let request = self.handle.neighbours().add(ifindex, ip).replace();
        let request = request
            .state(NeighbourState::None)
            .flags(NeighbourFlags::Use);
        absent_is_none(self.runtime.block_on(request.execute())).map(|_| ())
    }

    /// Adds `route`, and replaces a route to the same destination with the same metric.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub(crate) fn add_hop_route(&self, route: &HopRoute) -> io::Result<()> {
        let request = self.handle.route().add(hop_message(route)?).replace();
        self.runtime.block_on(request.execute()).map_err(to_io)
    }

    /// Removes the route to `destination` with `metric` from `table`.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub(crate) fn delete_hop_route(
        &self,
        destination: IpNet,
        metric: u32,
        table: u32,
    ) -> io::Result<()> {
        let destination = destination.trunc();
        let message = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination.addr(), destination.prefix_len())
            .map_err(io::Error::other)?
            .table_id(table)
            .priority(metric)
            .build();
        let request = self.handle.route().del(message);
        absent_is_none(self.runtime.block_on(request.execute())).map(|_| ())
    }

    /// Adds a rule by which packets with `mark` look up `table`.
    ///
    /// # Errors
    /// Returns the error of the kernel. An equal rule is an error.
    pub(crate) fn add_mark_rule(
        &self,
        is_v6: bool,
        priority: u32,
        mark: u32,
        table: u32,
    ) -> io::Result<()> {
        let mut request = self.handle.rule().add().priority(priority);
        request = request.table_id(table).action(RuleAction::ToTable);
        let message = request.message_mut();
        message.header.family = family(is_v6);
        message.attributes.push(RuleAttribute::FwMark(mark));
        self.runtime.block_on(request.execute()).map_err(to_io)
    }

    /// Returns the highest number of segments of an offloaded packet that link `name` accepts. `None` if there is no
    /// such link.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub(crate) fn gso_max_segs(&self, name: &str) -> io::Result<Option<u32>> {
        let request = self.handle.link().get().match_name(name.to_owned());
        let answer = self.runtime.block_on(request.execute().try_next());
        let link = absent_is_none(answer)?.flatten();
        let segments = |attribute: &LinkAttribute| {
            if let LinkAttribute::GsoMaxSegs(segments) = attribute {
                Some(*segments)
            } else {
                None
            }
        };
        Ok(link.and_then(|link| link.attributes.iter().find_map(segments)))
    }

    /// Sets the highest number of segments of an offloaded packet that link `name` accepts. Does nothing if there is
    /// no such link.
    ///
    /// # Errors
    /// Returns the error of the kernel.
    pub(crate) fn set_gso_max_segs(&self, name: &str, segments: u32) -> io::Result<()> {
        let Some(index) = self.link_index(name)? else {
            return Ok(());
        };
        let message = LinkMessageBuilder::<LinkUnspec>::new()
            .index(index)
            .append_extra_attribute(LinkAttribute::GsoMaxSegs(segments))
            .build();
        let request = self.handle.link().set(message);
        absent_is_none(self.runtime.block_on(request.execute())).map(|_| ())
    }
}

fn is_about(entry: &NeighbourMessage, ifindex: u32, ip: IpAddr) -> bool {
    let address = match ip {
        IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    };
    let address = NeighbourAttribute::Destination(address);
    entry.header.ifindex == ifindex && entry.attributes.contains(&address)
}

fn hop_message(route: &HopRoute) -> io::Result<RouteMessage> {
    let destination = route.destination.trunc();
    let mut builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(destination.addr(), destination.prefix_len())
        .map_err(io::Error::other)?
        .gateway(route.gateway)
        .map_err(io::Error::other)?
        .output_interface(route.ifindex)
        .table_id(route.table)
        .priority(route.metric)
        .onlink();
    if let Some(mtu) = route.mtu {
        let metrics = RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]);
        builder.get_mut().attributes.push(metrics);
    }
    Ok(builder.build())
}
