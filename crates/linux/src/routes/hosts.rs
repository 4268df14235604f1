//! Routes into the tunnel for single clients of a gateway, from which a routing daemon learns that they are here.
//!
//! They are in the main table, where routing daemons look first, and more specific than the tunnel's own routes, so the
//! rules of the tunnel find them there. The kernel removes them with the device, however the process ends.

use std::{io, mem};

use ipnet::IpNet;

use super::{Setup, context, has_v6};

impl Setup {
    /// Adds routes to `nets` over the tunnel's device. Routes that exist stay.
    ///
    /// # Errors
    /// Returns the first error, whose text names the route. All other routes are still added, and [`Self::settle_host_routes`]
    /// tries again.
    pub fn add_host_routes(&mut self, nets: &[IpNet]) -> io::Result<()> {
        self.hosts.extend(nets);
        self.unsettled_hosts.extend(nets);
        self.settle_host_routes()
    }

    /// Removes routes to `nets`. Routes that do not exist are ignored.
    ///
    /// # Errors
    /// As [`Self::add_host_routes`].
    pub fn delete_host_routes(&mut self, nets: &[IpNet]) -> io::Result<()> {
        let known = nets.iter().filter(|net| self.hosts.remove(*net));
        self.unsettled_hosts.extend(known);
        self.settle_host_routes()
    }

    /// Adds and removes what could not be added or removed before.
    ///
    /// # Errors
    /// As [`Self::add_host_routes`].
    pub fn settle_host_routes(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for net in mem::take(&mut self.unsettled_hosts) {
            let settled = if self.hosts.contains(&net) {
                self.add_host_route(net)
            } else {
                self.netlink.delete_host_route(net)
            };
            if let Err(error) = settled {
                self.unsettled_hosts.insert(net);
                result = result.and(Err(context(&error, &format!("route {net}"))));
            }
        }
        result
    }

    pub(super) fn delete_all_host_routes(&mut self) -> io::Result<()> {
        let all: Vec<IpNet> = self.hosts.iter().copied().collect();
        self.delete_host_routes(&all)
    }

    fn add_host_route(&self, net: IpNet) -> io::Result<()> {
        if net.addr().is_ipv6() && !has_v6() {
            return Ok(());
        }
        let link = self.netlink.link_index(&self.name)?;
        let link = link.ok_or(io::ErrorKind::NotFound)?;
        self.netlink.add_host_route(net, link)
    }
}
