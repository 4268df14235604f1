//! Tests that a real Prometheus reads a real daemon's metrics.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use pleach_lab::netns::Netns;
use pleach_linux::requirement;
use serde_json::Value;

use crate::{
    process::{Client, Gateway},
    traffic::{Target, tcp},
    world::{PATIENCE, World, within},
};

/// Function that returns whether the test has found the expected series.
type Fits<'a> = dyn Fn(&[(Value, f64)]) -> bool + 'a;

/// A Prometheus process that is killed when dropped.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns Prometheus' answer to `query` on `host`: labels and value of each series; `None` if it does not answer.
fn query(host: &Netns, query: &str) -> Option<Vec<(Value, f64)>> {
    let text = host.run(|| {
        let mut stream = TcpStream::connect("127.0.0.1:9090")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    });
    let text = text.ok()?;
    let body = text.split_once("\r\n\r\n")?.1;
    let answer: Value = serde_json::from_str(body).ok()?;
    let series = answer["data"]["result"].as_array()?.iter().map(|series| {
        let value = series["value"][1]
            .as_str()
            .and_then(|text| text.parse().ok());
        (series["metric"].clone(), value.unwrap_or(f64::NAN))
    });
    Some(series.collect())
}

#[test]
fn prometheus_reads_the_metrics_of_both_ends() {
    let Some(world) = World::new() else { return };
    if Command::new("prometheus")
        .arg("--version")
        .output()
        .is_err()
    {
        requirement::skip("no prometheus; ./dev test installs it with PLEACH_REQUIRE_LAB=1");
        return;
    }
    let gateway = Gateway {
        more: "[metrics]\nlisten = \"127.0.0.1:9780\"\n",
        ..Gateway::default()
    }
    .start(&world);
    gateway.until_up();
    let client = Client {
        more: "[metrics]\nlisten = \"127.0.0.1:9780\"\n",
        ..Client::default()
    }
    .start(&world, &world.client);
    client.until_links_up(&["l0", "l1"]);
    tcp(
        &world.client,
        &Target::new(&world.server, "10.99.0.2"),
        2 << 20,
    )
    .expect("echo");

    let start = |host: &Netns, name: &str| {
        let file = world.dir.path().join(format!("{name}.yml"));
        let text = "global: { scrape_interval: 1s }\nscrape_configs:\n  - job_name: pleach\n    static_configs: [{ targets: ['127.0.0.1:9780'] }]\n";
        fs::write(&file, text).expect("file");
        let child = host
            .command("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                world.dir.path().join(name).display()
            ))
            .arg("--web.listen-address=127.0.0.1:9090")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Prometheus(child.expect("starts"))
    };
    let ask = |host: &Netns, what: &str, fits: &Fits<'_>| {
        let mut last = None;
        let found = within(PATIENCE, || {
            last = query(host, what);
            last.clone().filter(|series| fits(series))
        });
        found.unwrap_or_else(|| panic!("{what}: {last:?}"))
    };
    let _at_client = start(&world.client, "client");
    let _at_gateway = start(&world.gateway, "gateway");
    ask(&world.client, "up", &|series| {
        series.len() == 1 && series[0].1 == 1.0
    });
    ask(&world.client, "pleach_up", &|series| {
        series.len() == 1 && series[0].1 == 1.0
    });
    ask(&world.client, "pleach_link_up", &|series| series.len() == 2);
    let told = ask(
        &world.client,
        "sum(pleach_link_sent_bytes_total)",
        &|series| series.len() == 1 && series[0].1 > 2e6,
    );
    let status = client.until_up();
    let sent: f64 = [0, 1]
        .map(|at| status["links"][at]["tx_bytes"].as_f64().expect("a number"))
        .iter()
        .sum();
    assert!(
        (told[0].1 / sent - 1.0).abs() < 0.05,
        "{told:?}, status {sent}"
    );
    let client_up = ask(&world.gateway, "pleach_client_up", &|series| {
        series.len() == 1
    });
    assert_eq!(
        (client_up[0].0["client"].as_str(), client_up[0].1),
        (Some("c2"), 1.0)
    );
    ask(&world.gateway, "pleach_clients_connected", &|series| {
        series[0].1 == 1.0
    });
}
