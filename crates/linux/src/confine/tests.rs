//! Each test runs this program again, for one test that confines itself: restrictions cannot be taken back.

use std::{
    env, fs,
    io::ErrorKind::PermissionDenied,
    net::UdpSocket,
    os::unix::net::UnixListener,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use super::*;
use crate::{program, requirement};

/// Runs the ignored test `name` in a process of its own, with `directory` in the variable [`DIRECTORY`].
fn run_alone(name: &str, directory: &Path) {
    let status = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "--ignored", "--test-threads=1"])
        .arg(format!("confine::tests::{name}"))
        .env(DIRECTORY, directory)
        .status()
        .expect("runs");
    assert!(status.success(), "{name} fails");
}

/// Returns the value of a line in `/proc/self/status` of the calling thread.
fn status(key: &str) -> String {
    let text = fs::read_to_string("/proc/thread-self/status").expect("readable");
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.expect(key).trim_start_matches(':').trim().to_owned()
}

#[test]
fn a_confined_process_reaches_only_what_it_is_granted() {
    let directory = tempfile::tempdir().expect("directory");
    for name in ["granted", "readable", "outside"] {
        fs::create_dir(directory.path().join(name)).expect("made");
        fs::write(directory.path().join(name).join("file"), "secret").expect("written");
    }
    run_alone("confined_to_files", directory.path());
    let left = directory.path().join("outside/new");
    assert!(!left.exists());
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn confined_to_files() {
    let Some(directory) = env::var_os(DIRECTORY) else {
        return;
    };
    let at = |name: &str| Path::new(&directory).join(name);
    let mut granted = basic_files();
    granted.push((at("granted"), Access::Change));
    granted.push((at("readable"), Access::Read));
    if let Err(error) = files::restrict(&granted) {
        requirement::skip(format_args!("landlock: {error}"));
        return;
    }
    let kind = |result: io::Result<String>| result.map_err(|error| error.kind());
    let read = |name: &str| kind(fs::read_to_string(at(name)));
    assert_eq!(read("granted/file"), Ok("secret".to_owned()));
    assert_eq!(read("readable/file"), Ok("secret".to_owned()));
    assert_eq!(read("outside/file"), Err(PermissionDenied));
    assert_eq!(
        kind(fs::read_to_string("/etc/shadow")),
        Err(PermissionDenied)
    );
    let write = |name: &str| fs::write(at(name), "text").map_err(|error| error.kind());
    assert_eq!(write("granted/new"), Ok(()));
    assert_eq!(
        fs::rename(at("granted/new"), at("granted/other")).ok(),
        Some(())
    );
    assert_eq!(fs::remove_file(at("granted/other")).ok(), Some(()));
    drop(UnixListener::bind(at("granted/socket")).expect("a socket"));
    assert_eq!(write("readable/new"), Err(PermissionDenied));
    assert_eq!(write("outside/new"), Err(PermissionDenied));
    assert_eq!(
        kind(fs::read_to_string("/proc/1/environ")),
        Err(PermissionDenied)
    );
    let core = fs::OpenOptions::new()
        .write(true)
        .open("/proc/sys/kernel/core_pattern");
    assert_eq!(
        core.map_err(|error| error.kind()).err(),
        Some(PermissionDenied)
    );
    // Programs run, and are confined too.
    let cat = |name: &str| {
        let command = &mut Command::new("cat");
        command.arg(at(name)).stdout(Stdio::piped());
        program::run(command, "", Duration::from_secs(60)).expect("runs")
    };
    assert_eq!(cat("granted/file").stdout, b"secret");
    assert!(!cat("outside/file").status.success());
}

#[test]
fn a_confined_process_keeps_only_the_named_capabilities_and_calls() {
    let directory = tempfile::tempdir().expect("directory");
    run_alone("confined_to_calls", directory.path());
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn confined_to_calls() {
    if env::var_os(DIRECTORY).is_none() {
        return;
    }
    let had = capabilities(None).expect("sets").permitted;
    let kept = CapabilitySet::NET_RAW | CapabilitySet::NET_BIND_SERVICE;
    let confinement = Confinement {
        capabilities: kept,
        bpf: false,
        files: Some(basic_files()),
    };
    let _confined = confinement.apply();
    let left = format!("{:016x}", (had & kept).bits());
    // Without CAP_SETPCAP the bounding set stays.
    let sets: &[&str] = if had.contains(CapabilitySet::SETPCAP) {
        &["CapBnd", "CapEff", "CapPrm"]
    } else {
        &["CapEff", "CapPrm"]
    };
    for set in sets {
        assert_eq!(status(set), left, "{set}");
    }
    assert_eq!(status("NoNewPrivs"), "1");
    assert_eq!(status("Seccomp"), "2", "seccomp filters are in force");
    // A program has not more.
    let command = &mut Command::new("grep");
    command
        .args(["-h", "^CapEff", "/proc/self/status"])
        .stdout(Stdio::piped());
    let output = program::run(command, "", Duration::from_secs(60)).expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let eff = u64::from_str_radix(text.trim_start_matches("CapEff:").trim(), 16).expect("a set");
    assert_eq!(eff & !(had & kept).bits(), 0, "{text}");
    // SAFETY: the calls have no memory arguments.
    let call = |number, argument: i64| unsafe {
        let result = libc::syscall(number, argument, 0_i64, 0_i64, 0_i64, 0_i64);
        (result, io::Error::last_os_error().raw_os_error())
    };
    let refused = (-1, Some(libc::EPERM));
    for number in [
        libc::SYS_bpf,
        libc::SYS_io_uring_setup,
        libc::SYS_keyctl,
        libc::SYS_mount,
        libc::SYS_ptrace,
        libc::SYS_unshare,
        libc::SYS_userfaultfd,
    ] {
        assert_eq!(call(number, 0), refused, "call {number}");
    }
    let user_namespace = i64::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
    assert_eq!(call(libc::SYS_clone, user_namespace), refused);
    assert_eq!(call(libc::SYS_clone3, 0), (-1, Some(libc::ENOSYS)));
    assert_eq!(call(libc::SYS_socket, libc::AF_PACKET.into()), refused);
    // What a daemon does all the time.
    UdpSocket::bind("127.0.0.1:0").expect("a socket");
    thread::spawn(|| ()).join().expect("a thread");
}

const DIRECTORY: &str = "PLEACH_CONFINED";
