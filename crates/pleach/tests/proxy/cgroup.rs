//! Sockets of programs bound to links by the kernel: the data do not pass through the proxy.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use pleach_lab::netns::Netns;
use pleach_linux::requirement;
use serde_json::Value;

use crate::world::{HTTP_PORT, PATIENCE, Proxy, SERVER, World, content, within};

const SERVER_V6: &str = "fd99::2";

/// A cgroup of the test, removed when dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes a cgroup. Returns `None`, and prints a message, if there is no cgroup v2 or if it must not be changed.
    fn new(name: &str) -> Option<Self> {
        let made = pleach_linux::cgroup_connect::root().and_then(|root| {
            let path = root.join(format!("pleach-{name}-{}", std::process::id()));
            fs::create_dir(&path).map(|()| Self(path))
        });
        made.inspect_err(|error| requirement::skip(format_args!("cgroup v2: {error}")))
            .ok()
    }

    fn keys(&self) -> String {
        format!(
            "transparent = \"cgroup\"\ncgroup = \"{}\"",
            self.0.display()
        )
    }

    /// Returns a command that runs `program` in this cgroup on `host`.
    fn command(&self, host: &Netns, program: &str) -> Command {
        let mut command = host.command("sh");
        command.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]);
        command.arg(&self.0).arg(program);
        command
    }

    /// Starts a download of `/size` to `file`.
    fn curl(&self, host: &Netns, server: &str, size: usize, file: &Path) -> Child {
        let mut command = self.command(host, "curl");
        command.args(["-s", "--max-time", "30", "-o"]).arg(file);
        command.arg(format!("http://{server}:{HTTP_PORT}/{size}"));
        command.stdin(Stdio::null()).spawn().expect("curl starts")
    }

    /// Whether a download works.
    fn reaches(&self, host: &Netns, server: &str) -> bool {
        let mut child = self.curl(host, server, 1000, Path::new("/dev/null"));
        child.wait().expect("our child").success()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The cgroup is empty once its last process has been reaped.
        let removed = within(PATIENCE, || fs::remove_dir(&self.0).ok());
        if removed.is_none() {
            eprintln!("{} is left behind", self.0.display());
        }
    }
}

/// Returns the number of sockets bound to `link` so far.
fn bound(status: &Value, link: &str) -> u64 {
    status["bound_sockets"][link].as_u64().expect("a number")
}

#[test]
fn sixteen_downloads_use_both_links_and_nothing_stays_behind() {
    let Some(world) = World::new() else { return };
    let Some(cgroup) = Cgroup::new("spread") else {
        return;
    };
    let host = world.client();
    let mut proxy = world.proxy(&cgroup.keys(), "");
    let before = proxy.until("it counts", |status| {
        status["bound_sockets"]["lte"].is_u64()
    });
    let size = 200_000;
    let file = |number: usize| world.dir.path().join(format!("{number}.download"));
    let mut running: Vec<Child> = (0..16)
        .map(|number| cgroup.curl(host, SERVER, size, &file(number)))
        .collect();
    for (number, child) in running.iter_mut().enumerate() {
        assert!(child.wait().expect("our child").success(), "{number}");
        let body = fs::read(file(number)).expect("downloaded");
        assert!(body == content(size), "download {number} differs");
    }
    let total = |status: &Value| bound(status, "wifi") + bound(status, "lte");
    let status = proxy.until("all were counted", |status| {
        total(status) - total(&before) >= 16
    });
    assert_eq!(total(&status) - total(&before), 16, "{status}");
    assert_eq!(status["connection_count"], 0, "none through the proxy");
    for link in ["wifi", "lte"] {
        assert!(bound(&status, link) >= 3, "{status}");
        let carried = Proxy::received(&status, link) - Proxy::received(&before, link);
        assert!(carried >= 3 * 200_000, "{status}");
    }
    // Connections to this host and to the subnet of a link are not bound and not counted.
    for near in ["10.100.0.1", "127.0.0.1"] {
        let mut curl = cgroup.command(host, "curl");
        let url = format!("http://{near}:1/");
        let refused = curl.args(["-s", "--max-time", "2", &url]).status();
        assert!(!refused.expect("curl runs").success());
    }
    // Longer than the update interval, so that the count is up to date.
    std::thread::park_timeout(Duration::from_millis(600));
    assert_eq!(total(&proxy.status().expect("it runs")), total(&status));
    proxy.stop();
    assert!(cgroup.reaches(host, SERVER), "after it ended");
}

