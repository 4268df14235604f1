//! The built program from outside: output, exit codes, one line an error.

use std::{
    fs,
    io::Write,
    net::UdpSocket,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

const OTHER_PUBLIC: &str = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";

fn pleach(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pleach"))
        .args(args)
        .env_remove("RUST_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that ends early does not read its input.
    let _ = child.stdin.take().expect("piped").write_all(input);
    child.wait_with_output().expect("the program ends")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Asserts exit code `code`, nothing on stdout, and one line on stderr, which is returned.
#[track_caller]
fn one_line(output: &Output, code: i32) -> String {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(stdout(output), "");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.ends_with('\n'), "{text}");
    text.trim_end().to_owned()
}

/// A directory for configuration files.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(TempDir::new().expect("temporary directory"))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
        path
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("t.sock")
    }

    fn gateway(&self, listen: &str) -> PathBuf {
        let text = format!(
            "mode = \"gateway\"\n[tunnel]\nname = \"clt0\"\naddress = [\"10.77.0.1/24\"]\nprivate_key = \"{}\"\n\
             listen = \"{listen}\"\ncontrol = \"{}\"\n[[client]]\nname = \"home\"\npublic_key = \"{OTHER_PUBLIC}\"\n\
             allowed_ips = [\"10.77.0.2/32\"]\n",
            private_key(),
            self.socket().display()
        );
        self.write("gateway.toml", &text)
    }

    fn client(&self, device: &str) -> PathBuf {
        let text = format!(
            "mode = \"client\"\n[tunnel]\nname = \"clt0\"\naddress = [\"10.77.0.2/24\"]\nprivate_key = \"{}\"\n\
             control = \"{}\"\n[gateway]\npublic_key = \"{OTHER_PUBLIC}\"\nendpoints = [\"203.0.113.5:7700\"]\n\
             allowed_ips = [\"0.0.0.0/0\"]\n[[link]]\nname = \"a\"\ndevice = \"{device}\"\n",
            private_key(),
            self.socket().display()
        );
        self.write("client.toml", &text)
    }
}

fn private_key() -> String {
    stdout(&pleach(&["genkey"], b"")).trim().to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A loopback address whose UDP port was free a moment ago.
fn free_address() -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    socket.local_addr().expect("address").to_string()
}

#[test]
fn keys_go_through_the_pipe() {
    let genkey = pleach(&["genkey"], b"");
    assert_eq!(genkey.status.code(), Some(0));
    assert_eq!(genkey.stdout.len(), 45);
    assert_eq!(stderr(&genkey), "");
    let pubkey = pleach(&["pubkey"], &genkey.stdout);
    assert_eq!(pubkey.status.code(), Some(0));
    assert_eq!(pubkey.stdout.len(), 45);
    assert_ne!(genkey.stdout, pubkey.stdout);
    assert_ne!(genkey.stdout, pleach(&["genkey"], b"").stdout);
}

#[test]
fn pubkey_of_bobs_private_key_is_his_public_key() {
    // RFC 7748 section 6.1.
    let output = pleach(
        &["pubkey"],
        b"XasIfmJKikt54X+Lg4AO5m87sSkmGLb9HC+LJ/+I4Os=\n",
    );
    assert_eq!(stdout(&output).trim(), OTHER_PUBLIC);
}

#[test]
fn pubkey_refuses_what_is_no_key() {
    for input in [
        &b""[..],
        b"hello\n",
        b"AAAA\n",
        b"\xff\xfe",
        &[b'A'; 100_000],
    ] {
        let line = one_line(&pleach(&["pubkey"], input), 2);
        assert!(
            line.starts_with("pleach: standard input: expected "),
            "{line}"
        );
    }
}

