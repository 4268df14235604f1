use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::clients::suite::{self, Bench as _, batch, client};

struct Bench {
    dir: tempfile::TempDir,
    store: SqliteStore,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::TempDir::new().expect("directory");
        let store = SqliteStore::create(&dir.path().join("sub/clients.db")).expect("opens");
        Self { dir, store }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("sub/clients.db")
    }
}

impl suite::Bench for Bench {
    fn store(&mut self) -> &mut dyn ClientStore {
        &mut self.store
    }

    fn again(&self) -> Box<dyn ClientStore> {
        Box::new(SqliteStore::open(&self.path()).expect("opens"))
    }

    fn sql(&self, text: &str) {
        let other = Connection::open(self.path()).expect("opens");
        other.execute_batch(text).expect("valid SQL");
    }
}

#[test]
fn the_store_does_what_every_store_does() {
    suite::a_client_is_found_by_its_key_as_it_was_added(&mut Bench::new());
    suite::no_name_key_or_address_is_given_twice(&mut Bench::new());
    suite::an_invitation_serves_one_client_once_and_that_client_again(&mut Bench::new());
    suite::changes_are_those_of_any_program_since_the_mark(&mut Bench::new());
    suite::a_row_that_another_program_has_written_wrongly_is_named_and_hides_no_other_row(
        &mut Bench::new(),
    );
    suite::bytes_are_added_once_however_often_a_batch_is_tried(&mut Bench::new());
}

#[test]
fn the_file_is_for_its_owner_only() {
    let mode = fs::metadata(Bench::new().path())
        .expect("there")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600, "it has pre-shared keys");
}

#[test]
fn another_file_at_the_path_is_another_store() {
    let mut bench = Bench::new();
    let mut mark = Mark::default();
    let mut changes = |bench: &mut Bench| bench.store.changes_since(&mut mark).expect("readable");
    assert_eq!(changes(&mut bench), Changed::Any, "the first question");
    let none = Changed::Keys(Vec::new());
    // Another file at the path, and a file with fewer changes, are another store.
    fs::copy(bench.path(), bench.dir.path().join("copy")).expect("copied");
    bench.store.add(&client(3)).expect("added");
    assert_eq!(changes(&mut bench), Changed::Keys(vec![[3; 32]]));
    fs::rename(bench.dir.path().join("copy"), bench.path()).expect("restored");
    assert_eq!(changes(&mut bench), Changed::Any);
    assert_eq!(changes(&mut bench), none);
    bench.sql("DELETE FROM changes; UPDATE store SET id = 'other'");
    assert_eq!(changes(&mut bench), Changed::Any);
}

#[test]
fn a_copy_of_an_earlier_time_counts_the_batches_since() {
    let mut bench = Bench::new();
    bench.store.add_usage(&batch("b", 1, 7)).expect("added");
    let copy = bench.dir.path().join("copy");
    fs::copy(bench.path(), &copy).expect("copied");
    bench.store.add_usage(&batch("b", 2, 1)).expect("added");
    fs::rename(&copy, bench.path()).expect("restored");
    bench.store.add_usage(&batch("b", 3, 2)).expect("added");
    let usage = bench.store.usage().expect("readable");
    assert_eq!(usage["home"].up_bytes, 9);
}

#[test]
fn a_text_that_is_not_utf_8_is_a_mistake_in_its_row() {
    let mut bench = Bench::new();
    bench.store.add(&client(2)).expect("added");
    bench.sql("UPDATE clients SET allowed_ips = CAST(x'ff' AS TEXT) WHERE name = 'client2'");
    let error = bench.store.find(&[2; 32]).expect_err("no text");
    assert!(matches!(error, StoreError::BadRow { .. }), "{error}");
}

