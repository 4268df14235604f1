//! Tests of lanes over the loopback device.

use std::{cell::RefCell, rc::Rc};

use pleach_core::session::handshake::StaticKeys;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::LocalSet,
    time,
};

use super::{association::Association, handshake::Shaken, lane::Lane, *};
use crate::{
    daemon::{hub::tests::hub, live::Purpose},
    handshake::Protocol,
    stripe::{
        CHUNK, MAX_PENDING, MAX_PENDING_ALL, WINDOW,
        frame::{LaneId, Refusal, Wanted},
        sched::Striping,
    },
};

/// Runs `test` in a `LocalSet`. Fails if the test hangs.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let test = async { time::timeout(Duration::from_secs(10), test).await };
    let outcome = LocalSet::new().block_on(&runtime, test);
    outcome.expect("it goes on");
}

/// Returns both ends of a lane that has no association yet.
pub(crate) async fn shaken() -> [Shaken; 2] {
    let [asks, answers] = [[3; 32], [4; 32]].map(StaticKeys::from_private);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let to = listener.local_addr().expect("bound");
    let stream = TcpStream::connect(to).await.expect("it listens");
    let (accepted, _) = listener.accept().await.expect("it came");
    let known = [*asks.public()];
    let both = tokio::join!(
        handshake::ask(stream, &asks, answers.public()),
        handshake::answer(accepted, &answers, handshake::among(&known)),
    );
    [both.0.expect("known"), both.1.expect("known").0]
}

/// Returns both ends of an association with `lanes` lanes: first the end that dials, then the end that answers.
pub(crate) async fn associations(lanes: u16, striping: Striping) -> [Rc<Association>; 2] {
    let here = ([127, 0, 0, 1]).into();
    let both = [None, Some(here)]
        .map(|local| Association::new("peer".to_owned(), striping, local, &Rc::default()));
    for id in 0..lanes {
        for (association, shaken) in both.iter().zip(shaken().await) {
            let is_added = drive::add_lane(association, LaneId(id), None, String::new(), shaken);
            assert!(is_added);
        }
    }
    both
}

/// Returns both ends of a connection over the associations `both`. The data `first` was sent together with the request.
pub(crate) async fn carried(both: &[Rc<Association>; 2], first: &[u8]) -> [Carried; 2] {
    let wanted = Wanted { ip: None, port: 80 };
    let here = Carried::ask(&both[0], wanted, first).expect("room");
    loop {
        if let Some((conn, asked)) = both[1].next_incoming() {
            assert_eq!(asked, wanted);
            let there = Carried::incoming(&both[1], conn);
            return [here, there];
        }
        both[1].changed.notified().await;
    }
}

/// Waits until other tasks have made `is_so` true.
async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_lane_that_gets_nothing_wakes_the_one_that_got_it() {
    run(async {
        let both = associations(2, Striping::RoundRobin).await;
        let [here, there] = carried(&both, b"").await;
        there.accept();
        assert_eq!(here.answered().await.expect("open"), None);
        let sent = |lane: &Rc<Lane>| lane.tx_bytes.get();
        let sent = || both[0].lanes().iter().map(sent).collect::<Vec<_>>();
        let before = sent();
        let moved = Cell::new(0);
        for _ in 0..4 {
            let total: u64 = sent().iter().sum();
            let taken = both[0].mux.borrow_mut().write(here.conn, &[7; CHUNK]);
            assert_eq!(taken, CHUNK);
            both[0].lanes()[0].wake.notify_one();
            until(|| sent().iter().sum::<u64>() >= total + CHUNK as u64).await;
        }
        let chunk = CHUNK as u64;
        for (before, now) in before.iter().zip(sent()) {
            assert!(now >= before + chunk, "each lane had its turns");
        }
        here.take(b"x", &moved).await;
        assert_eq!(moved.get(), 1);
    });
}

#[test]
fn first_bytes_are_there_before_the_answer_and_a_refusal_comes_back() {
    run(async {
        let both = associations(1, Striping::Osia).await;
        let [here, there] = carried(&both, b"GET /").await;
        assert_eq!(both[1].mux.borrow().peek(there.conn), b"GET /");
        there.refuse(Refusal::Unreachable);
        let answer = here.answered().await.expect("it came");
        assert_eq!(answer, Some(Refusal::Unreachable));
        drop((here, there));
        until(|| both.iter().all(|end| end.mux.borrow().is_idle())).await;
    });
}

