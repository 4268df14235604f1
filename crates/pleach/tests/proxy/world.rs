//! A host with two emulated links, a server that both links reach, and the proxy on the host.

use std::{
    fs::{self, OpenOptions},
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{linux::fs::MetadataExt as _, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::LazyLock,
    thread,
    time::Duration,
};

use pleach_lab::{
    netns::Netns,
    topology::{Reach, Topology},
};
use pleach_linux::{clock, requirement};
use pleach_sim::scenario::{Event, Scenario};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Address of the server, which both links reach.
pub(crate) const SERVER: &str = "10.99.0.2";
pub(crate) const HTTP_PORT: u16 = 8000;
/// Port that echoes all data, over TCP and UDP.
pub(crate) const ECHO_PORT: u16 = 7;
/// Port that accepts a connection, reads one byte, and resets the connection.
pub(crate) const RESET_PORT: u16 = 9;
/// Port that answers requests and keeps the connection open, whatever the `Connection` fields of request and answer
/// say.
pub(crate) const STUBBORN_PORT: u16 = 12;
/// Port that answers requests over a connection until the client closes it.
pub(crate) const KEEPING_PORT: u16 = 13;
/// Port that answers the first request of a connection and closes the connection at the second.
pub(crate) const FICKLE_PORT: u16 = 14;
/// Port that answers as soon as the head of a request has arrived. It reads the 100 kB after the head if the request is
/// for `/on`, and otherwise reads nothing more.
pub(crate) const EARLY_PORT: u16 = 15;
/// Port that answers `GET /N` with N bytes of [`content`], and supports requests for ranges. Some paths answer a
/// request for a range in a wrong way:
///
/// - `/all/N` returns a complete new file.
/// - `/other/N` returns a range that is labelled as beginning one byte earlier.
/// - `/broken/N` returns half of the range and then closes the connection, if the range is long.
pub(crate) const PARTS_PORT: u16 = 16;
/// Port that accepts connections and closes them.
pub(crate) const MUTE_PORT: u16 = 11;
/// Port at which another pleach proxy answers.
pub(crate) const PEER_PORT: u16 = 7701;
pub(crate) const PROXY: &str = "127.0.0.1:1080";

/// Scenario with links of 20 and 10 Mbit/s.
const LINKS: &str = r#"
name = "proxy"
duration = "60s"
[[link]]
name = "wifi"
rate = "20Mbit"
delay = "5ms"
queue = "60kB"
[[link]]
name = "lte"
rate = "10Mbit"
delay = "15ms"
queue = "60kB"
[[traffic]]
kind = "ping"
"#;

pub(crate) struct World {
    pub(crate) topology: Topology,
    pub(crate) dir: TempDir,
}

impl World {
    /// Creates the hosts and links. Prints a message and returns `None` if network namespaces are not allowed.
    pub(crate) fn new() -> Option<Self> {
        Self::with_events("").map(|(world, _)| world)
    }

    /// Creates the hosts and links. Also returns the events that `events` describes.
    pub(crate) fn with_events(events: &str) -> Option<(Self, Vec<Event>)> {
        Self::with_links(LINKS, events)
    }

    /// Creates the hosts with the links of the scenario `links`, which must have the names of the links in [`LINKS`].
    pub(crate) fn with_links(links: &str, events: &str) -> Option<(Self, Vec<Event>)> {
        LazyLock::force(&CONTENT);
        if let Err(error) = Netns::new("probe") {
            requirement::skip(format_args!("{error:#}"));
            return None;
        }
        let text = format!("{links}{events}");
        let scenario = Scenario::parse_alone("test.toml", &text).expect("valid scenario");
        let topology = Topology::build(&scenario, Reach::Links, 1).expect("hosts and links");
        let start = clock::now();
        topology.emulator.begin(start, &scenario.events);
        serve(&topology.server);
        let dir = TempDir::new().expect("temporary directory");
        Some((Self { topology, dir }, scenario.events))
    }

    pub(crate) fn client(&self) -> &Netns {
        &self.topology.client
    }

    /// Starts the proxy. `more` is added to `[proxy]`, and `rest` to the end of the configuration.
    pub(crate) fn proxy(&self, more: &str, rest: &str) -> Proxy {
        let number = fs::read_dir(self.dir.path()).expect("directory").count();
        let path = |extension: &str| self.dir.path().join(format!("{number}.{extension}"));
        let (file, control, log) = (path("toml"), path("sock"), path("log"));
        let text = format!(
            "mode = \"proxy\"\n[proxy]\nlisten = \"{PROXY}\"\ncontrol = \"{}\"\n{more}\n\
             [[link]]\nname = \"wifi\"\ndevice = \"wifi\"\n[[link]]\nname = \"lte\"\ndevice = \"lte\"\n{rest}",
            control.display()
        );
        Proxy::start(self.client(), &text, 2, file, control, log)
    }

    /// Starts a proxy on the server's host that answers peers on [`PEER_PORT`]. `peer` is added to the section `[peer]`
    /// and after it.
    pub(crate) fn peer(&self, striping: &str, peer: &str) -> Proxy {
        let number = fs::read_dir(self.dir.path()).expect("directory").count();
        let path = |extension: &str| self.dir.path().join(format!("peer{number}.{extension}"));
        let (file, control, log) = (path("toml"), path("sock"), path("log"));
        let text = format!(
            "mode = \"proxy\"\n[proxy]\nlisten = \"{PROXY}\"\ncontrol = \"{}\"\nstriping = \"{striping}\"\n\
             [peer]\nlisten = \"0.0.0.0:{PEER_PORT}\"\n{peer}",
            control.display()
        );
        Proxy::start(&self.topology.server, &text, 1, file, control, log)
    }
}

/// A proxy process. It is killed when dropped, and its log is printed if the test fails.
pub(crate) struct Proxy {
    child: Child,
    control: PathBuf,
    log: PathBuf,
}

impl Proxy {
    pub(crate) fn start(
        host: &Netns,
        text: &str,
        link_count: usize,
        file: PathBuf,
        control: PathBuf,
        log: PathBuf,
    ) -> Self {
        Self::write(&file, text);
        Self::with_file(host, link_count, file, control, log)
    }

    /// Writes a configuration file that only its owner may read.
    pub(crate) fn write(file: &Path, text: &str) {
        let private = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file);
        private
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .expect("configuration");
    }

    /// Starts the proxy with an existing configuration file.
    pub(crate) fn with_file(
        host: &Netns,
        link_count: usize,
        file: PathBuf,
        control: PathBuf,
        log: PathBuf,
    ) -> Self {
        let child = host
            .command(env!("CARGO_BIN_EXE_pleach"))
            .arg("proxy")
            .arg(&file)
            .env("RUST_LOG", "debug,rtnetlink=info,netlink_proto=info")
            .stderr(fs::File::create(&log).expect("log"))
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        let this = Self {
            child,
            control,
            log,
        };
        this.until("all links are up", |status| {
            let links = status["links"].as_array().expect("links");
            links.len() == link_count && links.iter().all(|link| link["state"] == "up")
        });
        this
    }

    /// Returns the output of `pleach status --json`. `None` if the proxy does not answer.
    pub(crate) fn status(&self) -> Option<Value> {
        let output = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .args(["status", "--json", "--control"])
            .arg(&self.control)
            .output()
            .expect("starts");
        let text = output.status.success().then_some(output.stdout)?;
        Some(serde_json::from_slice(&text).expect("JSON"))
    }

    /// Runs `pleach proxy set`. Returns its error message if it fails.
    pub(crate) fn set(&self, pairs: &[&str]) -> Result<(), String> {
        let output = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .args(["proxy", "set", "--control"])
            .arg(&self.control)
            .args(pairs)
            .output()
            .map_err(|error| error.to_string())?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then_some(()).ok_or(told)
    }

    /// Waits until the proxy's status fulfils `holds`.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = None;
        let found = within(PATIENCE, || {
            last = self.status();
            last.clone().filter(&holds)
        });
        found.unwrap_or_else(|| panic!("never happened: {what}; last status {last:?}"))
    }

    /// Returns the number of bytes received over `link`.
    pub(crate) fn received(status: &Value, link: &str) -> u64 {
        let links = status["links"].as_array().expect("links");
        let found = links.iter().find(|found| found["name"] == link);
        found.expect("such a link")["rx_bytes"]
            .as_u64()
            .expect("a number")
    }

    /// Number of the proxy's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The proxy's log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the number of open file descriptors of the proxy.
    pub(crate) fn descriptors(&self) -> usize {
        let directory = format!("/proc/{}/fd", self.child.id());
        fs::read_dir(directory).expect("it runs").count()
    }

    /// Returns the peak memory use of the proxy.
    pub(crate) fn peak_memory_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(path).expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number
            .and_then(|number| number.parse().ok())
            .expect("a number")
    }

    /// Waits until the proxy has no connection and as many descriptors as at `before`, except pipes that are stored for
    /// later use.
    #[track_caller]
    pub(crate) fn until_clean(&self, before: usize) {
        self.until("all connections are gone", |status| {
            status["connection_count"] == 0
        });
        let pipes = || {
            let directory = format!("/proc/{}/fd", self.child.id());
            let entries = fs::read_dir(directory).expect("it runs");
            let is_pipe = |path: &PathBuf| path.to_string_lossy().starts_with("pipe:");
            entries
                .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
                .filter(is_pipe)
                .count()
        };
        let clean = within(PATIENCE, || {
            (self.descriptors() - pipes() <= before).then_some(())
        });
        assert!(
            clean.is_some(),
            "{} descriptors, {before} before",
            self.descriptors()
        );
    }

    /// Asks the proxy to end, and asserts that it ends with success.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        let status = within(PATIENCE, || self.child.try_wait().expect("our child"));
        let status = status.expect("ends when asked");
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let from = log.len().saturating_sub(6000);
            eprintln!("log of the proxy:\n{}", log.get(from..).unwrap_or(&log));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Inode numbers of namespaces are reused, so the directory is removed.
        if let Ok(metadata) = fs::metadata(self.client().path()) {
            let _ = fs::remove_dir_all(format!("/run/pleach/net-{}", metadata.st_ino()));
        }
    }
}