#[test]
fn a_file_that_was_moved_away_is_missed_and_found_again() {
    let mut bench = Bench::new();
    bench.store.add(&client(1)).expect("added");
    let away = bench.dir.path().join("away");
    fs::rename(bench.path(), &away).expect("moved");
    let error = bench.store.find(&[1; 32]).expect_err("away");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    let error = error.to_string();
    assert!(
        error.contains("clients.db") && error.contains("No such file"),
        "{error}"
    );
    assert!(!bench.path().exists(), "a new file would hide the mistake");
    fs::rename(&away, bench.path()).expect("moved back");
    assert_eq!(bench.store.find(&[1; 32]).expect("back"), Some(client(1)));
}

#[test]
fn files_that_are_no_stores_are_refused_and_left_alone() {
    let bench = Bench::new();
    let path = bench.dir.path().join("other.db");
    let refused = |content: &dyn Fn(), word: &str| {
        let _ = fs::remove_file(&path);
        content();
        let before = fs::read(&path).expect("there");
        let error = SqliteStore::open(&path).expect_err(word).to_string();
        assert!(
            error.contains(word) && error.contains("other.db"),
            "{error}"
        );
        assert_eq!(fs::read(&path).expect("there"), before, "{word}");
    };
    let sql = |text: &str| {
        let other = Connection::open(&path).expect("opens");
        other.execute_batch(text).expect("valid SQL");
    };
    refused(
        &|| fs::write(&path, "no database at all".repeat(100)).expect("written"),
        "damaged",
    );
    for journal in ["DELETE", "WAL"] {
        let text =
            format!("PRAGMA journal_mode = {journal}; CREATE TABLE x (y); PRAGMA user_version = 1");
        refused(&|| sql(&text), "another program");
    }
    refused(
        &|| fs::write(&path, "").expect("written"),
        "the file is empty",
    );
    refused(
        &|| {
            SqliteStore::create(&path).expect("made");
            sql("PRAGMA user_version = 77");
        },
        "update pleach",
    );
}

#[test]
fn damage_in_an_open_file_is_reported_and_a_restored_file_is_used() {
    let mut bench = Bench::new();
    bench.store.add(&client(1)).expect("added");
    let good = fs::read(bench.path()).expect("readable");
    fs::write(bench.path(), vec![7; good.len()]).expect("written");
    let error = bench.store.find(&[1; 32]).expect_err("damaged");
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(bench.store.add(&client(2)).is_err());
    fs::write(bench.path(), good).expect("written");
    assert_eq!(
        bench.store.find(&[1; 32]).expect("restored"),
        Some(client(1))
    );
}

#[test]
fn a_file_that_is_empty_while_a_copy_is_written_is_no_store_without_clients() {
    let mut bench = Bench::new();
    bench.store.add(&client(1)).expect("added");
    let good = fs::read(bench.path()).expect("readable");
    fs::remove_file(bench.path()).expect("removed");
    fs::write(bench.path(), "").expect("written");
    let error = bench.store.find(&[1; 32]).expect_err("empty");
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert_eq!(fs::read(bench.path()).expect("readable"), b"");
    fs::write(bench.path(), good).expect("written");
    assert_eq!(
        bench.store.find(&[1; 32]).expect("restored"),
        Some(client(1))
    );
}

#[test]
fn a_file_of_the_first_version_is_migrated_with_its_clients() {
    let bench = Bench::new();
    let path = bench.dir.path().join("old.db");
    let mut old = Connection::open(&path).expect("opens");
    old.execute_batch(MIGRATIONS[0]).expect("valid SQL");
    let mut transaction = old.transaction().expect("begun");
    let inserted = decisions::add(&mut transaction, &client(1));
    assert!(inserted.is_ok());
    transaction.commit().expect("committed");
    let marks = format!(
        "PRAGMA application_id = {}; PRAGMA user_version = 1",
        Kind::Store.application()
    );
    old.execute_batch(&marks).expect("valid SQL");
    drop(old);
    let mut store = SqliteStore::open(&path).expect("migrated");
    assert_eq!(store.find(&[1; 32]).expect("readable"), Some(client(1)));
    assert_eq!(store.usage().expect("readable"), BTreeMap::new());
    let connection = Connection::open(&path).expect("opens");
    let (_, version) = identity(&connection).expect("readable");
    assert_eq!(version, signed(MIGRATIONS.len() as u64));
}
