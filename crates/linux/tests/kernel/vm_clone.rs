//! Uevents of other devices, more than a socket can buffer.

use pleach_linux::{requirement, vm_clone::CloneWatch};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, SendFlags, SocketType, bind,
        netlink::{KOBJECT_UEVENT, SocketAddrNetlink},
        recv, sendto, socket,
    },
};

use crate::namespace::Namespace;

#[test]
fn a_storm_of_events_is_no_clone_of_the_machine() {
    let Some(namespace) = Namespace::new() else {
        return;
    };
    namespace.run(|| {
        let Ok(watch) = CloneWatch::start() else {
            return requirement::skip("no uevents here");
        };
        let uevents = || {
            let (family, kind) = (AddressFamily::NETLINK, SocketType::DGRAM);
            socket(family, kind, Some(KOBJECT_UEVENT)).expect("as the watch has one")
        };
        let unfiltered = uevents();
        let kernel = SocketAddrNetlink::new(0, 1);
        bind(&unfiltered, &kernel).expect("as the watch is");
        // These events are as long as those of the kernel, some of which are changes too.
        let mut event = b"change@/devices/virtual/net/storm\0ACTION=change\0".to_vec();
        event.resize(1000, b'x');
        let storm = uevents();
        for _ in 0..2000 {
            sendto(&storm, &event, SendFlags::empty(), &kernel).expect("root of the namespace");
        }
        let overrun = recv(&unfiltered, &mut event[..], rustix::net::RecvFlags::empty());
        assert_eq!(overrun.err(), Some(Errno::NOBUFS), "it was a storm");
        assert!(!watch.take());
    });
}
