//! A client whose link has a byte budget.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    process::{Client, Daemon, Gateway, link, state},
    traffic::{Target, tcp},
    world::{PATIENCE, World, within},
};

/// Starts a client whose link `l0` has a budget of 1 MB. When the budget is spent, `at_limit` applies. The used bytes
/// are stored in `state/l0.budgets` in the world's directory; the directory `state` does not exist yet.
fn start(world: &World, at_limit: &str) -> Daemon {
    let l0 = format!(
        "[[link]]\nname = \"l0\"\ndevice = \"l0\"\nbudget = \"1MB\"\nat_limit = \"{at_limit}\"\n"
    );
    let file = Client {
        policy: "weighted",
        links: &["l1"],
        more: &l0,
        ..Client::default()
    }
    .write(world);
    let text = fs::read_to_string(&file).expect("readable");
    let kept = world.dir.path().join("state/l0.budgets");
    let key = format!("state = \"{}\"\n[scheduler]", kept.display());
    fs::write(&file, text.replace("[scheduler]", &key)).expect("written");
    let control = file.with_extension("sock");
    Daemon::with_file(&world.client, file, control)
}

fn used(status: &Value) -> u64 {
    let used = &status["budgets"]["l0"]["used_bytes"];
    used.as_u64().expect("l0 has a budget")
}

fn sent(status: &Value, name: &str) -> u64 {
    let link = link(status, name).expect("a link");
    link["tx_bytes"].as_u64().expect("a count")
}

fn is_aside(status: &Value, aside: &str) -> bool {
    status["budgets"]["l0"]["standing"] == "spent"
        && state(status, "l0") == aside
        && state(status, "l1") == "up"
}

/// Tests that a link that has spent its budget gets the state `aside`, and has this state again after restarts.
fn is_put_aside(at_limit: &str, aside: &str) {
    let Some(world) = World::new() else { return };
    let gateway = Gateway::default().start(&world);
    gateway.until_up();
    let mut client = start(&world, at_limit);
    client.until_links_up(&["l0", "l1"]);
    let fresh = client.status().expect("runs");
    assert_eq!(fresh["budgets"]["l0"]["bytes"], 1_000_000);
    assert!(used(&fresh) < 500_000, "{fresh}");
    let weighted = client.command("weights", &["l0=3", "l1=2"]);
    assert!(weighted.status.success(), "{weighted:?}");
    let server = Target::new(&world.server, "10.99.0.2");
    let spent = within(PATIENCE, || {
        tcp(&world.client, &server, 500_000).expect("a transfer");
        client.status().filter(|status| is_aside(status, aside))
    });
    let spent = spent.unwrap_or_else(|| panic!("never spent: {:?}", client.status()));
    assert!(used(&spent) >= 1_000_000, "{spent}");
    let weight = |name| link(&spent, name).expect("a link")["weight"].clone();
    assert_eq!((weight("l0"), weight("l1")), (3.into(), 2.into()));
    client.until("the reason is the budget", |status| {
        link(status, "l0").is_some_and(|link| link["idle_reason"] == "budget")
    });

    // Further data is sent over the other link.
    tcp(&world.client, &server, 2_000_000).expect("a transfer");
    let after = client.status().expect("runs");
    assert!(sent(&after, "l0") - sent(&spent, "l0") < 200_000, "{after}");
    assert!(
        sent(&after, "l1") - sent(&spent, "l1") >= 2_000_000,
        "{after}"
    );

    // The used bytes are stored when the budget is spent, and when the daemon stops.
    let before = used(&after);
    for is_killed in [false, true] {
        if is_killed {
            client.signal(Signal::KILL);
            client.kill();
            let _ = fs::remove_file(&client.control);
        } else {
            client.stop();
        }
        client.start_again();
        let again = client.until("it is put aside again", |status| {
            status["up"] == true && is_aside(status, aside)
        });
        assert!(used(&again) >= before, "{again}");
    }
    client.stop();
}

#[test]
fn a_link_that_has_spent_its_budget_is_on_standby_also_after_a_restart() {
    is_put_aside("standby", "standby");
}

#[test]
fn a_link_that_has_spent_its_budget_is_off_also_after_a_restart() {
    is_put_aside("off", "never");
}
