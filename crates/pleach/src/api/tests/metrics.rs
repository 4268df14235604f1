//! The metrics that exist, compared with packaging and documentation.

use std::{collections::BTreeSet, process::Command};

use pleach_linux::requirement;

use super::sample;
use crate::{
    api::metrics::render,
    control::{ClientStatus, LinkStatus},
};

const ALERTS: &str = include_str!("../../../../../packaging/alerts.yml");
const ALERT_TESTS: &str = include_str!("../../../../../packaging/alerts-test.yml");
const GRAFANA: &str = include_str!("../../../../../packaging/grafana-dashboard.json");
const DOCUMENT: &str = include_str!("../../../../../docs/metrics.md");

/// Returns the names of the series of a status in which every value is present.
fn existing() -> BTreeSet<String> {
    let text = render(&sample());
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let name = |line: &str| line.split(['{', ' ']).next().unwrap_or_default().to_owned();
    samples.map(name).collect()
}

/// Returns the names of metrics that occur in `text`.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c))
        .filter(|word| word.starts_with("pleach_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn what_is_drawn_alerted_and_documented_exists() {
    let existing = existing();
    assert!(existing.len() > 30, "{existing:?}");
    for (what, text) in [
        ("alerts.yml", ALERTS),
        ("alerts-test.yml", ALERT_TESTS),
        ("grafana-dashboard.json", GRAFANA),
        ("docs/metrics.md", DOCUMENT),
    ] {
        let named = named(text);
        let unknown: Vec<_> = named.difference(&existing).collect();
        assert!(named.len() > 5 && unknown.is_empty(), "{what}: {unknown:?}");
    }
    let undocumented: Vec<_> = existing.difference(&named(DOCUMENT)).cloned().collect();
    assert_eq!(undocumented, Vec::<String>::new());
}

#[test]
fn the_text_has_types_units_and_an_end() {
    let text = render(&sample());
    assert!(text.ends_with("# EOF\n"));
    for line in [
        "# TYPE pleach_link_sent_bytes counter",
        "# UNIT pleach_link_sent_bytes bytes",
        "pleach_link_sent_bytes_total{link=\"dsl\"} 5000",
        "pleach_link_rtt_seconds{link=\"dsl\"} 0.0235",
        "pleach_link_capacity_bits_per_second{link=\"dsl\"} 64000000.0",
        "pleach_link_idle{link=\"dsl\",reason=\"too-late-for-its-flows\"} 1.0",
        "pleach_client_sent_bytes_total{client=\"home\"} 5000",
        "pleach_dropped_packets_total{reason=\"replayed\"} 4",
        "pleach_worker_answers{worker=\"0\"} 1.0",
        "pleach_worker_answers{worker=\"1\"} 0.0",
        "pleach_worker_clients{worker=\"0\"} 3.0",
        "pleach_worker_clients_connected{worker=\"0\"} 2.0",
        "pleach_worker_passed_packets_total{worker=\"0\"} 7",
        "pleach_worker_refused_packets_total{worker=\"0\"} 1",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} not in\n{text}"
        );
    }
}

#[test]
fn clients_are_bounded_and_none_is_forgotten() {
    let mut status = sample();
    let client = |number: usize| ClientStatus {
        name: format!("c{number}"),
        up: true,
        links: vec![LinkStatus {
            tx_bytes: 1,
            ..LinkStatus::bare("dsl", "")
        }],
        up_bytes: 2,
        down_bytes: 3,
        ..ClientStatus::default()
    };
    status.clients = (0..20_000).map(client).collect();
    let text = render(&status);
    let lines = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(lines("pleach_client_sent_bytes_total{"), 1001);
    assert!(text.contains("pleach_client_sent_bytes_total{client=\"other\"} 19000\n"));
    assert_eq!(lines("pleach_client_upload_bytes_total{"), 1001);
    assert!(text.contains("pleach_client_upload_bytes_total{client=\"other\"} 38000\n"));
    assert!(text.contains("pleach_client_download_bytes_total{client=\"c7\"} 3\n"));
    assert!(text.contains("pleach_clients 20000.0\n"));
    assert!(text.lines().count() < 20_000, "{}", text.lines().count());
}

#[test]
fn hostile_names_stay_in_their_quotes() {
    let mut status = sample();
    status.links[0].name = "a\"} 1\npleach_evil 1 \\".to_owned();
    let text = render(&status);
    assert!(
        !text.lines().any(|line| line.starts_with("pleach_evil")),
        "{text}"
    );
}

#[test]
fn promtool_takes_the_rules_and_each_alert_comes_true() {
    let packaging = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
    for arguments in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts-test.yml"],
    ] {
        let mut command = Command::new("promtool");
        let Ok(output) = command.args(arguments).current_dir(packaging).output() else {
            requirement::skip("no promtool, of Debian's package prometheus");
            return;
        };
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
    }
    let alerts = ALERTS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let untested: Vec<&str> = alerts
        .filter(|alert| !ALERT_TESTS.contains(&format!("alertname: {alert}\n")))
        .collect();
    assert_eq!(untested, Vec::<&str>::new());
}
