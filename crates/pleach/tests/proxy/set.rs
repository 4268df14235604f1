//! Tests of settings that are changed while a proxy runs.

use crate::{
    client::{self, Way},
    world::{ECHO_PORT, Proxy, World, content},
};
use std::io::{Read as _, Write as _};

#[test]
fn scheduler_rules_and_weights_change_while_connections_go_on() {
    let Some(world) = World::new() else { return };
    let proxy = world.proxy("scheduler = \"only-one\"", "");
    world
        .client()
        .run(|| {
            let mut before = client::tunnel(ECHO_PORT)?;
            before.write_all(b"a")?;
            before.read_exact(&mut [0])?;
            let link = |status: &serde_json::Value, index: usize| {
                status["connections"][index]["link"].clone()
            };
            let status = proxy.until("it is there", |status| status["connection_count"] == 1);
            assert_eq!(link(&status, 0), "wifi");

            let port = format!("port={ECHO_PORT}");
            proxy.set(&[&port, "link=lte"]).expect("a link");
            let mut after = client::tunnel(ECHO_PORT)?;
            after.write_all(b"b")?;
            after.read_exact(&mut [0])?;
            let status = proxy.until("both are there", |status| status["connection_count"] == 2);
            assert_eq!(
                (link(&status, 0), link(&status, 1)),
                ("wifi".into(), "lte".into())
            );
            assert_eq!(status["connections"][1]["why"], "assigned");
            before.write_all(b"c")?;
            before.read_exact(&mut [0])?;
            proxy.set(&[&port, "link=auto"]).expect("it was assigned");

            proxy.set(&["scheduler=round-robin"]).expect("one of them");
            for _ in 0..4 {
                assert_eq!(client::download(Way::Socks5, "5000")?, content(5000));
            }
            let status = proxy.until("both links carried some", |status| {
                ["wifi", "lte"]
                    .iter()
                    .all(|link| Proxy::received(status, link) >= 10_000)
            });
            assert_eq!(status["scheduler"]["policy"], "round-robin");
            let port = status["applications"].as_object().expect("known").values();
            let ended: u64 = port.filter_map(|app| app["connections"].as_u64()).sum();
            assert!(ended >= 4, "{}", status["applications"]);

            for (pairs, told) in [
                (&["scheduler=fastest"][..], "round-robin"),
                (&["app=curl", "link=dsl"], "wifi, lte"),
                (&["app=curl", "link=auto"], "nothing was assigned"),
                (&["speed=1"], "unknown key"),
            ] {
                let error = proxy.set(pairs).expect_err("refused");
                assert!(error.contains(told), "{pairs:?}: {error}");
            }
            Ok(())
        })
        .expect("inside");
}
