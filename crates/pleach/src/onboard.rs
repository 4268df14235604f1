//! From nothing to a bonded download: one command at the gateway, one at the client.
//!
//! `pleach gateway init` makes a gateway, `invite` a token; `pleach join` makes a client of it, `pleach leave` undoes that.
//! What each changes on a host is written down before it is changed or removed if it fails, so that a command that was
//! interrupted can be repeated. Formats: `docs/onboarding.md`.
//!
//! | module | what |
//! | --- | --- |
//! | [`gateway`] | `pleach gateway init`, `invite`, `clients`, `remove` |
//! | [`join`], [`leave`] | the client's side |
//! | [`peer`] | `pleach peer invite`, `accept`, `remove`: two proxies |
//! | [`token`], [`code`] | the line of text that a client is given, and as a QR code |
//! | [`store`] | a gateway's invitations and enrolled clients |
//! | [`probe`], [`uplinks`] | enrolment over all links; what people call these |
//! | [`host`], [`networks`], [`outer`], [`firewall`] | what a host has, and what it lacks |
//! | [`service`] | systemd, or how to do without |
//! | [`durable`], [`place`] | files that are there as a whole or not at all; where they lie |

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
mod place;
pub(crate) mod probe;
mod service;
pub(crate) mod store;
mod token;
pub(crate) mod uplinks;

pub(crate) use bad_input::BadInput;

use pleach_linux::watch::LinkSnapshot;

/// The first name of a tunnel that no device has.
fn free_device(links: &[LinkSnapshot]) -> String {
    let names = (0..).map(|number: u32| format!("pleach{number}"));
    let mut free = names.filter(|name| links.iter().all(|link| link.name != *name));
    free.next().unwrap_or_else(|| "pleach0".to_owned())
}

/// Tells the user something beside the output.
fn note(text: &str) {
    use std::io::Write as _;

    // Nobody is left to tell if this fails.
    let _ = writeln!(std::io::stderr(), "note: {text}");
}
