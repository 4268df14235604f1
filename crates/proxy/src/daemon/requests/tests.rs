//! Requests and answers over loopback sockets.

use std::cell::RefCell;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::spawn_local,
};

use super::*;
use crate::{
    daemon::hub::tests::{add_link, hub},
    relay::stripe::tests::run,
    sched::LinkId,
};

/// A server: what it was asked on each of its connections.
struct Server {
    to: SocketAddr,
    heads: Rc<RefCell<Vec<Vec<String>>>>,
}

/// Gives to the requests on its n-th connection the n-th of `scripts`, one answer each, in pieces of `size`; closes then.
async fn server(scripts: Vec<Vec<String>>, size: usize) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let to = listener.local_addr().expect("bound");
    let heads = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&heads);
    spawn_local(async move {
        for (number, script) in scripts.into_iter().enumerate() {
            let (mut stream, _) = listener.accept().await.expect("it listens");
            stream.set_nodelay(true).expect("a socket");
            seen.borrow_mut().push(Vec::new());
            let seen = Rc::clone(&seen);
            spawn_local(async move {
                for answer in script {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else {
                            return;
                        };
                        head.push(byte);
                    }
                    let head = String::from_utf8(head).expect("text");
                    seen.borrow_mut()[number].push(head);
                    for piece in answer.as_bytes().chunks(size) {
                        stream.write_all(piece).await.expect("somebody reads");
                        tokio::task::yield_now().await;
                    }
                }
            });
        }
    });
    Server { to, heads }
}

/// A client's connection to the proxy.
async fn client(hub: &Rc<Hub>) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let to = listener.local_addr().expect("bound");
    let (stream, accepted) = tokio::join!(TcpStream::connect(to), listener.accept());
    let (accepted, from) = accepted.expect("connected");
    let hub = Rc::clone(hub);
    spawn_local(async move { client::serve(&hub, accepted, from).await });
    stream.expect("connected")
}

/// Says `words` and returns all that comes until the proxy closes.
async fn talk(hub: &Rc<Hub>, words: &str) -> String {
    let mut stream = client(hub).await;
    stream.write_all(words.as_bytes()).await.expect("it reads");
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.expect("text");
    answers
}

fn get(to: SocketAddr, path: &str) -> String {
    format!("GET http://{to}{path} HTTP/1.1\r\nHost: x\r\n\r\n")
}

fn last(request: &str) -> String {
    request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
}

fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn requests_of_a_client_share_a_connection_to_the_server() {
    run(async {
        let hub = Rc::new(hub());
        let (chunks, close) = (
            "5;a=b\r\nhello\r\n0\r\nT: 1\r\n\r\n",
            "Connection: close\r\n\r\n",
        );
        let to_head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".to_owned();
        let hint = format!("HTTP/1.1 103 Early Hints\r\n\r\n{}", ok("hinted"));
        let script = vec![
            ok("one"),
            format!("{CHUNKED}{chunks}"),
            to_head.clone(),
            hint,
            ok("five"),
        ];
        let server = server(vec![script], 1000).await;
        let requests = [
            get(server.to, "/1"),
            get(server.to, "/2"),
            get(server.to, "/3").replace("GET", "HEAD"),
            get(server.to, "/4"),
            last(&get(server.to, "/5")),
        ];
        let expected = [
            ok("one"),
            format!("{CHUNKED}{chunks}"),
            to_head,
            format!("HTTP/1.1 103 Early Hints\r\n\r\n{}", ok("hinted")),
            ok("five").replacen("\r\n\r\n", &format!("\r\n{close}"), 1),
        ];
        assert_eq!(talk(&hub, &requests.concat()).await, expected.concat());
        let heads = server.heads.borrow();
        assert_eq!(heads[0].len(), 5);
        assert_eq!(
            heads[0][4],
            format!("GET /5 HTTP/1.1\r\nHost: {}\r\n\r\n", server.to)
        );
        assert!(hub.live.borrow().is_empty());
    });
}

#[test]
fn answers_are_the_same_however_they_come() {
    let chunks = "a\r\n0123456789\r\n3\r\nabc\r\n0\r\n\r\n";
    let script = [
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc".to_owned(),
        format!("{CHUNKED}{chunks}"),
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\n\r\nall there is".to_owned(),
    ];
    for size in [1, 2, 3, 5, 7, 11, 17, 29, 60] {
        let script = script.clone();
        run(async move {
            let hub = Rc::new(hub());
            let server = server(vec![script.to_vec()], size).await;
            let request = get(server.to, "/");
            let answers = talk(&hub, &request.repeat(4)).await;
            let mut expected = script;
            expected[3] = expected[3].replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1);
            assert_eq!(answers, expected.concat(), "in pieces of {size}");
        });
    }
}

