//! The interface over real sockets, with a data path that answers with a sample status.

mod metrics;

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{routes::MAX_STREAMS, serve::PATIENCE};
use crate::{
    config::{Listen, Token, ViewConfig},
    control::{
        ApplicationStatus, BudgetStatus, ClassStatus, ClientStatus, ConnectionStatus,
        ControlRequest, FleetReport, GatewayStatus, LinkState, LinkStatus, ParityReport,
        ReloadReport, RepairStatus, RuleStatus, SplitStatus, SplitterStatus, StatusReport,
        StoreReport, WorkerStatus, server::ControlServer,
    },
};

const FULL: &str = "full-token-of-a-test";
const READ: &str = "read-token-of-a-test";

/// Returns a status with a value in every field, so that every schema is checked.
fn sample() -> StatusReport {
    let link = |name: &str| LinkStatus {
        state: LinkState::Up,
        endpoint: Some("203.0.113.5:7700".to_owned()),
        rtt_ms: Some(23.5),
        queue_delay_ms: Some(1.5),
        capacity_mbps: Some(64.0),
        loss: 0.01,
        tx_bytes: 5000,
        rx_bytes: 7000,
        mtu: Some(1400),
        carrier: None,
        carrier_error: None,
        idle_reason: Some("too-late-for-its-flows".to_owned()),
        why: Some(format!("{name} is too slow")),
        advice: Some("Nothing.".to_owned()),
        ..LinkStatus::bare(name, "eth1")
    };
    let split = SplitStatus {
        share_wanted: 0.5,
        share_packets: Some(0.5),
        share_bytes: Some(0.4),
        packets: 3,
        background_mbps: 0.0,
        available_mbps: Some(5.0),
        hold_ms: None,
        held_bytes: None,
    };
    StatusReport {
        mode: "client".to_owned(),
        name: "pleach0".to_owned(),
        up: true,
        links: vec![link("dsl"), link("lte")],
        clients: vec![ClientStatus {
            name: "home".to_owned(),
            up: true,
            links: vec![link("dsl")],
            rate_up_mbps: Some(10.0),
            rate_down_mbps: Some(50.0),
            ..ClientStatus::default()
        }],
        connections: vec![ConnectionStatus {
            client: "127.0.0.1:5".to_owned(),
            app: None,
            target: "192.0.2.1:80".to_owned(),
            protocol: "socks5".to_owned(),
            link: Some("dsl".to_owned()),
            why: "rate".to_owned(),
            rate_mbps: 2.5,
            tx_bytes: 1,
            rx_bytes: 2,
            striped: None,
        }],
        connection_count: Some(1),
        applications: BTreeMap::from([(
            "curl".to_owned(),
            ApplicationStatus {
                class: Some("bulk".to_owned()),
                demand_up_bytes: 1,
                demand_down_bytes: 2,
                connections: 3,
                last_bytes: vec![4],
                link: None,
            },
        )]),
        gateways: vec![GatewayStatus {
            name: "near".to_owned(),
            used: true,
            priority: 1,
            answers: true,
            rtt_ms: Some(12.5),
            why: "near is in use".to_owned(),
        }],
        budgets: BTreeMap::from([(
            "lte".to_owned(),
            BudgetStatus {
                bytes: 100,
                used_bytes: 30,
                forecast_bytes: None,
                renews_at_s: 0,
                standing: "within".to_owned(),
            },
        )]),
        splitter: Some(SplitterStatus {
            backend: "bpf".to_owned(),
            backend_why: "asked for".to_owned(),
            weights: "auto".to_owned(),
            last_change_why: None,
            last_change_seconds: None,
            hold: None,
            links: BTreeMap::from([("dsl".to_owned(), split)]),
        }),
        classes: BTreeMap::from([("voice".to_owned(), ClassStatus::default())]),
        rules: vec![RuleStatus {
            rule: "port=443".to_owned(),
            link: Some("dsl".to_owned()),
            strict: true,
            live: true,
            packets: 3,
            bytes: 4000,
            dropped: 1,
        }],
        parity: Some(ParityReport::default()),
        repair: Some(RepairStatus::default()),
        drops: BTreeMap::from([("replayed".to_owned(), 4)]),
        restored_tables: Some(1),
        fleet: Some(FleetReport {
            name: "gw1".to_owned(),
            connected: 3,
            away_from_home: 1,
        }),
        store: Some(StoreReport {
            source: "sqlite".to_owned(),
            trouble: None,
            known: 1,
            refused: BTreeMap::from([("unknown".to_owned(), 3)]),
            forgotten: 2,
            removed: 1,
        }),
        workers: vec![WorkerStatus {
            clients: 3,
            up: 2,
            passed: 7,
            refused: 1,
            draining: true,
            ..WorkerStatus::default()
        }],
        silent_workers: vec![1],
        ..StatusReport::default()
    }
}

