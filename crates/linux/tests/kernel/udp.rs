//! Datagrams that are too long for a device.

use pleach_core::packet::Ecn;
use pleach_linux::udp::{RecvBatch, Transmit, UdpOptions, UdpSocket};

use crate::namespace::Namespace;

#[test]
fn what_follows_a_datagram_that_is_too_long_for_the_device_is_sent() {
    let Some(here) = Namespace::new() else {
        return;
    };
    here.ip("link set lo mtu 1300");
    here.run(|| {
        let bind = || UdpSocket::bind(&UdpOptions::new("127.0.0.1:0".parse().expect("literal")));
        let (from, to) = (bind().expect("binds"), bind().expect("binds"));
        let send = |contents: &[u8], segment_size| {
            from.send(&Transmit {
                destination: to.local_addr().expect("bound"),
                src_ip: None,
                ecn: Ecn::NotCapable,
                segment_size,
                contents,
            })
        };
        // The batch has two datagrams of 1400 bytes, and one of 16.
        let batch = [7; 2_816];
        assert_eq!(send(&batch, Some(1_400)).expect("one passes"), 2_816);
        let error = send(&batch[..1_400], None).expect_err("too long");
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        assert!(
            send(&batch[..2_800], Some(1_400)).is_err(),
            "nothing passes"
        );
        let segments = from.max_segments();
        assert!(segments > 1, "it was not the segmentation");
        let mut lens = Vec::new();
        let mut storage = RecvBatch::default();
        let _ = to.recv(&mut storage, |message| lens.push(message.contents.len()));
        assert_eq!(lens, [16]);
    });
}
