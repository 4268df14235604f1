//! Renders the status of a daemon as text: sentences that explain it, then one line per link in aligned columns.

use core::fmt::Write;

use crate::{
    control::{
        ConnectionStatus, LinkState, LinkStatus, SplitTcpStatus, SplitterStatus, StatusReport,
        WorkerStatus,
    },
    reasons,
};

/// Renders `report` as text for the user. Lines have no trailing spaces; the last one ends with a newline.
pub(crate) fn render(report: &StatusReport) -> String {
    let is_gateway = report.mode == "gateway";
    let state = if report.up { "up" } else { "down" };
    let mut text = format!(
        "{}\n",
        reasons::headline(report).replace(char::is_control, "")
    );
    push_sentences(&mut text, report, |_| None);
    push_gateways(&mut text, report);
    push_store(&mut text, report);
    push_fleet(&mut text, report);
    push_silent_workers(&mut text, report);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "\n{} {}: {state}, policy {}",
        report.mode, report.name, report.scheduler.policy
    );
    let mut rows = vec![
        vec![
            "LINK", "DEVICE", "STATE", "RTT", "CAPACITY", "LOSS", "SENT", "RECEIVED", "WEIGHT",
        ]
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>(),
    ];
    rows.extend(report.links.iter().map(row));
    if is_gateway {
        rows.iter_mut()
            .for_each(|row| row.insert(0, "-".to_owned()));
        rows[0][0] = "CLIENT".to_owned();
        for client in &report.clients {
            if client.links.is_empty() {
                let state = if client.up { "up" } else { "down" };
                let mut cells = vec!["-".to_owned(); rows[0].len()];
                cells[0].clone_from(&client.name);
                state.clone_into(&mut cells[3]);
                rows.push(cells);
            }
            for link in &client.links {
                let mut cells = row(link);
                cells.insert(0, client.name.clone());
                rows.push(cells);
            }
        }
    }
    if rows.len() == 1 {
        text.push_str(if is_gateway {
            "no clients\n"
        } else {
            "no links\n"
        });
        push_workers(&mut text, report);
        return text;
    }
    push_table(&mut text, &rows);
    push_workers(&mut text, report);
    push_classes(&mut text, report);
    push_rules(&mut text, report);
    if let Some(split) = &report.split_tcp {
        push_split_tcp(&mut text, split);
    }
    if let Some(splitter) = &report.splitter {
        push_splitter(&mut text, splitter);
    }
    if report.mode == "proxy" {
        push_connections(&mut text, report);
    } else {
        push_budgets(&mut text, report);
    }
    text
}

/// Appends a sentence for each link, the text that `more` returns for it, and advice. For a gateway's clients, only
/// links with a problem are listed.
pub(crate) fn push_sentences(
    text: &mut String,
    report: &StatusReport,
    more: impl Fn(&LinkStatus) -> Option<String>,
) {
    let mut push = |before: &str, link: &LinkStatus| {
        let why = link.why.clone();
        let why = why.unwrap_or_else(|| reasons::by_state(&link.name, link.state));
        let mut line = format!("  {before}{why}.");
        for part in more(link).iter().chain(&link.advice) {
            line.push(' ');
            line.push_str(part);
        }
        text.push_str(&line.replace(char::is_control, ""));
        text.push('\n');
    };
    report.links.iter().for_each(|link| push("", link));
    let links = report.clients.iter().flat_map(|client| {
        let links = client.links.iter().filter(|link| link.advice.is_some());
        links.map(|link| (client.name.as_str(), link))
    });
    for (client, link) in links.take(MAX_SHOWN_CONNECTIONS) {
        push(&format!("{client}: "), link);
    }
}

/// Appends a sentence for each gateway of a client that has several.
fn push_gateways(text: &mut String, report: &StatusReport) {
    for gateway in &report.gateways {
        let rtt = gateway
            .rtt_ms
            .map_or(String::new(), |ms| format!(" ({ms:.1} ms)"));
        let line = format!("  Gateway {}{rtt}.", gateway.why);
        text.push_str(&line.replace(char::is_control, ""));
        text.push('\n');
    }
}

