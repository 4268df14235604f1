//! The command line: commands, exit codes, and the only code that prints errors.
//!
//! Exit codes: 0 success, 1 failure, 2 wrong usage or configuration. An error is one line on stderr.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Read, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::{CommandFactory as _, Parser, Subcommand, error::ErrorKind};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};
use zeroize::Zeroizing;

#[cfg(feature = "reproduce")]
use pleach_reproduce::Extent;

use crate::{
    check,
    config::{self, ConfigError, Note, RUN_DIRECTORY},
    control::{self, WEIGHTS},
    doctor::{self, Doctor},
    find_owners,
    keys::{self, SecretKey},
    log_lines,
    onboard::{
        self, BadInput, gateway::GatewayCommand, join::Join, leave::Leave, peer::PeerCommand,
    },
    recover, run_equalizer, run_proxy, run_tunnel,
    speedtest::{self, Speedtest},
    status, watch,
};

/// Weaves every Internet access a host has into one connection.
#[derive(Debug, Parser)]
#[command(name = "pleach", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a new private key
    Genkey,
    /// Read a private key on standard input and print its public key
    Pubkey,
    /// Run the tunnel that FILE describes, in the foreground
    Up {
        /// Configuration file
        file: PathBuf,
        /// Write the engine's decisions into this file, one line of JSON per event
        #[arg(long, value_name = "FILE")]
        trace: Option<PathBuf>,
    },
    /// Run the proxy that FILE describes, in the foreground
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Proxy {
        /// Configuration file
        #[arg(required = true)]
        file: Option<PathBuf>,
        #[command(subcommand)]
        command: Option<ProxyCommand>,
    },
    /// Run the equalizer that FILE describes, in the foreground
    Equalize {
        /// Configuration file
        file: PathBuf,
    },
    /// Make this host a gateway, and invite clients
    #[command(subcommand)]
    Gateway(GatewayCommand),
    /// Make this host a client, by a token of `pleach gateway invite`
    Join(Join),
    /// Make the proxies of two hosts known to each other, so that connections between them use all links
    #[command(subcommand)]
    Peer(PeerCommand),
    /// Undo `join`
    Leave(Leave),
    /// Give back what a killed tunnel has left in this host's network configuration, such as its kill switch
    Recover(recover::Recover),
    /// Print the script with which a shell completes this program's command line
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages, one per command, into DIR
    #[command(hide = true)]
    Man {
        /// Directory, which must exist
        dir: PathBuf,
    },
    /// Find the programs of sockets, for a daemon that has started this process
    #[command(hide = true)]
    FindOwners,
    /// Run the program of `[notices]`, for a daemon that has started this process
    #[cfg(feature = "dashboard")]
    #[command(hide = true)]
    SendNotices,
    /// Find what keeps a tunnel from working, and what to do; exit code 1 if a problem is found
    Doctor(Doctor),
    /// Check the configuration FILE, and whether its devices and ports are available on this host
    Check {
        /// Configuration file
        file: PathBuf,
    },
    /// Show the links of a running daemon
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Show the links again every second, with their current rates
        #[arg(long, conflicts_with = "json")]
        watch: bool,
        /// Control socket of the daemon [default: the only one in /run/pleach]
        #[arg(long, value_name = "SOCKET")]
        control: Option<PathBuf>,
    },
    /// Watch the links of a running daemon on a screen
    #[cfg(feature = "dashboard")]
    Top {
        /// Control socket of the daemon [default: the only one in /run/pleach]
        #[arg(long, value_name = "SOCKET")]
        control: Option<PathBuf>,
    },
    /// Measure the throughput of each link of a running client alone, and of all links together
    Speedtest(Speedtest),
    /// Make a running tunnel read its file again, and apply the changes that need no restart
    Reload {
        /// Control socket of the daemon [default: the only one in /run/pleach]
        #[arg(long, value_name = "SOCKET")]
        control: Option<PathBuf>,
    },
    /// Change the rules of a running tunnel or proxy, or the scheduler of a proxy
    Set(SetOptions),
    /// Change the weights of a running daemon's links
    Weights {
        /// Control socket of the daemon [default: the only one in /run/pleach]
        #[arg(long, value_name = "SOCKET")]
        control: Option<PathBuf>,
        /// New weight of a link, from 1 to 1000
        #[arg(required = true, value_name = "NAME=W", value_parser = parse_weight)]
        weights: Vec<(String, u32)>,
    },
    /// Run real daemons in namespaces over emulated links
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Lab(LabCommand),
    /// Measure published figures again; writes results.json and report.html
    #[cfg(feature = "reproduce")]
    Reproduce {
        /// Targets, papers or experiments [default: all]
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// Measure in the simulator, or in namespaces with real daemons
        #[arg(long = "in", value_name = "WORLD", default_value = "sim")]
        world: ReproduceIn,
        /// Directory for the results; results of earlier calls remain there
        #[arg(long, value_name = "DIR", required_unless_present_any = ["list", "report"])]
        out: Option<PathBuf>,
        /// Run only experiments whose results are not in DIR yet, for example after an interruption
        #[arg(long)]
        missing: bool,
        /// Number of seeds with which each scenario runs [default: 8 simulated, 1 in the lab]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=pleach_reproduce::SEEDS_MAX))]
        seeds: Option<u64>,
        /// Keep the values in sim.json or lab.json of this directory, with commit, date and machine
        #[arg(long, value_name = "DIR")]
        keep: Option<PathBuf>,
        /// Only print docs/reproduce.md from the values in this directory
        #[arg(long, value_name = "DIR", conflicts_with_all = ["list", "keep"])]
        report: Option<PathBuf>,
        /// Only list the targets, and how long they take
        #[arg(long)]
        list: bool,
    },
    /// Run the engine in a simulated network
    #[cfg(feature = "sim")]
    #[command(subcommand)]
    Sim(SimCommand),
}

