use std::os::unix::fs::PermissionsExt as _;

use std::net::IpAddr;

use pleach_core::{
    session::{
        invitation::{self, Claim, InvitationKey},
        secret::Secret,
    },
    units::Bitrate,
};
use zeroize::Zeroizing;

use super::*;
use crate::keys::SecretKey;

const GATEWAY: [u8; 32] = [200; 32];
const HOUR: u64 = 3600;

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

    /// Changes the file as another program would.
    fn sql(&self, text: &str) {
        let other = Connection::open(self.path()).expect("opens");
        other.execute_batch(text).expect("valid SQL");
    }

    fn names(&mut self) -> Vec<String> {
        let clients = self.store.clients().expect("readable");
        clients.into_iter().map(|client| client.name).collect()
    }
}

fn client(number: u8) -> StoredClient {
    StoredClient {
        name: format!("client{number}"),
        public_key: [number; 32],
        preshared_key: Some(SecretKey::new(Zeroizing::new([number + 100; 32]))),
        allowed_ips: nets(&[
            &format!("10.77.0.{number}/32"),
            &format!("fd77::{number:x}/128"),
        ]),
        caps: Caps {
            up: None,
            down: Some(Bitrate::from_mbps(u64::from(number))),
        },
        added_at: 5,
    }
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    let parse = |text: &&str| text.parse().expect("net");
    texts.iter().map(parse).collect()
}

#[test]
fn a_client_is_found_by_its_key_as_it_was_added() {
    let mut bench = Bench::new();
    let mode = fs::metadata(bench.path()).expect("there").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600, "it has pre-shared keys");
    assert_eq!(bench.store.find(&[1; 32]).expect("readable"), None);
    for number in [2, 1] {
        bench.store.add(&client(number)).expect("added");
    }
    assert_eq!(
        bench.store.find(&[1; 32]).expect("readable"),
        Some(client(1))
    );
    assert_eq!(bench.names(), ["client1", "client2"]);
    // Another process sees the same.
    let mut again = SqliteStore::open(&bench.path()).expect("opens");
    assert_eq!(again.find(&[2; 32]).expect("readable"), Some(client(2)));

    assert!(bench.store.remove("client1").expect("removed"));
    assert!(!bench.store.remove("client1").expect("not there"));
    assert_eq!(again.find(&[1; 32]).expect("readable"), None);

    let caps = Caps {
        up: Some(Bitrate::from_mbps(7)),
        down: None,
    };
    assert!(bench.store.set_caps("client2", caps).expect("set"));
    assert!(!bench.store.set_caps("client1", caps).expect("not there"));
    let changed = again.find(&[2; 32]).expect("readable").expect("there");
    assert_eq!(changed.caps, caps);
    assert!(changed.is_same_peer(&client(2)) && !changed.is_same_peer(&client(1)));
}

#[test]
fn no_name_key_or_address_is_given_twice() {
    let mut bench = Bench::new();
    bench.store.add(&client(1)).expect("added");
    let other = client(2);
    let same_name = StoredClient {
        name: "client1".to_owned(),
        ..other.clone()
    };
    let same_key = StoredClient {
        public_key: [1; 32],
        ..other.clone()
    };
    for taken in [same_name, same_key] {
        let added = bench.store.add(&taken);
        assert!(matches!(added, Err(StoreError::Exists)), "{added:?}");
    }
    for net in ["10.77.0.1/32", "10.0.0.0/8", "fd77::/64"] {
        let taken = StoredClient {
            allowed_ips: nets(&["10.78.0.1/32", net]),
            ..other.clone()
        };
        let error = bench.store.add(&taken).expect_err(net).to_string();
        assert!(error.contains(net) && error.contains("client1"), "{error}");
    }
    assert_eq!(bench.names(), ["client1"]);
}

fn offer(secret: u8, name: &str) -> (Offer<'_>, impl Fn(&[u8; 32]) -> Claim) {
    let secret = Secret::from([secret; 32]);
    let id = invitation::id(&secret);
    let offer = Offer {
        id,
        name,
        key: InvitationKey::from_secret(&secret),
        expires_at: HOUR,
    };
    let claim = move |client: &[u8; 32]| Claim {
        id,
        proof: InvitationKey::from_secret(&secret).proof(client, &GATEWAY),
    };
    (offer, claim)
}

