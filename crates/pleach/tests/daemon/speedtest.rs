//! `pleach speedtest`: measures each link alone and all together, and leaves no changes.

use std::{fs, process::Output, time::Duration};

use pleach_lab::netns::Netns;
use pleach_linux::clock;
use serde_json::Value;

use crate::{
    process::{Client, Daemon, Gateway, state},
    world::World,
};

fn speedtest(host: &Netns, daemon: &Daemon, arguments: &[&str]) -> Output {
    let mut command = host.command(env!("CARGO_BIN_EXE_pleach"));
    command
        .args(["speedtest", "--control"])
        .arg(&daemon.control);
    command.args(arguments).output().expect("starts")
}

#[test]
fn each_link_is_measured_alone_and_all_together() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let file = Client::default().write(&world);
    let text = fs::read_to_string(&file).expect("readable");
    // Rates that a busy machine can sustain.
    let limited = |text: &str, device: &str, upload: u8, download: u8| {
        let key = format!("device = \"{device}\"");
        let limits = format!("upload = \"{upload}Mbit\"\ndownload = \"{download}Mbit\"");
        text.replace(&key, &format!("{key}\n{limits}"))
    };
    let text = limited(&limited(&text, "l0", 30, 20), "l1", 12, 6);
    fs::write(&file, text).expect("written");
    let client = Daemon::with_file(&world.client, file.clone(), file.with_extension("sock"));
    client.until_links_up(&["l0", "l1"]);

    let begun = clock::now();
    let output = speedtest(&world.client, &client, &["--json"]);
    let took = clock::now().since(begun);
    let said = String::from_utf8_lossy(&output.stderr);
    let results: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    assert!(took < Duration::from_secs(40), "{took:?}");
    let links = results["links"].as_array().expect("a list");
    let of = |name: &str, figure: &str| {
        let found = links.iter().find(|link| link["name"] == name);
        let found = found.unwrap_or(&results["all"]);
        found[figure]
            .as_f64()
            .unwrap_or_else(|| panic!("{name} {figure}: {results}"))
    };
    // No result exceeds the limit of its link, and each result reaches it. Together, the links carry more than either
    // of them.
    for (name, down, up) in [("l0", 20.0, 30.0), ("l1", 6.0, 12.0), ("all", 26.0, 42.0)] {
        for (figure, limit) in [("down_mbps", down), ("up_mbps", up)] {
            let share = of(name, figure) / limit;
            assert!((0.5..1.05).contains(&share), "{name} {figure}: {results}");
        }
    }
    let more = of("all", "down_mbps") > of("l0", "down_mbps")
        && of("all", "up_mbps") > of("l0", "up_mbps");
    assert!(more, "{results}");
    for figure in ["idle_ms", "down_loaded_ms", "up_loaded_ms"] {
        assert!((0.0..1000.0).contains(&of("l0", figure)), "{results}");
    }
    client.until_links_up(&["l0", "l1"]);

    // The command fails at the gateway's end, and with an address that does not answer.
    let output = speedtest(&world.gateway, &gateway, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("client's end"));
    let output = speedtest(&world.client, &client, &["--to", "10.77.0.99"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("10.77.0.99 port 7702"));
}

#[test]
fn a_link_that_was_alone_is_not_left_so() {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        os::unix::net::UnixStream,
    };
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let ask = |request: &str| {
        let mut stream = UnixStream::connect(&client.control).expect("the daemon answers");
        writeln!(stream, "{request}").expect("sent");
        let mut answer = String::new();
        BufReader::new(stream)
            .read_line(&mut answer)
            .expect("an answer");
        answer
    };
    assert!(ask(r#"{"command":"only","link":"none","millis":9}"#).contains("no link none"));
    assert!(ask(r#"{"command":"only","link":"l0","millis":1500}"#).contains("true"));
    client.until("the other is held back", |status| {
        state(status, "l1") == "standby"
    });
    // No command ends the restriction; the daemon ends it after the time limit.
    client.until_links_up(&["l0", "l1"]);
    let names = |status: &Value| status["clients"][0]["links"].as_array().map_or(0, Vec::len);
    gateway.until("the gateway is told", |status| {
        names(status) == 2
            && !status["clients"][0]["links"]
                .to_string()
                .contains("standby")
    });
}
