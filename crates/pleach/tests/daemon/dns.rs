//! `[tunnel] dns`: resolvers while the tunnel runs, undone at the end and after a crash.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    process::{Client, Gateway},
    world::{World, until},
};

/// `pleach up` on the client where `/etc/resolv.conf` is `resolv`, in a mount namespace of its own.
pub(crate) fn up(world: &World, file: &Path, resolv: &Path, path: &str) -> Child {
    let mut command: Command = world.client.command("unshare");
    command.args([
        "-m",
        "sh",
        "-ec",
        "mount --bind \"$1\" /etc/resolv.conf; exec \"$2\" up \"$3\"",
        "sh",
    ]);
    command
        .arg(resolv)
        .arg(env!("CARGO_BIN_EXE_pleach"))
        .arg(file);
    command
        .env("PATH", path)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().expect("starts")
}

fn end(child: &mut Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it runs");
    child.wait().expect("our child");
}

#[test]
fn the_resolver_is_the_tunnels_while_it_runs_and_after_a_crash_what_it_was() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let file = Client::default().write(&world);
    let text = fs::read_to_string(&file).expect("readable");
    let text = text.replace(
        "[scheduler]",
        "dns = [\"10.77.0.1\", \"fd77::1\"]\n[scheduler]",
    );
    fs::write(&file, text).expect("written");
    let resolv = world.dir.path().join("resolv.conf");
    let former = "nameserver 192.0.2.1\noptions edns0\n";
    fs::write(&resolv, former).expect("written");
    let now = || fs::read_to_string(&resolv).expect("readable");
    let is_ours = || {
        let text = now();
        let active = text.lines().filter(|line| !line.starts_with('#'));
        active.eq(["nameserver 10.77.0.1", "nameserver fd77::1"])
    };
    let path = std::env::var("PATH").expect("there");

    let mut daemon = up(&world, &file, &resolv, &path);
    until("the resolver is set", is_ours);
    end(&mut daemon, Signal::TERM);
    assert_eq!(now(), former);

    let mut daemon = up(&world, &file, &resolv, &path);
    until("the tunnel runs", || {
        file.with_extension("sock").exists() && is_ours()
    });
    end(&mut daemon, Signal::KILL);
    assert!(is_ours(), "nobody has undone it yet");
    fs::remove_file(file.with_extension("sock")).expect("left");
    let mut daemon = up(&world, &file, &resolv, &path);
    until("the tunnel runs", || {
        file.with_extension("sock").exists() && is_ours()
    });
    // As a DHCP client does.
    let leased = "nameserver 192.0.2.7\n";
    fs::write(&resolv, leased).expect("written");
    until("the resolver is set again", is_ours);
    end(&mut daemon, Signal::TERM);
    assert_eq!(now(), leased);
}

#[test]
fn resolvconf_is_used_where_it_is() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let file = Client::default().write(&world);
    let text = fs::read_to_string(&file).expect("readable");
    let text = text.replace("[scheduler]", "dns = [\"10.77.0.1\"]\n[scheduler]");
    fs::write(&file, text).expect("written");
    let resolv = world.dir.path().join("resolv.conf");
    fs::write(&resolv, "nameserver 192.0.2.1\n").expect("written");
    // Notes what it is told.
    let log = world.dir.path().join("told");
    let programs = world.dir.path().join("bin");
    fs::create_dir(&programs).expect("made");
    let program = programs.join("resolvconf");
    fs::write(
        &program,
        format!("#!/bin/sh\n{{ echo \"$@\"; cat; }} >> {}\n", log.display()),
    )
    .expect("written");
    fs::set_permissions(
        &program,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("set");
    let path = format!(
        "{}:{}",
        programs.display(),
        std::env::var("PATH").expect("there")
    );

    let mut daemon = up(&world, &file, &resolv, &path);
    let told = || fs::read_to_string(&log).unwrap_or_default();
    until("it is told", || told().contains("nameserver 10.77.0.1"));
    until("the tunnel runs", || file.with_extension("sock").exists());
    end(&mut daemon, Signal::TERM);
    let expected = "-d tun.plD0\n-a tun.plD0 -m 0 -x\nnameserver 10.77.0.1\n-d tun.plD0\n";
    assert_eq!(told(), expected);
    let left = fs::read_to_string(&resolv).expect("readable");
    assert_eq!(left, "nameserver 192.0.2.1\n");
}
