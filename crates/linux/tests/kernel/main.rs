//! Against the real kernel, in throw-away network namespaces. Needs root; says so and passes without.

mod forwarding;
mod kill_switch;
mod namespace;
mod routes;
mod tun;
mod udp;
mod vm_clone;
mod watch;
mod ways;
