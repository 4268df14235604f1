//! A link behind a captive portal.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pleach_linux::netns::run_in;

use crate::{
    process::{Client, Gateway, link, state},
    world::{World, run},
};

/// A captive portal on the network of link `l1`: it lets no datagram to the gateway pass, and answers web requests to
/// any host.
struct Portal {
    is_over: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Portal {
    /// Starts the portal, which answers `answer` to each request.
    fn start(world: &World, answer: &'static str) -> Self {
        run(
            &world.gateway,
            "nft",
            &["table inet portal { \
                 chain in { type filter hook input priority 0; iifname \"g1\" udp dport 7700 drop; iifname \"g1\" tcp dport 443 drop; }; \
                 chain pre { type nat hook prerouting priority -100; iifname \"g1\" tcp dport 80 redirect to :8080; }; }"],
        );
        let listener = run_in(&world.gateway.path(), || TcpListener::bind("[::]:8080"));
        let listener = listener.expect("the namespace").expect("a socket");
        listener.set_nonblocking(true).expect("set");
        let (is_over, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (over, count) = (Arc::clone(&is_over), Arc::clone(&asked));
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else {
                    thread::park_timeout(Duration::from_millis(10));
                    continue;
                };
                stream.set_nonblocking(false).expect("set");
                stream
                    .set_read_timeout(Some(Duration::from_secs(5)))
                    .expect("set");
                let mut request = [0; 1024];
                let len = stream.read(&mut request).unwrap_or(0);
                if request[..len].starts_with(b"GET /204 HTTP/1.1\r\nHost: 198.51.100.80\r\n") {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self {
            is_over,
            asked,
            thread: Some(thread),
        }
    }

    /// Lets everything pass, as after a login.
    fn open(world: &World) {
        run(&world.gateway, "nft", &["delete table inet portal"]);
    }
}

impl Drop for Portal {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

const URL: &str = "http://login.hotel.example/?id=7";
const REDIRECT: &str = "HTTP/1.1 302 Found\r\nLocation: http://login.hotel.example/?id=7\r\n\r\n";

#[test]
fn a_captive_portal_is_named_until_the_user_has_logged_in() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let portal = Portal::start(&world, REDIRECT);
    let client = Client {
        more_tunnel: "portal_check = \"http://198.51.100.80/204\"\n",
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["l0"]);
    let status = client.until("the portal is found", |status| {
        status["portals"]["l1"] == URL
    });
    let shown = link(&status, "l1").expect("there");
    assert_eq!(shown["state"], "down");
    assert_eq!(shown["idle_reason"], "captive-portal");
    assert_eq!(
        shown["why"],
        format!("l1 is behind a captive portal: it asks for a login at {URL}")
    );
    assert!(status["portals"]["l0"].is_null());
    let text = client.command("status", &[]).stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains(URL) && text.contains("log in"), "{text}");
    let asked = portal.asked.load(Ordering::Relaxed);
    // With its back-off, the check runs a fifth time after more than a minute.
    assert!((1..=4).contains(&asked), "{asked}");

    let mut doctor = world.client.command(env!("CARGO_BIN_EXE_pleach"));
    let output = doctor
        .args(["doctor", "--json"])
        .arg(client.file())
        .output();
    let report = String::from_utf8_lossy(&output.expect("starts").stdout).into_owned();
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let problems = report["problems"].as_array().expect("a list");
    let of_link: Vec<_> = problems
        .iter()
        .filter(|problem| problem["link"] == "l1")
        .collect();
    assert_eq!(of_link.len(), 1, "{report}");
    assert_eq!(of_link[0]["code"], "captive-portal");

    Portal::open(&world);
    let status = client.until("the link works", |status| state(status, "l1") == "up");
    assert!(status["portals"].is_null(), "{status}");
}

#[test]
fn an_open_network_without_udp_is_no_portal() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let portal = Portal::start(&world, "HTTP/1.1 204 No Content\r\n\r\n");
    let client = Client {
        more_tunnel: "portal_check = \"http://198.51.100.80/204\"\n",
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["l0"]);
    let status = client.until("the page was requested", |_| {
        portal.asked.load(Ordering::Relaxed) > 0
    });
    assert!(status["portals"].is_null(), "{status}");
    crate::world::until("the result is logged", || {
        client.log().contains("no captive portal")
    });
}