#[derive(Debug, Subcommand)]
enum ProxyCommand {
    /// The same as `pleach set`
    Set(SetOptions),
}

#[derive(Debug, clap::Args)]
struct SetOptions {
    /// Control socket of the daemon [default: the only one in /run/pleach]
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// app=NAME, port=N, destination=D with link=LINK, or link=auto to undo; strict=true; tunnel: protocol=P,
    /// action=block; proxy: scheduler=NAME
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = parse_pair)]
    set: Vec<(String, String)>,
}

#[cfg(feature = "lab")]
#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Run a scenario; writes results.json and report.html
    Run {
        /// Scenario file
        scenario: PathBuf,
        /// Directory for the results
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Write the engine's decisions into files below DIR, one line of JSON per event
        #[arg(long)]
        trace: bool,
    },
    /// Connect many clients to one gateway in namespaces; prints memory, processor time and times
    #[command(args_override_self = true)]
    Crowd(crate::lab::crowd::CrowdOptions),
    /// Attack one gateway in namespaces; prints what honest clients lose, and what the gateway spends
    #[command(args_override_self = true)]
    Hostile(crate::lab::hostile::HostileOptions),
    /// Trouble one gateway and its clients in namespaces for a long time; prints whether it leaks or pauses
    #[command(args_override_self = true)]
    Soak(crate::lab::soak::SoakOptions),
}

/// World in which published figures are measured again.
#[cfg(feature = "reproduce")]
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ReproduceIn {
    Lab,
    Sim,
}

#[cfg(feature = "sim")]
#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Run a scenario; writes results.json and report.html
    Run {
        /// Scenario file
        scenario: PathBuf,
        /// Directory for the results
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Seed of all randomness [default: the scenario's]
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// Write the engine's decisions into files below DIR, one line of JSON per event
        #[arg(long)]
        trace: bool,
    },
    /// Run many variants of a scenario, or a part of them; writes one row per case
    Sweep(crate::sim::sweep::SweepOptions),
    /// Join the rows of all parts of a sweep, and print a table by policy
    Merge(crate::sim::merge::MergeOptions),
}

