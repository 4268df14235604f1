//! Lanes over loopback.

use pleach_core::session::handshake::StaticKeys;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::LocalSet,
};

use super::*;
use crate::{
    daemon::{hub::tests::hub, live::Purpose},
    handshake::Protocol,
    stripe::{CHUNK, WINDOW},
};

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
        let stripe = Stripe::new("peer".to_owned(), Striping::RoundRobin, &Pulses::default());
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
        let lanes = stripe.lanes();
        let total = |lane: &Rc<Lane>| lane.tx_bytes.get() + lane.rx_bytes.get();
        assert_eq!(stripe.moved.get(), lanes.iter().map(total).sum::<u64>());
    });
}

#[test]
fn who_waits_for_the_last_lane_learns_of_it_whoever_else_waits() {
    run(async {
        let stripe = Stripe::new("peer".to_owned(), Striping::RoundRobin, &Pulses::default());
        let [here, _there] = shaken().await;
        assert!(stripe.add_lane(LaneId(0), None, String::new(), here));
        stripe.changed.notified().await;
        tokio::join!(stripe.changed.notified(), stripe.drained(), async {
            stripe.end_lane(LaneId(0), "it is over");
        });
    });
}

#[test]
fn what_a_target_sent_before_it_closed_arrives_however_slow_the_client_is() {
    run(async {
        let stripes = ["here", "there"]
            .map(|peer| Stripe::new(peer.to_owned(), Striping::Osia, &Pulses::default()));
        let [here, there] = &stripes;
        for (stripe, shaken) in stripes.iter().zip(shaken().await) {
            assert!(stripe.add_lane(LaneId(0), None, String::new(), shaken));
        }
        // The client has said all it wants.
        here.finish();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = listener.local_addr().expect("bound");
        let target = TcpStream::connect(to).await.expect("it listens");
        let (mut service, _) = listener.accept().await.expect("it came");
        let hub = hub();
        let purpose = Purpose {
            client: to,
            app: None,
            target: to.into(),
            protocol: Protocol::Striped,
            warm: Vec::new(),
        };
        let (live, _) = hub.begin(purpose, &[to.ip()]).expect("local");
        // More than the other end has room for.
        let said = vec![7; usize::try_from(WINDOW).expect("small") + 64 * CHUNK];
        let serving = async {
            service.write_all(&said).await.expect("open");
            service.shutdown().await.expect("open");
            service.read_to_end(&mut Vec::new()).await.expect("its end")
        };
        let slow_client = async {
            until(|| there.bundle.borrow().sender.room() == 0).await;
            time::sleep(LAST_WORDS + Duration::from_millis(200)).await;
            let mut heard = 0;
            while !here.bundle.borrow().receiver.is_done() {
                let len = here.bundle.borrow().receiver.peek().len();
                if len > 0 {
                    here.bundle.borrow_mut().consume(len);
                    heard += len;
                    here.wake_lanes();
                } else {
                    here.deliverable.notified().await;
                }
            }
            heard
        };
        let answering = answer(&hub, &target, &live, there);
        let (answered, heard, _) = tokio::join!(answering, slow_client, serving);
        assert!(answered.is_ok(), "{answered:?}");
        assert_eq!(heard, said.len());
    });
}