#[test]
fn a_connection_the_server_has_closed_is_made_again() {
    run(async {
        let hub = Rc::new(hub());
        // The first connection ends within the second request, which nobody answers there.
        let scripts = vec![
            vec![ok("1"), String::new()],
            vec![ok("2"), ok("3")],
            vec![ok("4")],
        ];
        let server = server(scripts, 1000).await;
        let post = format!(
            "POST http://{}/ HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            server.to
        );
        let words = [
            get(server.to, "/1"),
            get(server.to, "/2"),
            get(server.to, "/3"),
            post,
        ];
        let answers = talk(&hub, &words.concat()).await;
        assert_eq!(answers.matches("200 OK").count(), 4, "{answers}");
        assert!(answers.ends_with("\r\n\r\n4"), "{answers}");
        let counts: Vec<usize> = server.heads.borrow().iter().map(Vec::len).collect();
        // What may do harm if it is said twice has a connection of its own.
        assert_eq!(counts, [2, 2, 1]);
    });
}

#[test]
fn servers_that_do_not_answer_are_told_of() {
    run(async {
        let hub = Rc::new(hub());
        let twice = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab";
        for (answer, reason) in [
            ("", "closed without an answer"),
            ("SSH-2.0-x\r\n", "no HTTP/1"),
            ("HTTP/1.1 200 OK\r\nA: b", "closed within its answer"),
            (twice, "two Content-Length"),
            ("HTTP/1.1 101 Go\r\n\r\n", "changed the protocol"),
        ] {
            let server = server(vec![vec![answer.to_owned()]], 1000).await;
            let page = talk(&hub, &get(server.to, "/")).await;
            assert!(page.starts_with("HTTP/1.1 502 "), "{answer:?}: {page}");
            assert!(page.contains(reason), "{answer:?}: {page}");
        }
        let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = nobody.local_addr().expect("bound");
        drop(nobody);
        assert!(talk(&hub, &get(to, "/")).await.starts_with("HTTP/1.1 502 "));
        // A next request that is none.
        let server = server(vec![vec![ok("1")]], 1000).await;
        let words = format!("{}GET nonsense\r\n\r\n", get(server.to, "/"));
        let answers = talk(&hub, &words).await;
        assert!(
            answers.starts_with(&format!("{}HTTP/1.1 400 ", ok("1"))),
            "{answers}"
        );
        assert!(hub.live.borrow().is_empty());
    });
}

#[test]
fn a_part_is_never_taken_for_the_whole() {
    run(async {
        let hub = Rc::new(hub());
        let bad = [
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc".to_owned(),
            format!("{CHUNKED}3\r\nabcd\r\n"),
        ];
        for answer in bad {
            let server = server(vec![vec![answer.clone()]], 1000).await;
            let mut stream = client(&hub).await;
            let request = get(server.to, "/");
            stream
                .write_all(request.as_bytes())
                .await
                .expect("it reads");
            let mut all = Vec::new();
            let outcome = stream.read_to_end(&mut all).await;
            // Of what came at once nothing was passed on.
            let is_told = all.starts_with(b"HTTP/1.1 502 ");
            assert!(outcome.is_err() || is_told, "it ends plainly: {answer}");
        }
    });
}

#[test]
fn what_a_server_adds_to_its_answer_reaches_nobody() {
    run(async {
        let hub = Rc::new(hub());
        let more = format!("{}{}", ok("1"), ok("an answer to nobody"));
        let server = server(vec![vec![more], vec![ok("2")]], 1000).await;
        let words = get(server.to, "/1") + &last(&get(server.to, "/2"));
        let answers = talk(&hub, &words).await;
        assert!(
            answers.starts_with(&ok("1")) && answers.ends_with("\r\n\r\n2"),
            "{answers}"
        );
        assert!(!answers.contains("nobody"), "{answers}");
        assert_eq!(server.heads.borrow().len(), 2);
    });
}

#[test]
fn each_request_is_placed_anew_and_counted_on_its_link() {
    run(async {
        // In turn, by round robin.
        let hub = hub();
        hub.locals.borrow_mut().clear();
        let links = ["lo", "lo"].map(|device| add_link(&hub, device));
        let hub = Rc::new(hub);
        let body = "x".repeat(50_000);
        let script = vec![ok(&body); 2];
        let server = server(vec![script.clone(), script], 20_000).await;
        let words = get(server.to, "/").repeat(3) + &last(&get(server.to, "/"));
        let answers = talk(&hub, &words).await;
        assert_eq!(
            answers.len(),
            4 * ok(&body).len() + "Connection: close\r\n".len()
        );
        let counts: Vec<usize> = server.heads.borrow().iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 2], "one connection a link");
        let placer = hub.placer.borrow();
        for LinkId(index) in links {
            assert_eq!(placer.links()[index].rx_bytes, 2 * ok(&body).len() as u64);
        }
    });
}

