//! `pleach top` and `status --watch` on a terminal that tmux emulates.

use std::process::Command;

use pleach_lab::netns::Netns;
use pleach_linux::requirement;

use crate::{
    process::{link, weighted_pair},
    world::{World, run, until},
};

/// A terminal of 80 × 24 that ends when dropped.
struct Screen<'a> {
    host: &'a Netns,
    socket: String,
}

impl<'a> Screen<'a> {
    fn start(world: &'a World, command: &str) -> Self {
        let this = Self {
            host: &world.client,
            socket: world.dir.path().join("tmux").display().to_string(),
        };
        this.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "80",
            "-y",
            "24",
            command,
        ]);
        this
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let all = [&["-S", self.socket.as_str()], arguments].concat();
        run(self.host, "tmux", &all)
    }

    fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    #[track_caller]
    fn until(&self, what: &str) {
        until(&format!("{what:?} on the screen"), || {
            self.text().contains(what)
        });
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        let mut command = self.host.command("tmux");
        // The server has already ended if its last program has ended.
        let _ = command.args(["-S", &self.socket, "kill-server"]).output();
    }
}

#[test]
fn a_death_and_a_change_of_weight_are_seen_on_a_terminal() {
    let Some(world) = World::new() else { return };
    if Command::new("tmux").arg("-V").output().is_err() {
        requirement::skip("no tmux");
        return;
    }
    let (_gateway, client) = weighted_pair(&world);

    let command = format!(
        "{} top --control {}",
        env!("CARGO_BIN_EXE_pleach"),
        client.control.display()
    );
    let screen = Screen::start(&world, &command);
    screen.until("plD0 is up over 2 of 2 links.");
    screen.until("q leave");
    screen.tmux(&["send-keys", "Down", "+"]);
    screen.until("The weight of l1 is 2.");
    client.until("the daemon has the weight", |status| {
        link(status, "l1").is_some_and(|link| link["weight"] == 2)
    });
    run(&world.client, "ip", &["link", "set", "l1", "down"]);
    screen.until("l1 is down: no answer arrives over it.");
    screen.until("1 of 2 links");
    let text = screen.text();
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    eprintln!("{text}");
    screen.tmux(&["send-keys", "q"]);
    until("top leaves", || {
        let mut command = world.client.command("tmux");
        let asked = command
            .args(["-S", &screen.socket, "list-sessions"])
            .output();
        !asked.is_ok_and(|output| output.status.success())
    });
}
