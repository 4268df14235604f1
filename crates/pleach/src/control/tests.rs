//! Tests of the protocol over real sockets, also with misbehaving clients.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::Receiver,
    },
    thread,
};

use serde_json::json;
use tempfile::TempDir;

use super::{
    ReloadReport,
    server::{ControlServer, MAX_CONNECTIONS, StartError},
    *,
};
use crate::config::ViewConfig;

fn sample() -> StatusReport {
    let link = LinkStatus {
        name: "dsl".to_owned(),
        device: "eth1".to_owned(),
        state: LinkState::Up,
        endpoint: Some("203.0.113.5:7700".to_owned()),
        rtt_ms: Some(23.5),
        queue_delay_ms: None,
        capacity_mbps: None,
        loss: 0.25,
        tx_bytes: 1 << 60,
        rx_bytes: 7,
        weight: 64,
        mtu: None,
        carrier: None,
        carrier_error: None,
        idle_reason: Some("no-traffic".to_owned()),
        why: Some("dsl is idle: there is nothing to send".to_owned()),
        advice: None,
    };
    StatusReport {
        mode: "client".to_owned(),
        name: "pleach0".to_owned(),
        up: true,
        links: vec![link],
        splitter: None,
        clients: Vec::new(),
        scheduler: SchedulerStatus {
            policy: "weighted".to_owned(),
        },
        resequencer: ResequencerStatus {
            held: 1,
            released_late: 2,
            hold_p95_ms: 3.5,
        },
        drops: BTreeMap::from([("replayed".to_owned(), 4)]),
        ..StatusReport::default()
    }
}

/// A server whose data path answers every status request with [`sample`] and knows only the link `dsl`.
struct Daemon {
    path: PathBuf,
    server: Option<ControlServer>,
    wakes: Arc<AtomicUsize>,
    _directory: TempDir,
}

impl Daemon {
    fn start() -> Self {
        let (daemon, requests) = Self::start_without_data_path();
        thread::spawn(move || {
            for request in requests {
                match request {
                    ControlRequest::Only(link, reply) => {
                        let known = link.is_none_or(|(name, _)| name == "dsl");
                        reply.send(known.then_some(()).ok_or_else(|| "no link".to_owned()));
                    }
                    ControlRequest::Reload(reply) => reply.send(Ok(ReloadReport {
                        applied: vec!["policy".to_owned()],
                        needs_restart: vec!["[tunnel] mtu".to_owned()],
                    })),
                    ControlRequest::Drain(on, reply) => {
                        reply.send(on.then_some(()).ok_or_else(|| "drain".to_owned()));
                    }
                    ControlRequest::RemoveClient(name, reply) => {
                        reply.send((name == "home").then_some(()).ok_or_else(|| name.clone()));
                    }
                    ControlRequest::Set(set, reply) => {
                        reply.send(
                            set.contains_key("scheduler")
                                .then_some(())
                                .ok_or_else(|| "set".to_owned()),
                        );
                    }
                    ControlRequest::Status(reply) => reply.send(Ok(sample())),
                    ControlRequest::Weights(weights, reply) => {
                        let unknown = weights.keys().find(|name| *name != "dsl");
                        reply.send(match unknown {
                            Some(name) => Err(format!("no link is called {name:?}")),
                            None => Ok(()),
                        });
                    }
                }
            }
        });
        daemon
    }

    fn start_without_data_path() -> (Self, Receiver<ControlRequest>) {
        let directory = TempDir::new().expect("temporary directory");
        let path = directory.path().join("run/t.sock");
        let wakes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&wakes);
        let (server, requests) = ControlServer::start(&path, &ViewConfig::default(), move || {
            counter.fetch_add(1, Ordering::SeqCst);
        })
        .expect("start");
        let daemon = Self {
            path,
            server: Some(server),
            wakes,
            _directory: directory,
        };
        (daemon, requests)
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).expect("connect")
    }

    /// Sends `line` unchanged. Returns the next answer, or an empty string if the server sends none.
    fn ask(stream: &UnixStream, line: &[u8]) -> String {
        // The server may have sent an answer before it closed the connection.
        let _ = (&mut &*stream).write_all(line);
        let mut answer = String::new();
        let _ = BufReader::new(stream).read_line(&mut answer);
        answer
    }
}

#[test]
fn status_json_has_the_documented_fields() {
    let value = serde_json::to_value(sample()).expect("serializes");
    assert_eq!(
        value,
        json!({
            "mode": "client", "name": "pleach0", "up": true,
            "links": [{
                "name": "dsl", "device": "eth1", "state": "up", "endpoint": "203.0.113.5:7700",
                "rtt_ms": 23.5, "capacity_mbps": null, "loss": 0.25,
                "tx_bytes": 1_u64 << 60, "rx_bytes": 7, "weight": 64,
                "idle_reason": "no-traffic", "why": "dsl is idle: there is nothing to send"
            }],
            "scheduler": {"policy": "weighted"},
            "resequencer": {"held": 1, "released_late": 2, "hold_p95_ms": 3.5},
            "drops": {"replayed": 4}
        })
    );
    for (state, name) in [
        (LinkState::Down, "down"),
        (LinkState::Never, "never"),
        (LinkState::Standby, "standby"),
        (LinkState::Suspect, "suspect"),
        (LinkState::Up, "up"),
    ] {
        assert_eq!(
            serde_json::to_value(state).expect("serializes"),
            json!(name)
        );
    }
}

