//! `[carrier]`: how datagrams travel where UDP does not get through.

use std::{net::SocketAddr, path::PathBuf};

use ipnet::IpNet;
use pleach_carrier::{choice::Mode, http_proxy::HttpProxy};
use zeroize::Zeroizing;

use super::{
    network, secret,
    source::ConfigError,
    table::{Table, Value},
};

/// A client's `[carrier]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientCarrier {
    /// Of links that do not say.
    pub(crate) mode: Mode,
    /// Where TCP goes; none: to port 443 of the gateway's addresses.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Name that TLS shows.
    pub(crate) server_name: Option<String>,
    /// Path of the request.
    pub(crate) path: String,
    /// Connections of a link.
    pub(crate) connections: usize,
    /// Which certificate is right.
    pub(crate) trust: TrustConfig,
}

/// By what a client recognises the other end of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TrustConfig {
    /// The authorities in this file.
    Authorities(PathBuf),
    /// The gateway's key of the tunnel.
    GatewayKey,
    /// This SHA-256 of the certificate.
    Pinned(String),
}

/// A gateway's `[carrier]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatewayCarrier {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// Chain and key; none: made by itself.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// Web servers in front of it.
    pub(crate) proxies: Vec<IpNet>,
}

/// The client's `[carrier]`, or what holds without one.
///
/// # Errors
/// The first mistake in it.
pub(super) fn client(root: &Table<'_>) -> Result<ClientCarrier, ConfigError> {
    let mut this = ClientCarrier {
        mode: Mode::Auto,
        endpoints: Vec::new(),
        server_name: None,
        path: "/pleach".to_owned(),
        connections: 4,
        trust: TrustConfig::GatewayKey,
    };
    if root.optional("carrier").is_none() {
        return Ok(this);
    }
    let table = root.table(
        "carrier",
        &[
            "mode",
            "endpoints",
            "server_name",
            "path",
            "connections",
            "ca_file",
            "certificate",
        ],
    )?;
    if let Some(value) = table.optional("mode") {
        this.mode = mode(&value)?;
    }
    if let Some(list) = table.optional("endpoints") {
        for item in list.list(MAX_ENDPOINTS, "write for example [\"203.0.113.5:443\"]")? {
            this.endpoints.push(network::endpoint(&item)?);
        }
    }
    if let Some(value) = table.optional("server_name") {
        let (what, remedy) = ("a host name", "write for example \"www.example.org\"");
        let name = value.text(what, remedy)?;
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        if name.is_empty() || name.len() > 253 || !name.chars().all(is_part) {
            return Err(value.expected(what, remedy));
        }
        this.server_name = Some(name.to_owned());
    }
    if let Some(value) = table.optional("path") {
        let (what, remedy) = ("a path of a URL", "write for example \"/pleach\"");
        let path = value.text(what, remedy)?;
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
        if !path.starts_with('/') || path.len() > 255 || !path.chars().all(is_part) {
            return Err(value.expected(what, remedy));
        }
        path.clone_into(&mut this.path);
    }
    if let Some(value) = table.optional("connections") {
        this.connections = usize::from(value.integer(1..=16, "write 4, or 1 to 16")?);
    }
    this.trust = trust(root, &table)?;
    if matches!(this.trust, TrustConfig::Authorities(_)) && this.server_name.is_none() {
        return Err(table.wrong(
            "server_name",
            "missing: ca_file says who may issue the certificate, not for whom",
            "add server_name = \"NAME\", the host name in the certificate",
        ));
    }
    Ok(this)
}

fn trust(root: &Table<'_>, table: &Table<'_>) -> Result<TrustConfig, ConfigError> {
    match (table.optional("ca_file"), table.optional("certificate")) {
        (None, None) => Ok(TrustConfig::GatewayKey),
        (Some(file), None) => Ok(TrustConfig::Authorities(path(root, &file)?)),
        (None, Some(pin)) => {
            let (what, remedy) = (
                "the SHA-256 of a certificate, 64 hexadecimal digits",
                "`openssl x509 -in FILE -noout -fingerprint -sha256` prints it",
            );
            let digits = pin
                .text(what, remedy)?
                .replace(':', "")
                .to_ascii_lowercase();
            if digits.len() != 64 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
                return Err(pin.expected(what, remedy));
            }
            Ok(TrustConfig::Pinned(digits))
        }
        (Some(_), Some(pin)) => {
            Err(pin.wrong("given together with ca_file", "keep one of the two"))
        }
    }
}

