//! Whether the host names of the gateway have addresses.

use std::net::SocketAddr;

use crate::{config::HostName, doctor::problem::Problem};

/// Judges the addresses. `endpoints`: all known addresses, from the configuration or from resolvers.
pub(crate) fn verdict(names: &[HostName], endpoints: &[SocketAddr]) -> Option<Problem> {
    let name = names.first().filter(|_| endpoints.is_empty())?;
    Some(Problem::new(
        "name-unknown",
        format!(
            "{} cannot be resolved: no resolver in /etc/resolv.conf answers over any link, or the name is wrong",
            name.name
        ),
        "correct the name, or add an address of the gateway to [gateway] endpoints",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_an_address_is_a_problem_if_nothing_else_is_known() {
        let names = [HostName {
            name: "gw.example.net".to_owned(),
            port: 7700,
        }];
        let endpoint = "203.0.113.5:7700".parse().expect("literal");
        assert!(verdict(&names, &[]).is_some());
        assert!(verdict(&names, &[endpoint]).is_none() && verdict(&[], &[]).is_none());
    }
}
