//! Sets up a tunnel and downloads over several links: `gateway init` and `invite` on one side, `join` on the other.

use std::{
    fs,
    io::Write as _,
    net::UdpSocket,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    thread,
    time::Duration,
};

use pleach_lab::netns::Netns;
use pleach_linux::netns::run_in;
use serde_json::Value;

use crate::{
    process::{Daemon, drops, feed, link},
    traffic::{Target, tcp},
    world::{World, assert_same, has_settled, picture, run, until, within},
};

/// An end of the tunnel: its host and the directory of its files.
struct End {
    host: Netns,
    dir: PathBuf,
}

impl End {
    fn new(world: &World, host: &Netns, name: &str) -> Self {
        Self {
            host: host.clone(),
            dir: world.dir.path().join(name),
        }
    }

    /// Runs `pleach COMMAND --dir DIR` with `input`.
    fn pleach(&self, command: &str, input: &str) -> Output {
        let mut process = self.host.command(env!("CARGO_BIN_EXE_pleach"));
        process
            .args(command.split_whitespace())
            .arg("--dir")
            .arg(&self.dir);
        feed(process, input)
    }

    /// Runs [`Self::pleach`], which must succeed. Returns its output.
    #[track_caller]
    fn does(&self, command: &str, input: &str) -> String {
        let output = self.pleach(command, input);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{command}: {}",
            errors(&output)
        );
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs [`Self::pleach`], which must fail with `code` and one line that contains all of `words`, and must leave
    /// nothing behind.
    #[track_caller]
    fn fails(&self, command: &str, input: &str, code: i32, words: &[&str]) {
        until("the host settles", || has_settled(&self.host));
        let before = (files(&self.dir), picture(&self.host));
        let output = self.pleach(command, input);
        assert_refused(command, &output, code, words);
        assert_eq!(files(&self.dir), before.0, "{command}: files");
        assert_same(command, &before.1, &picture(&self.host));
    }

    fn token(&self, name: &str) -> String {
        let text = self.does(&format!("gateway invite {name}"), "");
        let line = text.lines().next().expect("a line");
        assert!(line.starts_with("pleach1") && text.contains('█'), "{text}");
        line.to_owned()
    }

    fn start(&self, name: &str) -> Daemon {
        let path = |extension: &str| self.dir.join(format!("{name}.{extension}"));
        Daemon::with_file(&self.host, path("toml"), path("sock"))
    }

    /// Returns names and states of all clients.
    fn clients(&self) -> Vec<(String, String)> {
        let text = self.does("gateway clients --json", "");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        let clients = json["clients"].as_array().expect("a list").iter();
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        clients
            .map(|client| (text(&client["name"]), text(&client["state"])))
            .collect()
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn assert_refused(what: &str, output: &Output, code: i32, words: &[&str]) {
    let said = errors(output);
    assert_eq!(output.status.code(), Some(code), "{what}: {said}");
    assert_eq!(said.lines().count(), 1, "{what}: {said}");
    assert!(
        words.iter().all(|word| said.contains(word)),
        "{what}: {said}"
    );
}

/// Returns all files below `dir` with their contents, except those that wait for a repetition of the command.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path
            .extension()
            .is_none_or(|extension| extension != "sock" && extension != "log")
        {
            found.push((path.clone(), fs::read(&path).unwrap_or_default()));
        }
    }
    found.retain(|(path, _)| {
        path.parent()
            .is_none_or(|parent| !parent.ends_with("state/join"))
    });
    found.sort();
    found
}

fn ends(world: &World) -> (End, End) {
    (
        End::new(world, &world.gateway, "gateway"),
        End::new(world, &world.client, "client"),
    )
}

