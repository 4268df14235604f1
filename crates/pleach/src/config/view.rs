//! The tables `[dashboard]`, `[metrics]` and `[notices]`, which every mode has: who may read this daemon's state over TCP, and
//! who is told of changes.
//!
//! Beyond loopback, both require a token. A token file has one token per line. `read-only` after a token means that
//! requests with this token may not change anything.

use core::fmt;
use std::{net::SocketAddr, path::PathBuf};

use zeroize::Zeroizing;

use super::{
    notices::{self, NoticesConfig},
    secret,
    source::ConfigError,
    table::{Table, Value},
};

/// Where dashboard and metrics of this daemon listen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViewConfig {
    /// Listener of the dashboard and the API.
    pub(crate) dashboard: Option<Listen>,
    /// Listener that serves `/metrics` alone.
    pub(crate) metrics: Option<Listen>,
    /// File of the history; `None`: no history is stored.
    pub(crate) history: Option<PathBuf>,
    /// Program that receives notices.
    pub(crate) notices: Option<NoticesConfig>,
}

/// A TCP listener, and who may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    /// Address to listen on.
    pub(crate) address: SocketAddr,
    /// Accepted tokens. If empty, which is permitted on loopback only, anybody may read, and nobody may change
    /// anything.
    pub(crate) tokens: Vec<Token>,
    /// Host names that browsers may use for the listener, besides addresses and `localhost`.
    pub(crate) hosts: Vec<String>,
}

/// A token of a token file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    secret: Zeroizing<String>,
    /// Whether requests with this token may change weights and other settings.
    pub(crate) may_change: bool,
}

impl Token {
    #[cfg(test)]
    pub(crate) fn new(secret: &str, may_change: bool) -> Self {
        Self {
            secret: Zeroizing::new(secret.to_owned()),
            may_change,
        }
    }

    /// Whether `text` is this token. Takes the same time for all texts of the token's length.
    pub(crate) fn is(&self, text: &str) -> bool {
        let (own, other) = (self.secret.as_bytes(), text.as_bytes());
        let pairs = own.iter().zip(other);
        own.len() == other.len() && pairs.fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("may_change", &self.may_change)
            .finish_non_exhaustive()
    }
}

/// Reads the tables. A table that is missing in the file yields `None`.
///
/// # Errors
/// The first mistake in the tables.
pub(super) fn read(root: &Table<'_>) -> Result<ViewConfig, ConfigError> {
    let known = ["listen", "token_file", "hosts", "history"];
    Ok(ViewConfig {
        dashboard: listen(root, "dashboard", &known)?,
        metrics: listen(root, "metrics", &["listen", "token_file", "hosts"])?,
        history: match root.optional("dashboard") {
            Some(value) => history(&value.table("[dashboard]".to_owned(), &known)?)?,
            None => None,
        },
        notices: notices::read(root)?,
    })
}

fn listen(root: &Table<'_>, key: &str, known: &[&str]) -> Result<Option<Listen>, ConfigError> {
    let Some(value) = root.optional(key) else {
        return Ok(None);
    };
    let table = value.table(format!("[{key}]"), known)?;
    let example = format!("listen = \"127.0.0.1:{}\"", port(key));
    let place = table.required("listen", &example)?;
    let address: SocketAddr =
        place.parse("ADDRESS:PORT to listen on", &format!("write {example}"))?;
    if address.port() == 0 || address.ip().is_multicast() {
        return Err(place.expected("ADDRESS:PORT to listen on", &format!("write {example}")));
    }
    let tokens = table.optional("token_file");
    let tokens = tokens.map(|file| tokens_of(&file, &table)).transpose()?;
    if tokens.is_none() && !address.ip().to_canonical().is_loopback() {
        return Err(table.wrong(
            "token_file",
            format!("missing, and {address} can be reached from other hosts"),
            "add token_file = \"FILE\", a file with one token per line (`pleach genkey` makes one), or listen on 127.0.0.1",
        ));
    }
    let hosts = table.optional("hosts");
    Ok(Some(Listen {
        address,
        tokens: tokens.unwrap_or_default(),
        hosts: hosts.map_or_else(|| Ok(Vec::new()), |value| hosts_of(&value))?,
    }))
}

fn history(table: &Table<'_>) -> Result<Option<PathBuf>, ConfigError> {
    let Some(value) = table.optional("history") else {
        return Ok(None);
    };
    let what = "the absolute path of a file";
    let remedy = "write for example \"/var/lib/pleach/history.db\"";
    let text = value.text(what, remedy)?;
    if !text.starts_with('/') || text.ends_with('/') || text.contains('\0') {
        return Err(value.expected(what, remedy));
    }
    Ok(Some(PathBuf::from(text)))
}

