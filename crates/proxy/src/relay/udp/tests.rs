use rustix::io::Errno;
use tokio::net::TcpListener;

use super::{client::is_socket_broken, *};
use crate::daemon::{hub, live::Stop};

/// Returns a UDP association of a client at `from`.
async fn association(from: SocketAddr) -> Association {
    let inner = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
    Association::new(&Rc::new(hub::tests::hub()), inner, from, None)
}

fn drops(association: &Association, reason: &str) -> u64 {
    let drops = association.hub.drops.all();
    drops.get(reason).copied().unwrap_or(0)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let test = async { time::timeout(Duration::from_secs(10), test).await };
    let outcome = tokio::task::LocalSet::new().block_on(&runtime, test);
    outcome.expect("in time");
}

#[test]
fn a_socket_is_renewed_when_its_link_was_lost_or_its_reader_ended() {
    run(async {
        let server = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
        let to = server.local_addr().expect("bound");
        let association = association(([127, 0, 0, 1], 9).into()).await;
        let mut last = None;
        for round in 0..4 {
            association.flows.send(&to.into(), &[to.ip()], b"hello");
            let (_, source) = server.recv_from(&mut [0; 10]).await.expect("arrives");
            match round {
                0 => {}
                1 => assert_eq!(last, Some(source), "the same socket"),
                _ => assert_ne!(last, Some(source), "a new socket"),
            }
            last = Some(source);
            assert_eq!(association.flows.outer.borrow().len(), 1);
            if round == 1 {
                association.flows.flows.borrow()[&to]
                    .live
                    .stop(Stop::LinkLost);
            }
            if round == 2 {
                let outer = || association.flows.outer.borrow();
                outer().values().for_each(|outer| outer.reader.abort());
                while !outer().values().all(|outer| outer.reader.is_finished()) {
                    tokio::task::yield_now().await;
                }
            }
        }
        assert_eq!(drops(&association, "datagram-not-sent"), 0);
    });
}

#[test]
fn the_program_that_requested_an_association_is_known_of_its_flows() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = listener.local_addr().expect("bound");
        let mut client = TcpStream::connect(to).await.expect("it listens");
        let (control, from) = listener.accept().await.expect("it came");
        let server = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
        let hub = Rc::new(hub::tests::hub());
        let served = Rc::clone(&hub);
        tokio::task::spawn_local(async move { associate(&served, control, from).await });
        // Version, success, reserved, kind of address, IPv4 address, port (RFC 1928, section 6).
        let mut reply = [0; 10];
        client.read_exact(&mut reply).await.expect("a reply");
        let relay = ([127, 0, 0, 1], u16::from_be_bytes([reply[8], reply[9]]));
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
        let mut datagram = Vec::new();
        socks5::push_datagram_header(&mut datagram, server.local_addr().expect("bound"));
        datagram.extend_from_slice(b"hello");
        let relay = SocketAddr::from(relay);
        socket.send_to(&datagram, relay).await.expect("sent");
        server.recv_from(&mut [0; 10]).await.expect("arrives");
        let own = std::fs::read_to_string("/proc/self/comm").expect("a name");
        let live = hub.table.live.borrow();
        let apps: Vec<_> = live
            .values()
            .map(|flow| flow.purpose.app.as_deref())
            .collect();
        assert_eq!(apps, [Some(own.trim_end())]);
    });
}

#[test]
fn own_addresses_are_not_for_clients_elsewhere() {
    run(async {
        let association = association(([192, 0, 2, 1], 9).into()).await;
        for to in ["127.0.0.1:7", "0.0.0.0:7", "[::ffff:127.0.0.1]:7"] {
            let to: SocketAddr = to.parse().expect("address");
            association.flows.send(&to.into(), &[to.ip()], b"hello");
        }
        assert_eq!(drops(&association, "not-allowed"), 3);
        assert!(association.flows.flows.borrow().is_empty());
    });
}

#[test]
fn only_what_is_wrong_with_the_socket_breaks_it() {
    let is_broken = |errno: Errno| is_socket_broken(&errno.into());
    assert!(is_broken(Errno::NODEV) && is_broken(Errno::ADDRNOTAVAIL));
    assert!(!is_broken(Errno::MSGSIZE) && !is_broken(Errno::AGAIN) && !is_broken(Errno::PERM));
}
