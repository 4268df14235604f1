//! `pleach`: weaves every Internet access a host has into one connection.
//!
//! | module | contents |
//! | --- | --- |
//! | [`cli`] | commands, exit codes, the only code that prints errors |
//! | [`config`] | configuration files: from text to checked types, one line per error |
//! | `api` | HTTP over the control socket and TCP: JSON, live values, dashboard, metrics |
//! | [`clients`] | clients of a gateway in a store |
//! | [`check`] | checks a configuration against this host: devices, ports |
//! | [`keys`] | X25519 keys and preshared keys as text |
//! | [`confine`] | the rights that a daemon keeps |
//! | [`control`] | the control socket: protocol, server, client |
//! | `events` | the latest log messages, for the API |
//! | [`rates`] | rates of links, from two statuses |
//! | [`reasons`] | sentences that say why a link is used or not, and what to do |
//! | [`recover`] | undoes the changes to the host that a killed tunnel has left |
//! | [`status`] | the `status` command |
//! | `top` | the `top` command |
//! | [`watch`] | `status --watch` |
//! | [`doctor`] | finds what keeps a tunnel from working |
//! | [`find_owners`] | the process that finds the programs of sockets |
//! | `log_lines` | the log, which keeps nobody waiting |
//! | [`onboard`] | sets up gateways and clients with one command on each side |
//! | [`speedtest`] | measures the throughput of each link through a running tunnel |
//! | [`run_equalizer`] | the equalizer daemon |
//! | [`run_proxy`] | the proxy daemon |
//! | [`run_tunnel`] | the tunnel daemon |
//! | `reproduce` | measures published figures again |
//! | `scenarios` | reads scenario files and writes results, for the modules `lab`, `sim` and `reproduce` |
//! | `lab`, `sim` | connect the command line to the crates `pleach-lab` and `pleach-sim` |

#[cfg(feature = "dashboard")]
mod api;
mod check;
mod cli;
mod clients;
mod config;
mod confine;
mod control;
mod doctor;
#[cfg(feature = "dashboard")]
mod events;
mod find_owners;
mod keys;
#[cfg(feature = "lab")]
mod lab;
mod log_lines;
#[cfg(feature = "dashboard")]
mod notices;
mod onboard;
mod portal;
mod rates;
mod reasons;
mod recover;
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
