//! The program of `[notices]`, run for a confined daemon.

use std::fs;

use pleach_linux::confine::CapabilitySet;
use serde_json::Value;

use crate::{
    process::{Client, Gateway},
    rights::assert_confined,
    world::{World, run, until},
};

#[test]
fn a_program_is_told_of_a_link_that_fails_and_returns() {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("notices");
    let more = format!(
        "[notices]\ncommand = [\"/bin/sh\", \"-c\", \"cat >> {}\"]\nafter = \"1s\"\n",
        file.display()
    );
    let mut client = Client {
        more: &more,
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let messenger = run(
        &world.client,
        "pgrep",
        &["-P", &client.pid().to_string(), "-f", "send-notices"],
    );
    let messenger = messenger.trim().parse().expect("one process");
    assert_confined(messenger, CapabilitySet::empty());
    // Notices about the link, without the last if it is not complete yet.
    let told = || -> Vec<Value> {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let of_link = |notice: &Value| notice["kind"] == "link" && notice["subject"] == "l1";
        lines.filter(of_link).collect()
    };
    let last = || told().last().map(|notice| notice["state"].clone());
    // On a busy machine, the links come up late, which is told as well.
    until("l1 is in order", || {
        last().is_none_or(|state| state == "ok")
    });
    let before = told().len();
    run(&world.gateway, "ip", &["link", "set", "g1", "down"]);
    until("the failure is told", || {
        told().len() > before && last().is_some_and(|state| state == "down")
    });
    let text = told().last().expect("a notice")["text"].clone();
    let text = text.as_str().expect("a text");
    assert!(text.starts_with("l1 is "), "{text}");
    run(&world.gateway, "ip", &["link", "set", "g1", "up"]);
    until("the return is told", || {
        last().is_some_and(|state| state == "ok")
    });
    client.stop();
}
