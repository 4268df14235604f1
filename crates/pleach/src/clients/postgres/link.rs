//! A connection to a PostgreSQL server, each step of which ends in bounded time, whatever server and network do.

use core::{future::Future, time::Duration};
use std::{error::Error as _, fmt::Write as _, io};

use rustls::CertificateError;
use tokio::{
    runtime::{self, Runtime},
    time::timeout,
};
use tokio_postgres::{
    Client, Config, NoTls, Row, Statement, ToStatement,
    error::{Severity, SqlState},
    types::ToSql,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::clients::StoreError;

/// Why work on the database failed.
#[derive(Debug)]
pub(super) enum Failure {
    Database(tokio_postgres::Error),
    /// No runtime for the connection could be made.
    Io(io::Error),
    /// The server did not answer in time.
    Silent,
    /// The tables are not those that the connection was made for.
    Stale(StoreError),
    Store(StoreError),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Failure {
    /// Whether the connection is of no use any more.
    pub(super) fn ends_connection(&self) -> bool {
        match self {
            Self::Database(error) => {
                let severity = error.as_db_error().map(|error| error.parsed_severity());
                let code = error.code();
                // The tables have changed under a prepared statement, or a transaction was left open.
                let is_outdated = code == Some(&SqlState::FEATURE_NOT_SUPPORTED)
                    || code == Some(&SqlState::IN_FAILED_SQL_TRANSACTION);
                is_outdated
                    || error.is_closed()
                    || severity.is_none_or(|severity| {
                        matches!(severity, None | Some(Severity::Fatal | Severity::Panic))
                    })
            }
            Self::Io(_) | Self::Silent | Self::Stale(_) => true,
            Self::Store(_) => false,
        }
    }

    /// Returns the error for the user. `place`: the name of the database in messages.
    pub(super) fn told(self, place: &str) -> StoreError {
        let what = match self {
            Self::Database(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                return StoreError::Exists;
            }
            Self::Database(error) => text(&error),
            Self::Io(error) => error.to_string(),
            Self::Silent => "the server does not answer".to_owned(),
            Self::Stale(error) | Self::Store(error) => return error,
        };
        StoreError::Unavailable {
            place: place.to_owned(),
            what,
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    client: Client,
    /// Drives the connection while a call waits. `None` only while this value is dropped.
    runtime: Option<Runtime>,
}

impl Link {
    /// Connects to the server of `config`.
    ///
    /// # Errors
    /// If this takes longer than [`CONNECT_WITHIN`] for each host, or the server refuses.
    pub(super) fn open(config: &Config, tls: Option<&MakeRustlsConnect>) -> Result<Self, Failure> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::Io)?;
        let connect = async {
            match tls {
                Some(tls) => {
                    let (client, connection) = config.connect(tls.clone()).await?;
                    // An error of the connection is also one of the next call.
                    tokio::spawn(connection);
                    Ok(client)
                }
                None => {
                    let (client, connection) = config.connect(NoTls).await?;
                    tokio::spawn(connection);
                    Ok(client)
                }
            }
        };
        let hosts = config.get_hosts().len().max(config.get_hostaddrs().len());
        let hosts = u32::try_from(hosts)
            .unwrap_or(u32::MAX)
            .clamp(1, MOST_HOSTS);
        let connected = runtime.block_on(async { timeout(CONNECT_WITHIN * hosts, connect).await });
        let connected = match connected {
            Ok(connected) => connected.map_err(Failure::Database),
            Err(_) => Err(Failure::Silent),
        };
        match connected {
            Ok(client) => Ok(Self {
                client,
                runtime: Some(runtime),
            }),
            Err(failure) => {
                // A look-up of a name may still run in a thread.
                runtime.shutdown_background();
                Err(failure)
            }
        }
    }

    /// Whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Prepares a statement.
    pub(super) fn prepare(&self, sql: &str) -> Result<Statement, Failure> {
        self.wait(self.client.prepare(sql))
    }

    /// Returns the rows of a query.
    pub(super) fn query(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        self.wait(self.client.query(sql, values))
    }

    /// Returns the only row of a query.
    pub(super) fn query_one(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, Failure> {
        self.wait(self.client.query_one(sql, values))
    }

    /// Returns the row of a query, which may be prepared, that has at most one.
    pub(super) fn query_opt<S: ToStatement + ?Sized>(
        &self,
        statement: &S,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Failure> {
        self.wait(self.client.query_opt(statement, values))
    }

    /// Returns the number of rows that a statement has changed.
    pub(super) fn execute(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Failure> {
        self.wait(self.client.execute(sql, values))
    }

    /// Executes statements without values.
    pub(super) fn run(&self, sql: &str) -> Result<(), Failure> {
        self.wait(self.client.batch_execute(sql))
    }

    /// Executes the statements of a migration, which may take as long as it wants.
    pub(super) fn migrate(&self, sql: &str) -> Result<(), Failure> {
        let Some(runtime) = &self.runtime else {
            return Err(Failure::Silent);
        };
        self.run("SET LOCAL statement_timeout = 0")?;
        Ok(runtime.block_on(self.client.batch_execute(sql))?)
    }

    fn wait<T>(
        &self,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failure> {
        let Some(runtime) = &self.runtime else {
            return Err(Failure::Silent);
        };
        match runtime.block_on(async { timeout(ANSWER_WITHIN, work).await }) {
            Ok(done) => Ok(done?),
            Err(_) => Err(Failure::Silent),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Returns what an error says, with a remedy where one is known. The details of the database are left out, because they
/// may contain rows with keys.
fn text(error: &tokio_postgres::Error) -> String {
    let Some(of_database) = error.as_db_error() else {
        let mut text = error.to_string();
        if let Some(source) = error.source() {
            // Writing to a `String` cannot fail.
            let _ = write!(text, ": {source}");
        }
        if let Some(remedy) = remedy(error) {
            let _ = write!(text, "; {remedy}");
        }
        return text;
    };
    let message = of_database.message();
    let remedy = match *of_database.code() {
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION | SqlState::INVALID_PASSWORD => {
            "correct user and [clients] password_file, or let pg_hba.conf and pg_ident.conf admit the user of this process"
        }
        SqlState::INVALID_CATALOG_NAME => "create it: createdb --owner USER NAME",
        SqlState::INSUFFICIENT_PRIVILEGE => {
            "make the user of [clients] store the owner of the database"
        }
        _ => return message.to_owned(),
    };
    format!("{message}; {remedy}")
}

/// Returns what the user can do about an error that is not one of the database.
fn remedy(error: &tokio_postgres::Error) -> Option<&'static str> {
    let source = error.source()?;
    let io = source.downcast_ref::<io::Error>();
    let tls = io.and_then(io::Error::get_ref);
    match tls.and_then(|tls| tls.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => {
            Some("write a name or address of the server's certificate as host of [clients] store")
        }
        Some(rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => Some("renew the server's certificate, or correct the clock of this host"),
        Some(rustls::Error::InvalidCertificate(_)) => Some(
            "name the file with the authority that has signed the server's certificate in [clients] ca_file",
        ),
        Some(_) => Some("the server must speak TLS 1.3"),
        // The library has no types for these.
        None => match source.to_string().as_str() {
            "server does not support TLS" => Some(
                "set ssl = on in the server's postgresql.conf, because [clients] ca_file requires TLS",
            ),
            "password missing" => {
                Some("name the file with the password in [clients] password_file")
            }
            _ => None,
        },
    }
}

/// Longest time for a connection to one host, with the look-up of its name, encryption and authentication.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Longest time for a connection to one address of a host, so that the next one is tried.
pub(super) const ADDRESS_WITHIN: Duration = Duration::from_secs(2);
/// Number of hosts in a connection string that are waited for.
const MOST_HOSTS: u32 = 4;
/// Longest time for an answer, and for a lock.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