#[test]
fn a_token_makes_a_client_whose_download_uses_both_links() {
    let Some(world) = World::new() else { return };
    let (gateway, client) = ends(&world);
    let said = gateway.does("gateway init", "");
    assert!(
        said.contains("203.0.113.5:7700") && said.contains("UDP port 7700"),
        "{said}"
    );
    let made = files(&gateway.dir);
    let again = gateway.does("gateway init --port 7700", "");
    assert!(again.contains("already"), "{again}");
    assert_eq!(files(&gateway.dir), made, "a second init changes nothing");
    gateway.fails("gateway init --port 7701", "", 2, &["--port", "edit"]);

    // The invitation is made while the daemon runs, without informing the daemon.
    let daemon = gateway.start("gateway");
    daemon.until_up();
    let token = gateway.token("home");
    assert_eq!(
        gateway.clients(),
        [("home".to_owned(), "invited".to_owned())]
    );
    let said = client.does("join", &format!("your token:\n{token}\n"));
    assert!(
        said.contains("(l0): live") && said.contains("(l1): live"),
        "{said}"
    );
    assert_eq!(
        gateway.clients(),
        [("home".to_owned(), "enrolled".to_owned())]
    );
    let again = client.does("join", &token);
    assert!(again.contains("before"), "{again}");

    // Slow the links down: if one link could carry all traffic, the other would carry none.
    world.slow();
    let up = client.start("client");
    up.until_links_up(&["l0", "l1"]);
    let server = Target::new(&world.server, "10.99.0.2");
    let sent = |status: &Value, name: &str| {
        link(status, name).map_or(0, |link| link["rx_bytes"].as_u64().unwrap_or(0))
    };
    within(Duration::from_secs(30), || {
        tcp(&world.client, &server, 4_000_000).expect("a transfer");
        let status = up.status()?;
        let both = ["l0", "l1"]
            .iter()
            .all(|name| sent(&status, name) > 100_000);
        both.then_some(())
    })
    .expect("both links carry the download");

    // The token is used up: another host is refused without an answer, and the refusal is counted.
    let other = End::new(&world, &world.another(2), "other");
    let refused = drops(&daemon.until_up(), "enrolment_refused");
    other.fails("join", &token, 1, &["gateway", "invite"]);
    daemon.until("the refusal is counted", |status| {
        drops(status, "enrolment_refused") > refused
    });
    assert_eq!(gateway.clients().len(), 1);
    tcp(&world.client, &server, 100_000).expect("the client is not disturbed");

    // The next client is distinguished from the first, and both remain enrolled after a restart.
    let token = gateway.token("shop");
    other.does("join", &token);
    let mut daemon = daemon;
    daemon.stop();
    daemon.start_again();
    up.until_links_up(&["l0", "l1"]);
    let second = other.start("client");
    second.until_up();

    gateway.does("gateway remove home", "");
    up.until("a removed client is cut off", |status| {
        status["up"] == false
    });
    second.until_up();
    gateway.fails("gateway remove home", "", 1, &["no client", "clients"]);
    drop(up);
    client.does("leave", "");
    assert_eq!(files(&client.dir), []);
    let nothing = client.does("leave", "");
    assert!(nothing.contains("nothing to undo"), "{nothing}");
    // `leave` stops a running daemon, which undoes its changes.
    other.does("leave", "");
    let mut second = second;
    until("the daemon ends", || second.has_ended());
    assert_eq!(files(&other.dir), []);

    // The token contains the resolvers.
    let file = gateway.dir.join("gateway.toml");
    let mut text = fs::read_to_string(&file).expect("readable");
    text += "dns = [\"10.77.0.1\", \"fd77::1\"]\n";
    fs::write(&file, text).expect("written");
    let token = gateway.token("desk");
    other.does("join", &token);
    let text = fs::read_to_string(other.dir.join("client.toml")).expect("written");
    assert!(
        text.contains("\ndns = [\"10.77.0.1\", \"fd77::1\"]\n"),
        "{text}"
    );
    other.does("leave", "");
}

#[test]
fn a_client_whose_answer_was_lost_joins_with_the_same_token() {
    let Some(world) = World::new() else { return };
    let (gateway, client) = ends(&world);
    gateway.does("gateway init", "");
    let daemon = gateway.start("gateway");
    daemon.until_up();
    let token = gateway.token("home");
    // Cookie replies pass, responses do not.
    let mute = "table inet plMute { chain c { type filter hook output priority 0; udp sport 7700 @th,64,8 2 drop; }; }";
    run(&world.gateway, "nft", &mute.split(' ').collect::<Vec<_>>());
    client.fails(
        "join",
        &token,
        1,
        &["does not accept this token", "try once more"],
    );
    assert_eq!(
        gateway.clients(),
        [("home".to_owned(), "enrolled".to_owned())]
    );
    run(
        &world.gateway,
        "nft",
        &["delete", "table", "inet", "plMute"],
    );
    let said = client.does("join", &token);
    assert!(said.contains("live"), "{said}");
    let up = client.start("client");
    up.until_links_up(&["l0", "l1"]);
    assert!(
        !client.dir.join("state").exists(),
        "the waiting key is gone"
    );
}

