//! Sentences that explain the state of a daemon: for `pleach status`, `pleach top`, the API and the dashboard.

use crate::control::{LinkState, LinkStatus, StatusReport};

/// Returns one sentence about the state of the whole daemon.
pub(crate) fn headline(report: &StatusReport) -> String {
    let name = &report.name;
    match report.mode.as_str() {
        "gateway" => {
            let up = report.clients.iter().filter(|client| client.up).count();
            format!(
                "{name} is a gateway: {up} of {} connected.",
                count(report.clients.len(), "client")
            )
        }
        "proxy" => format!(
            "The proxy on {name} serves {} over {}.",
            count(
                usize::try_from(report.connection_count.unwrap_or(0)).unwrap_or(usize::MAX),
                "connection"
            ),
            usable(report)
        ),
        "equalize" => format!("The equalizer spreads packets over {}.", usable(report)),
        _ if report.up => {
            let used = report.gateways.iter().find(|gateway| gateway.used);
            let at = used.map_or(String::new(), |gateway| {
                format!(" at the gateway {}", gateway.name)
            });
            format!("{name} is up over {}{at}.", usable(report))
        }
        _ if report.links.is_empty() => {
            format!("{name} is down: no link has a route to the gateway.")
        }
        _ => format!("{name} is down: the gateway answers on no link."),
    }
}

/// Returns the number of usable links, such as `2 of 3 links`.
fn usable(report: &StatusReport) -> String {
    let is_usable = |link: &&LinkStatus| link.state == LinkState::Up;
    let up = report.links.iter().filter(is_usable).count();
    format!("{up} of {}", count(report.links.len(), "link"))
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Returns why a link is used or not, as far as its state shows it. This sentence is shown if no more specific reason
/// is known.
pub(crate) fn by_state(name: &str, state: LinkState) -> String {
    let predicate = match state {
        LinkState::Down => "is down: its device is missing, has no carrier or has no route",
        LinkState::Never => "is excluded by cost = \"never\"",
        LinkState::Standby => "is on standby: it is used only when no other link works",
        LinkState::Suspect => "is silent: packets are in flight, but no answer arrives",
        LinkState::Up => "is in use",
    };
    format!("{name} {predicate}")
}

/// The reason of a link that is not used because its budget is spent.
pub(crate) const BUDGET: &str = "budget";

/// The reason of a link that is not used because a captive portal asks for a login.
pub(crate) const PORTAL: &str = "captive-portal";

/// Returns what the user can do about a link that is idle for the reason `word` of `status --json`; `None` if the user
/// need not do anything.
pub(crate) fn advice(word: &str) -> Option<&'static str> {
    Some(match word {
        BUDGET => {
            "It is used again on the day on which its budget begins anew. To use it before, give it a larger `budget`, or another `at_limit`, in the configuration, and run `pleach reload`."
        }
        PORTAL => {
            "Open the portal in a browser over this link, and log in. The link is used as soon as the gateway answers."
        }
        "down" => {
            "Check cable, modem and signal of this link, and whether it lets UDP through to the gateway."
        }
        "never" => "To use the link, give it another `cost` in the configuration.",
        "standby" => {
            "To use the link at all times, give it a number as `cost` in the configuration."
        }
        "suspect" => {
            "Wait a moment: within two seconds the link is used again or is considered down."
        }
        "too-late-for-its-flows" => {
            "Until its delay is lower, it is used only when the quicker links are down."
        }
        "worth-too-little" => {
            "Until its delay is lower or its capacity higher, it is used only when the quicker links are down."
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headline_counts_what_is_usable() {
        let mut report = StatusReport {
            mode: "client".to_owned(),
            name: "pleach0".to_owned(),
            ..StatusReport::default()
        };
        assert_eq!(
            headline(&report),
            "pleach0 is down: no link has a route to the gateway."
        );
        report.links = ["dsl", "lte"]
            .map(|name| LinkStatus::bare(name, "eth1"))
            .to_vec();
        report.links[0].state = LinkState::Up;
        assert_eq!(
            headline(&report),
            "pleach0 is down: the gateway answers on no link."
        );
        report.up = true;
        assert_eq!(headline(&report), "pleach0 is up over 1 of 2 links.");
    }

    #[test]
    fn advice_is_for_links_that_something_is_wrong_with() {
        assert!(advice("down").is_some_and(|text| text.contains("UDP")));
        for word in ["no-traffic", "not-needed", "paced", "rank"] {
            assert_eq!(advice(word), None);
        }
    }
}