#[test]
fn status_survives_the_way_through_the_socket() {
    let daemon = Daemon::start();
    assert_eq!(status(&daemon.path).expect("status"), sample());
    assert_eq!(daemon.wakes.load(Ordering::SeqCst), 1);
}

#[test]
fn a_gateways_clients_survive_the_round_trip() {
    let mut report = sample();
    let links = core::mem::take(&mut report.links);
    report.clients = vec![ClientStatus {
        name: "home".to_owned(),
        up: false,
        links,
        up_bytes: 7,
        rate_down_mbps: Some(50.0),
        ..ClientStatus::default()
    }];
    let text = serde_json::to_string(&report).expect("serializes");
    let back: StatusReport = serde_json::from_str(&text).expect("parses");
    assert_eq!(back, report);
}

#[test]
fn the_name_of_a_client_to_remove_reaches_the_data_path() {
    let daemon = Daemon::start();
    remove_client(&daemon.path, "home").expect("known");
    let error = remove_client(&daemon.path, "shop").expect_err("refused");
    assert!(error.to_string().contains("shop"), "{error}");
}

#[test]
fn weights_reach_the_data_path_and_its_refusal_the_user() {
    let daemon = Daemon::start();
    let weights = |name: &str| BTreeMap::from([(name.to_owned(), 64)]);
    set_weights(&daemon.path, weights("dsl")).expect("known link");
    let error = set_weights(&daemon.path, weights("lte")).expect_err("unknown link");
    assert_eq!(
        error.to_string(),
        "the daemon answered: no link is called \"lte\""
    );
}

