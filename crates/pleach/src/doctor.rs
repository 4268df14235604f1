//! `pleach doctor`: finds what keeps a tunnel from working, and says what to do.
//!
//! The files that were named, else those in `/etc/pleach`, say what the tunnels should be. Each check ([`checks`]) looks at one
//! matter; a host without trouble is told so in one line. Nothing on the host is changed. Handshakes are tried only if the
//! daemon has no session: another one with its key would end the session.
//!
//! Bounds: about ten seconds, if the gateway does not answer over any link. Limits: the NAT in front of a host is told by the
//! link's address only, so its kind and time-out are not known.

mod bundle;
mod checks;
mod problem;
mod reach;

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use pleach_carrier::choice::Mode;
use pleach_core::session::{
    handshake::{NO_PSK, StaticKeys},
    secret::Secret,
};
use pleach_linux::{
    clock, routes,
    state::DEFAULT_STATE_DIR,
    watch::{LinkSnapshot, Targets},
};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::{
    config::{self, AnyLoaded, ClientConfig, GatewayConfig, Role, TunnelConfig},
    control::{self, LinkState, StatusReport},
    onboard::{
        outer,
        probe::{self, Finding, Parties},
        uplinks::Uplink,
    },
    run_tunnel::{self, names},
};
use checks::silence::Handshake;
use problem::Problem;

/// Options of `pleach doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Configuration file [default: those in /etc/pleach]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write a tar archive for a bug report, without keys and tokens
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Worst first, as far as that can be told.
    problems: Vec<Problem>,
    /// Links of clients.
    links: Vec<LinkFacts>,
    /// Configurations that were looked at.
    files: Vec<PathBuf>,
}

impl Report {
    /// How many problems there are.
    pub(crate) fn count(&self) -> usize {
        self.problems.len()
    }
}

/// What is known of a link, trouble or not.
#[derive(Debug, Serialize)]
struct LinkFacts {
    name: String,
    device: String,
    /// `none`, `private` or `carrier-grade`, by its address; `None` without IPv4.
    nat: Option<&'static str>,
    /// MTU of the device in bytes.
    device_mtu: u32,
    /// Whether the gateway's host answers echo requests over it.
    echo: bool,
}

/// Does it: what to print, and what was found.
///
/// # Errors
/// The bundle cannot be written; the kernel does not tell of the links.
pub(crate) fn run(options: &Doctor) -> anyhow::Result<(String, Report)> {
    let mut report = Report::default();
    let files = match &options.file {
        Some(file) => vec![file.clone()],
        None => USUAL_FILES
            .map(PathBuf::from)
            .into_iter()
            .filter(|file| file.exists())
            .collect(),
    };
    report
        .problems
        .extend(checks::tun::verdicts(&checks::tun::observe()));
    report
        .problems
        .extend(checks::conntrack::verdicts(&checks::conntrack::observe()));
    let mut texts = Vec::new();
    for file in &files {
        look_at_file(file, &mut report, &mut texts)?;
    }
    let mut once: Vec<Problem> = Vec::new();
    for problem in std::mem::take(&mut report.problems) {
        if !once.contains(&problem) {
            once.push(problem);
        }
    }
    report.problems = once;
    report.files = files;
    let text = render(&report);
    if let Some(bundle) = &options.bundle {
        texts.push((
            "version.txt".to_owned(),
            format!("pleach {}\n", env!("CARGO_PKG_VERSION")),
        ));
        texts.push(("doctor.txt".to_owned(), text.clone()));
        texts.push(("doctor.json".to_owned(), json(&report)?));
        bundle::write(bundle, &texts)?;
    }
    let shown = if options.json { json(&report)? } else { text };
    Ok((shown, report))
}

fn json(report: &Report) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(report).context("JSON")?;
    Ok(text + "\n")
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    for problem in &report.problems {
        text.push_str(&problem.text());
    }
    if report.problems.is_empty() {
        text.push_str("No problem found.\n");
    }
    if report.files.is_empty() {
        let _ = writeln!(
            text,
            "Only the host was looked at: there is no configuration in /etc/pleach; name one with `pleach doctor FILE`."
        );
    }
    text
}