#[test]
fn version_and_help_are_no_errors() {
    let version = pleach(&["--version"], b"");
    assert_eq!(version.status.code(), Some(0));
    assert_eq!(
        stdout(&version),
        format!("pleach {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = pleach(&["--help"], b"");
    assert_eq!(help.status.code(), Some(0));
    for command in ["genkey", "pubkey", "up", "check", "status", "weights"] {
        assert!(stdout(&help).contains(command), "{command}");
    }
}

#[test]
fn published_figures_are_listed_and_near_names_told() {
    let list = pleach(&["reproduce", "--list"], b"");
    assert_eq!(list.status.code(), Some(0));
    assert!(stdout(&list).contains("R-L3-16"));
    let one = pleach(&["reproduce", "--list", "r-l3-11"], b"");
    assert_eq!(stdout(&one).lines().count(), 2);
    let unknown = pleach(&["reproduce", "--list", "R-L3-17"], b"");
    assert_eq!(unknown.status.code(), Some(2));
    let line = stderr(&unknown);
    assert!(
        line.contains("R-L3-17") && line.contains("R-L3-1,"),
        "{line}"
    );
}

#[test]
fn bad_usage_is_one_line_and_exit_code_2() {
    for args in [
        &["weave"][..],
        &["up"],
        &["up", "a", "b"],
        &["check", "--fast", "x"],
        &["status", "--control"],
        &["weights", "--control", "/x.sock"],
        &["weights", "--control", "/x.sock", "dsl"],
        &["weights", "--control", "/x.sock", "dsl=0"],
        &["weights", "--control", "/x.sock", "dsl=1001"],
        &["weights", "--control", "/x.sock", "=5"],
        &["weights", "--control", "/x.sock", "dsl=5", "dsl=6"],
        &["lab"],
        &["reproduce"],
        &["reproduce", "R-L3-55", "--out", "x"],
        &["reproduce", "--in", "air", "--out", "x"],
    ] {
        let output = pleach(args, b"");
        if args == ["lab"] {
            assert_eq!(output.status.code(), Some(2));
            continue;
        }
        let line = one_line(&output, 2);
        assert!(line.starts_with("pleach: "), "{line}");
    }
    assert_eq!(pleach(&[], b"").status.code(), Some(2));
}

#[test]
fn check_accepts_a_good_gateway() {
    let files = Files::new();
    let output = pleach(&["check", text(&files.gateway(&free_address()))], b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        (stdout(&output), stderr(&output)),
        (String::new(), String::new())
    );
}

#[test]
fn check_accepts_a_good_client() {
    let files = Files::new();
    let output = pleach(&["check", text(&files.client("lo"))], b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn check_and_up_refuse_a_bad_file() {
    let files = Files::new();
    let path = files.client("lo");
    let bad = fs::read_to_string(&path)
        .expect("read")
        .replace("device", "devise");
    let path = files.write("bad.toml", &bad);
    for command in ["check", "up"] {
        let line = one_line(&pleach(&[command, text(&path)], b""), 2);
        let start = format!(
            "{}:13: [[link]] devise: unknown key; remedy: ",
            path.display()
        );
        assert!(line.starts_with(&start), "{line}");
        let line = one_line(&pleach(&[command, "/nonexistent/x.toml"], b""), 2);
        assert!(
            line.starts_with("/nonexistent/x.toml: cannot be read: "),
            "{line}"
        );
    }
}

#[test]
fn check_refuses_an_absent_device() {
    let files = Files::new();
    let path = files.client("clt-none");
    let line = one_line(&pleach(&["check", text(&path)], b""), 2);
    let start = format!(
        "{}:13: [[link]] device: no device \"clt-none\" on this host; remedy: plug it in",
        path.display()
    );
    assert!(line.starts_with(&start), "{line}");
}

#[test]
fn check_and_up_refuse_a_port_in_use() {
    let files = Files::new();
    let taken = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let address = taken.local_addr().expect("address").to_string();
    let path = files.gateway(&address);
    for command in ["check", "up"] {
        let line = one_line(&pleach(&[command, text(&path)], b""), 2);
        let start = format!(
            "{}:6: [tunnel] listen: cannot listen on {address}: Address already in use; remedy: ",
            path.display()
        );
        assert!(line.starts_with(&start), "{line}");
    }
}

#[test]
fn check_lets_a_running_daemon_have_its_port() {
    let files = Files::new();
    let taken = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let path = files.gateway(&taken.local_addr().expect("address").to_string());
    let _daemon = UnixListener::bind(files.socket()).expect("bind");
    let output = pleach(&["check", text(&path)], b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn check_refuses_an_address_of_another_host() {
    let files = Files::new();
    let line = one_line(
        &pleach(&["check", text(&files.gateway("192.0.2.77:7700"))], b""),
        2,
    );
    assert!(
        line.contains("[tunnel] listen: cannot listen on 192.0.2.77:7700: "),
        "{line}"
    );
}

#[test]
fn status_and_weights_say_that_no_daemon_runs() {
    let files = Files::new();
    let socket = files.socket();
    for args in [
        &["status", "--control", text(&socket)][..],
        &["status", "--json", "--control", text(&socket)],
        &["weights", "--control", text(&socket), "dsl=64"],
    ] {
        let line = one_line(&pleach(args, b""), 1);
        assert!(line.starts_with("pleach: no daemon is running: "), "{line}");
    }
}

#[test]
fn file_names_cannot_break_the_line() {
    let line = one_line(&pleach(&["check", "/nonexistent/a\nb.toml"], b""), 2);
    assert!(line.starts_with("/nonexistent/a b.toml: "), "{line}");
}

#[test]
fn a_proxys_file_is_checked_and_started_by_its_own_command() {
    let files = Files::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("bound");
    let text = format!(
        "mode = \"proxy\"\n[proxy]\nlisten = \"{address}\"\ncontrol = \"{}\"\n[[link]]\nname = \"lo\"\ndevice = \"lo\"\n",
        files.0.path().join("p.sock").display()
    );
    let path = files.write("proxy.toml", &text);
    let file = path.to_str().expect("text");
    for command in ["check", "proxy"] {
        let error = one_line(&pleach(&[command, file], b""), 2);
        assert!(
            error.contains("proxy.toml:3: [proxy] listen: cannot listen on"),
            "{error}"
        );
        assert!(error.contains("`ss -ltnp` names it"), "{error}");
    }
    drop(listener);
    let output = pleach(&["check", file], b"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let error = one_line(&pleach(&["up", file], b""), 2);
    assert!(error.contains("`pleach proxy FILE`"), "{error}");
    let absent = files.write(
        "absent.toml",
        &text.replace("device = \"lo\"", "device = \"prx-none\""),
    );
    let error = one_line(&pleach(&["check", absent.to_str().expect("text")], b""), 2);
    assert!(error.contains("no device \"prx-none\""), "{error}");
}

#[test]
fn manual_pages_and_completions_know_every_command() {
    let help = stdout(&pleach(&["help"], b""));
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.contains(&"peer") && !names.contains(&"man"), "{help}");
    let files = Files::new();
    let pages = files.0.path().to_str().expect("UTF-8");
    assert_eq!(stderr(&pleach(&["man", pages], b"")), "");
    for name in names {
        let page = fs::read_to_string(files.0.path().join(format!("pleach-{name}.1")));
        assert!(page.expect("a page").contains(".SH SYNOPSIS"), "{name}");
        for shell in ["bash", "fish", "zsh"] {
            let text = stdout(&pleach(&["completions", shell], b""));
            assert!(text.contains(name), "{name} in {shell}");
        }
    }
    let missing = pleach(&["man", "/nowhere"], b"");
    assert!(one_line(&missing, 1).contains("/nowhere"));
}