/// Why a command ends without success.
enum Failure {
    /// Exit code 2: the configuration is wrong.
    Config(ConfigError),
    /// Exit code 1: the command failed.
    Runtime(anyhow::Error),
    /// Exit code 2: the command line or input is wrong.
    Usage(String),
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<ConfigError>() {
            Ok(error) => Self::Config(error),
            Err(error) if error.is::<BadInput>() => Self::Usage(error.to_string()),
            Err(error) => Self::Runtime(error),
        }
    }
}

/// Runs the command given on the command line.
pub(crate) fn main() -> ExitCode {
    let _finish = log_lines::Finish;
    let failure = match Cli::try_parse_from(std::env::args_os()) {
        Ok(cli) => match run(cli.command) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => failure,
        },
        // If help cannot be printed, the error cannot be printed either.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(2);
        }
        Err(error) => Failure::Usage(usage_line(&error.to_string())),
    };
    let (line, code) = match failure {
        Failure::Config(error) => (error.to_string(), 2),
        Failure::Runtime(error) => (format!("pleach: {error:#}"), 1),
        Failure::Usage(text) => (format!("pleach: {text}"), 2),
    };
    complain(&line);
    ExitCode::from(code)
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Gateway(command) => print(&onboard::gateway::run(command)?),
        Command::Peer(command) => print(&onboard::peer::run(&command)?),
        Command::Join(options) => print(&onboard::join::run(&options)?),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "pleach", &mut text);
            print(&String::from_utf8_lossy(&text))
        }
        Command::Man { dir } => {
            let written = clap_mangen::generate_to(Cli::command(), &dir);
            let shown = dir.display().to_string();
            Ok(written.with_context(|| format!("{shown}: manual pages cannot be written"))?)
        }
        Command::Leave(options) => print(&onboard::leave::run(&options)?),
        Command::Recover(options) => print(&recover::run(&options)?),
        Command::Doctor(options) => diagnose(&options),
        Command::FindOwners => {
            start_logging();
            Ok(find_owners::run()?)
        }
        #[cfg(feature = "dashboard")]
        Command::SendNotices => {
            start_logging();
            Ok(crate::notices::serve()?)
        }
        Command::Genkey => genkey(),
        Command::Pubkey => pubkey(),
        Command::Up { file, trace } => up(&file, trace.as_deref()),
        Command::Set(options)
        | Command::Proxy {
            command: Some(ProxyCommand::Set(options)),
            ..
        } => set(options),
        Command::Proxy {
            file: Some(file), ..
        } => proxy(&file),
        Command::Proxy {
            file: None,
            command: None,
        } => Err(Failure::Usage("write the configuration file".to_owned())),
        Command::Equalize { file } => equalize(&file),
        Command::Check { file } => {
            for note in check::check(&file)? {
                complain(&note.to_string());
            }
            Ok(())
        }
        Command::Status {
            json,
            watch,
            control,
        } => show_status(json, watch, control),
        #[cfg(feature = "dashboard")]
        Command::Top { control } => Ok(crate::top::run(&socket(control)?)?),
        Command::Reload { control } => reload(control),
        Command::Speedtest(options) => {
            let control = socket(options.control.clone())?;
            print(&speedtest::run(&options, &control)?)
        }
        Command::Weights { control, weights } => set_weights(control, weights),
        #[cfg(feature = "lab")]
        Command::Lab(LabCommand::Run {
            scenario,
            out,
            trace,
        }) => Ok(crate::lab::run(&scenario, &out, trace)?),
        #[cfg(feature = "lab")]
        Command::Lab(LabCommand::Crowd(options)) => print(&crate::lab::crowd::run(&options)?),
        #[cfg(feature = "lab")]
        Command::Lab(LabCommand::Hostile(options)) => print(&crate::lab::hostile::run(&options)?),
        #[cfg(feature = "lab")]
        Command::Lab(LabCommand::Soak(options)) => print(&crate::lab::soak::run(&options)?),
        #[cfg(feature = "reproduce")]
        Command::Reproduce {
            ids,
            world,
            out,
            missing,
            seeds,
            keep,
            report,
            list,
        } => {
            if let Some(kept) = report {
                return Ok(crate::reproduce::report(&kept)?);
            }
            let world = match world {
                ReproduceIn::Lab => pleach_sim::results::World::Lab,
                ReproduceIn::Sim => pleach_sim::results::World::Sim,
            };
            let extent = if missing {
                Extent::Missing
            } else {
                Extent::All
            };
            let options = crate::reproduce::Options {
                world,
                extent,
                seeds,
                keep: keep.as_deref(),
            };
            reproduce(&ids, &options, out.as_deref(), list)
        }
        #[cfg(feature = "sim")]
        Command::Sim(SimCommand::Run {
            scenario,
            out,
            seed,
            trace,
        }) => Ok(crate::sim::run(&scenario, &out, seed, trace)?),
        #[cfg(feature = "sim")]
        Command::Sim(SimCommand::Sweep(options)) => Ok(crate::sim::sweep::run(&options)?),
        #[cfg(feature = "sim")]
        Command::Sim(SimCommand::Merge(options)) => Ok(crate::sim::merge::run(&options)?),
    }
}

