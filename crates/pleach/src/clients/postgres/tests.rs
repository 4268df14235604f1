use std::{
    cell::RefCell, collections::BTreeSet, fmt::Write as _, os::unix::net::UnixListener, path::Path,
    sync::Barrier, thread, time::Duration,
};

use pleach_linux::clock;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::*;
use crate::{
    clients::suite::{self, Bench as _, client},
    config::Password,
};

#[path = "../../../tests/common/database.rs"]
mod database;

use database::{PASSWORD, Server};

fn config(server: &Server, name: &str) -> PostgresConfig {
    PostgresConfig {
        connection: server.database(name),
        password: None,
        authorities: Vec::new(),
        has_names: false,
    }
}

struct Bench<'a> {
    server: &'a Server,
    config: PostgresConfig,
    name: String,
    store: PostgresStore,
}

impl<'a> Bench<'a> {
    fn new(server: &'a Server, name: &str) -> Self {
        let config = config(server, name);
        let store = PostgresStore::create(&config).expect("opens");
        let name = name.to_owned();
        Self {
            server,
            config,
            name,
            store,
        }
    }
}

impl suite::Bench for Bench<'_> {
    fn store(&mut self) -> &mut dyn ClientStore {
        &mut self.store
    }

    fn again(&self) -> Box<dyn ClientStore> {
        Box::new(PostgresStore::open(&self.config).expect("opens"))
    }

    fn sql(&self, text: &str) {
        let mut client = self.server.client(&self.name).expect("connected");
        client
            .batch_execute(&format!("SET search_path = pleach; {text}"))
            .expect("valid SQL");
    }
}

#[test]
fn the_store_does_what_every_store_does() {
    let Some(server) = Server::start() else {
        return;
    };
    let bench = |name| Bench::new(&server, name);
    suite::a_client_is_found_by_its_key_as_it_was_added(&mut bench("a"));
    suite::no_name_key_or_address_is_given_twice(&mut bench("b"));
    suite::an_invitation_serves_one_client_once_and_that_client_again(&mut bench("c"));
    suite::changes_are_those_of_any_program_since_the_mark(&mut bench("d"));
    suite::a_row_that_another_program_has_written_wrongly_is_named_and_hides_no_other_row(
        &mut bench("e"),
    );
    suite::bytes_are_added_once_however_often_a_batch_is_tried(&mut bench("f"));
}

#[test]
fn the_newest_version_is_that_of_the_last_migration() {
    let migrations = i64::try_from(schema::MIGRATIONS.len()).expect("few");
    assert_eq!(migrations, schema::KNOWN);
}

#[test]
fn a_server_that_goes_away_is_named_and_found_again() {
    let Some(mut server) = Server::start() else {
        return;
    };
    let config = config(&server, "clients");
    let mut store = PostgresStore::create(&config).expect("opens");
    store.add(&client(1)).expect("added");
    server.stop();
    for _ in 0..2 {
        let error = store.find(&[1; 32]).expect_err("away");
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("dbname=clients"), "{error}");
    }
    assert!(store.add(&client(2)).is_err());
    server.start_again();
    assert_eq!(store.find(&[1; 32]).expect("back"), Some(client(1)));
    assert_eq!(store.find(&[2; 32]).expect("back"), None);
}

#[test]
fn databases_that_are_no_stores_are_refused_and_left_alone() {
    let Some(server) = Server::start() else {
        return;
    };
    let tables = |client: &mut postgres::Client| {
        let text = "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace > 16383";
        client
            .query_one(text, &[])
            .expect("valid SQL")
            .get::<_, i64>(0)
    };
    let refused = |name: &str, sql: &str, word: &str| {
        let config = config(&server, name);
        let mut client = server.client(name).expect("connected");
        client.batch_execute(sql).expect("valid SQL");
        let before = tables(&mut client);
        let opened = PostgresStore::open(&config);
        let error = opened.err().map(|error| error.to_string()).expect(word);
        assert!(error.contains(word), "{error}");
        assert_eq!(tables(&mut client), before, "{name}");
    };
    refused("empty", "", "no tables of pleach");
    refused(
        "other",
        "CREATE TABLE clients (x TEXT)",
        "no tables of pleach",
    );
    let newer = format!(
        "BEGIN; {}; UPDATE store SET version = 78, oldest = 77; COMMIT",
        schema::MIGRATIONS[0]
    );
    refused("newer", &newer, "update pleach");
    // Errors of the database do not show rows, which have keys.
    let mut bench = Bench::new(&server, "secrets");
    bench.sql("ALTER TABLE clients ADD CHECK (name <> 'client1')");
    let error = bench
        .store()
        .add(&client(1))
        .expect_err("refused")
        .to_string();
    assert!(
        error.contains("check constraint") && !error.contains("10.77"),
        "{error}"
    );
    // A newer version of the tables that this program may use is used.
    bench.sql("UPDATE store SET version = 78");
    bench.again();
}

