//! `pleach`: weaves every Internet access a host has into one connection.
//!
//! | module | what |
//! | --- | --- |
//! | [`cli`] | commands, exit codes, the one place that prints errors |
//! | [`config`] | configuration files: text to checked types, one clear line an error |
//! | [`check`] | what a configuration asks of this host: devices, ports |
//! | [`keys`] | X25519 keys and preshared keys as text |
//! | [`control`] | the control socket: protocol, server, client |
//! | [`doctor`] | finds what keeps a tunnel from working |
//! | [`onboard`] | gateways and clients in one command a side |
//! | [`speedtest`] | what each link carries, through a running tunnel |
//! | [`status`] | the `status` and `weights` commands |
//! | [`run_equalizer`] | the equalizer daemon |
//! | [`run_proxy`] | the proxy daemon |
//! | [`run_tunnel`] | the tunnel daemon |
//! | `reproduce` | published figures, measured again |
//! | `scenarios` | scenario files in, results out: for `lab`, `sim` and `reproduce`, the bridges to those crates |

mod check;
mod cli;
mod config;
mod control;
mod doctor;
mod keys;
#[cfg(feature = "lab")]
mod lab;
mod onboard;
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
mod status;
mod trace;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