#[cfg(feature = "reproduce")]
fn reproduce(
    ids: &[String],
    options: &crate::reproduce::Options<'_>,
    out: Option<&std::path::Path>,
    list: bool,
) -> Result<(), Failure> {
    let experiments =
        crate::reproduce::select(ids).map_err(|unknown| Failure::Usage(unknown.to_string()))?;
    match out {
        Some(out) if !list => Ok(crate::reproduce::run(&experiments, options, out)?),
        Some(_) | None => Ok(crate::reproduce::list(&experiments)?),
    }
}

fn genkey() -> Result<(), Failure> {
    let key = SecretKey::random().context("no random numbers from the kernel")?;
    print(&format!("{}\n", *key.to_base64()))
}

fn pubkey() -> Result<(), Failure> {
    let mut text = Zeroizing::new(String::new());
    io::stdin()
        .take(MAX_KEY_INPUT_BYTES)
        .read_to_string(&mut text)
        .map_err(|_| {
            Failure::Usage("standard input: expected a private key in base64".to_owned())
        })?;
    let private = keys::decode(&text)
        .map(SecretKey::new)
        .map_err(|error| Failure::Usage(format!("standard input: expected {error}")))?;
    print(&format!(
        "{}\n",
        keys::encode_public(&keys::public_of(&private))
    ))
}

fn up(file: &std::path::Path, trace: Option<&std::path::Path>) -> Result<(), Failure> {
    start_logging();
    let loaded = config::load(file)?;
    let absent_devices = check::before_start(&loaded)?;
    tell(&loaded.notes, &absent_devices);
    Ok(run_tunnel::run(loaded.config, file, trace)?)
}

fn proxy(file: &std::path::Path) -> Result<(), Failure> {
    start_logging();
    let loaded = config::load_proxy(file)?;
    let absent_devices = check::before_proxy(&loaded)?;
    tell(&loaded.notes, &absent_devices);
    Ok(run_proxy::run(loaded.config, file)?)
}

fn equalize(file: &std::path::Path) -> Result<(), Failure> {
    start_logging();
    let loaded = config::load_equalizer(file)?;
    tell(&loaded.notes, &check::absent_equalizer_devices(&loaded));
    Ok(run_equalizer::run(&loaded.config, file)?)
}

fn tell(notes: &[Note], absent_devices: &[ConfigError]) {
    for note in notes {
        if note.warning {
            tracing::warn!("{}: {}", note.place, note.text);
        } else {
            tracing::info!("{}: {}", note.place, note.text);
        }
    }
    for absent in absent_devices {
        tracing::warn!("{absent}");
    }
}

