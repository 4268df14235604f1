//! Locates errors in the text of a scenario file.

use core::ops::Range;
use std::path::Path;

use crate::scenario::ScenarioError;

/// A section of the file: the name of a table and, in an array of tables, its index from 0.
#[derive(Clone, Copy)]
pub(crate) struct Section(pub(crate) &'static str, pub(crate) usize);

/// The part of the file before all sections.
pub(crate) const TOP: Section = Section("", 0);

/// Converts an error of the TOML parser.
pub(crate) fn syntax(text: &str, file: &Path, error: &toml::de::Error) -> ScenarioError {
    let span = error.span().unwrap_or(0..0);
    let message = error.message().trim();
    let (problem, remedy) = match message.split_once(", expected ") {
        Some((problem, expected)) => (problem.to_owned(), format!("expected {expected}")),
        None => match message.strip_prefix("expected ") {
            Some(_) => ("the value is not valid".to_owned(), message.to_owned()),
            None => (message.to_owned(), remedy_for(message).to_owned()),
        },
    };
    ScenarioError {
        file: file.display().to_string(),
        line: line_at(text, &span),
        key: key_at(text, &span),
        problem,
        remedy,
    }
}

/// Returns the line of `key` in `section`, or the line of the section's heading if the key is not there. 1 if neither
/// is found.
///
/// This parses lines, not TOML: for a section written as an inline table, it returns the line of its first key.
pub(crate) fn line_of(text: &str, section: Section, key: &str) -> usize {
    let Section(name, index) = section;
    let mut inside = name.is_empty();
    let (mut seen, mut head) = (0, 1);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.starts_with('[') {
            let title = line
                .split('#')
                .next()
                .unwrap_or("")
                .trim()
                .trim_matches(['[', ']']);
            let is_head = title == name;
            let is_below = title.strip_prefix(name).is_some_and(|t| t.starts_with('.'));
            if is_head {
                inside = seen == index;
                seen += 1;
                if inside {
                    head = number;
                }
            } else if !is_below || name.is_empty() {
                inside = false;
            }
        } else if inside && key_of(line).trim_matches('"') == key {
            return number;
        }
    }
    head
}

fn remedy_for(message: &str) -> &'static str {
    if message.starts_with("missing field") {
        "add the key"
    } else if message.starts_with("duplicate") {
        "keep one of them"
    } else {
        "see the scenario files that come with the program"
    }
}

fn line_at(text: &str, span: &Range<usize>) -> usize {
    let before = text.get(..span.start).unwrap_or(text);
    before.bytes().filter(|&b| b == b'\n').count() + 1
}

fn key_at(text: &str, span: &Range<usize>) -> String {
    let line = text.lines().nth(line_at(text, span) - 1).unwrap_or("");
    match key_of(line.trim()) {
        "" => "file".to_owned(),
        key => key.to_owned(),
    }
}

fn key_of(line: &str) -> &str {
    line.split('=').next().unwrap_or("").trim()
}
