//! Draws the screen: headline, links, sentence and last minutes of the selected link, keys.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span, Text},
    widgets::{Block, Paragraph, Row, Sparkline, Table, TableState, Wrap},
};

use super::{Sort, Top};
use crate::{
    control::{LinkState, LinkStatus},
    rates::{Key, Rates},
    reasons,
    status::rate,
};

/// Draws everything into `frame`, whatever its size.
pub(super) fn draw(frame: &mut Frame<'_>, top: &Top) {
    let [head, table, sentence, past, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(4),
        Constraint::Length(4),
        Constraint::Length(5),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, top, head);
    let rows = top.rows();
    let chosen = rows.get(top.at(&rows));
    draw_links(frame, top, table, &rows);
    if let Some((key, link)) = chosen {
        draw_sentence(frame, sentence, link);
        draw_past(frame, top, past, key);
    }
    let sort = match top.sort {
        Sort::Name => "as configured",
        Sort::Download => "by download",
        Sort::Upload => "by upload",
        Sort::Delay => "by delay",
    };
    let keys = if top.message.is_empty() {
        format!(" q leave  ↑↓ choose  s sorted {sort}  + - weight")
    } else {
        format!(" {}", clean(&top.message))
    };
    frame.render_widget(Paragraph::new(keys).style(DIM), foot);
}

fn draw_head(frame: &mut Frame<'_>, top: &Top, area: Rect) {
    let (sent, received) = top.moved.values().fold((0.0, 0.0), |sum, rates: &Rates| {
        (sum.0 + rates.0, sum.1 + rates.1)
    });
    let colour = if top.report.up {
        Color::Green
    } else {
        Color::Red
    };
    let headline = Line::from(vec![
        Span::styled("● ", Style::new().fg(colour)),
        Span::styled(clean(&reasons::headline(&top.report)), BOLD),
    ]);
    let numbers = Line::from(format!(
        "  ↓ {}  ↑ {}  policy {}",
        rate(received),
        rate(sent),
        clean(&top.report.scheduler.policy)
    ));
    frame.render_widget(Text::from(vec![headline, numbers]), area);
}

fn draw_links(frame: &mut Frame<'_>, top: &Top, area: Rect, rows: &[(Key, &LinkStatus)]) {
    let header = [
        "LINK", "STATE", "DOWN", "UP", "CAPACITY", "DELAY", "QUEUE", "LOSS", "WEIGHT",
    ];
    let milliseconds = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.0} ms"));
    let lines = rows.iter().map(|(key, link)| {
        let moved = top.moved.get(key);
        let (word, colour) = word(link);
        let name = if key.0.is_empty() {
            clean(&link.name)
        } else {
            clean(&format!("{}/{}", key.0, link.name))
        };
        Row::new(vec![
            Line::from(name),
            Line::from(Span::styled(word, Style::new().fg(colour))),
            Line::from(moved.map_or("-".to_owned(), |moved| short(moved.1))),
            Line::from(moved.map_or("-".to_owned(), |moved| short(moved.0))),
            Line::from(link.capacity_mbps.map_or("-".to_owned(), short)),
            Line::from(milliseconds(link.rtt_ms)),
            Line::from(milliseconds(link.queue_delay_ms)),
            Line::from(format!("{:.1} %", link.loss * 100.0)),
            Line::from(link.weight.to_string()),
        ])
    });
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(6),
    ];
    let table = Table::new(lines, widths)
        .header(Row::new(header).style(DIM))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default();
    if !rows.is_empty() {
        state.select(Some(top.at(rows)));
    }
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_sentence(frame: &mut Frame<'_>, area: Rect, link: &LinkStatus) {
    let why = link.why.clone();
    let why = why.unwrap_or_else(|| reasons::by_state(&link.name, link.state));
    let mut text = format!("{why}.");
    if let Some(advice) = &link.advice {
        text.push(' ');
        text.push_str(advice);
    }
    let block = Block::bordered().border_style(DIM);
    let sentence = Paragraph::new(clean(&text))
        .wrap(Wrap { trim: true })
        .block(block);
    frame.render_widget(sentence, area);
}

