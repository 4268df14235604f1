//! Sets up a tunnel over several links: one command at the gateway, one at the client.
//!
//! `pleach gateway init` makes a host a gateway, `pleach gateway invite` prints a token, `pleach join` makes a host a
//! client of the gateway that printed the token, and `pleach leave` undoes `join`. Each command either records a change
//! of the host before it makes the change, or undoes the change if the command fails. So an interrupted command can be
//! repeated. Formats: `docs/onboarding.md`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`gateway`] | `pleach gateway init`, `invite`, `clients`, `remove` |
//! | [`join`], [`leave`] | `pleach join`, `pleach leave`: the client's side |
//! | [`peer`] | `pleach peer invite`, `accept`, `remove`: makes two proxies peers |
//! | [`token`], [`code`] | the token of an invitation, as a line of text and as a QR code |
//! | [`store`] | a gateway's invitations and enrolled clients |
//! | [`probe`], [`uplinks`] | enrolment over all links; names of links for the user |
//! | [`host`], [`networks`], [`outer`], [`firewall`] | checks and addresses of the host |
//! | [`service`] | starts and stops the daemon, with or without systemd |
//! | [`durable`], [`place`] | files that are written completely or not at all; directories of the files |

mod bad_input;
mod code;
pub(crate) mod durable;
mod firewall;
pub(crate) mod gateway;
mod host;
pub(crate) mod join;
pub(crate) mod leave;
mod networks;
pub(crate) mod outer;
pub(crate) mod peer;
pub(crate) mod place;
pub(crate) mod probe;
mod service;
pub(crate) mod store;
mod token;
pub(crate) mod uplinks;

pub(crate) use bad_input::BadInput;
pub(crate) use host::require_root;

use std::time::Duration;

use pleach_linux::watch::LinkSnapshot;

/// Returns the first name of a tunnel that no device has.
fn free_device(links: &[LinkSnapshot]) -> String {
    let names = (0..).map(|number: u32| format!("pleach{number}"));
    let mut free = names.filter(|name| links.iter().all(|link| link.name != *name));
    free.next().unwrap_or_else(|| "pleach0".to_owned())
}

/// Returns a duration as text, such as `1 day` or `2 hours 30 minutes`.
fn spelled(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [
        (seconds / 86_400, "day"),
        (seconds / 3600 % 24, "hour"),
        (seconds / 60 % 60, "minute"),
        (seconds % 60, "second"),
    ];
    let parts = units.iter().filter(|(count, _)| *count > 0);
    let parts = parts.map(|(count, unit)| {
        let plural = if *count == 1 { "" } else { "s" };
        format!("{count} {unit}{plural}")
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// Prints a note to the user on stderr.
fn note(text: &str) {
    use std::io::Write as _;

    // If this fails, the error cannot be reported anywhere.
    let _ = writeln!(std::io::stderr(), "note: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_spelled_out() {
        let of = |seconds| spelled(Duration::from_secs(seconds));
        assert_eq!(of(86_400), "1 day");
        assert_eq!(of(2 * 86_400 + 3600), "2 days 1 hour");
        assert_eq!(of(90), "1 minute 30 seconds");
    }
}
