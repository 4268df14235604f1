use std::{
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
};

use pleach_core::units::Bitrate;
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::json;

use super::*;
use crate::{
    clients::{
        service::{Service, TOKEN, text},
        suite::{batch, nets},
    },
    config::Password,
    keys::SecretKey,
};

struct Bench {
    service: Service,
    dir: tempfile::TempDir,
    config: HttpConfig,
}

impl Bench {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Self::with(
            Service::start(listener, |stream| stream),
            "http",
            Vec::new(),
        )
    }

    fn with(service: Service, scheme: &str, authorities: Vec<CertificateDer<'static>>) -> Self {
        let dir = tempfile::TempDir::new().expect("directory");
        let config = HttpConfig {
            address: service.store(scheme).parse().expect("an address"),
            token: Password::of_file(TOKEN).expect("a token"),
            authorities,
            cache: dir.path().join("sub/answers.db"),
        };
        Self {
            service,
            dir,
            config,
        }
    }

    fn store(&self) -> HttpStore {
        HttpStore::create(&self.config).expect("opens")
    }
}

/// A key whose base64 has all characters that must be escaped.
const KEY: [u8; 32] = [
    0xfb, 0xff, 0xbf, 0xfb, 0xff, 0xbf, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3,
    3, 3, 3, 3, 3, 3,
];

fn key() -> String {
    let key = keys::encode_public(&KEY);
    assert!(
        key.contains('+') && key.contains('/') && key.contains('='),
        "{key}"
    );
    key
}

/// Returns what is wrong with the store.
#[track_caller]
fn trouble<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Unavailable { place, what }) => {
            assert!(place.starts_with("http"), "{place}");
            what
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_is_found_by_its_key_with_all_that_the_service_says() {
    let bench = Bench::new();
    let mut store = bench.store();
    assert_eq!(store.remote.find(&KEY).expect("readable"), None);
    bench.service.put_as(
        &key(),
        json!({
            "name": "home",
            "public_key": key(),
            "preshared_key": keys::encode_public(&[7; 32]),
            "allowed_ips": ["10.77.0.2/32", "fd77::2"],
            "rate_up": null,
            "rate_down": 5_000_000,
            "life": 20,
            "comment": "of no interest",
        }),
    );
    let found = store.remote.find(&KEY).expect("readable").expect("there");
    let expected = StoredClient {
        name: "home".to_owned(),
        public_key: KEY,
        preshared_key: Some(SecretKey::new(Zeroizing::new([7; 32]))),
        allowed_ips: nets(&["10.77.0.2/32", "fd77::2/128"]),
        caps: Caps {
            up: None,
            down: Some(Bitrate::from_mbps(5)),
        },
        added_at: 0,
    };
    assert_eq!(found.client, expected);
    assert_eq!(found.life, Some(Duration::from_secs(20)));
    for (life, used) in [
        (json!(0), SHORTEST_LIFE),
        (json!(-5), SHORTEST_LIFE),
        (json!(2.5), Duration::from_millis(2500)),
        (json!(u64::MAX), LONGEST_LIFE),
    ] {
        bench.service.put_as(
            &key(),
            json!({ "name": "home", "public_key": key(), "allowed_ips": ["10.77.0.2"], "life": life }),
        );
        let found = store.remote.find(&KEY).expect("readable").expect("there");
        assert_eq!(found.life, Some(used));
    }
    bench.service.remove(&key());
    assert_eq!(store.find(&KEY).expect("readable"), None);
}

#[test]
fn an_answer_of_another_form_is_a_store_that_is_away() {
    let bench = Bench::new();
    let mut store = bench.store();
    bench.service.put(&key(), "home", &["10.77.0.2"]);
    let other = keys::encode_public(&[9; 32]);
    let row = |key: &str| {
        format!("{{\"name\":\"home\",\"public_key\":\"{key}\",\"allowed_ips\":[\"10.77.0.2\"]}}")
    };
    let secret = "{\"name\":7,\"preshared_key\":\"hidden\"}";
    let long = format!("{{\"name\":\"{}\"}}", "x".repeat(MOST_CLIENT));
    let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"name\":".to_vec();
    let redirect =
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    let head = format!(
        "HTTP/1.1 200 OK\r\nA: {}\r\nContent-Length: 2\r\n\r\n{{}}",
        "x".repeat(100_000)
    );
    for (answer, word) in [
        (text(500, "sorry"), "500"),
        (text(503, ""), "503"),
        (text(403, "{}"), "token_file"),
        (text(404, "<html>no such page</html>"), "404"),
        (text(404, "{\"detail\":\"Not Found\"}"), "404"),
        (text(404, &format!("{{\"public_key\":\"{other}\"}}")), "404"),
        (text(200, "<html>"), "documented form"),
        (text(200, ""), "documented form"),
        (text(200, secret), "documented form"),
        (text(200, &row(&other)), "another key"),
        (text(200, &long), "longer than"),
        (redirect.to_vec(), "redirects"),
        (b"not HTTP at all\r\n\r\n".to_vec(), ""),
        (head.into_bytes(), ""),
    ] {
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(60)]).into_owned();
        bench.service.state().fault = Some(("clients".to_owned(), answer));
        let what = trouble(store.find(&KEY));
        assert!(
            what.contains(word) && !what.contains("hidden"),
            "{shown}: {what}"
        );
        // The next question is answered, by whatever connection.
        bench.service.state().fault = None;
        assert!(store.find(&KEY).expect(&shown).is_some());
    }
    // The body never ends.
    let begin = clock::now();
    bench.service.state().fault = Some(("clients".to_owned(), cut));
    assert!(trouble(store.find(&KEY)).contains("does not answer"));
    let took = clock::now().since(begin);
    assert!((4..8).contains(&took.as_secs()), "{took:?}");

    bench.service.state().fault = None;
    bench.service.state().is_away = true;
    trouble(store.find(&KEY));
    trouble(store.changes_since(&mut Mark::default()));
    bench.service.state().is_away = false;
    assert!(store.find(&KEY).expect("back").is_some());
    let mut stranger = bench.config.clone();
    stranger.token = Password::of_file("another").expect("a token");
    let mut store = HttpStore::create(&stranger).expect("opens");
    let what = trouble(store.find(&KEY));
    assert!(
        what.contains("401") && what.contains("token_file"),
        "{what}"
    );
    assert!(!format!("{stranger:?}").contains("another"));
}

