//! Access to a parsed TOML document that knows the position of every value.
//!
//! [`Table`] and [`Value`] carry the full name and the position of their key, so that every error names file, line and
//! key. A table is opened with the list of its permitted keys; an unknown key is an error that names the nearest
//! permitted one.

use core::{fmt, ops::RangeInclusive, str::FromStr};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::source::{ConfigError, Place, Source};

/// A table of the document.
pub(crate) struct Table<'a> {
    source: &'a Source,
    label: String,
    at: usize,
    entries: &'a DeTable<'a>,
}

impl<'a> Table<'a> {
    /// Returns the document itself. Its keys are not checked yet; see [`Self::allow`].
    pub(crate) fn root(source: &'a Source, entries: &'a DeTable<'a>) -> Self {
        Self {
            source,
            label: String::new(),
            at: 0,
            entries,
        }
    }

    /// Refuses keys other than `known`. The unknown key that comes first in the file is reported.
    ///
    /// # Errors
    /// If a key is unknown; the remedy names the nearest known key.
    pub(crate) fn allow(&self, known: &[&str]) -> Result<(), ConfigError> {
        let unknown = self
            .entries
            .iter()
            .filter(|(key, _)| !known.contains(&key.get_ref().as_ref()))
            .min_by_key(|(key, _)| key.span().start);
        let Some((key, value)) = unknown else {
            return Ok(());
        };
        let name = key.get_ref().as_ref();
        let shown = if name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        {
            shorten(name)
        } else {
            shorten(&format!("{name:?}"))
        };
        let nearest = known
            .iter()
            .min_by_key(|candidate| edit_distance(name, candidate))
            .copied()
            .unwrap_or_default();
        let rest: Vec<&str> = known
            .iter()
            .copied()
            .filter(|key| *key != nearest)
            .collect();
        let others = if rest.is_empty() {
            String::new()
        } else {
            format!(" (others here: {})", rest.join(", "))
        };
        Err(ConfigError::new(
            self.source.place(key.span().start),
            self.label_of(&shown, Some(value.get_ref())),
            "unknown key",
            format!("the nearest known key is `{nearest}`{others}"),
        ))
    }

    /// Returns the value of `key`, if the key is present.
    pub(crate) fn optional(&self, key: &str) -> Option<Value<'a>> {
        let (found, value) = self.entries.iter().find(|(k, _)| k.get_ref() == key)?;
        let at = if matches!(value.get_ref(), DeValue::Table(_) | DeValue::Array(_)) {
            value.span().start
        } else {
            found.span().start
        };
        Some(Value {
            source: self.source,
            label: self.label_of(key, Some(value.get_ref())),
            at,
            value: value.get_ref(),
        })
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// If the key is missing; `example` shows how to write it.
    pub(crate) fn required(&self, key: &str, example: &str) -> Result<Value<'a>, ConfigError> {
        self.optional(key).ok_or_else(|| {
            ConfigError::new(
                self.place(),
                self.label_of(key, None),
                "missing required key",
                format!("add {example}"),
            )
        })
    }

    /// Returns the table `[key]`.
    ///
    /// # Errors
    /// If `key` is missing, is not a table, or has keys other than `known`.
    pub(crate) fn table(&self, key: &str, known: &[&str]) -> Result<Self, ConfigError> {
        let Some(value) = self.optional(key) else {
            return Err(ConfigError::new(
                self.place(),
                format!("[{key}]"),
                "missing required table",
                format!("add a table [{key}] with its keys"),
            ));
        };
        value.table(format!("[{key}]"), known)
    }

    /// Returns the array of tables `[[key]]`; empty if the key is missing.
    ///
    /// # Errors
    /// If `key` is not an array of tables, or if an element has keys other than `known`.
    pub(crate) fn tables(&self, key: &str, known: &[&str]) -> Result<Vec<Self>, ConfigError> {
        let Some(value) = self.optional(key) else {
            return Ok(Vec::new());
        };
        let label = format!("[[{key}]]");
        let DeValue::Array(items) = value.value else {
            return Err(Value {
                label: label.clone(),
                ..value
            }
            .expected(
                "an array of tables",
                &format!("write {label} with double brackets"),
            ));
        };
        items
            .iter()
            .map(|item| {
                Value {
                    source: self.source,
                    label: label.clone(),
                    at: item.span().start,
                    value: item.get_ref(),
                }
                .table(label.clone(), known)
            })
            .collect()
    }

    /// Returns the position at which the table begins.
    pub(crate) fn place(&self) -> Place {
        self.source.place(self.at)
    }

    /// Makes an error about `key`, or about the table as a whole if `key` is missing.
    pub(crate) fn wrong(&self, key: &str, what: impl Into<String>, remedy: &str) -> ConfigError {
        match self.optional(key) {
            Some(value) => value.wrong(what, remedy),
            None => ConfigError::new(self.place(), self.label_of(key, None), what, remedy),
        }
    }

    /// Returns the keys that are present, in the order of the file.
    pub(crate) fn present(&self) -> Vec<&'a str> {
        let mut keys: Vec<_> = self.entries.keys().collect();
        keys.sort_by_key(|key| key.span().start);
        keys.into_iter().map(|key| key.get_ref().as_ref()).collect()
    }

    /// Returns the entries whose keys `wanted` selects, as a table to deserialise.
    pub(crate) fn only(&self, wanted: impl Fn(&str) -> bool) -> Spanned<DeTable<'a>> {
        let entries = self.entries.iter().filter(|(key, _)| wanted(key.get_ref()));
        let entries = entries.map(|(key, value)| (key.clone(), value.clone()));
        Spanned::new(self.at..self.at, entries.collect())
    }

    /// Returns the file that contains this table.
    pub(crate) fn source(&self) -> &'a Source {
        self.source
    }

    /// Returns the full name of `key`, in brackets if its `value` is a table or an array of the document.
    fn label_of(&self, key: &str, value: Option<&DeValue<'_>>) -> String {
        if !self.label.is_empty() {
            return format!("{} {key}", self.label);
        }
        if value.is_some_and(DeValue::is_table) {
            format!("[{key}]")
        } else if value.is_some_and(DeValue::is_array) {
            format!("[[{key}]]")
        } else {
            key.to_owned()
        }
    }
}