#[test]
fn another_store_at_the_same_place_is_not_used_by_a_running_gateway() {
    let Some(mut server) = Server::start() else {
        return;
    };
    let mut store = PostgresStore::create(&config(&server, "clients")).expect("opens");
    store.add(&client(1)).expect("added");
    let mut other = server.client("clients").expect("connected");
    other
        .batch_execute("UPDATE pleach.store SET id = 'other'")
        .expect("valid SQL");
    let mut mark = Mark::default();
    let mut refused = |store: &mut PostgresStore| {
        let error = store
            .changes_since(&mut mark)
            .expect_err("refused")
            .to_string();
        assert!(error.contains("another store"), "{error}");
        assert_eq!(mark, Mark::default());
    };
    // With the connection that it has, and with a new one.
    refused(&mut store);
    refused(&mut store);
    drop(other);
    server.stop();
    server.start_again();
    refused(&mut store);
}

#[test]
fn a_gateway_that_vanishes_within_a_transaction_holds_nobody_up_for_long() {
    let Some(server) = Server::start() else {
        return;
    };
    let mut bench = Bench::new(&server, "vanished");
    let mut vanished = PostgresStore::open(&bench.config).expect("opens");
    let open = vanished.open.as_mut().expect("connected");
    open.link.run(BEGIN).expect("begun");
    let locked = open
        .link
        .query("SELECT pg_advisory_xact_lock($1)", &[&CLIENTS_LOCK]);
    locked.expect("locked");
    let error = bench
        .store()
        .add(&client(1))
        .expect_err("locked")
        .to_string();
    assert!(error.contains("lock timeout"), "{error}");
    bench
        .store()
        .add(&client(1))
        .expect("the server has ended the transaction");
    assert!(vanished.find(&[1; 32]).is_err(), "its connection has ended");
    vanished.find(&[1; 32]).expect("a new connection");
}

#[test]
fn a_transaction_of_another_program_stops_no_reader() {
    let Some(server) = Server::start() else {
        return;
    };
    let mut bench = Bench::new(&server, "busy");
    bench.store().add(&client(1)).expect("added");
    let mut other = server.client("busy").expect("connected");
    other
        .batch_execute("BEGIN; UPDATE pleach.clients SET rate_up = 5")
        .expect("valid SQL");
    assert!(
        bench.store().add(&client(2)).is_err(),
        "it waits, but not for ever"
    );
    bench
        .store()
        .add_usage(&suite::batch("run", 1, 1))
        .expect("another lock");
    let found = bench.store().find(&[1; 32]).expect("readable");
    assert_eq!(found, Some(client(1)), "not committed yet");
    bench
        .again()
        .find(&[1; 32])
        .expect("a new connection can read as well");
    other.batch_execute("COMMIT").expect("valid SQL");
    bench.store().add(&client(2)).expect("added");
}

#[test]
fn changes_are_seen_in_the_order_in_which_they_are_committed() {
    let Some(server) = Server::start() else {
        return;
    };
    let mut bench = Bench::new(&server, "ordered");
    let mut mark = Mark::default();
    bench.store().changes_since(&mut mark).expect("readable");
    let mut first = server.client("ordered").expect("connected");
    first.batch_execute("BEGIN").expect("valid SQL");
    first
        .execute(INSERT, &[&"client1", &keys::encode_public(&[1; 32])])
        .expect("inserted");
    // The second program is made to wait, or its number would be seen before the first one's.
    let second = {
        let mut second = server.client("ordered").expect("connected");
        thread::spawn(move || {
            second
                .execute(INSERT, &[&"client2", &keys::encode_public(&[2; 32])])
                .expect("inserted");
        })
    };
    let none = Changed::Keys(Vec::new());
    for _ in 0..5 {
        assert_eq!(
            bench.store().changes_since(&mut mark).expect("readable"),
            none
        );
        thread::park_timeout(Duration::from_millis(50));
    }
    first.batch_execute("COMMIT").expect("valid SQL");
    second.join().expect("inserted");
    let changed = bench.store().changes_since(&mut mark).expect("readable");
    assert_eq!(changed, Changed::Keys(vec![[1; 32], [2; 32]]));
    bench.sql("TRUNCATE clients");
    let changed = bench.store().changes_since(&mut mark).expect("readable");
    assert_eq!(changed, Changed::Keys(vec![[1; 32], [2; 32]]));
}

