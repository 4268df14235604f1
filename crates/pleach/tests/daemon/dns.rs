//! `[tunnel] dns`: resolvers while the tunnel runs. They are restored at the end, and after a crash.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    process::{Client, Gateway},
    world::{World, until},
};

/// Runs `pleach up` on the client in a mount namespace where `/etc/resolv.conf` is `resolv`.
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

/// Writes the configuration of a client with the resolvers `servers`.
fn client_with_dns(world: &World, servers: &[&str]) -> PathBuf {
    let file = Client::default().write(world);
    let text = fs::read_to_string(&file).expect("readable");
    let text = text.replace("[scheduler]", &format!("dns = {servers:?}\n[scheduler]"));
    fs::write(&file, text).expect("written");
    file
}

#[test]
fn the_resolver_is_the_tunnels_while_it_runs_and_after_a_crash_what_it_was() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let file = client_with_dns(&world, &["10.77.0.1", "fd77::1"]);
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
    // Write the file as a DHCP client does.
    let leased = "nameserver 192.0.2.7\n";
    fs::write(&resolv, leased).expect("written");
    until("the resolver is set again", is_ours);
    end(&mut daemon, Signal::TERM);
    assert_eq!(now(), leased);
}

/// Runs `pleach up` on the client as the packaged unit does, with the unit's umask. `/etc` is a mount of `etc`, which is
/// writable, as with the drop-in that `pleach join` writes for a tunnel with `dns`.
fn up_as_a_service(world: &World, file: &Path, etc: &Path) -> Child {
    const UNIT: &str = include_str!("../../../../packaging/pleach@.service");
    let value = |key: &str| {
        let mut lines = UNIT.lines();
        lines.find_map(|line| line.strip_prefix(key)).expect("set")
    };
    assert_eq!(value("ProtectSystem="), "strict");
    let script = "umask \"$4\"; mount --bind \"$1\" /etc; mount -o remount,bind,ro /etc
        mount --bind $5 $5; mount -o remount,bind,rw $5
        exec \"$2\" up \"$3\"";
    let mut command: Command = world.client.command("unshare");
    command
        .args(["-m", "sh", "-ec", script, "sh"])
        .arg(etc)
        .arg(env!("CARGO_BIN_EXE_pleach"))
        .arg(file)
        .args([value("UMask="), "/etc"])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().expect("starts")
}

#[test]
fn a_service_sets_the_resolver_again_when_the_file_is_replaced_and_everybody_may_read_it() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let file = client_with_dns(&world, &["10.77.0.1"]);
    let etc = world.dir.path().join("etc");
    fs::create_dir(&etc).expect("made");
    let resolv = etc.join("resolv.conf");
    let replace = |text: &str| {
        let new = etc.join("resolv.conf.new");
        fs::write(&new, text).expect("written");
        fs::set_permissions(&new, Permissions::from_mode(0o644)).expect("set");
        fs::rename(&new, &resolv).expect("replaced");
    };
    let now = || fs::read_to_string(&resolv).unwrap_or_default();
    let is_ours = || now().contains("\nnameserver 10.77.0.1\n");
    let mode = || fs::metadata(&resolv).expect("there").permissions().mode() & 0o777;
    replace("nameserver 192.0.2.1\n");

    let mut daemon = up_as_a_service(&world, &file, &etc);
    until("the resolver is set", is_ours);
    assert_eq!(mode(), 0o644);
    // NetworkManager and dhclient also replace the file by rename.
    replace("nameserver 192.0.2.7\n");
    until("the resolver is set again", is_ours);
    assert_eq!(mode(), 0o644);
    end(&mut daemon, Signal::TERM);
    assert_eq!((now().as_str(), mode()), ("nameserver 192.0.2.7\n", 0o644));

    // Without the file, the daemon creates it, and removes it at the end.
    fs::remove_file(&resolv).expect("removed");
    let mut daemon = up_as_a_service(&world, &file, &etc);
    until("the resolver is set", is_ours);
    assert_eq!(mode(), 0o644);
    end(&mut daemon, Signal::TERM);
    assert!(!resolv.exists());
}

#[test]
fn resolvconf_is_used_where_it_is() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let file = client_with_dns(&world, &["10.77.0.1"]);
    let resolv = world.dir.path().join("resolv.conf");
    fs::write(&resolv, "nameserver 192.0.2.1\n").expect("written");
    // This `resolvconf` writes its arguments and input to a file.
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