fn look_at_file(
    file: &Path,
    report: &mut Report,
    texts: &mut Vec<(String, String)>,
) -> anyhow::Result<()> {
    let secrets = checks::files::observe(file);
    let open = checks::files::open_to_others(&secrets);
    let paths = secrets.iter().map(|secret| secret.path.as_path());
    let time = checks::clock::observe(paths.chain([file]));
    report.problems.extend(checks::clock::verdict(&time));
    let loaded = config::load_any(file);
    if open.is_empty() {
        let notes = loaded.as_ref().map(|loaded| match loaded {
            AnyLoaded::Equalizer(loaded) => loaded.notes.as_slice(),
            AnyLoaded::Proxy(loaded) => loaded.notes.as_slice(),
            AnyLoaded::Tunnel(loaded) => loaded.notes.as_slice(),
        });
        report.problems.extend(checks::files::verdicts(notes));
    }
    // The first of these already keeps the file from being loaded.
    report.problems.extend(open);
    if let Ok(text) = std::fs::read_to_string(file).map(Zeroizing::new) {
        texts.push((
            entry(texts, file, "configuration.toml"),
            String::clone(&text),
        ));
    }
    let Ok(AnyLoaded::Tunnel(loaded)) = loaded else {
        return Ok(());
    };
    let config = &loaded.config;
    let before = Sample::take(config);
    match &config.role {
        Role::Client(client) => look_at_client(config, client, before.status.as_ref(), report)?,
        Role::Gateway(gateway) => look_at_gateway(config, gateway, before.status.is_some(), report),
    }
    let Some(status) = &before.status else {
        return Ok(());
    };
    let is_gateway = matches!(config.role, Role::Gateway(_));
    let watched = if is_gateway && checks::peers::is_suspicious(status) {
        SUSPICIOUS_WATCHED
    } else {
        WATCHED
    };
    let after = loop {
        let end = clock::now() + WATCHED;
        while clock::now() < end {
            thread::park_timeout(end.since(clock::now()));
        }
        let after = Sample::take(config);
        let later = after.status.as_ref();
        let is_found = later.is_none_or(|later| !checks::peers::verdicts(status, later).is_empty());
        if is_found || after.at >= before.at + watched {
            break after;
        }
    };
    let elapsed = after.at.since(before.at);
    if let (Some(first), Some(second)) = (before.times, after.times) {
        report
            .problems
            .extend(checks::load::verdict(first, second, elapsed));
    }
    if let Some(later) = &after.status {
        let links = |report: &StatusReport| {
            let clients = report
                .clients
                .iter()
                .flat_map(|client| client.links.clone());
            report
                .links
                .iter()
                .cloned()
                .chain(clients)
                .collect::<Vec<_>>()
        };
        for (before, after) in links(status).iter().zip(&links(later)) {
            if before.name == after.name {
                report
                    .problems
                    .extend(checks::throttling::verdict(before, after));
            }
        }
        if let Role::Client(client) = &config.role {
            for link in &later.links {
                let own = client.links.iter().find(|own| own.name == link.name);
                let mode = own.and_then(|own| own.carrier);
                let is_wanted = mode.unwrap_or(client.carrier.mode) == Mode::Tcp;
                report
                    .problems
                    .extend(checks::carrier::verdict(link, is_wanted));
            }
        }
        if is_gateway {
            report
                .problems
                .extend(checks::peers::verdicts(status, later));
        }
        let text = serde_json::to_string_pretty(later).context("JSON")?;
        texts.push((entry(texts, file, "status.json"), text));
    }
    Ok(())
}

/// What `name` of the configuration `file` is called in a bundle: `name` itself for the first configuration.
fn entry(texts: &[(String, String)], file: &Path, name: &str) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let numbered = (2..).map(|number: u32| format!("{stem}-{number}-{name}"));
    let mut names = [name.to_owned(), format!("{stem}-{name}")]
        .into_iter()
        .chain(numbered);
    let is_free = |name: &String| texts.iter().all(|(there, _)| there != name);
    names.find(is_free).unwrap_or_default()
}