#[test]
fn a_connection_that_has_fallen_silent_is_replaced() {
    let bench = Bench::new();
    let mut store = bench.store();
    bench.service.put(&key(), "home", &["10.77.0.2"]);
    assert!(store.find(&KEY).expect("readable").is_some());
    // The next answer by this connection never comes.
    bench.service.state().mutes = 1;
    let begin = clock::now();
    assert!(store.find(&KEY).expect("readable").is_some());
    let took = clock::now().since(begin);
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[test]
fn a_host_with_a_dead_address_is_asked_at_another_one() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let service = Service::start(listener, |stream| stream);
    service.put(&key(), "home", &["10.77.0.2"]);
    let mut bench = Bench::with(service, "http", Vec::new());
    // On most hosts, this name has ::1, too, where nobody listens.
    let address = bench.config.address.to_string();
    bench.config.address = address
        .replace("127.0.0.1", "localhost")
        .parse()
        .expect("an address");
    let mut store = bench.store();
    for _ in 0..2 {
        assert!(store.find(&KEY).expect("readable").is_some());
    }
    drop(bench.service);
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = nobody.local_addr().expect("bound").port();
    drop(nobody);
    bench.config.address = format!("http://127.0.0.1:{port}")
        .parse()
        .expect("an address");
    let mut store = HttpStore::create(&bench.config).expect("opens");
    let what = trouble(store.find(&KEY));
    assert!(what.contains("connect to 127.0.0.1"), "{what}");
}

#[test]
fn a_wrong_description_of_a_client_is_that_client_s_fault() {
    let bench = Bench::new();
    let mut store = bench.store();
    for (field, value) in [
        ("allowed_ips", json!([])),
        ("allowed_ips", json!(["10.77.0.300"])),
        ("preshared_key", json!("hidden")),
        ("rate_up", json!(0)),
        ("name", json!("../etc")),
    ] {
        let mut row = json!({ "name": "home", "public_key": key(), "allowed_ips": ["10.77.0.2"] });
        row[field] = value;
        bench.service.put_as(&key(), row);
        let found = store.find(&KEY);
        let Err(error @ StoreError::BadRow { .. }) = found else {
            panic!("{field}: {found:?}");
        };
        assert!(!error.to_string().contains("hidden"), "{error}");
    }
}