#[test]
fn gateways_that_decide_at_the_same_time_give_nothing_twice() {
    let Some(server) = Server::start() else {
        return;
    };
    let bench = Bench::new(&server, "fleet");
    let start = Barrier::new(4);
    for round in 1..=5_u8 {
        // All four want the same addresses for clients of their own, and the same invitation.
        let (offered, claim) = suite::offer(round, "guest");
        let mut store = bench.again();
        store
            .invite(&offered, 0, &suite::nets(&["10.78.0.1/24"]), &[])
            .expect("made");
        let done = thread::scope(|scope| {
            let work = |number: u8| {
                let (mut store, start, claim) = (bench.again(), &start, &claim);
                move || {
                    let own = StoredClient {
                        name: format!("client{round}-{number}"),
                        public_key: [round * 10 + number; 32],
                        ..client(round)
                    };
                    let key = [100 + round * 10 + number; 32];
                    start.wait();
                    let is_added = store.add(&own).is_ok();
                    let is_claimed = store.claim(&claim(&key), &key, &suite::GATEWAY, 1).is_ok();
                    let batch = suite::batch(&format!("run{number}"), i64::from(round), 1);
                    store.add_usage(&batch).expect("added");
                    (u32::from(is_added), u32::from(is_claimed))
                }
            };
            let threads: Vec<_> = (0..4).map(|number| scope.spawn(work(number))).collect();
            let done = threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"));
            done.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        });
        assert_eq!(done, (1, 1), "round {round}");
        assert!(store.remove("guest").expect("removed"));
    }
    let mut store = bench.again();
    assert_eq!(store.usage().expect("readable")["home"].up_bytes, 20);
}

