//! `pleach join`: makes this host a client of the gateway that its token names.
//!
//! Order:
//!
//! 1. Read the token.
//! 2. Examine the host.
//! 3. Make a key and store it.
//! 4. Find the links.
//! 5. Enrol over all links ([`probe`]).
//! 6. Write keys and configuration.
//! 7. Start the daemon.
//!
//! Before the gateway has answered, only the key is written permanently. A failure removes the other files.
//!
//! The key is stored under the invitation's id from before the first initiation until the configuration is written. The
//! reason: if the gateway's answer is lost, the gateway may already have enrolled this key, and then refuses any other
//! key with this invitation. So a `join` that was interrupted, or got no answer, is repeated with the same key. `leave`
//! removes the key.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, IsTerminal as _, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use data_encoding::HEXLOWER;
use ipnet::IpNet;
use pleach_core::session::{handshake::StaticKeys, invitation::Claim};
use pleach_linux::{
    clock,
    routes::Setup,
    state::DEFAULT_STATE_DIR,
    watch::{LinkSnapshot, Targets},
};
use zeroize::Zeroizing;

use super::{
    bad_input::BadInput,
    durable::{self, Draft},
    host, networks,
    place::Place,
    probe::{self, Finding, Findings, Parties},
    service::{self, Kind, Start},
    token::{MAX_TEXT_BYTES, Token},
    uplinks::{self, Uplink},
};
use crate::{
    config::{self, Role, plain},
    keys::{self, SecretKey},
};

/// Options of `pleach join`. The token is not an option, because other users see the arguments of a process.
#[derive(Debug, clap::Args)]
pub(crate) struct Join {
    /// Read the token from FILE [default: standard input, or a prompt]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Only enrol and write the files, do not start the daemon
    #[arg(long)]
    no_start: bool,
    #[command(flatten)]
    place: Place,
}

/// Runs the command. Returns the text to print.
///
/// # Errors
/// A sentence with the remedy.
pub(crate) fn run(options: &Join) -> anyhow::Result<String> {
    host::require_root("join")?;
    let text = read_token(options.token_file.as_deref())?;
    let token = Token::from_text(&text).map_err(|error| BadInput::error(error.to_string()))?;
    drop(text);
    let id = HEXLOWER.encode(&token.id());
    let file = options.place.config(FILE);
    if file.exists() {
        let head = first_line(&file);
        if *head != format!("{HEAD}{id}") {
            let remedy = if head.starts_with(HEAD) {
                "run `pleach leave` first"
            } else {
                "`pleach join` has not written this file, so stop its service and remove it first"
            };
            bail!(
                "this host is a client already ({}): {remedy}",
                file.display()
            );
        }
        let mut said = "This host has joined with this token before.\n".to_owned();
        start(options, &mut said)?;
        return Ok(said);
    }
    host::require_tun()?;
    let place = &options.place;
    let mut draft = Draft::default();
    let directory = |draft: &mut Draft, path: &Path, mode| {
        let made = draft.directory(path, mode);
        made.map_err(|error| host::cannot_write(path, &error))
    };
    directory(&mut draft, place.directory(), 0o755)?;

    // Look up links and routes. The setup's mark keeps datagrams out of other tunnels; the setup is undone at the end.
    let links = LinkSnapshot::read_all(&Targets::default()).context("devices of this host")?;
    let tunnel = super::free_device(&links);
    let setup =
        Setup::begin(Path::new(DEFAULT_STATE_DIR), &tunnel).context("host configuration")?;
    let targets = Targets {
        addresses: token.endpoints.iter().map(SocketAddr::ip).collect(),
        fwmark: Some(setup.fwmark()),
    };
    let links = LinkSnapshot::read_all(&targets).context("devices of this host")?;
    refuse_collision(&token, &links, &tunnel)?;
    let found = uplinks::find(links, &tunnel);
    if found.is_empty() {
        let addresses = token
            .endpoints
            .iter()
            .map(|endpoint| endpoint.ip().to_string());
        bail!(
            "no uplink: no device has an address and a route to the gateway ({}); connect a device; `ip route get ADDRESS fibmatch oif DEVICE` shows its route",
            addresses.collect::<Vec<_>>().join(", ")
        );
    }

    // Written before the invitation is claimed, so that a full or read-only disk is noticed here.
    let waiting = place.state("join").join(format!("{id}.key"));
    directory(&mut draft, &place.state("join"), 0o700)?;
    let key = draft.secret(&waiting)?;
    for (name, secret) in [(KEY_FILE, &key), (PSK_FILE, &psk(&token))] {
        let path = place.config(name);
        // An interruption has left this file: if a configuration used the file, the configuration would exist.
        durable::remove(&path).map_err(|error| host::cannot_write(&path, &error))?;
        let line = Zeroizing::new(format!("{}\n", *secret.to_base64()));
        let written = draft.file(&path, line.as_bytes(), 0o600);
        written.map_err(|error| host::cannot_write(&path, &error))?;
    }

    for uplink in &found {
        if let Err(error) = setup.loosen_reverse_path(&uplink.link.name) {
            tracing::debug!(device = uplink.link.name, %error, "reverse path filter");
        }
    }
    let keys = StaticKeys::from_private(key.expose());
    let parties = Parties {
        keys: &keys,
        gateway: token.gateway_key,
        psk: &token.key().psk(),
        claim: Some(Claim {
            id: token.id(),
            proof: token.key().proof(keys.public(), &token.gateway_key),
        }),
        fwmark: setup.fwmark(),
        patience: probe::PATIENCE,
    };
    draft.spare(&waiting);
    let findings = probe::run(&found, &token.endpoints, &parties)?;
    setup.undo().context("undoing the host configuration")?;
    if !findings.is_enrolled {
        bail!("{}", unanswered(&token, &found, &findings));
    }
    let text = configuration(&token, &id, &tunnel, place);
    let written = draft.file(&file, text.as_bytes(), 0o600);
    written.map_err(|error| host::cannot_write(&file, &error))?;
    config::load(&file)?;
    draft.keep();
    durable::remove(&waiting).map_err(|error| host::cannot_write(&waiting, &error))?;
    // The removal succeeds only for empty directories.
    for directory in waiting.ancestors().skip(1).take(2) {
        let _ = fs::remove_dir(directory);
    }

    let mut said = format!("This host is a client now: {}.\n", file.display());
    for (uplink, finding) in found.iter().zip(&findings.links) {
        let _ = writeln!(said, "{}: {}", uplink.label, verdict(finding));
    }
    start(options, &mut said)?;
    Ok(said)
}

