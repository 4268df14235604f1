//! The table `[notices]`, which every mode has: a program that the daemon runs when something needs attention.

use core::{fmt, time::Duration};

use super::{
    source::ConfigError,
    table::{Table, Value},
};

/// Which program receives notices, and when.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct NoticesConfig {
    /// Program and its arguments. They may contain secrets, such as the address of a webhook.
    pub(crate) command: Vec<String>,
    /// Time for which a state must last before a notice is sent.
    pub(crate) after: Duration,
}

impl fmt::Debug for NoticesConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoticesConfig")
            .field("program", &self.command.first())
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

/// Reads the table; `None` if it is missing.
///
/// # Errors
/// The first mistake in the table.
pub(super) fn read(root: &Table<'_>) -> Result<Option<NoticesConfig>, ConfigError> {
    let Some(value) = root.optional("notices") else {
        return Ok(None);
    };
    let table = value.table("[notices]".to_owned(), &["command", "after"])?;
    let command = command(&table.required("command", EXAMPLE)?)?;
    let after = table.optional("after").as_ref().map(duration).transpose()?;
    Ok(Some(NoticesConfig {
        command,
        after: after.unwrap_or(AFTER),
    }))
}

fn command(value: &Value<'_>) -> Result<Vec<String>, ConfigError> {
    let remedy = format!("write {EXAMPLE}");
    let words = value.list(MAX_WORDS, &remedy)?;
    let text = |word: &Value<'_>| {
        let text = word.text("text", &remedy)?;
        if text.contains('\0') {
            return Err(word.expected("text without zero bytes", &remedy));
        }
        Ok(text.to_owned())
    };
    let words: Vec<String> = words.iter().map(text).collect::<Result<_, _>>()?;
    match words.first() {
        Some(program) if program.starts_with('/') => Ok(words),
        Some(_) | None => Err(value.wrong(
            "the first entry is not the absolute path of a program",
            &remedy,
        )),
    }
}

fn duration(value: &Value<'_>) -> Result<Duration, ConfigError> {
    let what = "a time from \"1s\" to \"1h\"";
    let remedy = "write number and unit as a string, for example after = \"10s\"";
    humantime::parse_duration(value.text(what, remedy)?)
        .ok()
        .filter(|time| (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(time))
        .ok_or_else(|| value.expected(what, remedy))
}

/// Default of `after`: longer than most links need for a reconnection.
const AFTER: Duration = Duration::from_secs(10);

/// Maximum number of words of the command.
const MAX_WORDS: usize = 32;

const EXAMPLE: &str = "command = [\"/usr/local/bin/notify\"]";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{parse, source::Source};

    #[expect(
        clippy::unwrap_in_result,
        reason = "the error is that of the reader under test"
    )]
    fn try_read(text: &str) -> Result<Option<NoticesConfig>, String> {
        let source = Source::new(Path::new("t.toml"), text.to_owned());
        let document = parse(&source).expect("TOML");
        read(&Table::root(&source, document.get_ref())).map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_is_a_path_and_its_arguments() {
        assert_eq!(try_read("mode = \"client\"\n"), Ok(None));
        let read = try_read("[notices]\ncommand = [\"/bin/cat\", \"-\"]\nafter = \"2m\"\n");
        let notices = read.expect("valid").expect("given");
        assert_eq!(notices.command, ["/bin/cat", "-"]);
        assert_eq!(notices.after, Duration::from_secs(120));
        let shown = format!("{notices:?}");
        assert!(
            shown.contains("/bin/cat") && !shown.contains("\"-\""),
            "{shown}"
        );
        for (wrong, named) in [
            ("", "[notices] command"),
            ("command = []", "empty"),
            ("command = \"/bin/cat\"", "list"),
            ("command = [\"cat\"]", "absolute path"),
            ("command = [\"/bin/cat\", 1]", "text"),
            ("command = [\"/bin/cat\"]\nafter = \"0s\"", "1s"),
            ("command = [\"/bin/cat\"]\nafter = 10", "1s"),
            ("command = [\"/bin/cat\"]\nurl = \"x\"", "unknown key"),
        ] {
            let error = try_read(&format!("[notices]\n{wrong}\n")).expect_err(wrong);
            assert!(error.contains(named), "{wrong}: {error}");
        }
    }
}
