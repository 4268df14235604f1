//! The tables of a report. Each is built once and written as HTML or as aligned text.

use super::{
    format::{NOTHING, bytes, duration, maybe, number, percent, ratio, short},
    media,
    plot::{describe, label_of},
    svg::escape,
};
use crate::results::{Direction, FlowKind, LinkSide, PingSummary, Results};

/// A table of texts. The first `left` columns are left-aligned. The others contain numbers and are right-aligned.
#[derive(Clone, Debug)]
pub struct Table {
    /// Heading.
    pub title: &'static str,
    /// Number of left-aligned columns.
    pub left: usize,
    /// Names of the columns.
    pub head: Vec<&'static str>,
    /// The rows, each with one text per column.
    pub rows: Vec<Vec<String>>,
}

/// Returns every table that has a row.
pub(crate) fn all(results: &Results) -> Vec<Table> {
    let mut tables = vec![
        flows(results),
        media::video(results),
        media::voice(results),
        media::freezes(results),
        changes(results),
        links(results),
        pings(results),
        baselines(results),
        repeats(results),
        events(results),
    ];
    tables.retain(|t| !t.rows.is_empty());
    tables
}

impl Table {
    /// Returns the `<section>` with heading and table.
    pub(crate) fn html(&self) -> String {
        let class = |column: usize| {
            if column < self.left {
                ""
            } else {
                " class=\"n\""
            }
        };
        let mut out = format!(
            "<section>\n<h2>{}</h2>\n<div class=\"scroll\"><table>\n<thead><tr>",
            self.title
        );
        for (i, name) in self.head.iter().enumerate() {
            out += &format!("<th scope=\"col\"{}>{}</th>", class(i), escape(name));
        }
        out += "</tr></thead>\n<tbody>\n";
        for row in self.rows.iter().take(ROWS_MAX) {
            out += "<tr>";
            for (i, cell) in row.iter().enumerate() {
                out += &format!("<td{}>{}</td>", class(i), escape(cell));
            }
            out += "</tr>\n";
        }
        out += "</tbody></table></div>\n";
        if let Some(more) = self.rows.len().checked_sub(ROWS_MAX).filter(|n| *n > 0) {
            out += &format!("<p>and {more} more in results.json</p>\n");
        }
        out + "</section>\n"
    }

    /// Returns aligned columns, separated by two spaces.
    #[must_use]
    pub fn text(&self) -> String {
        let head: Vec<String> = self.head.iter().map(|h| (*h).to_owned()).collect();
        let shown = self
            .rows
            .iter()
            .take(ROWS_MAX)
            .map(|row| row.iter().map(|cell| plain(cell)).collect());
        let lines: Vec<Vec<String>> = std::iter::once(head).chain(shown).collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|l| l.get(column));
            cells.map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut out = String::new();
        for line in &lines {
            let mut row = String::new();
            for (i, (cell, width)) in line.iter().zip(&widths).enumerate() {
                if i < self.left {
                    row += &format!("{cell:<width$}  ");
                } else {
                    row += &format!("{cell:>width$}  ");
                }
            }
            out += row.trim_end();
            out.push('\n');
        }
        if let Some(more) = self.rows.len().checked_sub(ROWS_MAX).filter(|n| *n > 0) {
            out += &format!("and {more} more in results.json\n");
        }
        out
    }
}

/// Removes control characters other than the line end, which a terminal would interpret.
pub(crate) fn plain(text: &str) -> String {
    let harmless = |c: char| !c.is_control() || c == '\n';
    text.chars()
        .map(|c| {
            if harmless(c) {
                c
            } else {
                char::REPLACEMENT_CHARACTER
            }
        })
        .collect()
}

fn flows(results: &Results) -> Table {
    let has_deadline = results.flows.iter().any(|f| f.unusable.is_some());
    let rows = results.flows.iter().map(|f| {
        let kind = match f.kind {
            FlowKind::Ping => "ping",
            FlowKind::Quic => "QUIC",
            FlowKind::Requests => "requests",
            FlowKind::Tcp => "TCP",
            FlowKind::Udp => "UDP",
            FlowKind::Video => "video",
            FlowKind::Voice => "voice",
        };
        let direction = match f.direction {
            Direction::Down => "down",
            Direction::Up => "up",
        };
        let mut row = vec![
            f.name.clone(),
            f.cc.as_ref()
                .map_or_else(|| kind.to_owned(), |cc| format!("{kind} {cc}")),
            direction.to_owned(),
            label_of(&f.transport),
            short(f.goodput_mbps),
            percent(f.loss),
            maybe(f.delay_ms.p50),
            maybe(f.delay_ms.p95),
            maybe(f.delay_ms.p99),
            f.reorder_depth_max.to_string(),
            f.longest_gap_ms
                .map_or_else(|| NOTHING.to_owned(), duration),
            f.retransmits
                .map_or_else(|| NOTHING.to_owned(), |n| n.to_string()),
        ];
        if has_deadline {
            row.push(f.unusable.map_or_else(|| NOTHING.to_owned(), percent));
        }
        row
    });
    let mut table = Table {
        title: "Flows",
        left: 4,
        head: vec![
            "flow",
            "kind",
            "direction",
            "over",
            "Mbit/s",
            "loss",
            "delay p50 ms",
            "p95",
            "p99",
            "reordered",
            "longest pause",
            "resent",
        ],
        rows: rows.collect(),
    };
    if has_deadline {
        table.head.push("lost or late");
    }
    table
}

