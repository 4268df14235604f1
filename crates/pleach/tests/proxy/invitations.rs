//! Two proxies that know each other by `peer invite` at one end and `peer accept` at the other.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use pleach_lab::netns::Netns;
use serde_json::Value;

use crate::{
    client::{self, Way},
    peers::lanes,
    world::{ECHO_PORT, HTTP_PORT, Proxy, SERVER, World, content},
};

/// One end: its host and the directory of its files.
struct End<'a> {
    host: &'a Netns,
    dir: PathBuf,
}

impl<'a> End<'a> {
    fn new(world: &World, host: &'a Netns, name: &str) -> Self {
        let dir = world.dir.path().join(name);
        Self { host, dir }
    }

    fn file(&self) -> PathBuf {
        self.dir.join("proxy.toml")
    }

    /// Runs `pleach peer COMMAND --no-start --dir DIR` with `input`.
    fn peer(&self, command: &str, input: &str) -> Output {
        let mut process = self.host.command(env!("CARGO_BIN_EXE_pleach"));
        let process = process.arg("peer").args(command.split_whitespace());
        let mut child = process
            .arg("--dir")
            .arg(&self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        // A command that reads nothing may have ended.
        let _ = child
            .stdin
            .take()
            .expect("piped")
            .write_all(input.as_bytes());
        child.wait_with_output().expect("ends")
    }

    #[track_caller]
    fn does(&self, command: &str, input: &str) -> String {
        let output = self.peer(command, input);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// It must fail with `code` and one line that has `words`, and change no file but a key that another attempt may need.
    #[track_caller]
    fn fails(&self, command: &str, input: &str, code: i32, words: &str) {
        let own = || {
            let mut files = files(&self.dir);
            files.retain(|(path, _)| !path.ends_with("peer.key"));
            files
        };
        let before = own();
        let output = self.peer(command, input);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{command}: {said}");
        assert!(said.lines().count() == 1 && said.contains(words), "{said}");
        assert_eq!(own(), before, "{command}");
    }

    fn token(&self, name: &str) -> String {
        let text = self.does(&format!("invite {name} --no-start"), "");
        let line = text.lines().next().expect("a line");
        assert!(line.starts_with("pleachpeer1") && text.contains('█'));
        line.to_owned()
    }

    fn start(&self, link_count: usize) -> Proxy {
        let path = |name: &str| self.dir.join(name);
        let control = path("proxy.sock");
        Proxy::with_file(self.host, link_count, self.file(), control, path("log"))
    }
}

/// All files below `dir` with their contents, but sockets and logs.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if let Ok(content) = fs::read(&path)
            && path
                .file_name()
                .is_none_or(|name| name != "log" && name != "lock")
        {
            found.push((path, content));
        }
    }
    found.sort();
    found
}

/// A connection to the server's echo; whether it is striped.
fn is_striped(proxy: &Proxy) -> bool {
    let mut stream = client::tunnel(ECHO_PORT).expect("connects");
    stream.write_all(b"x").expect("takes it");
    stream.read_exact(&mut [0]).expect("says it back");
    let status = proxy.until("it is there", |status| status["connection_count"] == 1);
    drop(stream);
    proxy.until("it is gone", |status| status["connection_count"] == 0);
    status["connections"][0]["striped"].is_object()
}

const LINKS: &str = "mode = \"proxy\"\n[proxy]\nlisten = \"127.0.0.1:1080\"\ncontrol = \"CONTROL\"\n\n[[link]]\nname = \"wifi\"\ndevice = \"wifi\"\n[[link]]\nname = \"lte\"\ndevice = \"lte\"\n";

#[test]
fn a_token_makes_two_proxies_peers_and_remove_undoes_it() {
    let Some(world) = World::new() else { return };
    let server = End::new(&world, &world.topology.server, "server");
    let laptop = End::new(&world, world.client(), "laptop");
    let thief = End::new(&world, world.client(), "thief");
    fs::create_dir(&laptop.dir).expect("directory");
    let control = laptop.dir.join("proxy.sock").display().to_string();
    let own = LINKS.replace("CONTROL", &control);
    Proxy::write(&laptop.file(), &own);

    let token = server.token("laptop");
    let secrets = files(&server.dir);
    let raw = token.trim_start_matches("pleachpeer1");
    assert!(
        secrets
            .iter()
            .all(|(_, content)| !String::from_utf8_lossy(content).contains(&raw[..40]))
    );
    laptop.fails("accept --no-start", &token, 1, "does not answer");
    assert!(!laptop.dir.join("peer.key").exists(), "nobody got it");
    let peer = server.start(1);
    laptop.fails("accept --no-start", &token[..99], 2, "damaged");
    laptop.fails("accept --no-start", "pleach", 2, "no token");
    laptop.does("accept --no-start --name server", &token);
    // It is used up for everybody else, and goes on to work for who used it.
    thief.fails("accept --no-start", &token, 1, "used up");
    laptop.does("accept --no-start --name server", &token);
    // At each address in the token.
    let drops = peer.status().expect("it runs")["drops"].clone();
    assert!(drops["enrolment-refused"].as_u64() >= Some(1), "{drops}");

    let proxy = laptop.start(2);
    let download = || {
        let mut stream = client::tunnel(HTTP_PORT)?;
        write!(stream, "GET /2000000 HTTP/1.1\r\nHost: {SERVER}\r\n\r\n")?;
        client::read_head(&mut stream)?;
        let mut body = vec![0; 2_000_000];
        stream.read_exact(&mut body[..1_000_000])?;
        let status = proxy.until("both links are in use", |status| lanes(status).len() == 2);
        assert_eq!(status["connections"][0]["striped"]["peer"], "server");
        stream.read_exact(&mut body[1_000_000..])?;
        assert!(body == content(2_000_000));
        drop(stream);
        proxy.until("it is gone", |status| status["connection_count"] == 0);
        Ok(())
    };
    laptop.host.run(download).expect("inside");

    // The running proxy forgets one peer and takes another, without a restart.
    let second = server.token("tablet");
    server.fails("invite laptop --no-start", "", 1, "already");
    server.does("remove laptop", "");
    let plain = || {
        assert!(!is_striped(&proxy));
        assert!(client::download(Way::Socks5, "20000")? == content(20_000));
        Ok(())
    };
    laptop.host.run(plain).expect("inside");
    laptop.does("remove server", "");
    laptop.does("accept --no-start --name desk", &second);
    server.fails("remove laptop", "", 1, "no peer");
    drop(proxy);
    let proxy = laptop.start(2);
    let striped = || {
        assert!(is_striped(&proxy));
        Ok(())
    };
    laptop.host.run(striped).expect("inside");

    laptop.does("remove desk", "");
    let left = files(&laptop.dir);
    assert_eq!(left, [(laptop.file(), own.into_bytes())]);
    // The last one takes the proxy with it that `invite` has made.
    server.does("remove tablet", "");
    assert_eq!(peer.status(), None::<Value>);
    assert_eq!(files(&server.dir), []);
}
