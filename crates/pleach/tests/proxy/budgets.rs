//! Budgets, which make links less preferred; and probes, which measure links that carry no traffic.

use crate::{
    client::{self, Way},
    world::{HTTP_PORT, Proxy, SERVER, World, content},
};

#[test]
fn a_link_whose_budget_is_spent_is_used_while_no_other_is_there_and_that_is_remembered() {
    let Some(world) = World::new() else { return };
    let database = world.dir.path().join("apps.db");
    let keys = format!(
        "scheduler = \"round-robin\"\nstate = \"{}\"",
        database.display()
    );
    // The text added to the file belongs to its last link.
    let mut proxy = world.proxy(&keys, "budget = \"300kB\"\n");
    let used = |status: &serde_json::Value| {
        let budget = &status["budgets"]["lte"];
        budget["used_bytes"].as_u64().expect("a budget")
    };
    let mut before = 0;
    world
        .client()
        .run(|| {
            let get = |len: usize| client::download(Way::Socks5, &len.to_string());
            for _ in 0..2 {
                assert_eq!(get(400_000)?, content(400_000));
            }
            let status = proxy.until("it is spent", |status| {
                status["budgets"]["lte"]["standing"] == "spent"
            });
            assert_eq!(status["links"][1]["state"], "standby");
            let over_lte = Proxy::received(&status, "lte");
            assert!(over_lte >= 400_000 && used(&status) > over_lte, "{status}");
            for _ in 0..4 {
                get(5000)?;
            }
            let over_wifi = Proxy::received(&status, "wifi");
            let status = proxy.until("the other link carries it", |status| {
                Proxy::received(status, "wifi") >= over_wifi + 4 * 5000
            });
            assert_eq!(Proxy::received(&status, "lte"), over_lte);
            world.client().ip("link set dev wifi down\n")?;
            proxy.until("it is down", |status| status["links"][0]["state"] == "down");
            assert_eq!(get(5000)?, content(5000));
            let status = proxy.until("there was no other", |status| {
                Proxy::received(status, "lte") >= over_lte + 5000
            });
            before = used(&status);
            world.client().ip(
                "link set dev wifi up\nroute replace default via 10.100.0.1 dev wifi metric 100\n",
            )?;
            Ok(())
        })
        .expect("inside");
    proxy.stop();
    let proxy = world.proxy(&keys, "budget = \"100MB\"\n");
    let status = proxy.status().expect("it runs");
    assert!(used(&status) >= before, "{before} before, now {status}");
    assert_eq!(status["budgets"]["lte"]["standing"], "within");
}

#[test]
fn links_of_which_nothing_is_known_are_probed_once_the_proxy_is_used() {
    let Some(world) = World::new() else { return };
    let probe = format!("probe = [\"http://{SERVER}:{HTTP_PORT}/4000000\"]");
    let proxy = world.proxy(&probe, "");
    let is_known =
        |status: &serde_json::Value, link: usize| status["links"][link]["capacity_mbps"].is_f64();
    world
        .client()
        .run(|| {
            let status = proxy.status().expect("it runs");
            assert!(!is_known(&status, 0) && !is_known(&status, 1));
            // Too little traffic to measure the links.
            client::download(Way::Socks5, "1000")?;
            proxy.until("both are known", |status| {
                is_known(status, 0) && is_known(status, 1)
            });
            Ok(())
        })
        .expect("inside");
}
