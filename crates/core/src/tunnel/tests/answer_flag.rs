//! The flag in data datagrams that names the path of the answers.

use core::time::Duration;

use super::adaptive;
use crate::{
    flows::FlowId,
    ids::{PathId, Seq},
    packet::PacketBuf,
    path::{link::Link, sender::Numbered},
    session::{
        aead::{OpeningKey, SealingKey, Suite},
        handshake::Established,
    },
    time::Instant,
    transmit::{Route, TxQueue},
    tunnel::sealer::{Flags, Sealer},
    wire::{
        handshake::{ANSWER_PATHS, CAPABILITIES, Hello, SuiteBits},
        header::Header,
    },
};

/// Whether a data datagram on path 1 has the flag if the answers are wanted on the paths `answer_paths` and the other
/// end has `capabilities`.
fn has_flag(capabilities: u32, answer_paths: u16) -> bool {
    let now = Instant::from_millis(5);
    let mut tunnel = adaptive();
    let path = PathId(1);
    tunnel.add_path(now, path, Link::named("b"));
    let route = Route {
        link: 1,
        remote: "192.0.2.1:7700".parse().expect("an address"),
        local: None,
    };
    tunnel.set_route(now, path, Some(route));
    let established = Established {
        send: SealingKey::new(Suite::Aes256Gcm, &[1; 32]),
        recv: OpeningKey::new(Suite::Aes256Gcm, &[2; 32]),
        remote_index: 7,
        suite: Suite::Aes256Gcm,
        remote_hello: Hello {
            protocol_version: 1,
            capabilities,
            suites: SuiteBits(1),
            association: 9,
            time: None,
        },
    };
    tunnel.sessions().install_initiated(now, established, 5);
    let numbered = Numbered {
        global_seq: Seq(0),
        flow_step: 0,
        flow: FlowId::of_hash(3),
        is_expendable: false,
        round_trip: Duration::ZERO,
        origin: None,
        packet: PacketBuf::from(vec![0x45; 20]),
    };
    let flags = Flags {
        answer_paths,
        ..Flags::default()
    };
    let mut out = TxQueue::new(1);
    let mut sealer = Sealer {
        now,
        sessions: tunnel.sessions.keys(),
        paths: &mut tunnel.paths,
        out: &mut out,
    };
    let sent = sealer.data(path, &numbered, flags, |_, _| false);
    assert!(sent.is_some());
    let (header, _) = Header::parse(out.batches()[0].bytes()).expect("a header");
    assert_eq!(header.path, path);
    header.is_answer_path
}

#[test]
fn only_an_end_that_knows_the_flag_gets_it_and_only_on_a_wanted_path() {
    assert!(has_flag(CAPABILITIES, 0b110));
    assert!(!has_flag(CAPABILITIES, 0b101), "another path is wanted");
    assert!(!has_flag(CAPABILITIES, 0));
    assert!(
        !has_flag(CAPABILITIES & !ANSWER_PATHS, 0b110),
        "an older end"
    );
    assert!(!has_flag(0, 0b110));
}