#[test]
fn an_invitation_serves_one_client_once_and_that_client_again() {
    let mut bench = Bench::new();
    bench.store.add(&client(3)).expect("added");
    let networks = nets(&["10.77.0.1/22", "fd77::1/64"]);
    let taken = nets(&["10.77.0.2/32"]);
    let (offered, claim) = offer(7, "home");
    let invitation = bench.store.invite(&offered, 0, &networks, &taken);
    let invitation = invitation.expect("made");
    let expected = ["10.77.0.4", "fd77::2"].map(|text| text.parse::<IpAddr>().expect("ip"));
    assert_eq!(invitation.addresses, expected);
    assert_eq!(bench.store.invitations().expect("readable").len(), 1);
    // Addresses of open invitations are not given to others.
    let (other, _) = offer(8, "other");
    let other = bench.store.invite(&other, 0, &networks, &taken);
    assert_ne!(other.expect("made").addresses, expected);

    let stolen = bench.store.claim(&claim(&[1; 32]), &[2; 32], &GATEWAY, 1);
    assert!(matches!(stolen, Err(Refusal::WrongProof)), "{stolen:?}");
    let enrol = |store: &mut SqliteStore, key: u8, now| {
        store.claim(&claim(&[key; 32]), &[key; 32], &GATEWAY, now)
    };
    let (enrolled, is_new) = enrol(&mut bench.store, 1, 1).expect("enrolled");
    assert!(is_new && enrolled.name == "home");
    assert_eq!(enrolled.allowed_ips, expected.map(IpNet::from));
    let again = enrol(&mut bench.store, 1, 2 * HOUR).expect("the same client");
    assert_eq!(again, (enrolled.clone(), false));
    let other = enrol(&mut bench.store, 2, 1);
    assert!(matches!(other, Err(Refusal::Unknown)), "{other:?}");
    let found = bench.store.find(&[1; 32]).expect("readable");
    assert_eq!(found, Some(enrolled));

    let (again, _) = offer(9, "home");
    let again = bench.store.invite(&again, 0, &networks, &taken);
    assert!(matches!(again, Err(StoreError::Exists)), "{again:?}");
    let (late, claim) = offer(10, "late");
    bench.store.invite(&late, 0, &networks, &[]).expect("made");
    let late = bench
        .store
        .claim(&claim(&[4; 32]), &[4; 32], &GATEWAY, HOUR);
    assert!(matches!(late, Err(Refusal::Expired)), "{late:?}");
    let (full, _) = offer(11, "full");
    let full = bench.store.invite(&full, 0, &nets(&["10.77.0.1/31"]), &[]);
    assert!(matches!(full, Err(StoreError::Full)), "{full:?}");
}

#[test]
fn changes_are_those_of_any_program_since_the_mark() {
    let mut bench = Bench::new();
    let mut mark = Mark::default();
    let mut changes = |bench: &mut Bench| bench.store.changes_since(&mut mark).expect("readable");
    assert_eq!(changes(&mut bench), Changed::Any, "the first question");
    let none = Changed::Keys(Vec::new());
    assert_eq!(changes(&mut bench), none);
    bench.store.add(&client(1)).expect("added");
    bench.store.add(&client(2)).expect("added");
    assert_eq!(changes(&mut bench), Changed::Keys(vec![[1; 32], [2; 32]]));
    bench.sql("UPDATE clients SET rate_up = 5 WHERE name = 'client1'");
    assert_eq!(changes(&mut bench), Changed::Keys(vec![[1; 32]]));
    let new_key = keys::encode_public(&[9; 32]);
    bench.sql(&format!(
        "UPDATE clients SET public_key = '{new_key}' WHERE name = 'client1';
         DELETE FROM clients WHERE name = 'client2'"
    ));
    assert_eq!(
        changes(&mut bench),
        Changed::Keys(vec![[1; 32], [9; 32], [2; 32]])
    );
    assert_eq!(changes(&mut bench), none);

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
    let marks = format!("PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1");
    old.execute_batch(&marks).expect("valid SQL");
    drop(old);
    let mut store = SqliteStore::open(&path).expect("migrated");
    assert_eq!(store.find(&[1; 32]).expect("readable"), Some(client(1)));
    assert_eq!(store.usage().expect("readable"), BTreeMap::new());
    let connection = Connection::open(&path).expect("opens");
    let (_, version) = identity(&connection).expect("readable");
    assert_eq!(version, signed(MIGRATIONS.len() as u64));
}

