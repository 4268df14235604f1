//! What a proxy gives up after its set-up, and the process that identifies programs for it.

use std::{fs, io::Read as _, path::Path, process::Stdio};

use pleach_linux::{confine::CapabilitySet, owner};

use crate::{
    rights::assert_confined,
    world::{ECHO_PORT, PATIENCE, PROXY, Proxy, SERVER, World, within},
};

/// Returns the process that the proxy has started.
fn finder(proxy: &Proxy) -> u32 {
    let pid = proxy.pid();
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
    text.trim().parse().expect("one child")
}

#[test]
fn a_running_proxy_has_only_the_rights_that_it_needs() {
    let Some(world) = World::new() else { return };
    let mut proxy = world.proxy("", "");
    assert_confined(proxy.pid(), CapabilitySet::empty());
    let finder = finder(&proxy);
    // It confines itself while the proxy already serves; its filter of system calls comes last.
    let status = format!("/proc/{finder}/status");
    let is_filtered = || {
        let text = fs::read_to_string(&status).ok()?;
        text.contains("Seccomp:\t2").then_some(())
    };
    within(PATIENCE, is_filtered);
    assert_confined(finder, owner::RIGHTS);
    proxy.stop();
    let is_gone = || (!Path::new(&format!("/proc/{finder}")).exists()).then_some(());
    assert!(within(PATIENCE, is_gone).is_some(), "the finder is left");
    let log = proxy.log();
    assert!(!log.contains("more rights than it needs"), "{log}");
    let proxy = world.proxy("transparent = true", "");
    assert_confined(proxy.pid(), CapabilitySet::NET_ADMIN);
}

#[test]
fn programs_of_other_users_are_identified() {
    let Some(world) = World::new() else { return };
    let mut proxy = world.proxy("", "");
    let (host, port) = PROXY.split_once(':').expect("literal");
    // The first bytes of output say that the connection stands. It ends with the end of the input.
    let script = format!(
        "exec 3<>/dev/tcp/{host}/{port}\n\
         printf 'CONNECT {SERVER}:{ECHO_PORT} HTTP/1.1\\r\\n\\r\\n' >&3\n\
         read -r -N 12 -u 3 answer; printf %s \"$answer\"; read line; exit 0"
    );
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut client = world
        .client()
        .command("setpriv")
        .args(nobody)
        .args(["/bin/bash", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("setpriv and bash");
    let mut answer = [0; 12];
    let output = client.stdout.as_mut().expect("a pipe");
    output.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer.as_slice(), b"HTTP/1.1 200");
    let status = proxy.until("a connection", |status| status["connection_count"] == 1);
    assert_eq!(status["connections"][0]["app"], "bash", "{status}");
    drop(client.stdin.take());
    assert!(client.wait().expect("our child").success());
    proxy.stop();
}
