//! A PostgreSQL server of a test's own, which is reached by a Unix socket in a temporary directory.

use std::{
    env, fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use pleach_linux::clock;
use postgres::{Client, NoTls};

/// A running server. Dropping it ends the server and removes its data.
pub(crate) struct Server {
    programs: PathBuf,
    dir: tempfile::TempDir,
    process: Child,
}

impl Server {
    /// Starts a server. `None` if PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            assert!(
                env::var_os("PLEACH_REQUIRE_LAB").is_none(),
                "PostgreSQL is missing: install the Debian package postgresql"
            );
            eprintln!("SKIPPED: PostgreSQL is missing");
            return None;
        };
        let dir = tempfile::TempDir::new().expect("directory");
        if let Some(uid) = server_user() {
            chown(dir.path(), Some(uid), Some(uid)).expect("root");
        }
        let made = command(&programs, dir.path(), "initdb")
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
        let process = Self::launch(&programs, dir.path());
        let this = Self {
            programs,
            dir,
            process,
        };
        this.until_ready();
        Some(this)
    }

    fn launch(programs: &Path, dir: &Path) -> Child {
        let log = fs::File::create(dir.join("log")).expect("file");
        command(programs, dir, "postgres")
            .args(["-D", "data", "-c", "listen_addresses=", "-c", "fsync=off"])
            .arg("-c")
            .arg(format!("unix_socket_directories={}", dir.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("postgres")
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
        self.process = Self::launch(&self.programs, self.dir.path());
        self.until_ready();
    }

    fn connection(&self, database: &str) -> String {
        format!(
            "host={} user=postgres dbname={database}",
            self.dir.path().display()
        )
    }

    /// Connects to a database.
    pub(crate) fn client(&self, database: &str) -> Result<Client, postgres::Error> {
        Client::connect(&self.connection(database), NoTls)
    }

    /// Makes a new database, and returns its connection string.
    pub(crate) fn database(&self, name: &str) -> String {
        let mut client = self.client("postgres").expect("connected");
        let made = client.batch_execute(&format!("CREATE DATABASE {name}"));
        made.expect("made");
        self.connection(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
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

fn command(programs: &Path, dir: &Path, name: &str) -> Command {
    let program = programs.join(name);
    let mut command = match server_user() {
        Some(uid) => {
            let mut command = Command::new("setpriv");
            command
                .arg(format!("--reuid={uid}"))
                .arg(format!("--regid={uid}"))
                .args(["--clear-groups", "--pdeathsig=QUIT"])
                .arg(program);
            command
        }
        None => Command::new(program),
    };
    command.current_dir(dir).env("LC_ALL", "C.UTF-8");
    command
}