/// The daemon at one moment; nothing if it does not run.
struct Sample {
    at: pleach_core::time::Instant,
    status: Option<StatusReport>,
    times: Option<checks::load::Times>,
}

impl Sample {
    fn take(config: &TunnelConfig) -> Self {
        Self {
            status: control::status(&config.control).ok(),
            times: checks::load::observe(&config.control).ok(),
            at: clock::now(),
        }
    }
}

fn look_at_gateway(
    config: &TunnelConfig,
    gateway: &GatewayConfig,
    is_running: bool,
    report: &mut Report,
) {
    if !is_running {
        let refused = checks::port::observe(gateway.listen);
        report
            .problems
            .extend(checks::port::verdict(gateway.listen, refused.as_ref()));
    }
    let facts = checks::forwarding::observe(is_running);
    let port = gateway.listen.port();
    report
        .problems
        .extend(checks::forwarding::verdicts(&facts, &config.name, port));
}

fn look_at_client(
    config: &TunnelConfig,
    client: &ClientConfig,
    status: Option<&StatusReport>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut endpoints = client.gateway.endpoints.clone();
    endpoints.extend(names::look_up(&client.gateway.names, None, &config.name));
    let endpoints = &endpoints;
    report
        .problems
        .extend(checks::names::verdict(&client.gateway.names, endpoints));
    let addresses: Vec<IpAddr> = endpoints.iter().map(SocketAddr::ip).collect();
    // A kill switch lets nothing else leave by a link.
    let mark = if client.kill_switch {
        routes::fwmark_of(Path::new(DEFAULT_STATE_DIR), &config.name).unwrap_or(0)
    } else {
        0
    };
    let targets = Targets {
        addresses: addresses.clone(),
        fwmark: None,
    };
    let links = LinkSnapshot::read_all(&targets).context("devices of this host")?;
    let used: Vec<&str> = client
        .links
        .iter()
        .map(|link| link.device.as_str())
        .collect();
    report.problems.extend(checks::routes::verdicts(
        &links,
        &addresses,
        &config.name,
        &used,
    ));

    let is_ours = |link: &&LinkSnapshot| {
        if used.is_empty() {
            run_tunnel::is_uplink(link, &config.name)
        } else {
            used.contains(&link.name.as_str())
        }
    };
    let uplinks: Vec<Uplink> = links
        .iter()
        .filter(is_ours)
        .map(|link| {
            let named = client.links.iter().find(|named| named.device == link.name);
            Uplink {
                label: named.map_or_else(|| link.name.clone(), |named| named.name.clone()),
                link: link.clone(),
            }
        })
        .collect();
    let handshakes = handshakes(config, client, (&uplinks, endpoints), status)?;
    let found: Vec<reach::Found> = thread::scope(|scope| {
        let asked: Vec<_> = uplinks
            .iter()
            .zip(handshakes)
            .filter_map(|(uplink, handshake)| {
                let (endpoint, way) = endpoints.iter().find_map(|endpoint| {
                    let mut ways = uplink.link.ways.iter();
                    Some((endpoint, ways.find(|way| way.target == endpoint.ip())?))
                })?;
                Some(scope.spawn(move || {
                    reach::ask(&uplink.label, &uplink.link, *endpoint, way, handshake, mark)
                }))
            })
            .collect();
        asked
            .into_iter()
            .filter_map(|asked| asked.join().ok())
            .collect()
    });
    let answers: Vec<_> = found.iter().map(|found| found.answers.clone()).collect();
    let silence = checks::silence::verdicts(&answers);
    for found in &found {
        let (name, device) = (&found.answers.link, &found.device);
        let problem = checks::mtu::verdict(device, found.lengths);
        report
            .problems
            .extend(problem.map(|problem| problem.on(name)));
        let facts = checks::reverse_path::observe(device, status.is_some());
        let problem = checks::reverse_path::verdict(device, facts);
        report
            .problems
            .extend(problem.map(|problem| problem.on(name)));
        let addresses = uplinks.iter().filter(|uplink| uplink.link.name == *device);
        let addresses = addresses.flat_map(|uplink| uplink.link.addresses.iter());
        report.links.push(LinkFacts {
            name: name.clone(),
            device: device.clone(),
            nat: addresses.filter_map(|net| nat(net.addr())).next(),
            device_mtu: found.lengths.device,
            echo: found.lengths.short,
        });
    }
    // A filter of this host that explains the silence of a link goes before what the network might do.
    let is_explained = |problem: &Problem| {
        let of_link = |known: &&Problem| known.link.is_some() && known.link == problem.link;
        let mut known = report.problems.iter().filter(of_link);
        known.any(|known| known.code == checks::reverse_path::CODE)
    };
    let silence: Vec<Problem> = silence
        .into_iter()
        .filter(|problem| !is_explained(problem))
        .collect();
    report.problems.extend(silence);
    let devices: Vec<&str> = found.iter().map(|found| found.device.as_str()).collect();
    // After the echo requests, for which the kernel had to find the next hops.
    report
        .problems
        .extend(checks::twins::verdicts(&checks::twins::observe(), &devices));
    Ok(())
}

