//! Lanes over loopback.

use pleach_core::session::handshake::StaticKeys;
use tokio::{net::TcpListener, task::LocalSet};

use super::*;
use crate::stripe::CHUNK;

/// Runs `test`, whose tasks are local ones; fails if it hangs.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let test = async { time::timeout(Duration::from_secs(10), test).await };
    let outcome = LocalSet::new().block_on(&runtime, test);
    outcome.expect("it goes on");
}

/// Both ends of a lane that has no connection yet.
pub(crate) async fn shaken() -> [Shaken; 2] {
    let [asks, answers] = [[3; 32], [4; 32]].map(StaticKeys::from_private);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let to = listener.local_addr().expect("bound");
    let stream = TcpStream::connect(to).await.expect("it listens");
    let (accepted, _) = listener.accept().await.expect("it came");
    let known = [*asks.public()];
    let both = tokio::join!(
        handshake::ask(stream, &asks, answers.public()),
        handshake::answer(accepted, &answers, &known),
    );
    [both.0.expect("known"), both.1.expect("known").0]
}

/// Waits for what other tasks do.
async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_lane_that_gets_nothing_wakes_the_one_that_got_it() {
    run(async {
        let stripe = Stripe::new("peer".to_owned(), Striping::RoundRobin);
        let mut others = Vec::new();
        for id in 0..2 {
            let [here, there] = shaken().await;
            assert!(stripe.add_lane(LaneId(id), None, String::new(), here));
            others.push(there);
        }
        let sent = || {
            stripe
                .lanes()
                .iter()
                .map(|lane| lane.tx_bytes.get())
                .collect::<Vec<_>>()
        };
        // Each acknowledges once, and waits.
        until(|| sent().iter().all(|bytes| *bytes > 0)).await;
        time::sleep(Duration::from_millis(20)).await;
        let before = sent();
        for _ in 0..4 {
            let total: u64 = sent().iter().sum();
            stripe.bundle.borrow_mut().sender.write(&[7; CHUNK]);
            stripe.lanes()[0].wake.notify_one();
            until(|| sent().iter().sum::<u64>() > total).await;
            time::sleep(Duration::from_millis(20)).await;
        }
        assert!(sent()[1] > before[1], "the second lane had its turns");
    });
}

#[test]
fn who_waits_for_the_last_lane_learns_of_it_whoever_else_waits() {
    run(async {
        let stripe = Stripe::new("peer".to_owned(), Striping::RoundRobin);
        let [here, _there] = shaken().await;
        assert!(stripe.add_lane(LaneId(0), None, String::new(), here));
        stripe.changed.notified().await;
        tokio::join!(stripe.changed.notified(), stripe.drained(), async {
            stripe.end_lane(LaneId(0), "it is over");
        });
    });
}