/// Starts the servers. They end with the process.
fn serve(host: &Netns) {
    let accept = |port: u16, handle: fn(TcpStream) -> std::io::Result<()>| {
        let listener = host
            .run(|| Ok(TcpListener::bind(("::", port))?))
            .expect("server");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || handle(stream));
            }
        });
    };
    accept(HTTP_PORT, http);
    accept(ECHO_PORT, |mut stream| {
        std::io::copy(&mut stream.try_clone()?, &mut stream)?;
        stream.shutdown(std::net::Shutdown::Write)
    });
    accept(RESET_PORT, |mut stream| {
        stream.read_exact(&mut [0])?;
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))
    });
    accept(MUTE_PORT, |mut stream| {
        stream.shutdown(std::net::Shutdown::Write)?;
        std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
    });
    accept(STUBBORN_PORT, |mut stream| {
        while http_once(&mut stream, CLOSE).is_ok() {}
        Ok(())
    });
    accept(KEEPING_PORT, |mut stream| {
        while http_once(&mut stream, "").is_ok() {}
        Ok(())
    });
    accept(FICKLE_PORT, |mut stream| {
        http_once(&mut stream, "")?;
        stream.read_exact(&mut [0])
    });
    accept(EARLY_PORT, |mut stream| {
        loop {
            let head = head_of(&mut stream)?;
            let goes_on = head.starts_with(b"POST /on ");
            let end = if goes_on { "" } else { CLOSE };
            let answer = format!(
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n{end}\r\nearly"
            );
            stream.write_all(answer.as_bytes())?;
            if !goes_on {
                return stream.read_exact(&mut [0; 100]);
            }
            stream.read_exact(&mut vec![0; 100_000])?;
        }
    });
    accept(PARTS_PORT, |mut stream| {
        while parts_once(&mut stream)? {}
        Ok(())
    });
    let udp = host
        .run(|| Ok(UdpSocket::bind((SERVER, ECHO_PORT))?))
        .expect("server");
    thread::spawn(move || {
        let mut datagram = [0; 2000];
        while let Ok((len, from)) = udp.recv_from(&mut datagram) {
            let _ = udp.send_to(&datagram[..len], from);
        }
    });
}

