//! Linux for pleach: clock, TUN device, UDP sockets, polling, netlink, routes, nftables, sysctls.
//!
//! All system calls and unsafe code of the tunnel are in this crate; the lab has its own. The data path of a tunnel is
//! one thread that waits in [`poll::Poller`] and moves batches: [`tun::Tun`] on one side, [`udp::UdpSocket`] on the
//! other. Rare changes are handled elsewhere: [`watch::LinkWatch`] has its own thread; [`routes`], [`nft`] and
//! [`sysctl`] are called while a tunnel starts and stops.
//!
//! Every change that would outlive a process is undone by the process, or found and undone by the next start: see
//! [`routes`].
//!
//! Kernel 5.11 or newer (`epoll_pwait2`); UDP segmentation on the TUN from 6.2.

mod bpf;
pub mod cgroup_connect;
pub mod clock;
pub mod confine;
pub mod entropy;
pub mod equalize;
pub mod ethtool;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod mapped;
pub mod netlink;
pub mod netns;
pub mod nft;
pub mod owner;
pub mod ping;
pub mod poll;
pub mod power;
pub mod procnet;
pub mod program;
pub mod readiness;
pub mod redirect;
pub mod requirement;
pub mod routes;
pub mod split_tcp;
pub mod state;
pub mod surroundings;
pub mod sysctl;
pub mod tcp;
pub mod tcp_diag;
pub mod tcp_listener;
pub mod tun;
pub mod udp;
pub mod vm_clone;
pub mod watch;