#[test]
fn both_families_and_rules_and_dead_links() {
    let Some(world) = World::new() else { return };
    let Some(cgroup) = Cgroup::new("rules") else {
        return;
    };
    let host = world.client();
    let rule = format!(
        "[[rule]]\ndestination = \"{SERVER_V6}\"\nlink = \"lte\"\nstrict = true\n\
         [[rule]]\napp = \"nobody\"\nlink = \"wifi\"\n"
    );
    let keys = format!("{}\nscheduler = \"round-robin\"", cgroup.keys());
    let proxy = world.proxy(&keys, &rule);
    let counts = |what: &str, wifi: u64, lte: u64| {
        proxy.until(what, |status| {
            (bound(status, "wifi"), bound(status, "lte")) == (wifi, lte)
        })
    };
    // IPv6 takes a moment on new links.
    let server_v6 = format!("[{SERVER_V6}]");
    let works = within(PATIENCE, || cgroup.reaches(host, &server_v6).then_some(()));
    works.expect("IPv6 works");
    let status = proxy.until("it is counted", |status| bound(status, "lte") > 0);
    assert_eq!(bound(&status, "wifi"), 0, "the rule says lte");
    let lte = bound(&status, "lte");
    assert!(cgroup.reaches(host, SERVER) && cgroup.reaches(host, SERVER));
    counts("one on each", 1, lte + 1);
    // An IPv4-mapped address on an IPv6 socket is assigned to a link like any other address.
    let mapped = format!("[::ffff:{SERVER}]");
    assert!(cgroup.reaches(host, &mapped) && cgroup.reaches(host, &mapped));
    counts("one more on each", 2, lte + 2);

    host.ip("link set dev lte down\n").expect("down");
    proxy.until("it is seen", |status| status["links"][1]["state"] == "down");
    std::thread::park_timeout(Duration::from_millis(300));
    for _ in 0..4 {
        assert!(cgroup.reaches(host, SERVER), "the other link is left");
    }
    counts("all on wifi", 6, lte + 2);
    assert!(!cgroup.reaches(host, &server_v6), "a strict rule");

    host.ip("link set dev wifi down\n").expect("down");
    proxy.until("it is seen", |status| status["links"][0]["state"] == "down");
    counts("nothing is bound", 6, lte + 2);
}

#[test]
fn a_killed_daemon_leaves_nothing_attached() {
    let Some(world) = World::new() else { return };
    let Some(cgroup) = Cgroup::new("killed") else {
        return;
    };
    let host = world.client();
    // A strict rule for a link that is down shows whether the hook is attached: connections are refused.
    host.ip("link set dev lte up\n").expect("up");
    let rule = "[[rule]]\ndestination = \"10.99.0.0/16\"\nlink = \"lte\"\nstrict = true\n";
    let proxy = world.proxy(&cgroup.keys(), rule);
    host.ip("link set dev lte down\n").expect("down");
    let refused = within(PATIENCE, || (!cgroup.reaches(host, SERVER)).then_some(()));
    refused.expect("the hook is at work");
    // Dropping the proxy kills it with SIGKILL.
    drop(proxy);
    let free = within(PATIENCE, || cgroup.reaches(host, SERVER).then_some(()));
    free.expect("the hook went with the process");
}

#[test]
fn what_is_no_cgroup_is_said() {
    let Some(world) = World::new() else { return };
    let dir = world.dir.path();
    let file = dir.join("bad.toml");
    let text = format!(
        "mode = \"proxy\"\n[proxy]\nlisten = \"127.0.0.1:1080\"\ncontrol = \"{}\"\n\
         transparent = \"cgroup\"\ncgroup = \"/proc\"\n",
        dir.join("bad.sock").display()
    );
    fs::write(&file, text).expect("configuration");
    let mut command = world.client().command(env!("CARGO_BIN_EXE_pleach"));
    let output = command.arg("proxy").arg(&file).output().expect("starts");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(words.contains("/proc is no cgroup of version 2"), "{words}");
}