/// The gateway's `[carrier]`, if there.
///
/// # Errors
/// The first mistake in it.
pub(super) fn gateway(root: &Table<'_>) -> Result<Option<GatewayCarrier>, ConfigError> {
    if root.optional("carrier").is_none() {
        return Ok(None);
    }
    let table = root.table(
        "carrier",
        &["listen", "certificate_file", "key_file", "proxies"],
    )?;
    let listen = network::listen(&table.required("listen", "listen = \"[::]:443\"")?)?;
    let files = (
        table.optional("certificate_file"),
        table.optional("key_file"),
    );
    let certificate = match files {
        (None, None) => None,
        (Some(chain), Some(key)) => Some((path(root, &chain)?, path(root, &key)?)),
        (Some(_), None) => {
            return Err(table.wrong(
                "key_file",
                "missing beside certificate_file",
                "add key_file = \"FILE\"",
            ));
        }
        (None, Some(_)) => {
            return Err(table.wrong(
                "certificate_file",
                "missing beside key_file",
                "add certificate_file = \"FILE\"",
            ));
        }
    };
    let mut proxies = Vec::new();
    if let Some(list) = table.optional("proxies") {
        let remedy = "write the addresses of web servers in front, for example [\"127.0.0.1\"]";
        for item in list.list(MAX_ENDPOINTS, remedy)? {
            let net = item.text("an address or a network", remedy)?;
            let parsed = net.parse::<IpNet>().ok();
            let parsed =
                parsed.or_else(|| Some(IpNet::from(net.parse::<std::net::IpAddr>().ok()?)));
            proxies.push(parsed.ok_or_else(|| item.expected("an address or a network", remedy))?);
        }
    }
    Ok(Some(GatewayCarrier {
        listen,
        certificate,
        proxies,
    }))
}

fn path(root: &Table<'_>, value: &Value<'_>) -> Result<PathBuf, ConfigError> {
    let name = value.text("the path of a file", "write the path as a string")?;
    Ok(root.source().directory().join(name))
}

/// `auto`, `tcp` or `udp`.
fn mode(value: &Value<'_>) -> Result<Mode, ConfigError> {
    match value.as_text() {
        Some("auto") => Ok(Mode::Auto),
        Some("tcp") => Ok(Mode::Tcp),
        Some("udp") => Ok(Mode::Udp),
        _ => Err(value.expected(
            "\"auto\", \"tcp\" or \"udp\"",
            "write \"auto\" for TCP where UDP does not get through",
        )),
    }
}

/// What a `[[link]]` says of its carrier: the mode, and the proxy on the way.
///
/// # Errors
/// The first mistake in it.
pub(super) fn of_link(table: &Table<'_>) -> Result<(Option<Mode>, Option<HttpProxy>), ConfigError> {
    let mode = table.optional("carrier").as_ref().map(mode).transpose()?;
    let user = table.optional("http_proxy_user");
    let file = table.optional("http_proxy_password_file");
    let Some(value) = table.optional("http_proxy") else {
        return match user.or(file) {
            Some(value) => {
                Err(value.wrong("given without http_proxy", "add http_proxy, or remove it"))
            }
            None => Ok((mode, None)),
        };
    };
    let what = "an HTTP proxy";
    let remedy =
        "write for example \"http://192.0.2.8:3128\"; user and password have keys of their own";
    let text = value.text(what, remedy)?;
    let place = text
        .strip_prefix("http://")
        .unwrap_or(text)
        .trim_end_matches('/');
    let (host, port) = place
        .rsplit_once(':')
        .ok_or_else(|| value.expected(what, remedy))?;
    let port = port.parse().ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| value.expected(what, remedy))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if host.is_empty() || !host.chars().all(is_part) {
        return Err(value.expected(what, remedy));
    }
    let login = match (user, file) {
        (None, None) => None,
        (Some(user), Some(file)) => {
            let name = user.text("a user name", "write it as a string")?;
            if name.contains([':', '\r', '\n']) {
                return Err(user.expected("a user name without colon", "correct the name"));
            }
            let directory = table.source().directory();
            let text =
                secret::private_text(&file, directory, "password", "write the password into it")?;
            Some((
                name.to_owned(),
                Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned()),
            ))
        }
        (Some(value), None) | (None, Some(value)) => {
            return Err(value.wrong(
                "user and password belong together",
                "give http_proxy_user and http_proxy_password_file",
            ));
        }
    };
    let host = host.to_owned();
    Ok((mode, Some(HttpProxy { host, port, login })))
}

const MAX_ENDPOINTS: usize = 16;