#[test]
fn the_socket_is_private_and_goes_with_the_server() {
    let mut daemon = Daemon::start();
    let mode = fs::metadata(&daemon.path)
        .expect("socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    daemon.server = None;
    assert!(!daemon.path.exists());
    let error = status(&daemon.path).expect_err("nobody there").to_string();
    assert!(error.starts_with("no daemon is running: "), "{error}");
}

#[test]
fn only_the_own_socket_is_removed() {
    let mut daemon = Daemon::start();
    fs::remove_file(&daemon.path).expect("remove");
    let _other = UnixListener::bind(&daemon.path).expect("bind");
    daemon.server = None;
    assert!(daemon.path.exists());
}

#[test]
fn a_crashed_daemons_socket_is_replaced() {
    let directory = TempDir::new().expect("temporary directory");
    let path = directory.path().join("t.sock");
    drop(UnixListener::bind(&path).expect("bind"));
    assert!(path.exists(), "closing leaves the file");
    let error = status(&path).expect_err("nobody there").to_string();
    assert!(error.contains("left from one that crashed"), "{error}");
    let (_server, _requests) =
        ControlServer::start(&path, &ViewConfig::default(), || {}).expect("replaces it");
    UnixStream::connect(&path).expect("answers");
}

#[test]
fn a_running_daemons_socket_is_refused() {
    let daemon = Daemon::start();
    let second = ControlServer::start(&daemon.path, &ViewConfig::default(), || {});
    assert!(matches!(second, Err(StartError::Live(_))));
    assert_eq!(status(&daemon.path).expect("unharmed"), sample());
}

#[test]
fn other_files_are_refused() {
    let directory = TempDir::new().expect("temporary directory");
    let path = directory.path().join("t.sock");
    fs::write(&path, "precious").expect("write");
    let refused = ControlServer::start(&path, &ViewConfig::default(), || {});
    assert!(matches!(refused, Err(StartError::NotASocket(_))));
    assert_eq!(fs::read_to_string(&path).expect("still there"), "precious");
}

#[test]
fn garbage_is_answered_with_an_error_and_harms_nobody() {
    let daemon = Daemon::start();
    let stream = daemon.connect();
    for garbage in [
        "\n",
        "hello\n",
        "{}\n",
        "[]\n",
        "{\"command\":\"stop\"}\n",
        "{\"command\":\"status\",\"x\":1}\n",
        "{\"command\":\"weights\"}\n",
        "{\"command\":\"weights\",\"weights\":{}}\n",
        "{\"command\":\"weights\",\"weights\":{\"dsl\":0}}\n",
        "{\"command\":\"weights\",\"weights\":{\"dsl\":1001}}\n",
        "{\"command\":\"weights\",\"weights\":{\"dsl\":-1}}\n",
        "\u{0}\n",
    ] {
        let answer = Daemon::ask(&stream, garbage.as_bytes());
        assert!(answer.starts_with("{\"error\":"), "{garbage:?}: {answer}");
    }
    let answer = Daemon::ask(&stream, b"\xff\xfe\n");
    assert!(answer.starts_with("{\"error\":"), "{answer}");
    let answer = Daemon::ask(&stream, b"{\"command\":\"status\"}\n");
    assert!(answer.starts_with("{\"mode\":"), "{answer}");
}

#[test]
fn deeply_nested_requests_do_not_exhaust_the_stack() {
    let daemon = Daemon::start();
    let mut line = vec![b'['; MAX_REQUEST_BYTES - 2];
    line.push(b'\n');
    let answer = Daemon::ask(&daemon.connect(), &line);
    assert!(answer.starts_with("{\"error\":"), "{answer}");
    assert_eq!(status(&daemon.path).expect("unharmed"), sample());
}

#[test]
fn endless_lines_are_cut_off() {
    let daemon = Daemon::start();
    let stream = daemon.connect();
    let answer = Daemon::ask(&stream, &vec![b'x'; 4 * MAX_REQUEST_BYTES]);
    assert!(answer.contains("longer than 64 KiB"), "{answer}");
    let mut rest = Vec::new();
    // Both an end of file and a reset mean that the connection is closed.
    let _ = (&stream).read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn several_requests_in_one_write_are_answered_in_order() {
    let daemon = Daemon::start();
    let stream = daemon.connect();
    (&stream)
        .write_all(b"{\"command\":\"status\"}\nx\n{\"command\":\"status\"}\n")
        .expect("write");
    let kinds: Vec<bool> = BufReader::new(&stream)
        .lines()
        .take(3)
        .map(|line| line.expect("answer").starts_with("{\"error\":"))
        .collect();
    assert_eq!(kinds, [false, true, false]);
}

#[test]
fn silent_clients_neither_block_others_nor_stay() {
    let daemon = Daemon::start();
    let silent: Vec<UnixStream> = (1..MAX_CONNECTIONS).map(|_| daemon.connect()).collect();
    assert_eq!(status(&daemon.path).expect("the last place"), sample());
    for mut stream in silent {
        let mut nothing = Vec::new();
        stream
            .read_to_end(&mut nothing)
            .expect("closed by the server");
        assert!(nothing.is_empty());
    }
}

#[test]
fn connections_are_bounded_and_places_come_back() {
    let daemon = Daemon::start();
    let mut held: Vec<UnixStream> = (0..MAX_CONNECTIONS).map(|_| daemon.connect()).collect();
    let mut refused = String::new();
    daemon
        .connect()
        .read_to_string(&mut refused)
        .expect("answer");
    assert_eq!(refused, "{\"error\":\"too many connections\"}\n");
    held.clear();
    // The server's threads notice the end of their clients only when they run next.
    let mut tries = 0;
    while let Err(error) = status(&daemon.path) {
        tries += 1;
        assert!(tries < 1_000_000, "{error}");
        thread::yield_now();
    }
}

#[test]
fn a_data_path_that_ends_or_drops_a_request_is_reported() {
    let (daemon, requests) = Daemon::start_without_data_path();
    let dropping = thread::spawn(move || drop(requests.recv()));
    let error = status(&daemon.path).expect_err("dropped").to_string();
    assert!(error.contains("the daemon is stopping"), "{error}");
    dropping.join().expect("thread");
    let error = status(&daemon.path).expect_err("ended").to_string();
    assert!(error.contains("the daemon is stopping"), "{error}");
}

#[test]
fn the_only_socket_is_found_and_several_are_listed() {
    let directory = TempDir::new().expect("temporary directory");
    let run = directory.path();
    let none = find_socket(&run.join("missing"))
        .expect_err("none")
        .to_string();
    assert!(none.starts_with("no daemon is running: "), "{none}");
    fs::write(run.join("notes.txt"), "").expect("write");
    assert!(find_socket(run).is_err());
    fs::write(run.join("b.sock"), "").expect("write");
    assert_eq!(find_socket(run).expect("one"), run.join("b.sock"));
    fs::write(run.join("a.sock"), "").expect("write");
    let several = find_socket(run).expect_err("two").to_string();
    let list = format!(
        "{}, {}",
        run.join("a.sock").display(),
        run.join("b.sock").display()
    );
    assert!(several.ends_with(&list), "{several}");
}

#[test]
fn answers_of_strangers_are_refused() {
    let directory = TempDir::new().expect("temporary directory");
    for (answer, expected) in [
        ("hello\n", "no control socket of pleach"),
        ("{\"mode\":\"client\"}\n", "another version"),
        ("{\"mode\":", "broke off"),
        ("", "broke off"),
    ] {
        let path = directory.path().join("t.sock");
        let listener = UnixListener::bind(&path).expect("bind");
        let stranger = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("accept");
            let mut request = String::new();
            BufReader::new(&stream)
                .read_line(&mut request)
                .expect("request");
            (&stream).write_all(answer.as_bytes()).expect("answer");
        });
        let error = status(Path::new(&path)).expect_err("a stranger");
        stranger.join().expect("thread");
        assert!(
            format!("{error:#}").contains(expected),
            "{answer:?}: {error:#}"
        );
        fs::remove_file(&path).expect("remove");
    }
}