fn diagnose(options: &Doctor) -> Result<(), Failure> {
    let (text, report) = doctor::run(options)?;
    print(&text)?;
    match report.count() {
        0 => Ok(()),
        1 => Err(anyhow::anyhow!("1 problem found").into()),
        count => Err(anyhow::anyhow!("{count} problems found").into()),
    }
}

fn reload(control: Option<PathBuf>) -> Result<(), Failure> {
    let report = control::reload(&socket(control)?)?;
    let mut text = String::new();
    for change in &report.applied {
        text += &format!("Applied: {change}.\n");
    }
    for key in &report.needs_restart {
        text += &format!("Needs a restart: {key}.\n");
    }
    if text.is_empty() {
        "Nothing has changed.\n".clone_into(&mut text);
    }
    print(&text)
}

fn show_status(json: bool, watch: bool, control: Option<PathBuf>) -> Result<(), Failure> {
    let socket = socket(control)?;
    if watch {
        return Ok(watch::run(&socket)?);
    }
    let report = control::status(&socket)?;
    if json {
        let text = serde_json::to_string_pretty(&report).context("status")?;
        print(&format!("{text}\n"))
    } else {
        print(&status::render(&report))
    }
}

fn set(options: SetOptions) -> Result<(), Failure> {
    let mut set = BTreeMap::new();
    for (key, value) in options.set {
        if set.insert(key.clone(), value).is_some() {
            return Err(Failure::Usage(format!("{key}= is given twice")));
        }
    }
    Ok(control::set(&socket(options.control)?, set)?)
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

fn set_weights(control: Option<PathBuf>, weights: Vec<(String, u32)>) -> Result<(), Failure> {
    let mut table = BTreeMap::new();
    for (name, weight) in weights {
        if table.insert(name.clone(), weight).is_some() {
            return Err(Failure::Usage(format!("{name:?} is given two weights")));
        }
    }
    Ok(control::set_weights(&socket(control)?, table)?)
}

fn socket(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    match named {
        Some(path) => Ok(path),
        None => control::find_socket(RUN_DIRECTORY.as_ref()),
    }
}

fn parse_weight(text: &str) -> Result<(String, u32), String> {
    let expected = || "expected NAME=W with W from 1 to 1000".to_owned();
    let (name, weight) = text.split_once('=').ok_or_else(expected)?;
    let weight = weight
        .parse()
        .ok()
        .filter(|weight| WEIGHTS.contains(weight));
    match weight {
        Some(weight) if !name.is_empty() => Ok((name.to_owned(), weight)),
        _ => Err(expected()),
    }
}

fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .from_env_lossy();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(log_lines::Lines)
        .with_ansi(io::stderr().is_terminal())
        .with_filter(filter);
    let subscriber = tracing_subscriber::registry().with(lines);
    #[cfg(feature = "dashboard")]
    let subscriber = subscriber.with(crate::events::Keep.with_filter(LevelFilter::INFO));
    subscriber.init();
}

fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("cannot write to standard output")?;
    Ok(())
}

/// Writes one line to stderr, even if `text` contains line breaks.
fn complain(text: &str) {
    let line = text.trim().replace(char::is_control, " ");
    // If this fails, the error cannot be reported anywhere.
    let _ = log_lines::last(&line);
}

/// Joins clap's message of several lines into one: first its error paragraph, then tips and usage.
fn usage_line(message: &str) -> String {
    let lines = message.lines().map(str::trim);
    let kept: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
        .collect();
    kept.join(" ")
        .replace(" tip:", "; tip:")
        .replace(" Usage:", "; usage:")
        .replace("error: ", "")
}

/// Maximum input length in bytes: more than any key with white space around it.
const MAX_KEY_INPUT_BYTES: u64 = 4096;