/// A daemon whose data path answers with [`sample`] and knows the link `dsl`.
struct Daemon {
    path: PathBuf,
    asked: Arc<AtomicUsize>,
    server: Option<ControlServer>,
    _directory: TempDir,
}

impl Daemon {
    fn start(view: &ViewConfig) -> Self {
        let directory = TempDir::new().expect("temporary directory");
        let path = directory.path().join("t.sock");
        let (server, requests) = ControlServer::start(&path, view, || {}).expect("start");
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        thread::spawn(move || {
            for request in requests {
                match request {
                    ControlRequest::Drain(_, reply) | ControlRequest::RemoveClient(_, reply) => {
                        reply.send(Err("this is no gateway".to_owned()));
                    }
                    ControlRequest::Only(_, reply) => reply.send(Ok(())),
                    ControlRequest::Reload(reply) => reply.send(Ok(ReloadReport::default())),
                    ControlRequest::Set(_, reply) => reply.send(Ok(())),
                    ControlRequest::Status(reply) => {
                        counter.fetch_add(1, Ordering::SeqCst);
                        reply.send(Ok(sample()));
                    }
                    ControlRequest::Weights(weights, reply) => {
                        let unknown = weights.keys().find(|name| *name != "dsl");
                        let unknown = unknown.map(|name| format!("no link is called {name:?}"));
                        reply.send(unknown.map_or(Ok(()), Err));
                    }
                }
            }
        });
        Self {
            path,
            asked,
            server: Some(server),
            _directory: directory,
        }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream
    }