fn hosts_of(value: &Value<'_>) -> Result<Vec<String>, ConfigError> {
    let remedy = "write names without port, for example [\"router.lan\"]";
    let names = value.list(MAX_ENTRIES, remedy)?;
    let name = |value: &Value<'_>| {
        let text = value.text("a host name", remedy)?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        if text.is_empty() || !text.chars().all(is_name) {
            return Err(value.expected("a host name", remedy));
        }
        Ok(text.to_ascii_lowercase())
    };
    names.iter().map(name).collect()
}

fn tokens_of(file: &Value<'_>, table: &Table<'_>) -> Result<Vec<Token>, ConfigError> {
    let remedy =
        "write one token per line, for example the output of `pleach genkey`, or correct the path";
    let text = secret::private_text(file, table.source().directory(), "token", remedy)?;
    let mut tokens = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (secret, may_change) = match line.strip_suffix("read-only") {
            Some(secret) => (secret.trim_end(), false),
            None => (line, true),
        };
        let is_fit = secret.len() >= MIN_TOKEN_LEN && secret.bytes().all(|b| b.is_ascii_graphic());
        if !is_fit {
            return Err(file.wrong(
                format!(
                    "a line of the token file is not a token: a token has at least {MIN_TOKEN_LEN} printable characters without spaces, \
                     optionally followed by `read-only`"
                ),
                remedy,
            ));
        }
        tokens.push(Token {
            secret: Zeroizing::new(secret.to_owned()),
            may_change,
        });
    }
    if tokens.is_empty() || tokens.len() > MAX_ENTRIES {
        return Err(file.wrong(
            format!(
                "the token file has {} tokens; 1 to {MAX_ENTRIES} are allowed",
                tokens.len()
            ),
            remedy,
        ));
    }
    Ok(tokens)
}

fn port(key: &str) -> u16 {
    if key == "metrics" { 9780 } else { 7780 }
}

/// Minimum length of a token: 16 characters of base64 have 96 bits, which cannot be guessed over a network.
const MIN_TOKEN_LEN: usize = 16;

/// Maximum number of host names of a listener, and of tokens in a file.
const MAX_ENTRIES: usize = 16;

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

    use super::*;
    use crate::config::{parse, source::Source};

    #[expect(
        clippy::unwrap_in_result,
        reason = "the error is that of the reader under test"
    )]
    fn try_read(dir: &Path, text: &str) -> Result<ViewConfig, String> {
        let source = Source::new(&dir.join("t.toml"), text.to_owned());
        let document = parse(&source).expect("TOML");
        read(&Table::root(&source, document.get_ref())).map_err(|error| error.to_string())
    }

    #[test]
    fn other_hosts_need_a_token() {
        let dir = tempfile::tempdir().expect("directory");
        let open = |text: &str| try_read(dir.path(), text);
        let view = open("[dashboard]\nlisten = \"127.0.0.1:7780\"\n").expect("loopback");
        assert!(view.dashboard.expect("given").tokens.is_empty() && view.metrics.is_none());
        for table in ["dashboard", "metrics"] {
            for address in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
                let error = open(&format!("[{table}]\nlisten = \"{address}\"\n"));
                let error = error.expect_err("without a token");
                assert!(error.contains("token_file"), "{error}");
            }
        }
    }

    #[test]
    fn both_tables_take_names_of_the_host() {
        let dir = tempfile::tempdir().expect("directory");
        for table in ["dashboard", "metrics"] {
            let text = format!("[{table}]\nlisten = \"127.0.0.1:1\"\nhosts = [\"Router.lan\"]\n");
            let view = try_read(dir.path(), &text).expect("a name");
            let listen = view.dashboard.or(view.metrics).expect("given");
            assert_eq!(listen.hosts, ["router.lan"]);
        }
    }

    #[test]
    fn a_token_file_is_private_and_shows_in_no_message() {
        let dir = tempfile::tempdir().expect("directory");
        let file = dir.path().join("tokens");
        let text = "[dashboard]\nlisten = \"0.0.0.0:7780\"\ntoken_file = \"tokens\"\nhosts = [\"Router.lan\"]\n";
        let write = |content: &str, mode| {
            fs::write(&file, content).expect("file");
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("mode");
            try_read(dir.path(), text)
        };
        let secret = "abcdefghijklmnop";
        let error = write(secret, 0o644).expect_err("open to others");
        assert!(error.contains("644") && !error.contains(secret), "{error}");
        let error = write("abcdefghijklmno", 0o600).expect_err("too short");
        assert!(!error.contains("abcdef"), "{error}");
        let content = format!("{secret}\n\nzyxwvutsrqponmlk read-only\n");
        let view = write(&content, 0o600).expect("two tokens");
        let listen = view.dashboard.expect("given");
        assert_eq!(listen.hosts, ["router.lan"]);
        let rights: Vec<bool> = listen.tokens.iter().map(|token| token.may_change).collect();
        assert_eq!(rights, [true, false]);
        assert!(listen.tokens[0].is(secret) && !listen.tokens[1].is(secret));
        assert!(!format!("{listen:?}").contains("abc"));
    }
}