/// Whether the gateway answers over each of `uplinks`: what the daemon says, or what handshakes bring.
fn handshakes(
    config: &TunnelConfig,
    client: &ClientConfig,
    (uplinks, endpoints): (&[Uplink], &[SocketAddr]),
    status: Option<&StatusReport>,
) -> anyhow::Result<Vec<Handshake>> {
    if let Some(status) = status.filter(|status| status.up) {
        let of = |uplink: &Uplink| {
            let mut links = status.links.iter();
            let link = links.find(|link| link.device == uplink.link.name);
            match link.map(|link| link.state) {
                Some(LinkState::Up | LinkState::Standby | LinkState::Suspect) => Handshake::Live,
                Some(LinkState::Down) => Handshake::Silent,
                Some(LinkState::Never) | None => Handshake::Untried,
            }
        };
        return Ok(uplinks.iter().map(of).collect());
    }
    let keys = StaticKeys::from_private(config.private_key.expose());
    let psk = client.gateway.preshared_key.as_ref();
    let parties = Parties {
        keys: &keys,
        gateway: client.gateway.public_key,
        psk: &psk.map_or_else(|| Secret::from(NO_PSK), |psk| psk.expose().into()),
        claim: None,
        fwmark: 0,
        patience: PROBED,
    };
    let findings = probe::run(uplinks, endpoints, &parties)?;
    let is_known = findings.is_enrolled;
    let handshakes = findings.links.into_iter().map(|finding| match finding {
        Finding::Live(_) if is_known => Handshake::Live,
        Finding::Live(_) => Handshake::Cookie,
        Finding::Refused(error) => Handshake::Refused(error),
        Finding::Silent => Handshake::Silent,
        Finding::Unusable(_) => Handshake::Untried,
    });
    Ok(handshakes.collect())
}

/// What an IPv4 address tells of the NAT in front of it.
fn nat(address: IpAddr) -> Option<&'static str> {
    let IpAddr::V4(v4) = address else { return None };
    let [a, b, ..] = v4.octets();
    // RFC 6598.
    let is_shared = a == 100 && (64..128).contains(&b);
    Some(match (is_shared, outer::is_public(address)) {
        (true, _) => "carrier-grade",
        (false, true) => "none",
        (false, false) => "private",
    })
}

const USUAL_FILES: [&str; 2] = ["/etc/pleach/client.toml", "/etc/pleach/gateway.toml"];
/// For counters to show what goes on.
const WATCHED: Duration = Duration::from_millis(1500);
/// A client that is not answered tries again after ten seconds at the latest.
const SUSPICIOUS_WATCHED: Duration = Duration::from_secs(11);
/// A gateway answers an initiation a second.
const PROBED: Duration = Duration::from_millis(3500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_configuration_has_entries_of_its_own_in_a_bundle() {
        let mut texts = Vec::new();
        for file in [
            "/etc/pleach/client.toml",
            "/etc/pleach/gateway.toml",
            "/tmp/gateway.toml",
        ] {
            let name = entry(&texts, Path::new(file), "status.json");
            texts.push((name, String::new()));
        }
        let names: Vec<&str> = texts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "status.json",
                "gateway-status.json",
                "gateway-2-status.json"
            ]
        );
    }
}
