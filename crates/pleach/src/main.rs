//! `pleach`: weaves every Internet access a host has into one connection.
//!
//! | module | what |
//! | --- | --- |
//! | [`cli`] | commands, exit codes, the one place that prints errors |
//! | [`config`] | configuration files: text to checked types, one clear line an error |
//! | `api` | HTTP over the control socket and TCP: JSON, live values, dashboard, metrics |
//! | [`check`] | what a configuration asks of this host: devices, ports |
//! | [`keys`] | X25519 keys and preshared keys as text |
//! | [`control`] | the control socket: protocol, server, client |
//! | `events` | the latest lines of the log, for who looks |
//! | [`onboard`] | gateways and clients in one command a side |
//! | [`rates`] | what links move between two statuses |
//! | [`reasons`] | why a link is used or not, and what to do, in sentences |
//! | [`status`] | the `status` command |
//! | `top` | the `top` command |
//! | [`watch`] | `status --watch` |
//! | [`doctor`] | finds what keeps a tunnel from working |
//! | [`onboard`] | gateways and clients in one command a side |
//! | [`speedtest`] | what each link carries, through a running tunnel |
//! | [`status`] | the `status` and `weights` commands |
//! | [`run_equalizer`] | the equalizer daemon |
//! | [`run_proxy`] | the proxy daemon |
//! | [`run_tunnel`] | the tunnel daemon |
//! | `reproduce` | published figures, measured again |
//! | `scenarios` | scenario files in, results out: for `lab`, `sim` and `reproduce`, the bridges to those crates |

#[cfg(feature = "dashboard")]
mod api;
mod check;
mod cli;
mod config;
mod control;
mod doctor;
#[cfg(feature = "dashboard")]
mod events;
mod keys;
#[cfg(feature = "lab")]
mod lab;
mod onboard;
mod rates;
mod reasons;
#[cfg(feature = "reproduce")]
mod reproduce;
mod run_equalizer;
mod run_proxy;
mod run_tunnel;
#[cfg(any(feature = "lab", feature = "sim"))]
mod scenarios;
#[cfg(feature = "sim")]
mod sim;
mod speedtest;
mod split_tcp;
mod status;
#[cfg(feature = "dashboard")]
mod top;
mod trace;
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