/// Starts the daemon, or tells the user how to start it.
fn start(options: &Join, said: &mut String) -> anyhow::Result<()> {
    let is_running = service::is_running(&options.place.control(NAME));
    let start = if options.no_start || is_running {
        Start::ByHand
    } else {
        if let Role::Client(client) = config::load(&options.place.config(FILE))?.config.role
            && !client.dns.is_empty()
        {
            service::permit_dns(&options.place, NAME)?;
        }
        service::start(&options.place, Kind::Tunnel, NAME)?
    };
    let options_of = |option: &str, path: &Path| {
        if options.place.is_usual() {
            String::new()
        } else {
            format!(" {option} {}", path.display())
        }
    };
    let status = format!(
        "`pleach status{}` shows its links, `pleach leave{}` undoes all changes",
        options_of("--control", &options.place.control(NAME)),
        options_of("--dir", options.place.directory())
    );
    let _ = match (start, is_running) {
        (_, true) => writeln!(said, "The tunnel is running: {status}."),
        (Start::Enabled, false) => writeln!(
            said,
            "The tunnel is running, and will start at boot (service pleach@{NAME}): {status}."
        ),
        (Start::ByHand, false) => writeln!(
            said,
            "Start the tunnel with `pleach up {}`, and make your init system start it at boot: {status}.",
            options.place.config(FILE).display()
        ),
    };
    Ok(())
}

pub(super) fn read_token(file: Option<&Path>) -> anyhow::Result<Zeroizing<String>> {
    let stdin = io::stdin();
    if file.is_none() && stdin.is_terminal() {
        let text =
            rpassword::prompt_password("Token (your input is not shown): ").context("terminal")?;
        return Ok(Zeroizing::new(text));
    }
    let what = file.map_or_else(
        || "standard input".to_owned(),
        |file| file.display().to_string(),
    );
    let cannot =
        |error: io::Error| BadInput::error(format!("{what} cannot be read: {}", plain(&error)));
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_TEXT_BYTES));
    let limit = MAX_TEXT_BYTES as u64;
    match file {
        Some(file) => File::open(file)
            .map_err(cannot)?
            .take(limit)
            .read_to_end(&mut bytes),
        None => stdin.lock().take(limit).read_to_end(&mut bytes),
    }
    .map_err(cannot)?;
    Ok(Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned()))
}

fn psk(token: &Token) -> SecretKey {
    SecretKey::new(Zeroizing::new(*token.key().psk().expose()))
}