#[test]
fn a_place_is_that_of_the_latest_connection_whoever_writes_late() {
    let Some(server) = Server::start() else {
        return;
    };
    let mut bench = Bench::new(&server, "places");
    for number in 1..=2 {
        bench.store.add(&client(number)).expect("added");
    }
    let now = clock::now();
    let at =
        |key: u8, ago: u64| BTreeMap::from([([key; KEY_LEN], now - Duration::from_millis(ago))]);
    let place =
        |store: &mut PostgresStore, key: u8| store.all().expect("readable")[&[key; 32]].0.clone();
    let contested = RefCell::new(BTreeSet::new());
    let mut arrive = |gateway: &str, key: u8, ago: u64| {
        let arrived = bench.store.arrive(gateway, &at(key, ago)).expect("written");
        contested.replace(arrived.contested);
        arrived.departed.into_keys().collect::<Vec<_>>()
    };
    let one = BTreeSet::from([[1; KEY_LEN]]);
    let mut third = PostgresStore::open(&bench.config).expect("opens");
    let mut still_contested = |gateway: &str| third.contested(gateway, &one).expect("readable");
    let mut other = PostgresStore::open(&bench.config).expect("opens");
    let mut departed = |gateway: &str| other.departed(gateway).expect("readable");
    assert!(arrive("gw1", 1, 5_000).is_empty());
    assert!(contested.borrow().is_empty());
    assert!(departed("gw1").is_empty());
    assert!(arrive("gw2", 1, 3_500).is_empty());
    assert_eq!(*contested.borrow(), one, "gw1 has not asked");
    assert!(arrive("gw2", 1, 3_000).is_empty());
    assert_eq!(*contested.borrow(), one, "it still has not");
    assert_eq!(still_contested("gw2"), one);
    assert!(still_contested("gw1").is_empty(), "it is elsewhere");
    let left = departed("gw1")[&[1; 32]];
    let error = (now - Duration::from_secs(3)).since(left);
    assert!(error < Duration::from_secs(1), "{error:?}");
    assert!(departed("gw1").is_empty(), "once");
    assert!(still_contested("gw2").is_empty());
    assert!(arrive("gw2", 1, 2_900).is_empty());
    assert!(contested.borrow().is_empty());
    // A third one could not write for a while: the client was there before.
    assert_eq!(arrive("gw3", 1, 4_000), [[1; 32]]);
    assert!(contested.borrow().is_empty());
    assert!(departed("gw2").is_empty());
    assert!(arrive("gw3", 1, 1_000).is_empty());
    assert!(departed("gw2").contains_key(&[1; 32]));
    // Connecting again at the same gateway is no departure, in whatever order it is written.
    assert!(arrive("gw3", 1, 500).is_empty());
    assert!(arrive("gw3", 1, 800).is_empty());
    assert!(departed("gw3").is_empty());
    assert!(arrive("gw3", 2, 500).is_empty());
    // It moves twice before the first of the former gateways asks.
    assert!(arrive("gw1", 1, 400).is_empty());
    assert!(arrive("gw2", 1, 300).is_empty());
    assert!(departed("gw3").contains_key(&[1; 32]));
    assert_eq!(still_contested("gw2"), one, "gw1 has not asked");
    assert!(departed("gw1").contains_key(&[1; 32]));
    assert!(still_contested("gw2").is_empty());
    // It returns to a gateway before that one asks.
    assert!(arrive("gw3", 1, 200).is_empty());
    assert!(arrive("gw2", 1, 100).is_empty());
    assert!(departed("gw2").is_empty());
    assert!(departed("gw3").contains_key(&[1; 32]));
    // The clock of the database was set back.
    bench.sql("UPDATE places SET since = since + 3600000");
    let moved = bench.store.arrive("gw1", &at(1, 0)).expect("written");
    assert!(moved.departed.is_empty());
    assert_eq!(place(&mut other, 1), "gw1");
    // A gateway that was removed never asks.
    let still = bench.store.contested("gw1", &one).expect("readable");
    assert_eq!(still, one);
    bench.sql("UPDATE former_places SET since = since - 86500000");
    let still = bench.store.contested("gw1", &one).expect("readable");
    assert!(still.is_empty());
    assert!(bench.store.remove("client1").expect("removed"));
    let left = other.all().expect("readable");
    assert_eq!(left.into_keys().collect::<Vec<_>>(), [[2; 32]]);
}

#[test]
fn tables_of_an_older_version_are_extended_and_its_gateways_go_on() {
    let Some(server) = Server::start() else {
        return;
    };
    let config = config(&server, "older");
    let mut older = server.client("older").expect("connected");
    let made = older.batch_execute(&format!("BEGIN; {}; COMMIT", schema::MIGRATIONS[0]));
    made.expect("valid SQL");
    let mut store = PostgresStore::open(&config).expect("extended");
    store.add(&client(1)).expect("added");
    assert!(store.all().expect("readable").is_empty());
    let row = older.query_one("SELECT version, oldest FROM pleach.store", &[]);
    let row = row.expect("a row");
    assert_eq!(
        (row.get::<_, i64>(0), row.get::<_, i64>(1)),
        (schema::KNOWN, 1)
    );
}

#[test]
fn a_server_that_says_nothing_costs_bounded_time() {
    let dir = tempfile::TempDir::new().expect("directory");
    // Connections are accepted by the kernel, and nobody answers.
    let _listener = UnixListener::bind(dir.path().join(".s.PGSQL.5432")).expect("bound");
    let config = PostgresConfig {
        connection: format!("host={} user=x", dir.path().display()),
        password: None,
        authorities: Vec::new(),
        has_names: false,
    };
    let begun = clock::now();
    let error = PostgresStore::open(&config)
        .err()
        .expect("silence")
        .to_string();
    assert!(error.contains("does not answer"), "{error}");
    assert!(
        clock::now().since(begun) >= link::CONNECT_WITHIN,
        "it had its time"
    );
}