#[test]
fn changes_are_listed_unless_the_list_has_lost_some() {
    let bench = Bench::new();
    let mut store = bench.store();
    let mut mark = Mark::default();
    let none = Changed::Keys(Vec::new());
    let mut changes = || store.changes_since(&mut mark).expect("readable");
    assert_eq!(changes(), Changed::Any, "the first question");
    assert_eq!(changes(), none);
    bench.service.put(&key(), "home", &["10.77.0.2"]);
    bench
        .service
        .put(&keys::encode_public(&[2; 32]), "other", &["10.77.0.3"]);
    assert_eq!(changes(), Changed::Keys(vec![KEY, [2; 32]]));
    assert_eq!(changes(), none);
    bench.service.remove(&key());
    assert_eq!(changes(), Changed::Keys(vec![KEY]));
    // The service drops changes that the gateway has not seen.
    bench.service.put(&key(), "home", &["10.77.0.2"]);
    bench.service.put(&key(), "home", &["10.77.0.4"]);
    bench.service.state().first = 5;
    assert_eq!(changes(), Changed::Any);
    // Another service, for example a copy of an earlier time.
    bench.service.state().id = "two".to_owned();
    assert_eq!(changes(), Changed::Any);
    assert_eq!(changes(), none);
    for list in [
        "{\"store\":\"\",\"first\":0,\"last\":0,\"public_keys\":[]}",
        "{\"store\":\"a\",\"first\":0,\"last\":-1,\"public_keys\":[]}",
        "{\"store\":\"a\",\"first\":0,\"last\":9223372036854775807,\"public_keys\":[]}",
        "{\"store\":\"a\"}",
        "{\"store\":\"two\",\"first\":0,\"last\":7,\"public_keys\":[\"x\"]}",
    ] {
        bench.service.state().fault = Some(("changes".to_owned(), text(200, list)));
        let before = mark.clone();
        trouble(store.changes_since(&mut mark));
        assert_eq!(mark, before);
    }
}