/// Returns the table of the effects of starts and ends of flows.
fn changes(results: &Results) -> Table {
    let has_ranks = results.flows.iter().any(|f| f.return_ms.is_some());
    let has_several = results.flows.iter().any(|f| f.start_s > 0.0);
    let flows = results.flows.iter();
    let rows = flows.filter(|_| has_ranks || has_several).filter_map(|f| {
        let count =
            |count: Option<u64>| count.map_or_else(|| NOTHING.to_owned(), |n| n.to_string());
        f.start_line_losses_pkts?;
        Some(vec![
            f.name.clone(),
            format!("{} s", number(f.start_s)),
            count(f.start_lost_pkts),
            count(f.start_line_losses_pkts),
            format!("{} s", number(f.start_s + f.duration_s)),
            f.return_ms.map_or_else(|| NOTHING.to_owned(), duration),
        ])
    });
    Table {
        title: "Starts and stops",
        left: 1,
        head: vec![
            "flow",
            "starts",
            "datagrams lost within 1 s",
            "lost on the lines",
            "stops",
            "costlier links idle after",
        ],
        rows: rows.collect(),
    }
}

fn links(results: &Results) -> Table {
    let sides = || results.links.iter().flat_map(|l| [&l.down, &l.up]);
    let has_ranks = sides().any(|side| side.fill.is_some() || side.excess.is_some());
    let share = |share: Option<f64>| share.map_or_else(|| NOTHING.to_owned(), percent);
    let row = |name: &str, way: &str, side: &LinkSide| {
        let mut row = vec![
            name.to_owned(),
            way.to_owned(),
            side.rate_mbps.map_or_else(|| NOTHING.to_owned(), number),
            maybe(side.capacity_mbps),
            side.utilisation.map_or_else(|| NOTHING.to_owned(), percent),
            bytes(side.tx_bytes),
            maybe(side.queue_delay_ms.p50),
            maybe(side.queue_delay_ms.p99),
            side.queue_drops.to_string(),
            side.loss_drops.to_string(),
        ];
        if has_ranks {
            row.extend([share(side.fill), share(side.excess)]);
        }
        row
    };
    let rows = results
        .links
        .iter()
        .flat_map(|l| [row(&l.name, "down", &l.down), row(&l.name, "up", &l.up)]);
    let mut table = Table {
        title: "Links",
        left: 2,
        head: vec![
            "link",
            "direction",
            "rate Mbit/s",
            "offered",
            "used",
            "carried",
            "queue p50 ms",
            "p99",
            "queue drops",
            "lost",
        ],
        rows: rows.collect(),
    };
    if has_ranks {
        table
            .head
            .extend(["utilisation while costlier links help", "unnecessary share"]);
    }
    table
}

fn pings(results: &Results) -> Table {
    let row = |phase: &str, summary: &PingSummary| {
        vec![
            phase.to_owned(),
            summary.sent.to_string(),
            summary.lost.to_string(),
            maybe(summary.rtt_ms.p50),
            maybe(summary.rtt_ms.p95),
            maybe(summary.rtt_ms.p99),
            maybe(summary.max_ms),
        ]
    };
    let rows = results
        .pings
        .iter()
        .flat_map(|p| [row("idle", &p.idle), row("under load", &p.loaded)]);
    Table {
        title: "Ping",
        left: 1,
        head: vec!["ping", "sent", "lost", "p50 ms", "p95", "p99", "longest"],
        rows: rows.collect(),
    }
}

fn baselines(results: &Results) -> Table {
    let rows = results.baselines.iter().map(|b| {
        let label = if b.label.is_empty() {
            label_of(&b.transport)
        } else {
            b.label.clone()
        };
        let times = b.ratio.filter(|r| r.is_finite());
        vec![
            label,
            short(b.goodput_mbps),
            times.map_or_else(|| NOTHING.to_owned(), ratio),
        ]
    });
    Table {
        title: "Comparison",
        left: 1,
        head: vec!["same traffic over", "Mbit/s", "pleach divided by this"],
        rows: rows.collect(),
    }
}

fn repeats(results: &Results) -> Table {
    let rows = results.repeats.iter().map(|r| {
        let mut values: Vec<String> = r
            .values
            .iter()
            .take(VALUES_MAX)
            .map(|v| number(*v))
            .collect();
        if r.values.len() > VALUES_MAX {
            values.push("…".to_owned());
        }
        vec![
            r.metric.clone(),
            maybe(r.median),
            r.values.len().to_string(),
            values.join("  "),
        ]
    });
    Table {
        title: "Repeated runs",
        left: 1,
        head: vec!["result", "median", "runs", "values"],
        rows: rows.collect(),
    }
}

fn events(results: &Results) -> Table {
    let rows = results.events.iter().map(|e| {
        vec![
            describe(e),
            e.link.clone().unwrap_or_else(|| NOTHING.to_owned()),
            format!("{} s", number(e.time_s)),
            e.gap_ms.map_or_else(|| NOTHING.to_owned(), duration),
        ]
    });
    Table {
        title: "Events",
        left: 2,
        head: vec!["event", "link", "at", "data stopped for"],
        rows: rows.collect(),
    }
}

const ROWS_MAX: usize = 200;
const VALUES_MAX: usize = 20;
