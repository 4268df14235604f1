use std::{
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::clients::suite::{self, Bench as _, client};

#[path = "../../../tests/common/database.rs"]
mod database;

use database::Server;

fn config(server: &Server, name: &str) -> PostgresConfig {
    PostgresConfig {
        connection: server.database(name),
        password: None,
        ca_file: None,
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
        client.batch_execute(text).expect("valid SQL");
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
    let refused = |name: &str, sql: &str, word: &str| {
        let config = config(&server, name);
        let mut client = server.client(name).expect("connected");
        client.batch_execute(sql).expect("valid SQL");
        let opened = PostgresStore::open(&config);
        let error = opened.err().map(|error| error.to_string()).expect(word);
        assert!(error.contains(word), "{error}");
    };
    refused("empty", "", "no tables of pleach");
    refused("other", "CREATE TABLE clients (x TEXT)", "another program");
    refused(
        "newer",
        &format!("{}; UPDATE store SET version = 77", MIGRATIONS[0]),
        "update pleach",
    );
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
}

#[test]
fn gateways_that_claim_and_count_at_the_same_time_do_not_disturb_each_other() {
    let Some(server) = Server::start() else {
        return;
    };
    let bench = Bench::new(&server, "fleet");
    let threads: Vec<_> = (0..4_u8)
        .map(|number| {
            let mut store = bench.again();
            thread::spawn(move || {
                let mut added = 0;
                for round in 1..=20 {
                    // All four want the same clients.
                    added += u32::from(store.add(&client(round)).is_ok());
                    let batch = suite::batch(&format!("run{number}"), i64::from(round), 1);
                    store.add_usage(&batch).expect("added");
                }
                added
            })
        })
        .collect();
    let added: u32 = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"))
        .sum();
    assert_eq!(added, 20, "each client once");
    let mut store = bench.again();
    assert_eq!(store.usage().expect("readable")["home"].up_bytes, 80);
    assert_eq!(store.clients().expect("readable").len(), 20);
}

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
            let begun = Instant::now();
            let found = bench.store.find(&key(number)).expect("readable");
            assert_eq!(found.map(|client| client.name), Some(format!("c{number}")));
            begun.elapsed()
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
