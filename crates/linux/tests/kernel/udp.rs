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

/// Returns the position of the socket that has received a datagram.
fn receiver(sockets: &[UdpSocket]) -> Option<usize> {
    let mut storage = RecvBatch::default();
    sockets
        .iter()
        .position(|socket| socket.recv(&mut storage, |_| {}).is_ok())
}

#[test]
fn datagrams_of_a_session_reach_the_socket_of_its_worker() {
    let Some(here) = Namespace::new() else {
        return;
    };
    here.run(|| {
        // A dual-stack socket receives over both families.
        for to in ["127.0.0.1:7700", "[::1]:7700"] {
            let options = UdpOptions {
                dual_stack: true,
                is_shared: true,
                ..UdpOptions::new("[::]:7700".parse().expect("literal"))
            };
            let bind = |_| UdpSocket::bind(&options).expect("binds");
            let sockets: Vec<UdpSocket> = (0..3).map(bind).collect();
            sockets[0].steer(3).expect("attaches");
            let to: std::net::SocketAddr = to.parse().expect("literal");
            for port in 4000..4008 {
                let any = std::net::SocketAddr::new(to.ip(), port);
                let from = UdpSocket::bind(&UdpOptions::new(any)).expect("binds");
                let arrives_at = |contents: &[u8]| {
                    from.send(&Transmit {
                        destination: to,
                        src_ip: None,
                        ecn: Ecn::NotCapable,
                        segment_size: None,
                        contents,
                    })
                    .expect("sent");
                    receiver(&sockets)
                };
                for index in [1_u32, 2, 3, 4, 0x000f_fffe, 0x00f0_0001] {
                    let [_, a, b, c] = index.to_be_bytes();
                    let expected = (index & 0x000f_ffff) as usize % 3;
                    for kind in [4, 5] {
                        // The byte before the index does not matter.
                        let datagram = [kind, 0, 0x8f, a, b, c, 9, 9, 9, 9];
                        assert_eq!(arrives_at(&datagram), Some(expected), "{index} {kind}");
                    }
                }
                for other in [
                    &[1, 0, 0, 0, 0, 2, 0, 0][..],
                    &[4, 0, 0, 1],
                    &[0],
                    &[9; 1200],
                ] {
                    assert_eq!(arrives_at(other), Some(0), "{other:?}");
                }
            }
        }
    });
}