/// Appends a sentence about a gateway of a fleet, and one if the gateway drains.
fn push_fleet(text: &mut String, report: &StatusReport) {
    let mut line = String::new();
    if let Some(fleet) = &report.fleet {
        // Writing to a string cannot fail.
        let _ = writeln!(
            line,
            "  Gateway {} of a fleet has {} clients, {} of them away from home.",
            fleet.name, fleet.connected, fleet.away_from_home
        );
    }
    if report.draining {
        let left = report.clients.iter().filter(|client| client.up).count();
        let _ = writeln!(
            line,
            "  It is draining: clients are asked to use another gateway, {left} are left."
        );
    }
    text.push_str(&line);
}

/// Appends a sentence for each data thread that does not answer.
fn push_silent_workers(text: &mut String, report: &StatusReport) {
    for worker in &report.silent_workers {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  Data thread {worker} does not answer: its clients are missing here, and its counters are old. Look into the log, and restart the gateway if this lasts."
        );
    }
}

/// Appends the data threads of a gateway that has several.
fn push_workers(text: &mut String, report: &StatusReport) {
    if report.workers.is_empty() {
        return;
    }
    let header = ["WORKER", "CLIENTS", "UP", "PASSED", "REFUSED"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(report.workers.iter().map(|worker| {
        let WorkerStatus {
            number,
            clients,
            up,
            passed,
            refused,
            draining: _,
        } = worker;
        [number, clients, up, passed, refused]
            .map(u64::to_string)
            .to_vec()
    }));
    push_table(text, &rows);
}

/// Appends a sentence about a gateway's store of clients if it cannot be used.
fn push_store(text: &mut String, report: &StatusReport) {
    let trouble = report
        .store
        .as_ref()
        .and_then(|store| store.trouble.as_ref());
    if let Some(trouble) = trouble {
        let line = format!(
            "  The store of clients cannot be used: {trouble}. Known clients are served, new ones are refused."
        );
        text.push_str(&line.replace(char::is_control, ""));
        text.push('\n');
    }
}

/// Appends the TCP connections that this end carries, if there are any or if a problem prevents carrying them.
fn push_split_tcp(text: &mut String, split: &SplitTcpStatus) {
    let SplitTcpStatus {
        state,
        connections,
        carried,
        failed,
        bytes: moved,
        restored_tables: _,
        trouble,
    } = split;
    match trouble {
        Some(trouble) => {
            let _ = writeln!(text, "split TCP: {state}, {}", printable(trouble));
        }
        None if state == "on" || *carried > 0 => {
            let _ = writeln!(
                text,
                "split TCP: {state}, {connections} open connections, {carried} since the start, {failed} failed, {}",
                bytes(*moved)
            );
        }
        None => {}
    }
}

/// Appends the classes of traffic that have sent packets.
fn push_classes(text: &mut String, report: &StatusReport) {
    if report.classes.is_empty() {
        return;
    }
    let header = ["CLASS", "PACKETS", "BYTES", "COPIES", "COPIED", "TOO LATE"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(report.classes.iter().map(|(name, class)| {
        vec![
            printable(name),
            class.packets.to_string(),
            bytes(class.bytes),
            class.copies.to_string(),
            bytes(class.copied_bytes),
            class.expired.to_string(),
        ]
    }));
    push_table(text, &rows);
}

/// Appends the rules of a client.
fn push_rules(text: &mut String, report: &StatusReport) {
    if report.rules.is_empty() {
        return;
    }
    let header = ["RULE", "LINK", "PACKETS", "BYTES", "DROPPED"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(report.rules.iter().map(|rule| {
        let conditions = rule.rule.replace(char::is_control, "");
        let link = match &rule.link {
            Some(link) if rule.strict => format!("{} only", printable(link)),
            Some(link) => printable(link),
            None => "blocked".to_owned(),
        };
        vec![
            if conditions.is_empty() {
                "everything".to_owned()
            } else {
                conditions
            },
            link,
            rule.packets.to_string(),
            bytes(rule.bytes),
            rule.dropped.to_string(),
        ]
    }));
    push_table(text, &rows);
}

/// Appends how an equalizer spreads packets.
fn push_splitter(text: &mut String, splitter: &SplitterStatus) {
    let header = [
        "LINK",
        "WANTED",
        "PACKETS",
        "BYTES",
        "BACKGROUND",
        "AVAILABLE",
        "HELD FOR",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let percent = |share: Option<f64>| {
        share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0))
    };
    rows.extend(splitter.links.iter().map(|(name, link)| {
        vec![
            printable(name),
            percent(Some(link.share_wanted)),
            percent(link.share_packets),
            percent(link.share_bytes),
            rate(link.background_mbps),
            link.available_mbps.map_or("-".to_owned(), rate),
            link.hold_ms
                .map_or("-".to_owned(), |ms| format!("{ms:.1} ms")),
        ]
    }));
    push_table(text, &rows);
    // Writing to a string cannot fail.
    if let Some(hold) = &splitter.hold {
        let _ = match hold.probe {
            Some(host) => write!(text, "delays are measured to {host}"),
            None => write!(text, "delays are not measured: no host to ping is known"),
        };
        if hold.keeps_flows {
            text.push_str("; until the delays are known, each flow stays on one link");
        }
        let _ = writeln!(
            text,
            "; {} packets sent too early because the buffer was full, {} lost",
            hold.not_held, hold.lost
        );
    }
    let _ = writeln!(
        text,
        "back end {}: {}",
        splitter.backend,
        splitter.backend_why.replace(char::is_control, "")
    );
    if let (Some(why), Some(seconds)) = (&splitter.last_change_why, splitter.last_change_seconds) {
        let _ = writeln!(
            text,
            "weights changed {seconds:.1} s ago: {}",
            why.replace(char::is_control, "")
        );
    }
}

/// Appends the state of the links' budgets.
fn push_budgets(text: &mut String, report: &StatusReport) {
    let is_proxy = report.mode == "proxy";
    for (link, budget) in &report.budgets {
        let means = match budget.standing.as_str() {
            "ahead" if is_proxy => {
                ", more than its share until today: used only if other links are not enough"
            }
            "spent" if is_proxy => ": used only while no other link is up",
            "spent" => ": limited by its at_limit",
            _ => "",
        };
        let _ = writeln!(
            text,
            "{} has carried {} of {} this month{means}",
            printable(link),
            bytes(budget.used_bytes),
            bytes(budget.bytes)
        );
    }
}

/// Appends a proxy's connections, those with the most traffic first.
fn push_connections(text: &mut String, report: &StatusReport) {
    let count = report.connection_count.unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{count} connections");
    push_budgets(text, report);
    for (link, count) in &report.bound_sockets {
        let _ = writeln!(
            text,
            "{count} sockets of other programs bound to {}",
            printable(link)
        );
    }
    if report.connections.is_empty() {
        return;
    }
    let header = ["TARGET", "APP", "LINK", "WHY", "RATE", "SENT", "RECEIVED"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let mut connections: Vec<&ConnectionStatus> = report.connections.iter().collect();
    connections.sort_by(|a, b| b.rate_mbps.total_cmp(&a.rate_mbps));
    let row = |connection: &&ConnectionStatus| {
        let name = |name: &Option<String>| name.as_deref().map_or("-".to_owned(), printable);
        vec![
            printable(&connection.target),
            name(&connection.app),
            if connection.striped.is_some() {
                "striped".to_owned()
            } else {
                name(&connection.link)
            },
            connection.why.replace(char::is_control, ""),
            rate(connection.rate_mbps),
            bytes(connection.tx_bytes),
            bytes(connection.rx_bytes),
        ]
    };
    rows.extend(connections.iter().take(MAX_SHOWN_CONNECTIONS).map(row));
    push_table(text, &rows);
    push_striped(text, &connections);
}

/// Appends, for connections that use several links, the values of each link.
fn push_striped(text: &mut String, connections: &[&ConnectionStatus]) {
    let header = [
        "STRIPED", "PEER", "LINK", "STATE", "RTT", "RATE", "SENT", "RECEIVED", "HELD", "MOST",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for connection in connections.iter().take(MAX_SHOWN_CONNECTIONS) {
        let Some(striped) = &connection.striped else {
            continue;
        };
        for lane in &striped.links {
            let state = match lane.state {
                LinkState::Suspect => "suspect",
                LinkState::Down | LinkState::Never | LinkState::Standby | LinkState::Up => "up",
            };
            rows.push(vec![
                printable(&connection.target),
                printable(&striped.peer),
                printable(&lane.link),
                state.to_owned(),
                format!("{:.1} ms", lane.rtt_ms),
                rate(lane.rate_mbps),
                bytes(lane.tx_bytes),
                bytes(lane.rx_bytes),
                bytes(striped.held_bytes),
                bytes(striped.most_held_bytes),
            ]);
        }
    }
    if rows.len() > 1 {
        push_table(text, &rows);
    }
}

/// Appends `rows`, which all have the same length, in aligned columns.
fn push_table(text: &mut String, rows: &[Vec<String>]) {
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

fn row(link: &LinkStatus) -> Vec<String> {
    let state = match link.state {
        LinkState::Down => "down",
        LinkState::Never => "never",
        LinkState::Standby => "standby",
        LinkState::Suspect => "suspect",
        LinkState::Up => "up",
    };
    let by_tcp = if link.carrier.as_deref() == Some("tcp") {
        " (tcp)"
    } else {
        ""
    };
    vec![
        printable(&link.name),
        printable(&link.device),
        format!("{state}{by_tcp}"),
        link.rtt_ms
            .map_or("-".to_owned(), |ms| format!("{ms:.1} ms")),
        link.capacity_mbps.map_or("-".to_owned(), rate),
        format!("{:.1} %", link.loss * 100.0),
        bytes(link.tx_bytes),
        bytes(link.rx_bytes),
        link.weight.to_string(),
    ]
}

/// Returns `text` without control characters and spaces, or `-` if nothing is left. Names may come from another host.
fn printable(text: &str) -> String {
    let clean: String = text
        .chars()
        .filter(|c| !c.is_control() && !c.is_whitespace())
        .collect();
    if clean.is_empty() {
        "-".to_owned()
    } else {
        clean
    }
}

/// Returns a rate with its unit.
pub(crate) fn rate(mbps: f64) -> String {
    if mbps >= 1000.0 {
        format!("{:.2} Gbit/s", mbps / 1000.0)
    } else if mbps >= 1.0 {
        format!("{mbps:.1} Mbit/s")
    } else {
        format!("{:.0} kbit/s", mbps * 1000.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "display only")]
pub(crate) fn bytes(count: u64) -> String {
    let units = [
        ("TiB", 1_u64 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    match units.into_iter().find(|(_, size)| count >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", count as f64 / size as f64),
        None => format!("{count} B"),
    }
}

/// Maximum number of connections shown, as many as a screen has lines; `--json` contains more.
const MAX_SHOWN_CONNECTIONS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ClientStatus, GatewayStatus, LaneStatus, RuleStatus, StripedStatus};

    fn link(name: &str, state: LinkState) -> LinkStatus {
        LinkStatus {
            state,
            ..LinkStatus::bare(name, "eth1")
        }
    }

    fn report(mode: &str) -> StatusReport {
        let mut report = StatusReport {
            mode: mode.to_owned(),
            name: "pleach0".to_owned(),
            up: true,
            ..StatusReport::default()
        };
        "weighted".clone_into(&mut report.scheduler.policy);
        report
    }

    #[test]
    fn a_client_shows_one_aligned_line_a_link() {
        let mut report = report("client");
        report.links = vec![
            LinkStatus {
                rtt_ms: Some(23.46),
                capacity_mbps: Some(64.04),
                loss: 0.012,
                tx_bytes: 5 << 30,
                rx_bytes: 1536,
                weight: 64,
                ..link("dsl", LinkState::Up)
            },
            link("long-name", LinkState::Standby),
        ];
        assert_eq!(
            render(&report),
            "pleach0 is up over 1 of 2 links.\n  \
               dsl is in use.\n  \
               long-name is on standby: it is used only when no other link works.\n\
             \n\
             client pleach0: up, policy weighted\n\
             LINK       DEVICE  STATE    RTT      CAPACITY     LOSS   SENT     RECEIVED  WEIGHT\n\
             dsl        eth1    up       23.5 ms  64.0 Mbit/s  1.2 %  5.0 GiB  1.5 KiB   64\n\
             long-name  eth1    standby  -        -            0.0 %  0 B      0 B       1\n"
        );
    }

    #[test]
    fn a_gateway_shows_whose_link_it_is() {
        let mut report = report("gateway");
        report.clients = vec![
            ClientStatus {
                name: "home".to_owned(),
                up: true,
                links: vec![
                    link("dsl", LinkState::Up),
                    LinkStatus {
                        why: Some("lte is silent".to_owned()),
                        advice: Some("Wait.".to_owned()),
                        ..link("lte", LinkState::Down)
                    },
                ],
                ..ClientStatus::default()
            },
            ClientStatus {
                name: "office".to_owned(),
                ..ClientStatus::default()
            },
        ];
        assert_eq!(
            render(&report),
            "pleach0 is a gateway: 1 of 2 clients connected.\n  \
               home: lte is silent. Wait.\n\
             \n\
             gateway pleach0: up, policy weighted\n\
             CLIENT  LINK  DEVICE  STATE  RTT  CAPACITY  LOSS   SENT  RECEIVED  WEIGHT\n\
             home    dsl   eth1    up     -    -         0.0 %  0 B   0 B       1\n\
             home    lte   eth1    down   -    -         0.0 %  0 B   0 B       1\n\
             office  -     -       down   -    -         -      -     -         -\n"
        );
    }

    #[test]
    fn data_threads_are_listed_and_silent_ones_are_named() {
        let worker = |number| WorkerStatus {
            number,
            clients: 2,
            up: 1,
            passed: 1234,
            refused: number,
            draining: false,
        };
        let mut report = report("gateway");
        report.workers = vec![worker(0), worker(2)];
        report.silent_workers = vec![1];
        assert_eq!(
            render(&report),
            "pleach0 is a gateway: 0 of 0 clients connected.\n  \
               Data thread 1 does not answer: its clients are missing here, and its counters are old. \
               Look into the log, and restart the gateway if this lasts.\n\
             \n\
             gateway pleach0: up, policy weighted\n\
             no clients\n\
             WORKER  CLIENTS  UP  PASSED  REFUSED\n\
             0       2        1   1234    0\n\
             2       2        1   1234    2\n"
        );
        report.clients = vec![ClientStatus::default()];
        assert!(render(&report).ends_with("1234    2\n"));
    }

    #[test]
    fn a_striped_connection_shows_its_links() {
        let mut report = report("proxy");
        report.links = vec![link("dsl", LinkState::Up)];
        report.connection_count = Some(1);
        let lane = |link: &str, state| LaneStatus {
            link: link.to_owned(),
            state,
            rtt_ms: 20.0,
            rate_mbps: 19.2,
            tx_bytes: 0,
            rx_bytes: 2 << 20,
            tx_datagrams: 0,
            rx_datagrams: 0,
        };
        report.connections = vec![ConnectionStatus {
            client: "127.0.0.1:5".to_owned(),
            app: None,
            target: "192.0.2.1:80".to_owned(),
            protocol: "socks5".to_owned(),
            link: None,
            why: "osia".to_owned(),
            rate_mbps: 28.0,
            tx_bytes: 100,
            rx_bytes: 4 << 20,
            striped: Some(StripedStatus {
                peer: "server".to_owned(),
                striping: "osia".to_owned(),
                links: vec![lane("dsl", LinkState::Up), lane("lte", LinkState::Suspect)],
                held_bytes: 9000,
                most_held_bytes: 1 << 20,
                waiting_bytes: 0,
                repeated_bytes: 0,
            }),
        }];
        let text = render(&report);
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        assert_eq!(
            lines.into_iter().rev().collect::<Vec<_>>(),
            [
                "TARGET        APP  LINK     WHY   RATE         SENT   RECEIVED",
                "192.0.2.1:80  -    striped  osia  28.0 Mbit/s  100 B  4.0 MiB",
                "STRIPED       PEER    LINK  STATE    RTT      RATE         SENT  RECEIVED  HELD     MOST",
                "192.0.2.1:80  server  dsl   up       20.0 ms  19.2 Mbit/s  0 B   2.0 MiB   8.8 KiB  1.0 MiB",
                "192.0.2.1:80  server  lte   suspect  20.0 ms  19.2 Mbit/s  0 B   2.0 MiB   8.8 KiB  1.0 MiB",
            ]
        );
    }

    #[test]
    fn each_of_several_gateways_has_a_line() {
        let gateway = |name: &str, used, rtt_ms, why: &str| GatewayStatus {
            name: name.to_owned(),
            used,
            rtt_ms,
            why: why.to_owned(),
            ..GatewayStatus::default()
        };
        let mut report = report("client");
        report.links = vec![link("dsl", LinkState::Up)];
        report.gateways = vec![
            gateway("near", false, None, "near does not answer"),
            gateway(
                "far",
                true,
                Some(20.25),
                "far is in use, because near\u{1b} fell silent on all links",
            ),
        ];
        let text = render(&report);
        let lines: Vec<&str> = text.lines().take(4).collect();
        assert_eq!(
            lines,
            [
                "pleach0 is up over 1 of 1 link at the gateway far.",
                "  dsl is in use.",
                "  Gateway near does not answer.",
                "  Gateway far is in use, because near fell silent on all links (20.2 ms).",
            ]
        );
    }

    #[test]
    fn rules_are_listed_in_their_order() {
        let mut report = report("client");
        report.links = vec![link("dsl", LinkState::Up)];
        let rule = |conditions: &str, link: Option<&str>, strict| RuleStatus {
            rule: conditions.to_owned(),
            link: link.map(str::to_owned),
            strict,
            packets: 2,
            bytes: 3000,
            dropped: 2 * u64::from(link.is_none()),
            ..RuleStatus::default()
        };
        report.rules = vec![
            rule("app=curl port=443", Some("dsl"), true),
            rule("port=25", None, false),
            rule("", Some("dsl"), false),
        ];
        let text = render(&report);
        let lines: Vec<&str> = text.lines().rev().take(4).collect();
        assert_eq!(
            lines.into_iter().rev().collect::<Vec<_>>(),
            [
                "RULE               LINK      PACKETS  BYTES    DROPPED",
                "app=curl port=443  dsl only  2        2.9 KiB  0",
                "port=25            blocked   2        2.9 KiB  2",
                "everything         dsl       2        2.9 KiB  0",
            ]
        );
    }

    #[test]
    fn nothing_to_list_is_said() {
        assert!(render(&report("client")).ends_with("\nno links\n"));
        assert!(render(&report("gateway")).ends_with("\nno clients\n"));
    }

    #[test]
    fn names_from_afar_cannot_break_lines() {
        let mut report = report("client");
        report.links = vec![
            link("a\n\u{1b}[31mb", LinkState::Up),
            link("\n", LinkState::Up),
        ];
        let text = render(&report);
        assert_eq!(text.lines().count(), 8);
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn units_are_human() {
        assert_eq!(rate(0.5), "500 kbit/s");
        assert_eq!(rate(2500.0), "2.50 Gbit/s");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 40), "3.0 TiB");
    }
}
