//! Tests with the real kernel, in temporary network namespaces. Without root they print a message and pass.

mod forwarding;
mod kill_switch;
mod namespace;
mod routes;
mod tun;
mod udp;
mod vm_clone;
mod watch;
mod ways;
