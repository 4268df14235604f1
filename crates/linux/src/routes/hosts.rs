//! Routes into the tunnel for single clients of a gateway, from which a routing daemon learns that they are here.
//!
//! They are in the main table, where routing daemons look first, and more specific than the tunnel's own routes, so the
//! rules of the tunnel find them there. The kernel removes them with the device, however the process ends.

use std::io;

use ipnet::IpNet;

use super::{Setup, context, has_v6};

impl Setup {
    /// Adds routes to `nets` over the tunnel's device. Routes that exist stay.
    ///
    /// # Errors
    /// Returns the first error, whose text names the route. All other routes are still added.
    pub fn add_host_routes(&mut self, nets: &[IpNet]) -> io::Result<()> {
        let Some(link) = self.netlink.link_index(&self.name)? else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        let has_v6 = has_v6();
        let mut result = Ok(());
        for &net in nets.iter().filter(|net| has_v6 || net.addr().is_ipv4()) {
            match self.netlink.add_host_route(net, link) {
                Ok(()) => {
                    self.hosts.insert(net);
                }
                Err(error) => result = result.and(Err(context(&error, &format!("route {net}")))),
            }
        }
        result
    }

    /// Removes routes to `nets`. Routes that do not exist are ignored.
    ///
    /// # Errors
    /// Returns the first error, whose text names the route. All other routes are still removed.
    pub fn delete_host_routes(&mut self, nets: &[IpNet]) -> io::Result<()> {
        let mut result = Ok(());
        for &net in nets {
            if !self.hosts.remove(&net) {
                continue;
            }
            if let Err(error) = self.netlink.delete_host_route(net) {
                result = result.and(Err(context(&error, &format!("route {net}"))));
            }
        }
        result
    }

    pub(super) fn delete_all_host_routes(&mut self) -> io::Result<()> {
        let all: Vec<IpNet> = self.hosts.iter().copied().collect();
        self.delete_host_routes(&all)
    }
}
