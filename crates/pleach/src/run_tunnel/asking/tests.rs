use std::{
    fs,
    path::PathBuf,
    sync::{Arc, mpsc},
};

use pleach_core::{
    endpoint::accounts::{Caps, Usage},
    units::Bitrate,
};
use pleach_linux::state::StateDir;

use super::*;
use crate::{
    clients::sqlite::SqliteStore,
    config::{StoreConfig, StorePlace},
    run_tunnel::ledger::Ledger,
};

struct Bench {
    dir: tempfile::TempDir,
    asking: Asking,
    ledger: Arc<Ledger>,
    answers: Receiver<Answer>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::TempDir::new().expect("directory");
        let config = StoreConfig {
            place: StorePlace::Sqlite(dir.path().join("clients.db")),
            networks: vec!["10.77.0.0/16".parse().expect("net")],
            answer_life: Duration::from_secs(60),
            idle: Duration::from_secs(600),
            write_every: Duration::from_secs(5),
        };
        let store = SqliteStore::create(&dir.path().join("clients.db")).expect("made");
        let (answer, answers) = mpsc::channel();
        let waker = Waker::new().expect("eventfd");
        let (_, taken) = mpsc::sync_channel(1);
        let out = Out {
            answer,
            taken,
            waker,
        };
        let state = StateDir::open(&dir.path().join("state"));
        let ledger = Ledger::open(state, "t0", "store", [0, 1]).expect("memory");
        let start = Start {
            store: Box::new(store),
            config: &config,
            own_key: [200; 32],
            ledger: Arc::clone(&ledger),
            fleet: None,
            engines: 1,
        };
        let asking = Asking::new(clock::now(), start, None, out);
        Self {
            dir,
            asking,
            ledger,
            answers,
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("clients.db")
    }

    fn ask(&mut self, number: u8) -> Result<StoredClient, Refused> {
        self.asking.ask(&EnrolmentRequest {
            ticket: 1,
            public_key: [number; 32],
            claim: None,
            source: ([198, 51, 100, 1], 4000).into(),
        })
    }

    /// Returns what the data path is told when the thread looks for changes `later`.
    fn look(&mut self, later: Duration) -> Vec<Answer> {
        self.asking.look(clock::now() + later);
        self.answers.try_iter().collect()
    }
}

fn client(number: u8) -> StoredClient {
    StoredClient {
        name: format!("client{number}"),
        public_key: [number; 32],
        preshared_key: None,
        allowed_ips: vec![format!("10.77.0.{number}/32").parse().expect("net")],
        caps: Caps::default(),
        added_at: 5,
    }
}

const NOW: Duration = Duration::ZERO;

#[test]
fn removals_and_changes_are_told_at_the_next_look() {
    let mut bench = Bench::new();
    for number in 1..=3 {
        bench.asking.store.add(&client(number)).expect("added");
        assert_eq!(bench.ask(number), Ok(client(number)));
    }
    assert!(bench.look(NOW).is_empty());
    assert_eq!(bench.ask(4), Err(Refused::Unknown));
    let caps = Caps {
        up: Some(Bitrate::from_mbps(3)),
        down: None,
    };
    // Another program changes the store.
    let mut other = SqliteStore::open(&bench.path()).expect("opens");
    crate::clients::Members::remove(&mut other, "client1").expect("removed");
    other.set_caps("client2", caps).expect("changed");
    other.add(&client(4)).expect("added");
    let told = bench.look(NOW);
    let [Answer::Gone(gone), Answer::Changed(changed)] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!((*gone, changed.caps), ([1; 32], caps));
    assert!(bench.look(NOW).is_empty(), "each change is told once");
    assert_eq!(bench.ask(1), Err(Refused::Unknown));
    assert_eq!(bench.ask(4), Ok(client(4)), "a new client is known at once");
}

#[test]
fn a_second_question_about_a_client_removes_it_if_it_is_gone() {
    let mut bench = Bench::new();
    bench.asking.store.add(&client(1)).expect("added");
    assert_eq!(bench.ask(1), Ok(client(1)));
    crate::clients::Members::remove(&mut *bench.asking.store, "client1").expect("removed");
    assert_eq!(bench.ask(1), Err(Refused::Unknown));
    let told: Vec<_> = bench.answers.try_iter().collect();
    assert!(matches!(&told[..], [Answer::Gone(_)]), "{told:?}");
}