#[test]
fn a_row_that_another_program_has_written_wrongly_is_named_and_hides_no_other_row() {
    let mut bench = Bench::new();
    bench.store.add(&client(1)).expect("added");
    for (column, value, word) in [
        ("allowed_ips", "'10.77.0.300/32'", "allowed_ips"),
        ("allowed_ips", "'10.77.0.3/24'", "allowed_ips"),
        ("preshared_key", "'secret'", "preshared_key"),
    ] {
        bench.store.add(&client(2)).expect("added");
        bench.sql(&format!(
            "UPDATE clients SET {column} = {value} WHERE name = 'client2'"
        ));
        let error = bench.store.find(&[2; 32]).expect_err(word).to_string();
        assert!(error.contains(word) && error.contains("client2"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        assert_eq!(
            bench.store.find(&[1; 32]).expect("readable"),
            Some(client(1))
        );
        assert!(bench.store.remove("client2").expect("removed"));
    }
    // A text that is not UTF-8 is a mistake in its row, too.
    bench.store.add(&client(2)).expect("added");
    bench.sql("UPDATE clients SET allowed_ips = CAST(x'ff' AS TEXT) WHERE name = 'client2'");
    let error = bench.store.find(&[2; 32]).expect_err("no text");
    assert!(matches!(error, StoreError::BadRow { .. }), "{error}");
    // An address without a length is one host, spaces do not matter.
    bench.sql("UPDATE clients SET allowed_ips = '10.77.0.9,fd77::9/128 ' WHERE name = 'client1'");
    let found = bench
        .store
        .find(&[1; 32])
        .expect("readable")
        .expect("there");
    assert_eq!(found.allowed_ips, nets(&["10.77.0.9/32", "fd77::9/128"]));
}

fn batch(run: &str, number: i64, up_bytes: u64) -> UsageBatch {
    let usage = Usage {
        up_bytes,
        down_bytes: 10 * up_bytes,
    };
    UsageBatch {
        run: run.to_owned(),
        number,
        at: 5,
        usage: BTreeMap::from([("home".to_owned(), usage)]),
    }
}

#[test]
fn bytes_are_added_once_however_often_a_batch_is_tried() {
    let mut bench = Bench::new();
    let total = |bench: &mut Bench| {
        let usage = bench.store.usage().expect("readable");
        let usage = usage["home"];
        assert_eq!(usage.down_bytes, 10 * usage.up_bytes);
        usage.up_bytes
    };
    for _ in 0..3 {
        bench.store.add_usage(&batch("a", 1, 100)).expect("added");
        assert_eq!(total(&mut bench), 100);
    }
    bench.store.add_usage(&batch("a", 2, 30)).expect("added");
    // A batch that was thought to be lost is not added after its successor.
    bench.store.add_usage(&batch("a", 1, 100)).expect("ignored");
    assert_eq!(total(&mut bench), 130);
    // The next process of the gateway continues, and the client's removal does not delete the account.
    bench.store.add_usage(&batch("b", 1, 7)).expect("added");
    bench
        .store
        .add(&StoredClient {
            name: "home".to_owned(),
            ..client(1)
        })
        .expect("added");
    assert!(bench.store.remove("home").expect("removed"));
    assert_eq!(total(&mut bench), 137);
    // A copy of an earlier time has not seen the batches since: they count there.
    let copy = bench.dir.path().join("copy");
    fs::copy(bench.path(), &copy).expect("copied");
    bench.store.add_usage(&batch("b", 2, 1)).expect("added");
    fs::rename(&copy, bench.path()).expect("restored");
    bench.store.add_usage(&batch("b", 3, 2)).expect("added");
    assert_eq!(total(&mut bench), 139);
}
