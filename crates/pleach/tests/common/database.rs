//! A PostgreSQL server of a test's own, with its data in a temporary directory.
//!
//! The test reaches it by a Unix socket. Gateways may reach it in the same way, or as a server on another host
//! ([`Server::start_remote`]), which wants TLS and a password.

use std::{
    env, fs,
    net::TcpListener,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use pleach_lab::netns::Netns;
use pleach_linux::clock;
use postgres::{Client, NoTls};

/// Password of the user `pleach` of a remote server.
pub(crate) const PASSWORD: &str = "correct-horse-battery";

/// A running server. Dropping it ends the server and removes its data.
pub(crate) struct Server {
    programs: PathBuf,
    dir: tempfile::TempDir,
    /// How other hosts reach the server; `None` if they do not.
    remote: Option<Remote>,
    process: Child,
}

/// How a server is reached from other hosts.
#[derive(Clone)]
struct Remote {
    /// Host of the server; `None` for the host of the test.
    host: Option<Netns>,
    addresses: String,
    port: u16,
    has_tls: bool,
}

impl Server {
    /// Starts a server that is reached by its Unix socket alone. `None` if PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(None)
    }

    /// Starts a server on `host` (`None`: the test's own) that also listens at `addresses`. Over TCP it admits only the
    /// user `pleach` with [`PASSWORD`], and only over TLS. `None` if PostgreSQL or OpenSSL are not installed.
    pub(crate) fn start_remote(host: Option<&Netns>, addresses: &[&str]) -> Option<Self> {
        let port = host.map_or_else(free_port, |_| 5432);
        let this = Self::start_with(Some(Remote {
            host: host.cloned(),
            addresses: addresses.join(","),
            port,
            has_tls: true,
        }))?;
        this.set_password(PASSWORD);
        Some(this)
    }

    fn start_with(remote: Option<Remote>) -> Option<Self> {
        let Some(programs) = programs() else {
            return skip("PostgreSQL is missing: install the Debian package postgresql");
        };
        let dir = tempfile::TempDir::new().expect("directory");
        own(dir.path());
        let made = command(&programs, dir.path(), "initdb", None)
            .args([
                "--auth=trust",
                "--username=postgres",
                "--encoding=UTF8",
                "--no-sync",
                "-D",
                "data",
            ])
            .output()
            .expect("initdb");
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        if let Some(remote) = &remote {
            let names = remote.addresses.split(',');
            let names: Vec<String> = names.map(|address| format!("IP:{address}")).collect();
            if !make_certificates(dir.path(), &names.join(",")) {
                return skip("openssl does not make a certificate");
            }
            let admitted = "local all postgres trust\nhostssl all pleach all scram-sha-256\n";
            fs::write(dir.path().join("data/pg_hba.conf"), admitted).expect("written");
        }
        let process = launch(&programs, dir.path(), remote.as_ref());
        let this = Self {
            programs,
            dir,
            remote,
            process,
        };
        this.until_ready();
        Some(this)
    }

    fn until_ready(&self) {
        let deadline = clock::now() + Duration::from_secs(30);
        while let Err(error) = self.client("postgres") {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            assert!(clock::now() < deadline, "{error}: {log}");
            thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// Ends the server at once: SIGQUIT is PostgreSQL's immediate shutdown, of which it recovers at the next start.
    pub(crate) fn stop(&mut self) {
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").args(["-QUIT", &pid]).status();
        let _ = self.process.wait();
    }

    /// Starts the server again.
    pub(crate) fn start_again(&mut self) {
        self.process = launch(&self.programs, self.dir.path(), self.remote.as_ref());
        self.until_ready();
    }

    /// Starts the server again, with or without TLS.
    #[allow(dead_code, reason = "some tests have local servers only")]
    pub(crate) fn start_again_with_tls(&mut self, has_tls: bool) {
        if let Some(remote) = &mut self.remote {
            remote.has_tls = has_tls;
        }
        self.start_again();
    }

    /// Gives the user `pleach` a password, and makes the user if there is none.
    pub(crate) fn set_password(&self, password: &str) {
        let mut client = self.client("postgres").expect("connected");
        let made = client.batch_execute(&format!(
            "SET password_encryption = 'scram-sha-256';
             DO $$ BEGIN CREATE ROLE pleach LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
             ALTER ROLE pleach PASSWORD '{password}'"
        ));
        made.expect("made");
    }

    /// Returns the file with the certificate of the authority that has signed the server's certificate.
    pub(crate) fn authority(&self) -> PathBuf {
        self.dir.path().join("authority.pem")
    }

    /// Returns the file with the certificate of an authority that has signed nothing.
    #[allow(dead_code, reason = "some tests have local servers only")]
    pub(crate) fn other_authority(&self) -> PathBuf {
        self.dir.path().join("other.pem")
    }

    /// Returns the connection string of the user `user`. `host`: an address, or the directory of the socket.
    fn connection(&self, host: &str, user: &str, database: &str) -> String {
        let port = self.remote.as_ref().map(|remote| remote.port);
        let port = port.map_or_else(String::new, |port| format!("port={port} "));
        format!("host={host} {port}user={user} dbname={database}")
    }

    fn local(&self, database: &str) -> String {
        let socket = self.dir.path().display().to_string();
        self.connection(&socket, "postgres", database)
    }

    /// Connects to a database.
    pub(crate) fn client(&self, database: &str) -> Result<Client, postgres::Error> {
        Client::connect(&self.local(database), NoTls)
    }

    /// Makes a new database, and returns its connection string.
    pub(crate) fn database(&self, name: &str) -> String {
        self.create(name, "postgres");
        self.local(name)
    }

    /// Makes a new database of the user `pleach`, and returns its connection string for other hosts, which reach the server
    /// at `address`.
    pub(crate) fn remote_database(&self, name: &str, address: &str) -> String {
        self.create(name, "pleach");
        self.connection(address, "pleach", name)
    }

    fn create(&self, name: &str, owner: &str) {
        let mut client = self.client("postgres").expect("connected");
        let made = client.batch_execute(&format!("CREATE DATABASE {name} OWNER {owner}"));
        made.expect("made");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Says that a test is skipped, or fails if none may be.
fn skip<T>(why: &str) -> Option<T> {
    assert!(env::var_os("PLEACH_REQUIRE_LAB").is_none(), "{why}");
    eprintln!("SKIPPED: {why}");
    None
}

fn launch(programs: &Path, dir: &Path, remote: Option<&Remote>) -> Child {
    let log = fs::File::create(dir.join("log")).expect("file");
    let file = |name: &str| dir.join(name).display().to_string();
    let mut settings = vec![
        "fsync=off".to_owned(),
        format!("unix_socket_directories={}", dir.display()),
    ];
    match remote {
        Some(remote) => settings.extend([
            format!("listen_addresses={}", remote.addresses),
            format!("port={}", remote.port),
            format!("ssl={}", if remote.has_tls { "on" } else { "off" }),
            format!("ssl_cert_file={}", file("server.pem")),
            format!("ssl_key_file={}", file("server.key")),
        ]),
        None => settings.push("listen_addresses=".to_owned()),
    }
    let host = remote.and_then(|remote| remote.host.as_ref());
    let mut command = command(programs, dir, "postgres", host);
    command.args(["-D", "data"]);
    for setting in &settings {
        command.args(["-c", setting]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("postgres")
}

/// Makes an authority, a certificate of it for `names`, and another authority. Returns whether OpenSSL did so.
fn make_certificates(dir: &Path, names: &str) -> bool {
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    let lines = [
        format!("{new} -subj /CN=authority -keyout authority.key -out authority.pem"),
        format!("{new} -subj /CN=other -keyout other.key -out other.pem"),
        format!(
            "{new} -subj /CN=database -CA authority.pem -CAkey authority.key \
             -addext basicConstraints=critical,CA:FALSE -addext subjectAltName={names} \
             -keyout server.key -out server.pem"
        ),
    ];
    let is_made = lines.iter().all(|line| {
        let mut command = Command::new("openssl");
        command.args(line.split_whitespace()).current_dir(dir);
        command.output().is_ok_and(|made| made.status.success())
    });
    if is_made {
        let key = dir.join("server.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("our file");
        own(&key);
    }
    is_made
}

/// Gives a file to the user that a server runs as.
fn own(path: &Path) {
    if let Some(uid) = server_user() {
        chown(path, Some(uid), Some(uid)).expect("root");
    }
}

/// Returns a port of the loopback addresses that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// Returns the directory of the newest server that is installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let directories = versions.flatten().map(|version| version.path().join("bin"));
    directories.filter(|bin| bin.join("initdb").exists()).max()
}

/// Returns the user that a server runs as, because it refuses to run as root.
fn server_user() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(65_534)
}

/// Returns a command that runs a program of PostgreSQL on `host`; `None`: the host of the test.
fn command(programs: &Path, dir: &Path, name: &str, host: Option<&Netns>) -> Command {
    let program = programs.join(name);
    let new = |program: &Path| match host {
        Some(host) => host.command(program),
        None => Command::new(program),
    };
    let mut command = match server_user() {
        Some(uid) => {
            let mut command = new(Path::new("setpriv"));
            command
                .arg(format!("--reuid={uid}"))
                .arg(format!("--regid={uid}"))
                .args(["--clear-groups", "--pdeathsig=QUIT"])
                .arg(program);
            command
        }
        None => new(&program),
    };
    command.current_dir(dir).env("LC_ALL", "C.UTF-8");
    command
}