#[test]
fn known_clients_are_served_and_new_ones_refused_while_the_store_is_away() {
    let mut bench = Bench::new();
    bench.asking.store.add(&client(1)).expect("added");
    bench.asking.store.add(&client(2)).expect("added");
    assert_eq!(bench.ask(1), Ok(client(1)));
    let away = bench.dir.path().join("away");
    fs::rename(bench.path(), &away).expect("moved");
    let told = bench.look(NOW);
    assert!(
        matches!(&told[..], [Answer::State(Some(text))] if text.contains("clients.db")),
        "{told:?}"
    );
    assert!(bench.look(NOW).is_empty(), "the same trouble is told once");
    assert_eq!(bench.ask(1), Ok(client(1)));
    assert_eq!(bench.ask(2), Err(Refused::Unreadable));
    // Nobody is removed because an answer is old.
    assert!(bench.look(Duration::from_secs(600)).is_empty());
    assert_eq!(bench.ask(1), Ok(client(1)));

    // A client that is removed while the gateway cannot read the store is gone when the store is back.
    let mut other = SqliteStore::open(&away).expect("opens");
    crate::clients::Members::remove(&mut other, "client1").expect("removed");
    drop(other);
    fs::rename(&away, bench.path()).expect("moved back");
    let told = bench.look(NOW);
    assert!(
        matches!(&told[..], [Answer::State(None), Answer::Gone(_)]),
        "{told:?}"
    );
    assert_eq!(bench.ask(2), Ok(client(2)));
}

#[test]
fn an_old_answer_is_asked_for_again_even_if_no_change_was_noticed() {
    let mut bench = Bench::new();
    bench.asking.store.add(&client(1)).expect("added");
    assert_eq!(bench.ask(1), Ok(client(1)));
    assert!(bench.look(NOW).is_empty());
    let other = rusqlite::Connection::open(bench.path()).expect("opens");
    other
        .execute_batch("DROP TRIGGER client_removed; DELETE FROM clients")
        .expect("valid SQL");
    assert!(bench.look(Duration::from_secs(30)).is_empty());
    let told = bench.look(Duration::from_secs(61));
    assert!(matches!(&told[..], [Answer::Gone(_)]), "{told:?}");
}

#[test]
fn a_client_outside_of_the_networks_of_the_gateway_is_refused() {
    let mut bench = Bench::new();
    let foreign = StoredClient {
        allowed_ips: vec!["192.168.1.0/24".parse().expect("net")],
        ..client(1)
    };
    bench.asking.store.add(&foreign).expect("added");
    assert_eq!(bench.ask(1), Err(Refused::BadRow));
}

#[test]
fn bytes_wait_while_the_store_is_away_and_are_written_once() {
    let mut bench = Bench::new();
    let usage = Usage {
        up_bytes: 100,
        down_bytes: 7,
    };
    let account = bench.ledger.account("client1").expect("room");
    account.add(usage);
    let away = bench.dir.path().join("away");
    fs::rename(bench.path(), &away).expect("moved");
    bench.asking.write();
    account.add(usage);
    bench.asking.write();
    fs::rename(&away, bench.path()).expect("moved back");
    for _ in 0..2 {
        bench.asking.write();
        let written = bench.asking.store.usage().expect("readable");
        assert_eq!(written["client1"].up_bytes, 200);
        assert_eq!(written["client1"].down_bytes, 14);
    }
}

#[test]
fn writing_ends_while_clients_carry_bytes() {
    let mut bench = Bench::new();
    let used = Usage {
        up_bytes: 100,
        down_bytes: 7,
    };
    let ledger = Arc::clone(&bench.ledger);
    let (end, ended) = mpsc::channel::<()>();
    let account = ledger.account("client1").expect("room");
    account.add(used);
    let busy = std::thread::spawn(move || {
        let mut count = 1;
        while ended.try_recv().is_err() {
            account.add(used);
            count += 1;
        }
        count
    });
    for _ in 0..3 {
        assert!(bench.asking.write());
    }
    end.send(()).expect("runs");
    let count: u64 = busy.join().expect("ended");
    assert!(bench.asking.write());
    let written = bench.asking.store.usage().expect("readable");
    assert_eq!(written["client1"].up_bytes, 100 * count);
}
