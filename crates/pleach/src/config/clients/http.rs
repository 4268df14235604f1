//! The keys of `[clients]` with `source = "http"`: a service that is asked about clients.

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
};

use hyper::{Uri, http::uri::Scheme};
use rustls::pki_types::{CertificateDer, ServerName};

use super::{authorities_in, path_of};
use crate::config::{
    secret::{self, Password},
    source::ConfigError,
    table::Table,
};

/// How a service is reached that knows the clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpConfig {
    /// Address of the service, below which its resources are; has a host, and neither user nor query.
    pub(crate) address: Uri,
    /// Token that the gateway shows; allowed in a header.
    pub(crate) token: Password,
    /// Certificates of the authorities that may have signed the service's certificate. If there are none, connections are
    /// not encrypted, and do not leave this host.
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    /// The SQLite file in which the gateway keeps answers and byte counters.
    pub(crate) cache: PathBuf,
}

impl HttpConfig {
    /// Returns the host of the service, without the brackets of an IPv6 address.
    pub(crate) fn host(&self) -> &str {
        without_brackets(self.address.host().unwrap_or_default())
    }

    /// Whether the host is given by its name.
    pub(crate) fn has_name(&self) -> bool {
        self.host().parse::<IpAddr>().is_err()
    }

    /// Whether connections stay on this host.
    fn is_local(&self) -> bool {
        let address = self.host().parse::<IpAddr>();
        self.host() == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for HttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// Reads how the service is reached. `tunnel`: name of the tunnel, for the default name of the cache.
///
/// # Errors
/// The first mistake.
pub(super) fn read(table: &Table<'_>, tunnel: &str) -> Result<HttpConfig, ConfigError> {
    let store = table.required("store", &format!("store = \"{SERVICE}\""))?;
    let example = format!("write for example \"{SERVICE}\"");
    let text = store.text("the address of a service", &example)?;
    let parsed = text.parse::<Uri>().ok();
    let is_address = |address: &Uri| {
        let authority = address.authority().map(|authority| authority.as_str());
        let is_http = [&Scheme::HTTP, &Scheme::HTTPS]
            .map(Some)
            .contains(&address.scheme());
        is_http && authority.is_some_and(|authority| !authority.contains('@'))
    };
    let address = parsed
        .filter(is_address)
        .filter(|_| !text.contains(['?', '#']))
        .ok_or_else(|| {
            store.wrong("expected an address that begins with https:// or http://, without user, query and fragment", &example)
        })?;
    if !has_host_and_port(&address) {
        return Err(store.wrong(
            "expected a host, and after a colon a port from 1 to 65535 or no colon",
            &example,
        ));
    }
    let authorities = table.optional("ca_file");
    let authorities = authorities.as_ref().map(|file| authorities_in(file, table));
    let authorities = authorities.transpose()?.unwrap_or_default();
    let cache = match table.optional("cache") {
        Some(value) => PathBuf::from(path_of(&value)?),
        None => Path::new("/var/lib/pleach").join(format!("{tunnel}.clients.db")),
    };
    let config = HttpConfig {
        token: token(table)?,
        address,
        authorities,
        cache: table.source().directory().join(cache),
    };
    let is_encrypted = config.address.scheme() == Some(&Scheme::HTTPS);
    if is_encrypted && config.authorities.is_empty() {
        return Err(store.wrong(
            "needs to know which authority signs the service's certificate",
            "add ca_file = \"FILE\" with the certificate of the authority, or with all that this host trusts (Debian: /etc/ssl/certs/ca-certificates.crt)",
        ));
    }
    if !is_encrypted && !config.authorities.is_empty() {
        return Err(table.wrong(
            "ca_file",
            "not used with http://, which is not encrypted",
            "write https:// in store, or remove it",
        ));
    }
    if !is_encrypted && !config.is_local() {
        return Err(store.wrong(
            "the service is on another host, to which keys must not be sent in the clear",
            "write https://, and ca_file = \"FILE\" with the certificate of the authority that signed the service's certificate",
        ));
    }
    Ok(config)
}

/// Whether `address` has a name or an IP address, and a port or none.
fn has_host_and_port(address: &Uri) -> bool {
    let authority = address
        .authority()
        .map_or("", |authority| authority.as_str());
    let host = address.host().unwrap_or_default();
    let port = authority.strip_prefix(host).unwrap_or_default();
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let has_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    has_port && ServerName::try_from(without_brackets(host)).is_ok()
}

/// Returns a host without the brackets of an IPv6 address.
fn without_brackets(host: &str) -> &str {
    let inner = host.strip_prefix('[');
    inner
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host)
}

/// Reads the token.
fn token(table: &Table<'_>) -> Result<Password, ConfigError> {
    let file = table.required("token_file", "token_file = \"/etc/pleach/clients.token\"")?;
    let remedy = "write the token that the service expects into the first line of the file, or correct the path";
    let text = secret::private_text(&file, table.source().directory(), "token", remedy)?;
    let token =
        Password::of_file(&text).ok_or_else(|| file.wrong("the file contains no token", remedy))?;
    if !token.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(file.wrong(
            "the token has white space, or characters that are not printable ASCII",
            remedy,
        ));
    }
    Ok(token)
}

/// Example of a service.
const SERVICE: &str = "https://clients.example.net/v1";
