//! The table `[clients]` of a gateway: where it learns of its clients.

use std::time::Duration;

use ipnet::IpNet;

use super::{
    StoreConfig, network,
    source::ConfigError,
    table::{Table, Value},
};

/// Reads `[clients]`; `None` if the clients are in the configuration and in the files of `[invitations]`. `addresses`:
/// the gateway's inner addresses, whose networks the clients of a store have unless `networks` says otherwise.
///
/// # Errors
/// The first mistake in the table.
pub(super) fn read(
    root: &Table<'_>,
    addresses: &[IpNet],
) -> Result<Option<StoreConfig>, ConfigError> {
    if root.optional("clients").is_none() {
        return Ok(None);
    }
    let keys = [
        "source",
        "store",
        "networks",
        "answer_life",
        "idle",
        "write_every",
    ];
    let table = root.table("clients", &keys)?;
    let source = table.required("source", "source = \"sqlite\"")?;
    match source.as_text() {
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
        Some("sqlite") => {}
        Some("http" | "postgres") => {
            return Err(source.wrong(
                "this version of pleach cannot use this source",
                "write \"sqlite\", or \"file\" for the clients in this file",
            ));
        }
        _ => {
            return Err(source.expected(
                "\"file\" or \"sqlite\"",
                "write \"sqlite\" for a store in a file, or \"file\" for the clients in this file",
            ));
        }
    }
    let store = table.required("store", "store = \"/var/lib/pleach/gateway/clients.db\"")?;
    let path = store.text("a file", "write a path as a string")?;
    if path.is_empty() || path.ends_with('/') || path.contains('\0') {
        return Err(store.expected(
            "a file",
            "write for example \"/var/lib/pleach/gateway/clients.db\"",
        ));
    }
    let networks = table.optional("networks");
    let networks = networks.as_ref().map(network::allowed_ips).transpose()?;
    let time = |key: &str, usual: Duration, longest: Duration| {
        let value = table.optional(key);
        value.map_or(Ok(usual), |value| duration(&value, longest))
    };
    Ok(Some(StoreConfig {
        path: root.source().directory().join(path),
        networks: networks.unwrap_or_else(|| addresses.iter().map(IpNet::trunc).collect()),
        answer_life: time("answer_life", ANSWER_LIFE, DAY)?,
        idle: time("idle", IDLE, 30 * DAY)?,
        write_every: time("write_every", WRITE_EVERY, HOUR)?,
    }))
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