/// A value of the document.
pub(crate) struct Value<'a> {
    source: &'a Source,
    label: String,
    at: usize,
    value: &'a DeValue<'a>,
}

impl<'a> Value<'a> {
    /// Returns this value as the table `label` with keys among `known`.
    ///
    /// # Errors
    /// If the value is not a table, or has other keys.
    pub(crate) fn table(&self, label: String, known: &[&str]) -> Result<Table<'a>, ConfigError> {
        let DeValue::Table(entries) = self.value else {
            return Err(self.expected("a table", &format!("write {label} on a line of its own")));
        };
        let table = Table {
            source: self.source,
            label,
            at: self.at,
            entries,
        };
        table.allow(known)?;
        Ok(table)
    }

    /// Returns this value as text.
    ///
    /// # Errors
    /// If the value is not a string; `what` and `remedy` complete the message.
    pub(crate) fn text(&self, what: &str, remedy: &str) -> Result<&'a str, ConfigError> {
        self.as_text().ok_or_else(|| self.expected(what, remedy))
    }

    /// Returns this value if it is a string.
    pub(crate) fn as_text(&self) -> Option<&'a str> {
        let DeValue::String(text) = self.value else {
            return None;
        };
        Some(text.as_ref())
    }

    /// Returns this value if it is `true` or `false`.
    pub(crate) fn as_bool(&self) -> Option<bool> {
        self.value.as_bool()
    }

    /// Returns this value if it is an integer.
    pub(crate) fn as_integer(&self) -> Option<i64> {
        let integer = self.value.as_integer()?;
        i64::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    /// Returns this value if it is a number.
    pub(crate) fn as_number(&self) -> Option<f64> {
        let whole = self
            .as_integer()
            .and_then(|number| i32::try_from(number).ok());
        let fraction = || self.value.as_float()?.as_str().parse().ok();
        whole.map(f64::from).or_else(fraction)
    }

    /// Returns this value as an integer in `range`.
    ///
    /// # Errors
    /// If the value is not an integer in `range`.
    pub(crate) fn integer(
        &self,
        range: RangeInclusive<u16>,
        remedy: &str,
    ) -> Result<u16, ConfigError> {
        self.as_integer()
            .and_then(|number| u16::try_from(number).ok())
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                let what = format!("a whole number from {} to {}", range.start(), range.end());
                self.expected(&what, remedy)
            })
    }

    /// Parses this value, a string, as `T`. `what` says what is expected.
    ///
    /// # Errors
    /// If the value is not a string, or does not parse.
    pub(crate) fn parse<T: FromStr>(&self, what: &str, remedy: &str) -> Result<T, ConfigError> {
        let text = self.text(what, remedy)?;
        text.parse().map_err(|_| self.expected(what, remedy))
    }

    /// Whether this value is an array.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.value, DeValue::Array(_))
    }

    /// Returns the elements of this array of 1 to `max` values.
    ///
    /// # Errors
    /// If the value is not an array, is empty, or is longer.
    pub(crate) fn list(&self, max: usize, remedy: &str) -> Result<Vec<Self>, ConfigError> {
        let DeValue::Array(items) = self.value else {
            return Err(self.expected("a list", remedy));
        };
        if items.is_empty() {
            return Err(self.wrong("expected at least one entry, found an empty list", remedy));
        }
        if items.len() > max {
            return Err(self.wrong(
                format!("expected at most {max} entries, found {}", items.len()),
                "shorten the list",
            ));
        }
        Ok(items
            .iter()
            .map(|item| Value {
                source: self.source,
                label: self.label.clone(),
                at: item.span().start,
                value: item.get_ref(),
            })
            .collect())
    }

    /// Makes the error "expected `what`, found this value".
    pub(crate) fn expected(&self, what: &str, remedy: &str) -> ConfigError {
        self.wrong(
            format!("expected {what}, found {}", Shown(self.value)),
            remedy,
        )
    }

    /// Makes the error `what` about this value. `what` must not contain unescaped text of the file.
    pub(crate) fn wrong(&self, what: impl Into<String>, remedy: &str) -> ConfigError {
        ConfigError::new(self.place(), self.label.clone(), what, remedy)
    }

    /// Returns the position of the value.
    pub(crate) fn place(&self) -> Place {
        self.source.place(self.at)
    }
}

