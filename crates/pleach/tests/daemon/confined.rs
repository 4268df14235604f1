//! What a daemon gives up after its set-up. That it still does its work is what the other tests show.

use std::{fs, os::unix::fs::PermissionsExt as _};

use pleach_linux::{confine::CapabilitySet, requirement};

use crate::{
    process::{Client, Gateway, Keys, weighted_pair},
    rights::assert_confined,
    world::World,
};

const TUNNEL: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW);

#[test]
fn a_running_tunnel_has_only_the_rights_that_it_needs() {
    let Some(world) = World::new() else { return };
    let (mut gateway, mut client) = weighted_pair(&world);
    for daemon in [&gateway, &client] {
        assert_confined(daemon.pid(), TUNNEL);
    }
    // Programs that a stop runs, such as `nft`, work.
    client.stop();
    gateway.stop();
    for daemon in [&gateway, &client] {
        let log = daemon.log();
        assert!(!log.contains("more rights than it needs"), "{log}");
        assert!(!log.contains("ERROR"), "{log}");
    }
}

#[test]
fn a_gateway_on_a_port_below_1024_keeps_the_right_to_it() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway {
        port: 443,
        ..Gateway::default()
    }
    .start(&world);
    gateway.until_up();
    assert_confined(gateway.pid(), TUNNEL | CapabilitySet::NET_BIND_SERVICE);
}

#[test]
fn a_confined_daemon_reads_no_file_outside_its_directories() {
    let Some(world) = World::new() else { return };
    let client = Client::default().start(&world, &world.client);
    client.until("it runs", |_| true);
    if client.log().contains("landlock") {
        requirement::skip("the kernel has no landlock");
        return;
    }
    let outside = tempfile::tempdir().expect("directory");
    let key = outside.path().join("key");
    fs::write(&key, &Keys::client(2).private).expect("written");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("an own file");
    let text = fs::read_to_string(client.file()).expect("readable");
    let inline = format!("private_key = \"{}\"", Keys::client(2).private);
    let named = format!("private_key_file = \"{}\"", key.display());
    fs::write(client.file(), text.replace(&inline, &named)).expect("written");
    let output = client.command("reload", &[]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && told.contains("Permission denied"),
        "{told}"
    );
    // A daemon that starts with the file may read it, and so may its reloads.
    let mut client = client;
    client.stop();
    client.start_again();
    client.until("it runs again", |_| true);
    let output = client.command("reload", &[]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
}

#[test]
fn a_confined_daemon_reaches_its_configuration_in_the_closed_directory_of_another_user() {
    let Some(world) = World::new() else { return };
    let home = tempfile::tempdir().expect("directory");
    let file = Client::default().write(&world);
    let own = home.path().join("client.toml");
    fs::rename(&file, &own).expect("moved");
    std::os::unix::fs::chown(home.path(), Some(1000), Some(1000)).expect("root");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).expect("root");
    let control = file.with_extension("sock");
    let client = crate::process::Daemon::with_file(&world.client, own, control);
    client.until("it runs", |_| true);
    let output = client.command("reload", &[]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    assert_confined(client.pid(), TUNNEL | CapabilitySet::DAC_READ_SEARCH);
}

#[test]
fn confinement_can_be_switched_off() {
    let Some(world) = World::new() else { return };
    let file = Client::default().write(&world);
    let text = fs::read_to_string(&file).expect("readable");
    let text = text.replace("[scheduler]", "confine = false\n[scheduler]");
    fs::write(&file, text).expect("written");
    let control = file.with_extension("sock");
    let client = crate::process::Daemon::with_file(&world.client, file, control);
    client.until("it runs", |_| true);
    let read = |pid: &str| fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let rights = |text: &str| {
        let is_right = |line: &&str| line.starts_with("Cap") || line.starts_with("Seccomp:");
        text.lines().filter(is_right).collect::<Vec<_>>().join("\n")
    };
    let own = read("self");
    assert_eq!(rights(&read(&client.pid().to_string())), rights(&own));
}
