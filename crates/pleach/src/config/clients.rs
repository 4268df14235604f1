//! The table `[clients]` of a gateway: where it learns of its clients.

mod http;

use std::{error::Error as _, fmt, net::IpAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio_postgres::config::{Host, SslMode};

pub(crate) use http::HttpConfig;

use super::{
    StoreConfig, network,
    secret::{self, Password},
    source::ConfigError,
    table::{Table, Value},
};

/// Where the clients of a gateway are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StorePlace {
    /// At a service that is asked by HTTP.
    Http(HttpConfig),
    /// In a PostgreSQL database.
    Postgres(PostgresConfig),
    /// In an SQLite file.
    Sqlite(PathBuf),
}

impl StorePlace {
    /// Returns the source in `[clients]` that has this store.
    pub(crate) const fn source(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Postgres(_) => "postgres",
            Self::Sqlite(_) => "sqlite",
        }
    }
}

/// How a PostgreSQL database is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostgresConfig {
    /// Connection string, without a password.
    pub(crate) connection: String,
    /// Password of the user.
    pub(crate) password: Option<Password>,
    /// Certificates of the authorities that may have signed the server's certificate. If there are none, connections are
    /// not encrypted, and do not leave this host.
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    /// Whether a server is given by its name.
    pub(crate) has_names: bool,
}

impl fmt::Display for PostgresConfig {
    /// Writes the connection string, which names server and database.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgreSQL ({})", self.connection)
    }
}

/// Reads `[clients]`; `None` if the clients are in the configuration and in the files of `[invitations]`. `addresses`:
/// the gateway's inner addresses, whose networks the clients of a store have unless `networks` says otherwise. `tunnel`:
/// name of the gateway's tunnel.
///
/// # Errors
/// The first mistake in the table.
pub(super) fn read(
    root: &Table<'_>,
    addresses: &[IpNet],
    tunnel: &str,
) -> Result<Option<StoreConfig>, ConfigError> {
    if root.optional("clients").is_none() {
        return Ok(None);
    }
    let keys = [
        "source",
        "store",
        "password_file",
        "token_file",
        "ca_file",
        "cache",
        "networks",
        "answer_life",
        "idle",
        "write_every",
    ];
    let table = root.table("clients", &keys)?;
    let source = table.required("source", "source = \"sqlite\"")?;
    let place = match source.as_text() {
        Some("file") => {
            let mut present = table.present().into_iter();
            if let Some(key) = present.find(|key| *key != "source") {
                return Err(table.wrong(
                    key,
                    "not used with source = \"file\"",
                    "remove it, or write source = \"sqlite\"",
                ));
            }
            return Ok(None);
        }
        Some("sqlite") => StorePlace::Sqlite(root.source().directory().join(sqlite(&table)?)),
        Some("postgres") => StorePlace::Postgres(postgres(&table)?),
        Some("http") => StorePlace::Http(http::read(&table, tunnel)?),
        _ => {
            return Err(source.expected(
                "\"file\", \"sqlite\", \"postgres\" or \"http\"",
                "write \"sqlite\" for a store in a file, \"postgres\" for one in a database, \"http\" for a service, or \"file\" for the clients in this file",
            ));
        }
    };
    only_keys_of(&table, place.source())?;
    let networks = table.optional("networks");
    let networks = networks.as_ref().map(network::allowed_ips).transpose()?;
    let time = |key: &str, usual: Duration, longest: Duration| {
        let value = table.optional(key);
        value.map_or(Ok(usual), |value| duration(&value, longest))
    };
    Ok(Some(StoreConfig {
        place,
        networks: networks.unwrap_or_else(|| addresses.iter().map(IpNet::trunc).collect()),
        answer_life: time("answer_life", ANSWER_LIFE, DAY)?,
        idle: time("idle", IDLE, 30 * DAY)?,
        write_every: time("write_every", WRITE_EVERY, HOUR)?,
    }))
}

/// Refuses keys that belong to other sources than `source`.
fn only_keys_of(table: &Table<'_>, source: &str) -> Result<(), ConfigError> {
    let sources: [(&str, &[&str]); 4] = [
        ("password_file", &["postgres"]),
        ("token_file", &["http"]),
        ("ca_file", &["postgres", "http"]),
        ("cache", &["http"]),
    ];
    for (key, sources) in sources {
        if table.optional(key).is_some() && !sources.contains(&source) {
            let sources = sources.join("\" or \"");
            return Err(table.wrong(
                key,
                format!("not used with source = \"{source}\""),
                &format!("remove it, or write source = \"{sources}\""),
            ));
        }
    }
    Ok(())
}

/// Reads the path of an SQLite file.
fn sqlite<'a>(table: &Table<'a>) -> Result<&'a str, ConfigError> {
    path_of(&table.required("store", "store = \"/var/lib/pleach/gateway/clients.db\"")?)
}

