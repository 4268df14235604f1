//! Throughput and recovery on links of known behaviour.

use super::*;
use crate::{
    link::{LinkChange, LinkState, loss::Loss},
    tcp::{CongestionControl, Recovery, State, TcpStats},
};

const ALL: [CongestionControl; 3] = [
    CongestionControl::Cubic,
    CongestionControl::NewReno,
    CongestionControl::Westwood,
];

fn config(cc: CongestionControl) -> TcpConfig {
    TcpConfig {
        cc,
        ..TcpConfig::default()
    }
}

fn stats(pair: &mut Pair) -> TcpStats {
    pair.end(0).stats()
}

#[test]
fn every_controller_fills_a_link_with_one_bandwidth_delay_product_of_queue() {
    // 50 Mbit/s, 20 ms there and back: 125 kB.
    for cc in ALL {
        for recovery in [Recovery::DupAck, Recovery::Rack] {
            let config = TcpConfig {
                recovery,
                ..config(cc)
            };
            let mut pair = Pair::bulk(config, line(50, 10, 125_000), 1);
            let share = pair.goodput(seconds(2), seconds(22)) / capacity(50);
            println!("{cc:?} {recovery:?} {share:.3} {:?}", stats(&mut pair));
            assert!(share >= 0.95, "{cc:?} {recovery:?}: {share}");
            assert_eq!(stats(&mut pair).timeouts, 0, "{cc:?} {recovery:?}");
        }
    }
}