#[test]
fn a_server_on_another_host_is_used_over_tls_with_a_password_and_otherwise_the_remedy_is_told() {
    let Some(mut server) = Server::start_remote(None, &["127.0.0.1", "::1"]) else {
        return;
    };
    let connection = server.remote_database("remote", "127.0.0.1");
    let config = |connection: &str, password: Option<&str>, authority: Option<&Path>| {
        let certificate = |file| CertificateDer::from_pem_file(file).expect("a certificate");
        PostgresConfig {
            connection: connection.to_owned(),
            password: password.and_then(Password::of_file),
            authorities: authority.map(certificate).into_iter().collect(),
            has_names: false,
        }
    };
    let (authority, other) = (server.authority(), server.other_authority());
    let right = config(&connection, Some(PASSWORD), Some(&authority));
    let mut store = PostgresStore::create(&right).expect("opens");
    store.add(&client(1)).expect("added");
    assert_eq!(store.find(&[1; 32]).expect("readable"), Some(client(1)));
    let v6 = connection.replace("127.0.0.1", "::1");
    let v6 = config(&v6, Some(PASSWORD), Some(&authority));
    let mut again = PostgresStore::open(&v6).expect("opens");
    assert_eq!(again.find(&[1; 32]).expect("readable"), Some(client(1)));
    let sessions = "SELECT version FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'pleach'";
    let mut local = server.client("remote").expect("connected");
    let sessions = local.query(sessions, &[]).expect("valid SQL");
    let versions: Vec<Option<&str>> = sessions.iter().map(|row| row.get(0)).collect();
    assert_eq!(versions, [Some("TLSv1.3"); 2]);
    drop((again, local));

    // Everything that could be logged.
    let mut told = format!("{right:?} {:?}", store.config);
    let mut refused = |config: &PostgresConfig, words: [&str; 2]| {
        let failure = PostgresStore::open(config).err().expect(words[0]);
        let text = failure.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        let _ = write!(told, "{text} {failure:?} {config:?}");
    };
    let wrong = config(&connection, Some("mistaken"), Some(&authority));
    refused(
        &wrong,
        ["password authentication failed", "[clients] password_file"],
    );
    let missing = config(&connection, None, Some(&authority));
    refused(&missing, ["password missing", "[clients] password_file"]);
    let stranger = config(&connection, Some(PASSWORD), Some(&other));
    refused(&stranger, ["UnknownIssuer", "[clients] ca_file"]);
    let clear = config(&connection, Some(PASSWORD), None);
    refused(&clear, ["no encryption", "pg_hba.conf"]);
    let localhost = connection.replace("127.0.0.1", "localhost");
    let other_name = config(&localhost, Some(PASSWORD), Some(&authority));
    refused(&other_name, ["not valid for name", "[clients] store"]);

    // A server whose TLS is switched off gets no password, and no client is asked for in the clear.
    server.stop();
    server.start_again_with_tls(false);
    refused(&right, ["does not support TLS", "ssl = on"]);
    assert!(store.find(&[1; 32]).is_err());
    server.stop();
    server.start_again_with_tls(true);
    assert_eq!(store.find(&[1; 32]).expect("back"), Some(client(1)));
    assert!(
        !told.contains(PASSWORD) && !told.contains("mistaken"),
        "{told}"
    );
}

/// Inserts a client as another program would.
const INSERT: &str =
    "INSERT INTO pleach.clients (name, public_key, allowed_ips) VALUES ($1, $2, '10.77.0.1/32')";

/// A measurement: `cargo test -p pleach --bin pleach -- --ignored --nocapture look_ups_among_a_million`.
#[test]
#[ignore = "takes a minute, and its figure depends on the machine"]
fn look_ups_among_a_million_clients_take_milliseconds() {
    let Some(server) = Server::start() else {
        return;
    };
    let mut bench = Bench::new(&server, "million");
    bench.sql(
        "INSERT INTO clients (name, public_key, allowed_ips)
         SELECT 'c' || n, encode(decode(lpad(to_hex(n), 64, '0'), 'hex'), 'base64'),
         host('10.0.0.0'::inet + n) || '/32' FROM generate_series(1, 1000000) AS n; ANALYZE clients",
    );
    let key = |number: u32| {
        let mut key = [0; KEY_LEN];
        key[KEY_LEN - 4..].copy_from_slice(&number.to_be_bytes());
        key
    };
    let mut times: Vec<_> = (0..10_000_u32)
        .map(|n| {
            let number = n.wrapping_mul(2_654_435_761) % 1_000_000 + 1;
            let begun = clock::now();
            let found = bench.store.find(&key(number)).expect("readable");
            assert_eq!(found.map(|client| client.name), Some(format!("c{number}")));
            clock::now().since(begun)
        })
        .collect();
    times.sort();
    println!("look-up: median {:?}, p99 {:?}", times[5_000], times[9_900]);
    assert!(
        times[9_900] < Duration::from_millis(5),
        "{:?}",
        times[9_900]
    );
}