/// Refuses inner networks that this host already uses: they would become unreachable.
fn refuse_collision(token: &Token, links: &[LinkSnapshot], tunnel: &str) -> anyhow::Result<()> {
    let own = links.iter().filter(|link| link.name != tunnel);
    let attached: Vec<IpNet> = own.flat_map(|link| link.addresses.clone()).collect();
    // A wider route remains in use for the rest of its addresses.
    let is_wider = |route: &IpNet| {
        let nets = token.addresses.iter();
        nets.clone()
            .any(|net| route.contains(net) && route.prefix_len() < net.prefix_len())
    };
    let mut taken = networks::taken(links, tunnel)?;
    taken.retain(|route| !is_wider(route));
    taken.extend(attached);
    for net in &token.addresses {
        if let Some(other) = networks::overlapping(*net, &taken) {
            bail!(
                "the gateway's inner network {} overlaps {other}, which this host uses: set another network in [tunnel] address of the gateway, restart the gateway, and make a new token with `pleach gateway invite`",
                net.trunc()
            );
        }
    }
    Ok(())
}

fn configuration(token: &Token, id: &str, tunnel: &str, place: &Place) -> String {
    let list = |items: Vec<String>| {
        let quoted: Vec<String> = items.iter().map(|item| format!("\"{item}\"")).collect();
        format!("[{}]", quoted.join(", "))
    };
    let nets = |nets: &[IpNet]| list(nets.iter().map(ToString::to_string).collect());
    let everything = ["0.0.0.0/0", "::/0"].map(str::to_owned).to_vec();
    let routes = if token.routes.is_empty() {
        list(everything)
    } else {
        nets(&token.routes)
    };
    let dns = if token.dns.is_empty() {
        String::new()
    } else {
        let servers = token.dns.iter().map(ToString::to_string);
        format!("dns = {}\n", list(servers.collect()))
    };
    format!(
        "{HEAD}{id}\n\
         # Written by `pleach join`, removed by `pleach leave`. All keys are in the example client.toml.\n\
         mode = \"client\"\n\n\
         [tunnel]\n\
         name = \"{tunnel}\"\n\
         address = {}\n\
         private_key_file = \"{KEY_FILE}\"\n\
         control = {:?}\n\
         {dns}\n\
         [gateway]\n\
         public_key = \"{}\"\n\
         preshared_key_file = \"{PSK_FILE}\"\n\
         endpoints = {}\n\
         allowed_ips = {routes}\n\n\
         # Without any [[link]], every device with a route to the gateway is used, also one that is plugged in later.\n",
        nets(&token.addresses),
        place.control(NAME).display().to_string(),
        keys::encode_public(&token.gateway_key),
        list(token.endpoints.iter().map(ToString::to_string).collect()),
    )
}

/// Returns the first line of a client's file, by which one that `join` has written is recognised; empty if the file cannot be
/// read.
fn first_line(file: &Path) -> Zeroizing<String> {
    let text = fs::read_to_string(file).map(Zeroizing::new);
    let line = text.as_ref().ok().and_then(|text| text.lines().next());
    Zeroizing::new(line.unwrap_or_default().to_owned())
}

fn verdict(finding: &Finding) -> String {
    match finding {
        Finding::Live(after) => {
            format!("live, the gateway answered after {} ms", after.as_millis())
        }
        Finding::Refused(error) => format!("the answer of the gateway is invalid: {error}"),
        Finding::Silent => {
            "no answer from the gateway; the network behind this link may block UDP".to_owned()
        }
        Finding::Unusable(why) => format!("cannot be used: {why}"),
    }
}

fn unanswered(token: &Token, uplinks: &[Uplink], findings: &Findings) -> String {
    let over: Vec<String> = uplinks
        .iter()
        .zip(&findings.links)
        .map(|(uplink, finding)| match finding {
            Finding::Unusable(why) => format!("{}: {why}", uplink.label),
            Finding::Live(_) | Finding::Refused(_) | Finding::Silent => uplink.label.clone(),
        })
        .collect();
    let over = over.join(", ");
    let is_over = u64::from(token.expires_at) <= clock::unix_nanos() / 1_000_000_000;
    if findings
        .links
        .iter()
        .any(|finding| matches!(finding, Finding::Live(_)))
        || is_over
    {
        let why = if is_over {
            "has expired: run"
        } else {
            "is used, withdrawn or expired: try once more, then run"
        };
        return format!(
            "the gateway does not accept this token, which {why} `pleach gateway invite` at the gateway again"
        );
    }
    let endpoints: Vec<String> = token.endpoints.iter().map(ToString::to_string).collect();
    format!(
        "the gateway at {} does not answer over {over}: check that the gateway is running, that the firewall of its provider allows this UDP port, and that the token is not used (`pleach gateway clients` at the gateway), then try again",
        endpoints.join(", ")
    )
}

/// Name of the client's tunnel among the services, and in file names.
pub(super) const NAME: &str = "client";
pub(super) const FILE: &str = "client.toml";
/// Key files of `join`. The names differ from those in the examples, which are the user's files.
pub(super) const KEY_FILE: &str = "joined.key";
pub(super) const PSK_FILE: &str = "joined.psk";
/// Begin of the first line of a configuration that `join` has written.
pub(super) const HEAD: &str = "# Joined by invitation ";
