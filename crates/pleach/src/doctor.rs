//! `pleach doctor`: finds the problems that prevent a tunnel from working, and says what to do.
//!
//! The command checks the tunnels of the given file, or of the files in `/etc/pleach`. Each check ([`checks`]) looks
//! for one kind of problem. For a host without problems, one line is printed. Nothing on the host is changed.
//! Handshakes are tried only if the daemon has no session, because another handshake with its key would end the
//! session.
//!
//! Duration: about ten seconds if the gateway does not answer over any link. Limit: a NAT in front of the host is
//! recognised by the link's address only, so the type and the timeout of the NAT remain unknown.

mod bundle;
mod checks;
mod gateways;
mod problem;
mod reach;

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use pleach_carrier::choice::Mode;
use pleach_linux::{
    clock, routes,
    state::DEFAULT_STATE_DIR,
    watch::{LinkSnapshot, Targets},
};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::{
    check,
    config::{self, AnyLoaded, ClientConfig, GatewayConfig, GatewayPeer, Role, TunnelConfig},
    control::{self, LinkState, StatusReport},
    onboard::{outer, place::CONFIG_DIRECTORY, probe::Finding, uplinks::Uplink},
    portal, run_tunnel,
};
use checks::silence::Handshake;
use problem::Problem;

/// Options of `pleach doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Configuration file [default: client.toml and gateway.toml in /etc/pleach]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write a tar archive for a bug report, without keys and tokens
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
}

/// The result of all checks.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Problems, the most severe first as far as this can be determined.
    problems: Vec<Problem>,
    /// Links of clients.
    links: Vec<LinkFacts>,
    /// Configurations that were checked.
    files: Vec<PathBuf>,
    /// Tunnels and proxies that do not run. This is no problem by itself.
    stopped: Vec<Stopped>,
}

/// A configuration whose daemon does not answer.
#[derive(Debug, Serialize)]
struct Stopped {
    file: PathBuf,
    /// Command that starts the daemon.
    start: String,
}

impl Stopped {
    /// Returns the daemon of the configuration `loaded`, which is in `file`, unless it answers.
    fn find(file: &Path, loaded: &AnyLoaded) -> Option<Self> {
        let (socket, command, unit) = match loaded {
            AnyLoaded::Equalizer(_) => return None,
            AnyLoaded::Proxy(loaded) => (&loaded.config.control, "proxy", "pleach-proxy"),
            AnyLoaded::Tunnel(loaded) => (&loaded.config.control, "up", "pleach"),
        };
        if UnixStream::connect(socket).is_ok() {
            return None;
        }
        let start = match (file.parent(), file.file_stem()) {
            (Some(folder), Some(stem)) if folder == Path::new(CONFIG_DIRECTORY) => {
                format!("systemctl start {unit}@{}", stem.to_string_lossy())
            }
            _ => format!("pleach {command} {}", file.display()),
        };
        Some(Self {
            file: file.to_owned(),
            start,
        })
    }
}

impl Report {
    /// Returns the number of problems.
    pub(crate) fn count(&self) -> usize {
        self.problems.len()
    }
}

/// Facts about a link, whether it has a problem or not.
#[derive(Debug, Serialize)]
struct LinkFacts {
    name: String,
    device: String,
    /// Kind of NAT, derived from the link's address: `none`, `private` or `carrier-grade`; `None` without IPv4.
    nat: Option<&'static str>,
    /// MTU of the device in bytes.
    device_mtu: u32,
    /// Whether the gateway's host answers echo requests over this link.
    echo: bool,
}