/// A client's connection to `to`, made as SOCKS would and overheard.
async fn overheard(hub: &Rc<Hub>, to: SocketAddr) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (stream, accepted) = tokio::join!(
        TcpStream::connect(listener.local_addr().expect("bound")),
        listener.accept()
    );
    let (accepted, from) = accepted.expect("connected");
    let hub = Rc::clone(hub);
    spawn_local(async move {
        let request = Request::tunnel(crate::handshake::Protocol::Socks5, to.into(), Vec::new());
        let opened = client::open(&hub, from, None, &request).await;
        let Ok((_, Opened::Plain(session, upstream))) = opened else {
            panic!("a connection");
        };
        overhear(&hub, accepted, from, None, upstream, *session, request).await;
    });
    stream.expect("connected")
}

async fn say(stream: &mut TcpStream, words: &str) {
    stream
        .write_all(words.as_bytes())
        .await
        .expect("somebody reads");
}

async fn hear(stream: &mut TcpStream, words: &str) {
    let mut heard = vec![0; words.len()];
    stream.read_exact(&mut heard).await.expect("all comes");
    assert_eq!(String::from_utf8_lossy(&heard), words);
}

#[test]
fn overheard_requests_are_placed_anew_and_go_through_as_they_are() {
    run(async {
        let hub = hub();
        hub.locals.borrow_mut().clear();
        for device in ["lo", "lo"] {
            add_link(&hub, device);
        }
        let hub = Rc::new(hub);
        let answer = "HTTP/1.1 200 Fine\r\nKeep-Alive: 5\r\nConnection: keep-alive\r\ncontent-length: 1\r\n\r\nx";
        let script = vec![answer.to_owned(); 2];
        let server = server(vec![script.clone(), script], 3).await;
        let mut stream = overheard(&hub, server.to).await;
        let request = "GET /a HTTP/1.1\r\nhost: b\r\nConnection: keep-alive\r\n\r\n";
        for _ in 0..4 {
            // In two pieces.
            let (begin, end) = request.split_at(20);
            say(&mut stream, begin).await;
            time::sleep(Duration::from_millis(5)).await;
            say(&mut stream, end).await;
            hear(&mut stream, answer).await;
        }
        let heads = server.heads.borrow();
        assert_eq!(
            *heads,
            vec![vec![request.to_owned(); 2]; 2],
            "over both links"
        );
    });
}

#[test]
fn what_is_no_request_stays_a_connection() {
    run(async {
        let hub = Rc::new(hub());
        let upgrade =
            "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let switch = "HTTP/1.1 101 Go\r\n\r\n";
        let echo = "\x01\r\n\r\n";
        let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for is_first in [true, false] {
            let mut script = vec![switch.to_owned(), echo.to_owned()];
            if !is_first {
                script.insert(0, ok("page"));
            }
            let scripts = if is_first {
                vec![script]
            } else {
                vec![script[..1].to_vec(), script[1..].to_vec()]
            };
            let server = server(scripts, 1000).await;
            let mut stream = overheard(&hub, server.to).await;
            if !is_first {
                say(&mut stream, request).await;
                hear(&mut stream, &ok("page")).await;
            }
            say(&mut stream, upgrade).await;
            hear(&mut stream, switch).await;
            say(&mut stream, echo).await;
            hear(&mut stream, echo).await;
            assert_eq!(stream.read(&mut [0]).await.expect("an end"), 0);
        }
        // Not what it was asked for, to its end.
        let server = server(vec![vec!["ICY 200 OK\r\n\r\nmusic".to_owned()]], 4).await;
        let mut stream = overheard(&hub, server.to).await;
        say(&mut stream, request).await;
        let mut all = String::new();
        stream.read_to_string(&mut all).await.expect("text");
        assert_eq!(all, "ICY 200 OK\r\n\r\nmusic");
    });
}

#[test]
fn a_server_may_speak_first() {
    run(async {
        let hub = Rc::new(hub());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = listener.local_addr().expect("bound");
        let mut stream = overheard(&hub, to).await;
        let (mut server, _) = listener.accept().await.expect("it came");
        say(&mut server, "220 hello\r\n").await;
        hear(&mut stream, "220 hello\r\n").await;
        say(&mut stream, "GET /").await;
        hear(&mut server, "GET /").await;
    });
}