fn draw_past(frame: &mut Frame<'_>, top: &Top, area: Rect, key: &Key) {
    let halves = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(1);
    let areas: [Rect; 2] = halves.areas(area);
    let past = top.past.get(key);
    let sides: [Side; 2] = [
        ("down", |rates| rates.1, Color::Cyan),
        ("up", |rates| rates.0, Color::Magenta),
    ];
    for ((name, value, colour), area) in sides.into_iter().zip(areas) {
        let width = usize::from(area.width);
        let values: Vec<f64> = past.into_iter().flatten().map(value).collect();
        let shown = &values[values.len().saturating_sub(width)..];
        let most = shown.iter().copied().fold(0.0, f64::max);
        // In kbit/s, so that the bars of slow links are visible.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rates are not negative, and a bar has no decimals"
        )]
        let bars: Vec<u64> = shown.iter().map(|mbps| (mbps * 1000.0) as u64).collect();
        let title = format!("{} {name}, at most {}", clean(&key.1), rate(most));
        let picture = Sparkline::default()
            .block(Block::new().title(Span::styled(title, DIM)))
            .data(bars)
            .style(Style::new().fg(colour));
        frame.render_widget(picture, area);
    }
}

/// Label, value and colour of a direction.
type Side = (&'static str, fn(&Rates) -> f64, Color);

fn word(link: &LinkStatus) -> (&'static str, Color) {
    match link.state {
        LinkState::Down => ("down", Color::Red),
        LinkState::Never => ("never", Color::DarkGray),
        LinkState::Standby => ("standby", Color::Blue),
        LinkState::Suspect => ("suspect", Color::Yellow),
        LinkState::Up if link.idle_reason.is_some() => ("idle", Color::Yellow),
        LinkState::Up => ("in use", Color::Green),
    }
}

/// Returns a rate in at most six characters, such as `12.3M`.
fn short(mbps: f64) -> String {
    if mbps >= 1000.0 {
        format!("{:.2}G", mbps / 1000.0)
    } else if mbps >= 1.0 {
        format!("{mbps:.1}M")
    } else {
        format!("{:.0}k", mbps * 1000.0)
    }
}

/// Returns `text` without control characters. Names may come from another host.
fn clean(text: &str) -> String {
    text.replace(char::is_control, "")
}

const DIM: Style = Style::new().fg(Color::DarkGray);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::top::tests::{report, top};

    fn screen(top: &Top, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
        terminal.draw(|frame| draw(frame, top)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let mut text = String::new();
        for y in 0..height {
            let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    #[test]
    fn eighty_by_twenty_four_shows_links_sentence_and_past() {
        let mut top = top();
        top.choose(2);
        let text = screen(&top, 80, 24);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "● pleach0 is up over 2 of 3 links.");
        assert_eq!(lines[1], "  ↓ 48.0 Mbit/s  ↑ 12.0 Mbit/s  policy");
        assert!(
            lines[2].starts_with("LINK") && lines[2].ends_with("WEIGHT"),
            "{text}"
        );
        assert!(
            lines[3].starts_with("lte") && lines[3].contains("16.0M"),
            "{text}"
        );
        assert!(
            lines[4].starts_with("dsl") && lines[4].contains("32.0M"),
            "{text}"
        );
        assert!(
            lines[5].starts_with("sat") && lines[5].contains("down"),
            "{text}"
        );
        assert!(
            text.contains("sat is down: no answer arrives over it. Check cable, modem or signal.")
        );
        assert!(
            lines[23].contains("q leave") && lines[23].contains("weight"),
            "{text}"
        );
        top.choose(-1);
        let text = screen(&top, 80, 24);
        assert!(text.contains("dsl carries packets."), "{text}");
        assert!(
            text.contains("dsl down, at most 32.0 Mbit/s") && text.contains('█'),
            "{text}"
        );
    }

    #[test]
    fn every_size_and_no_link_is_drawn() {
        let mut top = top();
        top.message = "a message\n\u{1b}[31m".to_owned();
        for (width, height) in [(1, 1), (20, 5), (80, 24), (200, 60)] {
            let text = screen(&top, width, height);
            assert!(!text.contains('\u{1b}'));
        }
        let mut empty = report(0);
        empty.links.clear();
        let mut top = Top::default();
        top.take(pleach_core::time::Instant::ZERO, empty);
        assert!(screen(&top, 80, 24).contains("pleach0 is up over 0 of 0 links."));
    }
}