    /// Returns the status and body of the answer to `METHOD PATH` over the control socket.
    fn ask(&self, request: &str, body: Option<&str>) -> (u16, String) {
        ask(self.connect(), request, &[("Host", "pleach")], body)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Returns a loopback address that no other test uses.
fn address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let own = NEXT.fetch_add(1, Ordering::SeqCst);
    SocketAddr::from((Ipv4Addr::new(127, high, low, own), 7780))
}

fn dashboard(tokens: Vec<Token>) -> (SocketAddr, ViewConfig) {
    let address = address();
    let listen = Listen {
        address,
        tokens,
        hosts: vec!["router.lan".to_owned()],
    };
    let view = ViewConfig {
        dashboard: Some(listen),
        metrics: None,
        history: None,
        notices: None,
    };
    (address, view)
}

fn send(mut stream: impl Write, request: &str, headers: &[(&str, &str)], body: Option<&str>) {
    let mut text = format!("{request} HTTP/1.1\r\nConnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if let Some(body) = body {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    text += "\r\n";
    text += body.unwrap_or_default();
    // A request that is refused early may not be read completely.
    let _ = stream.write_all(text.as_bytes());
}

fn ask(
    mut stream: impl Read + Write,
    request: &str,
    headers: &[(&str, &str)],
    body: Option<&str>,
) -> (u16, String) {
    let json = [("Content-Type", "application/json")];
    let headers: Vec<(&str, &str)> = headers.iter().copied().chain(json).collect();
    send(&mut stream, request, &headers, body);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    let status = answer.get(9..12).and_then(|code| code.parse().ok());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    assert!(!head.to_lowercase().contains("access-control"), "{head}");
    (status.unwrap_or(0), body.to_owned())
}

fn json_of(answer: (u16, String)) -> Value {
    assert_eq!(answer.0, 200, "{}", answer.1);
    serde_json::from_str(&answer.1).expect("JSON")
}

#[test]
fn one_socket_speaks_lines_and_http() {
    let daemon = Daemon::start(&ViewConfig::default());
    let line = crate::control::status(&daemon.path).expect("the old protocol");
    let http = json_of(daemon.ask("GET /v1/status", None));
    assert_eq!(serde_json::to_value(line).expect("JSON"), http);
    assert_eq!(
        daemon
            .ask("PUT /v1/weights", Some(r#"{"weights":{"dsl":3}}"#))
            .0,
        200
    );
    let (status, body) = daemon.ask("PUT /v1/weights", Some(r#"{"weights":{"x":3}}"#));
    assert!(status == 409 && body.contains("no link"), "{body}");
    assert_eq!(daemon.ask("DELETE /v1/clients/home", None).0, 409);
    assert_eq!(daemon.ask("GET /nothing", None).0, 404);
    assert_eq!(daemon.ask("POST /v1/status", None).0, 405);
    let (status, page) = daemon.ask("GET /", None);
    assert!(status == 200 && page.contains("<title>"), "{page}");
}

#[test]
fn every_answer_is_as_described() {
    let daemon = Daemon::start(&ViewConfig::default());
    let description = json_of(daemon.ask("GET /v1/openapi.json", None));
    assert!(
        description["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3.1"))
    );
    let paths = description["paths"].as_object().expect("paths");
    let mut checked = 0;
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().expect("methods") {
            let responses = operation["responses"].as_object().expect("responses");
            let (path, body) = match (method.as_str(), path.as_str()) {
                ("get", "/v1/live/stream") => continue,
                ("put", "/v1/set") => {
                    (path.clone(), Some(r#"{"set":{"app":"curl","link":"dsl"}}"#))
                }
                ("put", _) => (path.clone(), Some(r#"{"weights":{"dsl":3}}"#)),
                ("delete", _) => (path.replace("{name}", "home"), None),
                _ => (path.clone(), None),
            };
            let request = format!("{} {path}", method.to_uppercase());
            let (status, body) = daemon.ask(&request, body);
            let response = &responses[&status.to_string()];
            assert!(
                response.is_object(),
                "{request}: {status} is not described: {body}"
            );
            let schema = &response["content"]["application/json"]["schema"];
            if path == "/metrics" {
                assert!(body.ends_with("# EOF\n"), "{body}");
            } else {
                let answer = serde_json::from_str(&body).expect("JSON");
                fits(&description, schema, &answer, &request);
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 13);
    assert_eq!(daemon.ask("PUT /v1/weights", Some("{")).0, 400);
    assert_eq!(daemon.ask("PUT /v1/set", Some("{}")).0, 422);
    assert_eq!(daemon.ask("PUT /v1/weights", Some("{}")).0, 422);
    let long = format!(r#"{{"weights":{{"{}":1}}}}"#, "x".repeat(70_000));
    assert_eq!(daemon.ask("PUT /v1/weights", Some(&long)).0, 413);
}

#[test]
fn after_a_change_of_a_link_the_next_answer_is_a_new_measurement() {
    let daemon = Daemon::start(&ViewConfig::default());
    for _ in 0..3 {
        json_of(daemon.ask("GET /v1/uplink", None));
    }
    let before = daemon.asked();
    let server = daemon.server.as_ref().expect("runs");
    for _ in 0..2 {
        // Requests within a second get the known sample, unless a link has changed.
        server.on_link_change();
        thread::park_timeout(Duration::from_millis(150));
        json_of(daemon.ask("GET /v1/uplink", None));
        json_of(daemon.ask("GET /v1/uplink", None));
    }
    let asked = daemon.asked() - before;
    assert!(asked >= 2, "{asked} questions for 2 changes");
}

/// Asserts that `value` has the type and the required fields of `schema`, and no other fields (JSON Schema 2020-12, as
/// far as the description uses it).
#[track_caller]
fn fits(description: &Value, schema: &Value, value: &Value, at: &str) {
    if let Err(why) = misfit(description, schema, value, at) {
        panic!("{why}");
    }
}

fn misfit(description: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = description.pointer(reference.trim_start_matches('#'));
        let target = target.ok_or_else(|| format!("{at}: {reference} leads nowhere"))?;
        return misfit(description, target, value, at);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let mut results = choices
            .iter()
            .map(|choice| misfit(description, choice, value, at));
        return results
            .any(|result| result.is_ok())
            .then_some(())
            .ok_or_else(|| format!("{at}: {value} is none of {schema}"));
    }
    if let Some(parts) = schema["allOf"].as_array() {
        let mut merged = json!({"type": "object", "properties": {}, "required": []});
        for part in parts {
            let part = match part["$ref"].as_str() {
                Some(reference) => description.pointer(reference.trim_start_matches('#')),
                None => Some(part),
            };
            let part = part.ok_or_else(|| format!("{at}: a part leads nowhere"))?;
            for (name, property) in part["properties"].as_object().into_iter().flatten() {
                merged["properties"][name] = property.clone();
            }
            let required = part["required"].as_array().cloned().unwrap_or_default();
            merged["required"]
                .as_array_mut()
                .expect("made so")
                .extend(required);
        }
        return misfit(description, &merged, value, at);
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_kind = |wanted: &Value| wanted == kind || (wanted == "number" && kind == "integer");
    let wanted = &schema["type"];
    let is_fit = match wanted.as_array() {
        Some(kinds) => kinds.iter().any(is_kind),
        None => wanted.is_null() || is_kind(wanted),
    };
    if !is_fit {
        return Err(format!("{at}: {value} is no {wanted}"));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Err(format!("{at}: {value} is none of {words:?}"));
    }
    if let Some(fields) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().unwrap_or_default();
            if !fields.contains_key(name) {
                return Err(format!("{at}: {name} is missing"));
            }
        }
        for (name, field) in fields {
            let at = format!("{at}.{name}");
            let known = schema["properties"].get(name);
            match known.or_else(|| schema.get("additionalProperties")) {
                Some(schema) => misfit(description, schema, field, &at)?,
                None if wanted.is_null() => {}
                // A type without fields is not described further.
                None if schema.get("properties").is_none() => {}
                None => return Err(format!("{at} is not described")),
            }
        }
    }
    for (number, item) in value.as_array().into_iter().flatten().enumerate() {
        misfit(
            description,
            &schema["items"],
            item,
            &format!("{at}[{number}]"),
        )?;
    }
    Ok(())
}

#[test]
fn a_history_is_kept_if_it_is_wanted() {
    let directory = TempDir::new().expect("directory");
    let file = directory.path().join("new/history.db");
    let (_, mut view) = dashboard(Vec::new());
    view.history = Some(file.clone());
    let daemon = Daemon::start(&view);
    let description = json_of(daemon.ask("GET /v1/openapi.json", None));
    let schema = json!({ "$ref": "#/components/schemas/Excerpt" });
    // The first sample has no rates.
    let has_begun = (0..100).any(|_| {
        thread::park_timeout(Duration::from_millis(100));
        let excerpt = json_of(daemon.ask("GET /v1/history", None));
        fits(&description, &schema, &excerpt, "history");
        excerpt["step"] == 1
            && excerpt["links"]["dsl"]
                .as_array()
                .is_some_and(|moments| moments.len() > 1)
    });
    assert!(has_begun && file.exists());
    let (status, csv) = daemon.ask("GET /v1/history.csv?from=0", None);
    assert!(
        status == 200 && csv.starts_with("at,link,tx_mbps,"),
        "{csv}"
    );
    for query in ["from=x", "from=1&until=2", "from=99999999999999999999"] {
        assert_eq!(
            daemon.ask(&format!("GET /v1/history?{query}"), None).0,
            400,
            "{query}"
        );
    }
    for query in [
        "from=-5&to=-9",
        "from=9223372036854775807",
        "to=9223372036854775807&from=-9223372036854775808",
    ] {
        assert_eq!(
            daemon.ask(&format!("GET /v1/history?{query}"), None).0,
            200,
            "{query}"
        );
    }
    let without = Daemon::start(&ViewConfig::default());
    assert_eq!(without.ask("GET /v1/history", None).0, 404);
}

#[test]
fn without_a_token_this_host_may_read_only() {
    let (address, view) = dashboard(Vec::new());
    let _daemon = Daemon::start(&view);
    let own = address.to_string();
    let ask = |request: &str, headers: &[(&str, &str)], body| {
        ask(
            TcpStream::connect(address).expect("connects"),
            request,
            headers,
            body,
        )
        .0
    };
    assert_eq!(ask("GET /v1/status", &[("Host", &own)], None), 200);
    assert_eq!(
        ask("GET /v1/status", &[("Host", "router.lan:7780")], None),
        200
    );
    let same = format!("http://{own}");
    assert_eq!(
        ask("GET /v1/status", &[("Host", &own), ("Origin", &same)], None),
        200
    );
    for (host, origin) in [
        ("evil.example", None),
        ("evil.example:7780", Some("http://evil.example:7780")),
        (own.as_str(), Some("http://evil.example")),
        (own.as_str(), Some("null")),
    ] {
        let mut headers = vec![("Host", host)];
        headers.extend(origin.map(|origin| ("Origin", origin)));
        for path in ["/", "/v1/status", "/v1/live/stream", "/metrics"] {
            let status = ask(&format!("GET {path}"), &headers, None);
            assert!(
                status == 421 || status == 403,
                "{path} {headers:?}: {status}"
            );
        }
    }
    let weights = Some(r#"{"weights":{"dsl":3}}"#);
    assert_eq!(ask("PUT /v1/weights", &[("Host", &own)], weights), 403);
    assert_eq!(ask("DELETE /v1/clients/home", &[("Host", &own)], None), 403);
}

#[test]
fn a_token_says_what_its_bearer_may() {
    let (address, view) = dashboard(vec![Token::new(FULL, true), Token::new(READ, false)]);
    let _daemon = Daemon::start(&view);
    let own = address.to_string();
    let ask = |request: &str, token: &str, body| {
        let bearer = format!("Bearer {token}");
        let mut headers = vec![("Host", own.as_str())];
        if !token.is_empty() {
            headers.push(("Authorization", &bearer));
        }
        ask(
            TcpStream::connect(address).expect("connects"),
            request,
            &headers,
            body,
        )
        .0
    };
    let weights = Some(r#"{"weights":{"dsl":3}}"#);
    for (token, page, read, change) in [
        ("", 200, 401, 401),
        ("full-token-of-a-tesT", 200, 401, 401),
        (READ, 200, 200, 403),
        (FULL, 200, 200, 200),
    ] {
        assert_eq!(ask("GET /", token, None), page, "{token}");
        for path in ["/v1/status", "/v1/about", "/v1/events", "/metrics"] {
            assert_eq!(
                ask(&format!("GET {path}"), token, None),
                read,
                "{token} {path}"
            );
        }
        assert_eq!(ask("PUT /v1/weights", token, weights), change, "{token}");
    }
}

/// Opens an event stream of `daemon`.
fn stream(daemon: &Daemon) -> (u16, BufReader<UnixStream>) {
    let stream = daemon.connect();
    send(&stream, "GET /v1/live/stream", &[("Host", "pleach")], None);
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).expect("an answer");
    (first[9..12].parse().expect("a status"), reader)
}

/// Returns the data of the next event called `name`.
fn next(reader: &mut BufReader<UnixStream>, name: &str) -> Value {
    let mut is_it = false;
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).expect("goes on") > 0, "ended");
        if let Some(found) = line.strip_prefix("event: ") {
            is_it = found.trim() == name;
        } else if is_it && let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).expect("JSON");
        }
    }
}

#[test]
fn who_looks_shares_one_question_a_second_and_nobody_asks_otherwise() {
    let daemon = Daemon::start(&ViewConfig::default());
    let mut streams: Vec<_> = (0..5).map(|_| stream(&daemon)).collect();
    for _ in 0..3 {
        for (status, reader) in &mut streams {
            assert_eq!(*status, 200);
            let live = next(reader, "live");
            assert_eq!(
                live["headline"],
                "pleach0 is up over 2 of 2 links at the gateway near."
            );
            assert_eq!(live["links"][0]["why"], "dsl is too slow");
        }
    }
    let asked = daemon.asked();
    assert!(
        (3..=4).contains(&asked),
        "{asked} questions for 3 events in 5 streams"
    );
    drop(streams);
    let mut quiet = daemon.asked();
    // The streams end with their next event.
    for _ in 0..3 {
        thread::park_timeout(Duration::from_millis(1500));
        let now = daemon.asked();
        if now == quiet {
            return;
        }
        quiet = now;
    }
    panic!("the data path is asked though nobody looks");
}

#[test]
fn event_streams_are_bounded_and_their_places_come_back() {
    let daemon = Daemon::start(&ViewConfig::default());
    let mut streams: Vec<_> = (0..MAX_STREAMS).map(|_| stream(&daemon)).collect();
    assert!(streams.iter().all(|(status, _)| *status == 200));
    assert_eq!(stream(&daemon).0, 503);
    assert_eq!(
        daemon.ask("GET /v1/status", None).0,
        200,
        "others are served"
    );
    streams.clear();
    let again = (0..50).any(|_| {
        thread::park_timeout(Duration::from_millis(100));
        stream(&daemon).0 == 200
    });
    assert!(again, "a place never came back");
}

#[test]
fn what_is_no_http_ends_the_connection_and_nothing_else() {
    let daemon = Daemon::start(&ViewConfig::default());
    for garbage in [
        "GET\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000)),
        format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(10_000)),
        "PUT /v1/weights HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n"
            .to_owned(),
        "Z\0\u{1}\u{2}\r\n\r\n".to_owned(),
    ] {
        let mut stream = daemon.connect();
        let _ = stream.write_all(garbage.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{answer}"
        );
    }
    assert_eq!(daemon.ask("GET /v1/status", None).0, 200);
}

#[test]
fn an_address_is_freed_with_the_daemon() {
    let (address, view) = dashboard(Vec::new());
    let mut daemon = Daemon::start(&view);
    TcpStream::connect(address).expect("served");
    daemon.server = None;
    let is_free = (0..100).any(|_| {
        thread::park_timeout(Duration::from_millis(20));
        TcpStream::connect(address).is_err()
    });
    assert!(is_free, "still served");
}

#[test]
fn a_taken_port_keeps_nothing_else_from_running_and_is_tried_again() {
    let (address, view) = dashboard(Vec::new());
    let holder = std::net::TcpListener::bind(address).expect("free");
    let daemon = Daemon::start(&view);
    assert_eq!(
        daemon.ask("GET /v1/status", None).0,
        200,
        "over the control socket"
    );
    drop(holder);
    let host = address.to_string();
    let deadline = pleach_linux::clock::now() + Duration::from_secs(20);
    let answer = loop {
        if let Ok(stream) = TcpStream::connect(address) {
            break ask(stream, "GET /v1/status", &[("Host", &host)], None);
        }
        assert!(pleach_linux::clock::now() < deadline, "never tried again");
        thread::park_timeout(Duration::from_millis(50));
    };
    assert_eq!(answer.0, 200);
}

#[test]
fn a_page_of_another_site_gets_nothing_of_loopback() {
    let (address, view) = dashboard(Vec::new());
    let _daemon = Daemon::start(&view);
    let host = address.to_string();
    let get = |path: &str, headers: &[(&str, &str)]| {
        let headers: Vec<_> = [("Host", host.as_str())]
            .into_iter()
            .chain(headers.iter().copied())
            .collect();
        let stream = TcpStream::connect(address).expect("connects");
        ask(stream, &format!("GET {path}"), &headers, None).0
    };
    for site in ["same-origin", "none"] {
        assert_eq!(
            get("/v1/status", &[("Sec-Fetch-Site", site)]),
            200,
            "{site}"
        );
    }
    for site in ["cross-site", "same-site", "unheard-of"] {
        for path in ["/v1/status", "/metrics", "/"] {
            assert_eq!(get(path, &[("Sec-Fetch-Site", site)]), 403, "{site} {path}");
        }
        let link = [("Sec-Fetch-Site", site), ("Sec-Fetch-Mode", "navigate")];
        assert_eq!(get("/", &link), 200, "a link to the page");
        assert_eq!(get("/v1/status", &link), 403);
    }
}