/// Runs all checks. Returns the text to print and the result.
///
/// # Errors
/// If the bundle cannot be written, or if the kernel does not report the links.
pub(crate) fn run(options: &Doctor) -> anyhow::Result<(String, Report)> {
    let mut report = Report::default();
    let files = match &options.file {
        Some(file) => vec![file.clone()],
        None => USUAL_FILES
            .map(|file| Path::new(CONFIG_DIRECTORY).join(file))
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
        // The query of a captive portal's URL can identify the user.
        for (_, text) in &mut texts {
            *text = portal::without_queries(text);
        }
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
    for Stopped { file, start } in &report.stopped {
        let file = file.display();
        let _ = writeln!(
            text,
            "The daemon of {file} does not run. To start it: `{start}`."
        );
    }
    if report.files.is_empty() {
        let _ = writeln!(
            text,
            "Only the host was checked: there is no configuration file in /etc/pleach. To check a file: `pleach doctor FILE`."
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
    if let Ok(loaded) = &loaded {
        for absent in check::absent_links(loaded) {
            let problems = checks::files::verdicts(Err(&absent));
            report.problems.extend(problems);
        }
        report.stopped.extend(Stopped::find(file, loaded));
    }
    // The first key file that is open to others already prevents the configuration from being loaded, so add all of
    // them.
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

/// Returns the name under which the bundle stores the text `name` of the configuration `file`. For the first
/// configuration this is `name` itself.
fn entry(texts: &[(String, String)], file: &Path, name: &str) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let numbered = (2..).map(|number: u32| format!("{stem}-{number}-{name}"));
    let mut names = [name.to_owned(), format!("{stem}-{name}")]
        .into_iter()
        .chain(numbered);
    let is_free = |name: &String| texts.iter().all(|(there, _)| there != name);
    names.find(is_free).unwrap_or_default()
}

/// Status of the daemon at one moment; without values if the daemon does not run.
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
    let gateway = gateways::in_use(client, status)?;
    let endpoints = &gateways::endpoints(gateway, config);
    report
        .problems
        .extend(checks::names::verdict(&gateway.names, endpoints));
    let addresses: Vec<IpAddr> = endpoints.iter().map(SocketAddr::ip).collect();
    // With a kill switch, only packets with the tunnel's mark may leave by a link.
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

    let uplinks = uplinks_of(client, &config.name, &links);
    let handshakes = handshakes(config, gateway, (&uplinks, endpoints), status)?;
    let found: Vec<(reach::Found, Option<Problem>)> = thread::scope(|scope| {
        let asked: Vec<_> = uplinks
            .iter()
            .zip(handshakes)
            .filter_map(|(uplink, handshake)| {
                let (endpoint, way) = endpoints.iter().find_map(|endpoint| {
                    let mut ways = uplink.link.ways.iter();
                    Some((endpoint, ways.find(|way| way.target == endpoint.ip())?))
                })?;
                Some(scope.spawn(move || {
                    let (label, link) = (&uplink.label, &uplink.link);
                    let found = reach::ask(label, link, *endpoint, way, handshake, mark);
                    let url = client.portal_check.as_ref();
                    let url = url.filter(|_| handshake == Handshake::Silent);
                    let verdict = url.map(|url| url.check(&link.name, Some(mark), &config.name));
                    let portal = verdict.as_ref().and_then(checks::portal::verdict);
                    (found, portal.map(|problem| problem.on(label)))
                }))
            })
            .collect();
        asked
            .into_iter()
            .filter_map(|asked| asked.join().ok())
            .collect()
    });
    let (found, portals): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    report.problems.extend(portals.into_iter().flatten());
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
    // If a filter of this host or a captive portal explains the silence of a link, do not report the silence as well.
    let is_explained = |problem: &Problem| {
        let of_link = |known: &&Problem| known.link.is_some() && known.link == problem.link;
        let mut known = report.problems.iter().filter(of_link);
        known.any(|known| [checks::portal::CODE, checks::reverse_path::CODE].contains(&known.code))
    };
    let silence: Vec<Problem> = silence
        .into_iter()
        .filter(|problem| !is_explained(problem))
        .collect();
    report.problems.extend(silence);
    let devices: Vec<&str> = found.iter().map(|found| found.device.as_str()).collect();
    // This check comes after the echo requests, for which the kernel has resolved the next hops.
    report
        .problems
        .extend(checks::twins::verdicts(&checks::twins::observe(), &devices));
    gateways::look_at_others(config, client, gateway, status, report)
}

/// Returns those of `links` that the client with the tunnel's device `tunnel` uses, under the names of its configuration.
fn uplinks_of(client: &ClientConfig, tunnel: &str, links: &[LinkSnapshot]) -> Vec<Uplink> {
    let named = |link: &LinkSnapshot| client.links.iter().find(|named| named.device == link.name);
    let is_ours = |link: &&LinkSnapshot| {
        if client.links.is_empty() {
            run_tunnel::is_uplink(link, tunnel)
        } else {
            named(link).is_some()
        }
    };
    links
        .iter()
        .filter(is_ours)
        .map(|link| Uplink {
            label: named(link).map_or_else(|| link.name.clone(), |named| named.name.clone()),
            link: link.clone(),
        })
        .collect()
}

/// Returns for each of `uplinks` whether the gateway answers over it. If the daemon has a session, the result is from
/// its status, else from handshakes.
fn handshakes(
    config: &TunnelConfig,
    gateway: &GatewayPeer,
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
    let findings = gateways::shake_hands(config, gateway, uplinks, endpoints)?;
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

/// Returns the kind of NAT in front of an IPv4 address, as far as the address shows it.
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

/// Folder of the configurations of services.
const USUAL_FILES: [&str; 2] = ["client.toml", "gateway.toml"];
/// Time between two readings of counters.
const WATCHED: Duration = Duration::from_millis(1500);
/// Time between two readings of counters if a client seems to fail: such a client tries again after at most ten
/// seconds.
const SUSPICIOUS_WATCHED: Duration = Duration::from_secs(11);
/// Time to wait for answers to handshakes: a gateway answers one initiation per second.
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