#[test]
fn tokens_that_are_damaged_foreign_expired_or_withdrawn_are_refused() {
    let Some(world) = World::new() else { return };
    let (gateway, client) = ends(&world);
    gateway.fails("gateway invite home", "", 1, &["gateway init"]);
    gateway.does("gateway init", "");
    gateway.fails("gateway invite ../x", "", 2, &["name"]);
    gateway.fails("gateway invite home --expires 1s", "", 2, &["expires"]);
    let daemon = gateway.start("gateway");
    daemon.until_up();
    let token = gateway.token("home");

    client.fails("join", "", 2, &["no token", "pleach gateway invite"]);
    client.fails("join", "pleach1abcdef", 2, &["damaged", "copy"]);
    let mut altered = token.clone().into_bytes();
    altered[40] = if altered[40] == b'a' { b'b' } else { b'a' };
    let altered = String::from_utf8(altered).expect("ASCII");
    client.fails("join", &altered, 2, &["damaged"]);
    client.fails(
        "join --token-file /nowhere",
        "",
        2,
        &["/nowhere", "cannot be read"],
    );
    // Other users see arguments, so a token is not accepted as an argument.
    let output = client.pleach(&format!("join {token}"), "");
    assert_eq!(output.status.code(), Some(2));

    // A token of another gateway: this gateway does not answer.
    let foreign = End::new(&world, &world.gateway, "foreign");
    foreign.does("gateway init --port 7701", "");
    let stray = foreign.token("home");
    client.fails(
        "join",
        &stray,
        1,
        &["does not answer", "203.0.113.5:7701", "firewall"],
    );

    // The invitation has expired.
    let invitations = gateway.dir.join("state/gateway/invitations");
    let file = fs::read_dir(&invitations)
        .expect("store")
        .flatten()
        .next()
        .expect("one");
    let text = fs::read_to_string(file.path()).expect("readable");
    let mut json: Value = serde_json::from_str(&text).expect("JSON");
    json["expires_at"] = 1.into();
    fs::write(file.path(), json.to_string()).expect("written");
    assert_eq!(
        gateway.clients(),
        [("home".to_owned(), "expired".to_owned())]
    );
    client.fails("join", &token, 1, &["token", "invite"]);
    daemon.until("it is counted", |status| {
        drops(status, "enrolment_refused") > 0
    });
    assert_eq!(gateway.clients(), []);

    // The invitation was withdrawn.
    let token = gateway.token("home");
    gateway.does("gateway remove home", "");
    client.fails("join", &token, 1, &["token", "invite"]);

    // Finally, the token is read from a file.
    let file = world.dir.path().join("token");
    fs::write(&file, gateway.token("home")).expect("written");
    client.does(&format!("join --token-file {}", file.display()), "");
}

#[test]
fn a_host_that_lacks_something_is_told_what_and_left_as_it_was() {
    let Some(world) = World::new() else { return };
    let (gateway, client) = ends(&world);
    let place = world.gateway.path();
    let holder = run_in(&place, || UdpSocket::bind("[::]:7700")).expect("namespace");
    let holder = holder.expect("a free port");
    gateway.fails("gateway init", "", 1, &["7700", "taken", "--port"]);
    drop(holder);

    // Each command runs in a mount namespace of its own, with DIR on a file system of its own.
    let with = |end: &End, mount: &str, command: &str, input: &str| {
        fs::create_dir_all(&end.dir).expect("directory");
        let script = format!(
            "{mount} && exec \"$0\" {command} --dir {}",
            end.dir.display()
        );
        let mut process = end.host.command("unshare");
        process.args(["-m", "sh", "-c", &script, env!("CARGO_BIN_EXE_pleach")]);
        feed(process, input)
    };
    let on = |end: &End, options: &str| {
        format!("mount -t tmpfs -o {options} tmpfs {}", end.dir.display())
    };
    let no_tun = "mount -t tmpfs tmpfs /dev/net";
    let read_only = on(&gateway, "ro");
    let full = on(&gateway, "size=4k");
    for (mount, words) in [
        (no_tun, ["TUN", "modprobe tun"]),
        (&read_only, ["Read-only file system", "writable"]),
        (&full, ["No space left", "free some space"]),
    ] {
        let output = with(&gateway, mount, "gateway init", "");
        assert_refused(mount, &output, 1, &words);
    }
    assert_eq!(files(&gateway.dir), []);

    gateway.does("gateway init", "");
    let daemon = gateway.start("gateway");
    daemon.until_up();
    let token = gateway.token("home");
    let before = picture(&world.client);
    let read_only = on(&client, "ro");
    let full = on(&client, "size=4k");
    for (mount, words) in [
        (no_tun, ["TUN", "modprobe tun"]),
        (&read_only, ["Read-only file system", "writable"]),
        (&full, ["No space left", "free some space"]),
    ] {
        let output = with(&client, mount, "join", &token);
        assert_refused(mount, &output, 1, &words);
    }
    let lonely = End::new(&world, &world.server, "lonely");
    lonely.fails("join", &token, 1, &["no uplink", "203.0.113.5", "connect"]);
    // None of these attempts has used the invitation up.
    assert_eq!(
        gateway.clients(),
        [("home".to_owned(), "invited".to_owned())]
    );
    assert_same("the client's host", &before, &picture(&world.client));
    assert_eq!(files(&client.dir), []);

    // Use an inner network that the host already uses.
    let inner = fs::read_to_string(gateway.dir.join("gateway.toml")).expect("readable");
    let inner = inner
        .lines()
        .find_map(|line| line.strip_prefix("address = [\""))
        .expect("address");
    let inner = inner
        .split('"')
        .next()
        .expect("IPv4")
        .replace(".1/", ".200/");
    let name = |verb: &str| world.client.ip(&format!("addr {verb} {inner} dev l0\n"));
    name("add").expect("address");
    client.fails("join", &token, 1, &["overlaps", "[tunnel] address"]);
    name("del").expect("address");

    client.does("join", &token);
    client.fails(
        "join",
        &gateway.token("other"),
        1,
        &["client already", "leave"],
    );
    fs::write(client.dir.join("client.toml"), "mode = \"client\"\n").expect("by hand");
    client.fails("leave", "", 1, &["not written by", "yourself"]);
    let token = gateway.token("third");
    client.fails("join", &token, 1, &["client already", "has not written"]);
}

