//! Each end is restarted while the other continues to run.

use std::time::Duration;

use crate::{
    process::{Client, Daemon, Gateway},
    traffic::{Target, try_tcp},
    world::{INTERRUPTION, World, within},
};

#[test]
fn a_restart_of_either_end_is_over_within_seconds() {
    let Some(world) = World::new() else { return };
    let mut gateway = Gateway::default().start(&world);
    gateway.until_up();
    let mut client = Client::default().start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    let server = Target::new(&world.server, "10.99.0.2");
    let resumes = |what: &str| {
        // A connection started before the tunnel device exists would keep its address outside of the tunnel.
        let attempt = Duration::from_millis(500);
        let done = within(INTERRUPTION, || {
            try_tcp(&world.client, &server, 10_000, attempt).ok()
        });
        assert!(
            done.is_some(),
            "no connection after the restart of the {what}"
        );
    };
    let restart = |daemon: &mut Daemon| {
        daemon.stop();
        daemon.start_again();
    };

    resumes("nobody");
    restart(&mut gateway);
    resumes("gateway");
    restart(&mut client);
    resumes("client");
    // A killed daemon does not tell its peer that it ends.
    gateway.kill();
    gateway.start_again();
    resumes("killed gateway");
    client.kill();
    client.start_again();
    resumes("killed client");
}