/// Returns a service with a certificate of its own for `127.0.0.1`, and the certificate.
fn encrypted() -> (Service, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("made");
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("a certificate");
    let config = Arc::new(config);
    let wrap = move |stream: TcpStream| {
        let connection = ServerConnection::new(Arc::clone(&config)).expect("made");
        StreamOwned::new(connection, stream)
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    (Service::start(listener, wrap), certificate)
}

#[test]
fn the_service_s_certificate_is_signed_by_the_authority_of_the_configuration() {
    let (service, certificate) = encrypted();
    service.put(&key(), "home", &["10.77.0.2"]);
    let bench = Bench::with(service, "https", vec![certificate]);
    for _ in 0..2 {
        assert!(bench.store().find(&KEY).expect("readable").is_some());
    }
    let (_, other) = encrypted();
    let stranger = HttpConfig {
        authorities: vec![other],
        ..bench.config.clone()
    };
    let asked = bench.service.state().asked.len();
    let mut store = HttpStore::create(&stranger).expect("opens");
    let what = trouble(store.find(&KEY));
    assert!(what.contains("certificate"), "{what}");
    assert_eq!(
        bench.service.state().asked.len(),
        asked,
        "the token was not sent"
    );
}

#[test]
fn answers_and_bytes_are_in_a_private_file() {
    let bench = Bench::new();
    let client = |number: u8| crate::clients::suite::client(number);
    let day = Duration::from_secs(24 * 3600);
    let mut store = bench.store();
    let answers = [1, 2].map(|number| ([number; 32], Some(client(number))));
    store.remember(&BTreeMap::from(answers), day).expect("kept");
    let gone = BTreeMap::from([([2; 32], None)]);
    store.remember(&gone, day).expect("kept");
    // A name that another client had.
    let renamed = StoredClient {
        name: "client1".to_owned(),
        ..client(3)
    };
    let answers = BTreeMap::from([([3; 32], Some(renamed)), ([4; 32], Some(client(4)))]);
    store.remember(&answers, day).expect("kept");
    for _ in 0..2 {
        store.add_usage(&batch("run", 1, 100)).expect("added");
    }
    drop(store);
    let mode = fs::metadata(&bench.config.cache)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    bench.service.state().is_away = true;
    let mut store = HttpStore::open(&bench.config).expect("opens without the service");
    let former = store.remembered(day).expect("readable");
    let former: Vec<_> = former
        .into_iter()
        .map(|(client, age)| {
            assert!(age < Duration::from_secs(60), "{age:?}");
            client.public_key[0]
        })
        .collect();
    assert_eq!(former, [3, 4]);
    assert_eq!(store.usage().expect("readable")["home"].up_bytes, 100);
    // A later answer comes first.
    let other = rusqlite::Connection::open(&bench.config.cache).expect("opens");
    let older = "UPDATE clients SET added_at = added_at - 50 WHERE name = 'client1'";
    other.execute(older, []).expect("valid SQL");
    drop(other);
    let former = store.remembered(day).expect("readable");
    assert_eq!(former[0].0.name, "client4");
    // Too old, or of a clock that was wrong.
    for at in [1, u32::MAX] {
        let other = rusqlite::Connection::open(&bench.config.cache).expect("opens");
        other
            .execute("UPDATE clients SET added_at = ?1", [at])
            .expect("valid SQL");
        assert!(store.remembered(day).expect("readable").is_empty());
    }
    // Neither kind of file is taken for the other.
    let path = bench.dir.path().join("clients.db");
    drop(SqliteStore::create(&path).expect("made"));
    let other = HttpConfig {
        cache: path,
        ..bench.config.clone()
    };
    assert!(matches!(
        HttpStore::create(&other),
        Err(StoreError::Foreign { .. })
    ));
    let opened = SqliteStore::open(&bench.config.cache);
    assert!(matches!(opened, Err(StoreError::Foreign { .. })));
}

#[test]
fn the_answers_of_another_service_are_dropped() {
    let mut bench = Bench::new();
    let day = Duration::from_secs(24 * 3600);
    let answers = BTreeMap::from([([1; 32], Some(crate::clients::suite::client(1)))]);
    bench.store().remember(&answers, day).expect("kept");
    assert_eq!(bench.store().remembered(day).expect("readable").len(), 1);
    bench
        .store()
        .add_usage(&batch("run", 1, 100))
        .expect("added");
    bench.config.address = "http://127.0.0.1:1/other".parse().expect("an address");
    let mut store = bench.store();
    assert!(store.remembered(day).expect("readable").is_empty());
    assert_eq!(store.usage().expect("readable")["home"].up_bytes, 100);
}

#[test]
fn a_damaged_file_is_put_aside() {
    let bench = Bench::new();
    drop(bench.store());
    fs::write(&bench.config.cache, "x".repeat(5000)).expect("written");
    let opened = HttpStore::open(&bench.config).map(|_| ());
    assert!(
        matches!(opened, Err(StoreError::Damaged { .. })),
        "{opened:?}"
    );
    assert!(bench.store().clients().expect("readable").is_empty());
    let aside = bench.dir.path().join("sub/answers.db.damaged");
    assert_eq!(fs::metadata(aside).expect("kept").len(), 5000);
    fs::remove_file(&bench.config.cache).expect("removed");
    let mut store = HttpStore::open(&bench.config).map(|_| ());
    assert!(
        matches!(&mut store, Err(error) if error.to_string().contains("[clients] cache")),
        "{store:?}"
    );
}

#[test]
fn certificates_that_cannot_be_used_do_not_matter_beside_one_that_can() {
    let (service, certificate) = encrypted();
    service.put(&key(), "home", &["10.77.0.2"]);
    let wrong = CertificateDer::from(vec![1, 2, 3]);
    let bench = Bench::with(service, "https", vec![wrong.clone(), certificate]);
    assert!(bench.store().find(&KEY).expect("readable").is_some());
    let none = HttpConfig {
        authorities: vec![wrong],
        ..bench.config.clone()
    };
    let opened = HttpStore::create(&none).map(|_| ());
    assert!(trouble(opened).contains("ca_file"));
}

#[test]
fn nobody_is_added_or_removed_at_the_gateway() {
    let bench = Bench::new();
    let mut store = bench.store();
    let client = crate::clients::suite::client(1);
    for error in [
        store.add(&client).expect_err("managed"),
        store.remove("client1").expect_err("managed"),
        store
            .set_caps("client1", Caps::default())
            .expect_err("managed"),
    ] {
        assert!(error.to_string().contains("http://127.0.0.1"), "{error}");
    }
}