#[test]
fn commands_that_were_killed_are_repeated() {
    let Some(world) = World::new() else { return };
    let (gateway, client) = ends(&world);
    // Kills a command after `millis`, wherever it is at that time.
    let kill_after = |end: &End, command: &str, input: &str, millis: u64| {
        let mut process = end.host.command(env!("CARGO_BIN_EXE_pleach"));
        process
            .args(command.split_whitespace())
            .arg("--dir")
            .arg(&end.dir);
        process
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = process.spawn().expect("starts");
        let _ = child
            .stdin
            .take()
            .expect("piped")
            .write_all(input.as_bytes());
        thread::park_timeout(Duration::from_millis(millis));
        let _ = child.kill();
        let _ = child.wait();
    };
    let delays = [1, 2, 4, 6, 8, 10, 14, 20, 30];
    for millis in delays {
        kill_after(&gateway, "gateway init", "", millis);
    }
    gateway.does("gateway init", "");
    let daemon = gateway.start("gateway");
    daemon.until_up();
    let token = gateway.token("home");
    for millis in delays {
        kill_after(&client, "join", &token, millis);
    }
    client.does("join", &token);
    let up = client.start("client");
    up.until_links_up(&["l0", "l1"]);
    assert_eq!(gateway.clients().len(), 1);
}

/// Uses the default directories, and a service manager that only records its arguments.
#[test]
fn services_are_started_and_stopped_where_systemd_runs() {
    let Some(world) = World::new() else { return };
    let root = world.dir.path().join("root");
    let calls = root.join("calls");
    fs::create_dir_all(root.join("bin")).expect("directory");
    fs::create_dir_all(root.join("etc/systemd/system")).expect("directory");
    let script = format!("#!/bin/sh\necho \"$@\" >> {}\n", calls.display());
    fs::write(root.join("bin/systemctl"), script).expect("written");
    run(
        &world.gateway,
        "chmod",
        &["755", &root.join("bin/systemctl").display().to_string()],
    );
    let script = format!(
        "set -e; root={}; export PATH=$root/bin:$PATH
         mount --bind $root/etc /etc
         mount -t tmpfs tmpfs /var/lib
         mount -t tmpfs tmpfs /run; mkdir -p /run/systemd/system
         $0 gateway init
         token=$($0 gateway invite home 2>/dev/null | head -1)
         ls -l /var/lib/pleach/gateway/invitations | grep -c json
         grep -h ExecStart /etc/systemd/system/pleach@.service
         stat -c '%a %n' /etc/pleach /etc/pleach/* /var/lib/pleach/gateway
         $0 leave
         printf '# Joined by invitation 00\\n' > /etc/pleach/client.toml
         rm /etc/pleach/gateway.toml
         $0 leave
         ls /etc/systemd/system",
        root.display()
    );
    let program = env!("CARGO_BIN_EXE_pleach");
    let mut process = world.gateway.command("unshare");
    process.args(["-m", "sh", "-c", &script, program]);
    let output = feed(process, "");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", errors(&output));
    assert!(said.contains("service pleach@gateway"), "{said}");
    assert!(
        said.contains(&format!("ExecStart={program} up /etc/pleach/%i.toml")),
        "{said}"
    );
    for mode in [
        "600 /etc/pleach/gateway.key",
        "600 /etc/pleach/gateway.toml",
        "755 /etc/pleach",
        "700 /var/lib/pleach/gateway",
    ] {
        assert!(said.contains(mode), "{mode}: {said}");
    }
    assert!(
        said.contains("nothing to undo") && said.contains("no client any more"),
        "{said}"
    );
    let calls = fs::read_to_string(&calls).expect("calls");
    let calls: Vec<&str> = calls.lines().collect();
    let expected = [
        "daemon-reload",
        "enable --now pleach@gateway",
        "disable --now pleach@client",
        "daemon-reload",
    ];
    assert_eq!(calls, expected);
    assert_eq!(
        fs::read_dir(root.join("etc/systemd/system"))
            .expect("there")
            .count(),
        0
    );
}
