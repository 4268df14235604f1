//! A network namespace that ends with its value.

use std::{
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use pleach_linux::{clock, netns, requirement};

/// A namespace of its own for one test.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) name: String,
}

impl Namespace {
    /// Makes a namespace with loopback up; `None`, said aloud, if that is not allowed here.
    pub(crate) fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("plL{}-{count}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        if !made.is_ok_and(|output| output.status.success()) {
            requirement::skip("cannot make network namespaces here; run as root with iproute2");
            return None;
        }
        let namespace = Self { name };
        namespace.ip("link set lo up");
        Some(namespace)
    }

    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// Runs `work` on a thread in the namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in(&self.path(), work).expect("the namespace exists")
    }

    /// Runs a program in the namespace and returns what it prints; panics if it fails.
    pub(crate) fn command(&self, line: &str) -> String {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]);
        let output = command
            .args(line.split_whitespace())
            .output()
            .expect("ip runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn ip(&self, arguments: &str) -> String {
        self.command(&format!("ip {arguments}"))
    }

    /// Whether `ip` does what it is asked.
    pub(crate) fn try_ip(&self, arguments: &str) -> bool {
        let mut command = Command::new("ip");
        command.args(["-n", &self.name]);
        let output = command.args(arguments.split_whitespace()).output();
        output.is_ok_and(|output| output.status.success())
    }

    /// Whether an echo request to `address` is answered. One that is not expected to be is asked once, for a moment.
    pub(crate) fn pings(&self, address: &str, is_expected: bool) -> bool {
        let patience = if is_expected {
            ["-i", "0.05", "-w", "5"]
        } else {
            ["-c", "1", "-W", "0.3"]
        };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, "ping", "-n", "-c", "1"]);
        command.args(patience).arg(address);
        command.output().is_ok_and(|output| output.status.success())
    }

    /// Waits until there is no `device`.
    pub(crate) fn until_gone(&self, device: &str) {
        until("the device goes", || !self.ip("link show").contains(device));
    }

    /// A veth pair between two namespaces.
    pub(crate) fn connect(&self, device: &str, other: &Self, other_device: &str) {
        let peer = &other.name;
        self.ip(&format!(
            "link add {device} type veth peer name {other_device} netns {peer}"
        ));
        self.ip(&format!("link set {device} up"));
        other.ip(&format!("link set {other_device} up"));
    }
}

/// Asks until `holds`; panics with `what` after five seconds.
///
/// A closed descriptor lives on for a moment in the processes that other tests start at the same time, and with it a
/// device or a lock.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = clock::now() + Duration::from_secs(5);
    while !holds() {
        assert!(clock::now() < deadline, "never happened: {what}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .output();
    }
}