/// A value as error messages show it: escaped, at most [`MAX_SHOWN_CHARS`] characters.
struct Shown<'a>(&'a DeValue<'a>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            DeValue::String(text) => f.write_str(&shorten(&format!("{text:?}"))),
            DeValue::Integer(number) => f.write_str(&shorten(&number.to_string())),
            DeValue::Float(number) => f.write_str(&shorten(&number.to_string())),
            DeValue::Boolean(value) => write!(f, "{value}"),
            DeValue::Datetime(value) => write!(f, "the date {value}"),
            DeValue::Array(_) => f.write_str("a list"),
            DeValue::Table(_) => f.write_str("a table"),
        }
    }
}

/// Returns `text`, cut after [`MAX_SHOWN_CHARS`] characters.
pub(crate) fn shorten(text: &str) -> String {
    if text.chars().count() <= MAX_SHOWN_CHARS {
        return text.to_owned();
    }
    text.chars()
        .take(MAX_SHOWN_CHARS)
        .chain("...".chars())
        .collect()
}

/// Returns the edit distance with swaps of neighbours (optimal string alignment) of the first 64 characters, ignoring
/// case.
fn edit_distance(a: &str, b: &str) -> usize {
    let fold = |text: &str| -> Vec<char> {
        text.chars()
            .take(64)
            .map(|c| c.to_ascii_lowercase())
            .collect()
    };
    let (a, b) = (fold(a), fold(b));
    let mut before_last = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = core::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// Maximum number of characters of a value that an error message repeats.
const MAX_SHOWN_CHARS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_typing_mistakes() {
        for (a, b, distance) in [
            ("weight", "weight", 0),
            ("wieght", "weight", 1),
            ("Weight", "weight", 0),
            ("adress", "address", 1),
            ("", "abc", 3),
            ("mtu", "nat", 3),
        ] {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
            assert_eq!(edit_distance(b, a), distance, "{b} {a}");
        }
    }

    #[test]
    fn long_values_are_cut() {
        assert_eq!(shorten("short"), "short");
        assert_eq!(
            shorten(&"ä".repeat(500)).chars().count(),
            MAX_SHOWN_CHARS + 3
        );
    }
}