/// Reads the head of the next request, and no byte after it.
fn head_of(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    Ok(head)
}

/// Answers requests. `GET /N` returns N bytes of [`content`], `GET /chunked/N` returns them in chunks, `POST` returns
/// the body of the request, `GET /head` returns the request's own head, and `GET /peer` returns the address of the
/// requester.
fn http(mut stream: TcpStream) -> std::io::Result<()> {
    http_once(&mut stream, CLOSE)?;
    stream.shutdown(std::net::Shutdown::Write)
}

/// Answers one request. `fields` are fields of the answer's head in addition to the fields that describe the body.
fn http_once(stream: &mut TcpStream, fields: &str) -> std::io::Result<()> {
    let head = head_of(stream)?;
    let text = String::from_utf8_lossy(&head).into_owned();
    let path = text.split(' ').nth(1).unwrap_or_default();
    let number = |text: &str| text.parse().unwrap_or(0);
    let body = if text.starts_with("POST") {
        let field = text
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let mut body = vec![0; field.map_or(0, number)];
        stream.read_exact(&mut body)?;
        body
    } else if path == "/head" {
        head
    } else if path == "/peer" {
        stream.peer_addr()?.to_string().into_bytes()
    } else if let Some(len) = path.strip_prefix("/chunked/") {
        write!(
            stream,
            "HTTP/1.1 200 OK\r\n{fields}Transfer-Encoding: chunked\r\n\r\n"
        )?;
        for chunk in content(number(len)).chunks(5_000) {
            write!(stream, "{:x}\r\n", chunk.len())?;
            stream.write_all(&[chunk, b"\r\n"].concat())?;
        }
        return stream.write_all(b"0\r\n\r\n");
    } else {
        content(number(path.trim_start_matches('/')))
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if text.starts_with("HEAD") {
        return Ok(());
    }
    stream.write_all(&body)
}

/// Answers one request to [`PARTS_PORT`]. Returns whether the connection stays open.
fn parts_once(stream: &mut TcpStream) -> std::io::Result<bool> {
    let head = head_of(stream)?;
    let text = String::from_utf8_lossy(&head).into_owned();
    let mut path = text.split(' ').nth(1).unwrap_or_default().rsplit('/');
    let (len, kind) = (path.next().unwrap_or_default(), path.next());
    let body = content(len.parse().unwrap_or(0));
    let field = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    let range = field("Range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let number = |text: &str| text.parse().unwrap_or(0);
    let range = range.map(|(first, last)| number(first)..number(last) + 1);
    let Some(range) = range else {
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nAccept-Ranges: bytes\r\nETag: \"{len}\"\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )?;
        stream.write_all(&body)?;
        return Ok(true);
    };
    assert_eq!(field("If-Range"), Some(format!("\"{len}\"").as_str()));
    if kind == Some("all") {
        let head = format!("HTTP/1.1 200 OK\r\nETag: \"new\"\r\nContent-Length: {len}\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        stream.write_all(&vec![7; body.len()])?;
        return Ok(true);
    }
    let shift = usize::from(kind == Some("other"));
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nETag: \"{len}\"\r\nContent-Length: {}\r\nContent-Range: bytes {}-{}/{len}\r\n\r\n",
        range.len(),
        range.start - shift,
        range.end - 1 - shift,
    )?;
    if kind == Some("broken") && range.len() > 10_000 {
        stream.write_all(&body[range.start..range.start + range.len() / 2])?;
        return Ok(false);
    }
    stream.write_all(&body[range])?;
    Ok(true)
}

const CLOSE: &str = "Connection: close\r\n";

/// Returns bytes that depend on their position, so that every shift or gap is detected.
pub(crate) fn content(len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let missing = len - bytes.len();
        bytes.extend_from_slice(&CONTENT[..missing.min(CONTENT.len())]);
    }
    bytes
}

/// Data for all answers. It is generated once, because its generation takes longer than some answers.
static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let word = |number: u32| number.wrapping_mul(2_654_435_761).to_le_bytes();
    (0..MOST_CONTENT / 4).flat_map(word).collect()
});

/// Maximum length of an answer in a test, in bytes. The longer downloads of benchmarks repeat the data.
const MOST_CONTENT: u32 = 24 << 20;

/// Calls `ask` every few milliseconds until it returns a value or `patience` is over.
pub(crate) fn within<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = clock::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if clock::now() >= deadline {
            return None;
        }
        thread::park_timeout(Duration::from_millis(20));
    }
}

/// Returns the proxy's address.
pub(crate) fn proxy_address() -> SocketAddr {
    PROXY.parse().expect("literal")
}

/// Time limit for events that must happen on any machine, however slow it is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