/// Returns the path of a file.
fn path_of<'a>(store: &Value<'a>) -> Result<&'a str, ConfigError> {
    let path = store.text("a file", "write a path as a string")?;
    if path.is_empty() || path.ends_with('/') || path.contains('\0') {
        return Err(store.expected(
            "a file",
            "write for example \"/var/lib/pleach/gateway/clients.db\"",
        ));
    }
    Ok(path)
}

/// Reads how a PostgreSQL database is reached. A mistake never shows the connection string, which may have a password.
fn postgres(table: &Table<'_>) -> Result<PostgresConfig, ConfigError> {
    let store = table.required("store", &format!("store = \"{CONNECTION}\""))?;
    let example = format!("write for example \"{CONNECTION}\"");
    let connection = store
        .as_text()
        .ok_or_else(|| store.wrong("expected a connection string", &example))?;
    let parsed = connection
        .parse::<tokio_postgres::Config>()
        .map_err(|error| {
            // Other texts than this one may contain parts of a password.
            let source = error.source().map(ToString::to_string);
            let unknown = source.filter(|text| text.starts_with("unknown option"));
            let what = "expected a connection string of PostgreSQL";
            let what = unknown.map_or_else(|| what.to_owned(), |text| format!("{what}: {text}"));
            store.wrong(what, &example)
        })?;
    if parsed.get_password().is_some() {
        return Err(store.wrong(
            "contains a password",
            "write the password into a file with mode 0600, and name the file in password_file",
        ));
    }
    if parsed.get_ssl_mode() != SslMode::Prefer {
        return Err(store.wrong(
            "sslmode is not used: connections are encrypted if, and only if, there is a ca_file",
            "remove sslmode, and write ca_file = \"FILE\" with the certificate of the authority that signed the server's certificate",
        ));
    }
    let hosts = parsed.get_hosts();
    if hosts.is_empty() {
        return Err(store.wrong("names no host", &example));
    }
    let authorities = table.optional("ca_file");
    let authorities = authorities.as_ref().map(|file| authorities_in(file, table));
    let authorities = authorities.transpose()?.unwrap_or_default();
    let mut outer = parsed.get_hostaddrs().iter().filter(|ip| !ip.is_loopback());
    let is_local = hosts.iter().all(is_local) && outer.next().is_none();
    if !is_local && authorities.is_empty() {
        return Err(store.wrong(
            "the database is on another host, to which keys must not be sent in the clear",
            "add ca_file = \"FILE\" with the certificate of the authority that signed the server's certificate",
        ));
    }
    let has_socket = hosts.iter().any(|host| matches!(host, Host::Unix(_)));
    if has_socket && !authorities.is_empty() {
        return Err(table.wrong("ca_file", "a Unix socket is not encrypted", "remove it"));
    }
    let password = table.optional("password_file").map(|file| {
        let remedy = "write the password of the database's user into the first line of the file, or correct the path";
        let text = secret::private_text(&file, table.source().directory(), "password", remedy)?;
        Password::of_file(&text).ok_or_else(|| file.wrong("the file contains no password", remedy))
    });
    let is_name = |host: &Host| match host {
        Host::Tcp(name) => name.parse::<IpAddr>().is_err(),
        Host::Unix(_) => false,
    };
    Ok(PostgresConfig {
        connection: connection.to_owned(),
        password: password.transpose()?,
        authorities,
        has_names: hosts.iter().any(is_name),
    })
}

/// Reads the certificates in the file that `value` names.
fn authorities_in(
    value: &Value<'_>,
    table: &Table<'_>,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let remedy = "write the path of a file with certificates in PEM";
    let name = value.text("the path of a file", remedy)?;
    let read = CertificateDer::pem_file_iter(table.source().directory().join(name))
        .and_then(|found| found.collect::<Result<Vec<_>, _>>());
    let found = read.map_err(|error| value.wrong(format!("cannot be read: {error}"), remedy))?;
    if found.is_empty() {
        return Err(value.wrong("the file contains no certificate", remedy));
    }
    Ok(found)
}

/// Whether connections to `host` stay on this host.
fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        }
        Host::Unix(_) => true,
    }
}

/// Reads a duration from 1 s to `longest`.
fn duration(value: &Value<'_>, longest: Duration) -> Result<Duration, ConfigError> {
    let what = format!(
        "a duration from \"1s\" to \"{}\"",
        humantime::format_duration(longest)
    );
    let remedy = "write for example \"60s\"";
    let time = humantime::parse_duration(value.text(&what, remedy)?).ok();
    time.filter(|time| (Duration::from_secs(1)..=longest).contains(time))
        .ok_or_else(|| value.expected(&what, remedy))
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Default time after which a gateway asks again about a client that it knows.
const ANSWER_LIFE: Duration = Duration::from_secs(60);
/// Default time without any datagram after which a gateway forgets a client. It is longer than the lifetime of keys, so
/// the client has no session.
const IDLE: Duration = Duration::from_secs(600);
/// Default interval at which byte counters are written: what a crash may lose.
const WRITE_EVERY: Duration = Duration::from_secs(5);
/// Example of a connection string.
const CONNECTION: &str = "host=127.0.0.1 dbname=pleach user=pleach";