#[test]
fn a_lane_that_dies_leaves_its_connections_to_the_next() {
    run(async {
        let both = associations(1, Striping::Osia).await;
        let [here, there] = carried(&both, b"").await;
        there.accept();
        assert_eq!(here.answered().await.expect("open"), None);
        both[0].end_lane(LaneId(0), "a test");
        let moved = Cell::new(0);
        here.take(b"said without a lane", &moved).await;
        until(|| both[1].lanes().is_empty()).await;
        for (association, shaken) in both.iter().zip(shaken().await) {
            let name = String::new();
            assert!(drive::add_lane(association, LaneId(1), None, name, shaken));
        }
        let came = || both[1].mux.borrow().peek(there.conn).to_vec();
        until(|| came() == b"said without a lane").await;
        both[0].end("a test");
        here.broken().await;
    });
}

#[test]
fn what_a_target_sent_before_it_closed_arrives_however_slow_the_client_is() {
    run(async {
        let both = associations(1, Striping::Osia).await;
        let [here, there] = carried(&both, b"").await;
        there.accept();
        // The client has sent all its data.
        assert_eq!(here.answered().await.expect("open"), None);
        here.finish();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = listener.local_addr().expect("bound");
        let target = TcpStream::connect(to).await.expect("it listens");
        let (mut service, _) = listener.accept().await.expect("it came");
        let hub = hub();
        let purpose = Purpose {
            dscp: None,
            client: to,
            app: None,
            target: to.into(),
            protocol: Protocol::Striped,
            warm: Vec::new(),
        };
        let (live, _) = hub.begin(purpose, &[to.ip()]).expect("local");
        // The data exceeds the receive buffer of the other end.
        let said = vec![7; usize::try_from(WINDOW).expect("small") + 64 * CHUNK];
        let serving = async {
            service.write_all(&said).await.expect("open");
            service.shutdown().await.expect("open");
            service.read_to_end(&mut Vec::new()).await.expect("its end")
        };
        let slow_client = async {
            let (ours, theirs) = (&both[0].mux, &both[1].mux);
            until(|| theirs.borrow().room(there.conn) == 0).await;
            time::sleep(Duration::from_millis(200)).await;
            let mut heard = 0;
            let is_done = || {
                let mux = ours.borrow();
                let found = mux.connection(here.conn);
                found.is_some_and(|found| found.receiver.is_done())
            };
            while !is_done() {
                let len = ours.borrow().peek(here.conn).len();
                ours.borrow_mut().consume(here.conn, len);
                heard += len;
                both[0].wake();
                time::sleep(Duration::from_micros(100)).await;
            }
            heard
        };
        let answering = answer(&hub, &target, &live, &there);
        let (answered, heard, _) = tokio::join!(answering, slow_client, serving);
        assert!(answered.is_ok(), "{answered:?}");
        assert_eq!(heard, said.len());
    });
}

#[test]
fn nothing_is_lost_when_others_fill_the_shared_room_while_a_connection_waits_for_its_socket() {
    run(async {
        // Without a lane, no buffered data is sent.
        let association = Association::new("peer".to_owned(), Striping::Osia, None, &Rc::default());
        let wanted = Wanted { ip: None, port: 80 };
        let ask = || Carried::ask(&association, wanted, b"").expect("room");
        let waits = ask();
        let others: Vec<Carried> = (0..MAX_PENDING_ALL / MAX_PENDING).map(|_| ask()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = listener.local_addr().expect("bound");
        let target = TcpStream::connect(to).await.expect("it listens");
        let (mut service, _) = listener.accept().await.expect("it came");
        let (scratch, moved) = (RefCell::new(vec![0; 4 * CHUNK]), Cell::new(0));
        let pending = |carried: &Carried| {
            let mux = association.mux.borrow();
            let found = mux.connection(carried.conn).expect("not closed");
            found.out.pending_bytes() as u64
        };
        let says = async {
            for other in &others {
                other.take(&[7; MAX_PENDING], &Cell::new(0)).await;
            }
            service.write_all(&[7; 4 * CHUNK]).await.expect("open");
            until(|| moved.get() > 0).await;
        };
        tokio::select! {
            biased;
            outcome = waits.take_all(&scratch, &target, &moved) => panic!("{outcome:?}"),
            () = says => {}
        }
        assert_eq!(pending(&waits), moved.get());
        assert_eq!(
            moved.get(),
            CHUNK as u64,
            "the room of one that has nothing waiting"
        );
    });
}
