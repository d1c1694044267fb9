//! The one connection of an instance: how it is opened, used and opened again.
//!
//! Invariants: a statement sees what was committed before it began (`read committed`), and its commit is on the
//! server's disk; after a time-out or a lost connection the old one is never used again; where the mode asks for TLS, no
//! log-in is sent without it. Statements have no name at the server, so each takes one round trip and nothing is kept.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use returner_sdk::prelude::*;
use returner_sdk::tokio::net::TcpStream;
use returner_sdk::tokio::task::JoinHandle;
use returner_sdk::tokio::time::{sleep, timeout};
use returner_sdk::tokio::{self};
use tokio_postgres::Client;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};

use crate::fault::{Fault, text};
use crate::options::{Mode, Settings};
use crate::schema::Schema;
use crate::tls::Connector;

const STATEMENT_SECONDS: u64 = 60;
const REPEATS_AFTER_CONFLICT: u32 = 8;
/// `ON CONFLICT` came with this version.
const OLDEST_SERVER: u32 = 90_500;

/// Sets the session up. The server gives up waiting for a lock, and ends a statement whose client has gone.
const SESSION: &str = "SELECT current_setting('server_version_num'), current_setting('server_encoding'), \
    set_config('default_transaction_isolation', 'read committed', false), \
    set_config('lock_timeout', '10s', false), \
    set_config('statement_timeout', CASE current_setting('statement_timeout') WHEN '0' THEN '60s' \
        ELSE current_setting('statement_timeout') END, false), \
    set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
        ELSE current_setting('synchronous_commit') END, false)";

/// A value of a statement.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A text as a value.
pub(crate) fn one<'a>(value: &'a &'a str) -> Param<'a> {
    (value, Type::TEXT)
}

/// Several texts as one value.
pub(crate) fn many<'a, T: ToSql + Sync>(values: &'a Vec<T>) -> Param<'a> {
    (values, Type::TEXT_ARRAY)
}

/// A number as a value.
pub(crate) fn number(value: &i64) -> Param<'_> {
    (value, Type::INT8)
}

/// The part of a connection that runs by itself; it goes with the connection's owner.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An open store.
pub(crate) struct Db {
    settings: Settings,
    document: &'static str,
    client: Client,
    task: Task,
    pub(crate) schema: Schema,
    /// The server's character set, as it calls it.
    pub(crate) encoding: String,
    noted: BTreeSet<&'static str>,
    conflicts: u32,
}

impl Db {
    /// Connects, looks at the tables and creates missing ones, with this type for documents.
    pub(crate) async fn connect(settings: Settings, document: &'static str) -> Result<Self> {
        let (client, task) = dial(&settings).await?;
        let mut db = Self {
            settings,
            document,
            client,
            task,
            schema: Schema::default(),
            encoding: String::new(),
            noted: BTreeSet::new(),
            conflicts: 0,
        };
        if let Err(fault) = db.prepare().await {
            let Settings { host, port, user, db, .. } = &db.settings;
            let hint = match &fault {
                Fault::Server(error) if error.code().is_some_and(|code| code.code() == "42501") => {
                    format!(
                        "; hint: give the user `{user}` rights on the tables, and CREATE on the schema while one is missing"
                    )
                }
                _ => String::new(),
            };
            return Err(Error::retry(format!(
                "the tables of database `{db}` (option `db`) on `{host}:{port}` cannot be used: {fault}{hint}"
            )));
        }
        Ok(db)
    }

    async fn prepare(&mut self) -> Result<(), Fault> {
        let session = self.rows::<2>(SESSION, &[]).await?;
        let Some([Some(version), Some(encoding)]) = session.into_iter().next() else {
            return Err(Fault::Later("the server does not say what it is".into()));
        };
        if version.parse().is_ok_and(|version: u32| version < OLDEST_SERVER) {
            return Err(Fault::Later(format!(
                "the server is of version {version}; hint: PostgreSQL 9.5 or later is needed"
            )));
        }
        self.encoding = encoding;
        self.schema = Schema::prepare(self, self.document).await?;
        Ok(())
    }

    /// Runs one operation of the plugin. It is repeated on a new connection if the old one turns out to be dead, and
    /// on the same one while other sessions are in the way, so it must be idempotent.
    pub(crate) async fn run<T>(
        &mut self,
        operation: impl AsyncFn(&mut Self) -> Result<T, Fault>,
    ) -> Result<T> {
        let mut reopened = false;
        let mut conflicts = 0;
        loop {
            match operation(self).await {
                Ok(value) => return Ok(value),
                Err(Fault::Lost(_)) if !reopened => {
                    reopened = true;
                    let noted = std::mem::take(&mut self.noted);
                    *self = Self::connect(self.settings.clone(), self.document).await?;
                    self.noted = noted;
                }
                Err(Fault::Conflict(_)) if conflicts < REPEATS_AFTER_CONFLICT => {
                    if let Err(fault) = self.exec("ROLLBACK").await {
                        return Err(self.named(&fault));
                    }
                    // Sessions that collided wait for different times.
                    let address = u64::try_from(std::ptr::from_ref(self).addr() / 16).unwrap_or_default();
                    self.conflicts = self.conflicts.wrapping_add(1);
                    let spread = (address + u64::from(self.conflicts)) % 7 + 1;
                    sleep(Duration::from_millis(spread << conflicts.min(5))).await;
                    conflicts += 1;
                }
                Err(fault) => return Err(self.named(&fault)),
            }
        }
    }

    fn named(&self, fault: &Fault) -> Error {
        Error::retry(format!("`{}:{}`: {fault}", self.settings.host, self.settings.port))
    }

    /// Runs statements without values, all or none of them.
    pub(crate) async fn exec(&self, sql: &str) -> Result<(), Fault> {
        within(STATEMENT_SECONDS, self.client.batch_execute(sql)).await
    }

    /// Runs a statement; gives the number of rows it changed.
    pub(crate) async fn change(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, Fault> {
        within(STATEMENT_SECONDS, self.client.execute_typed(sql, params)).await
    }

    /// Runs a query; gives the first columns of its rows, all of which must be text.
    pub(crate) async fn rows<const N: usize>(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<[Option<String>; N]>, Fault> {
        let rows = within(STATEMENT_SECONDS, self.client.query_typed(sql, params)).await?;
        let mut all = Vec::with_capacity(rows.len());
        for row in rows {
            let mut columns = [const { None }; N];
            for (index, column) in columns.iter_mut().enumerate() {
                *column = row.try_get(index)?;
            }
            all.push(columns);
        }
        Ok(all)
    }

    /// Writes a line to the host's log, once for each kind of line while the instance lives.
    pub(crate) fn note_once(&mut self, kind: &'static str, line: impl FnOnce() -> String) {
        if self.noted.insert(kind) {
            eprintln!("{}", line());
        }
    }

    /// Says goodbye.
    pub(crate) async fn disconnect(self) {
        let Self { client, mut task, .. } = self;
        drop(client);
        // The server cleans up after a connection that just ends, too.
        let _ = timeout(Duration::from_secs(1), &mut task.0).await;
    }
}

async fn within<T>(
    seconds: u64,
    statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Fault> {
    match timeout(Duration::from_secs(seconds), statement).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Fault::Slow(seconds)),
    }
}

/// Why an attempt to connect failed.
enum Refused {
    Network(std::io::Error),
    Driver(tokio_postgres::Error),
}

impl Refused {
    /// The server's own code.
    fn code(&self) -> Option<&str> {
        match self {
            Self::Driver(error) => error.code().map(|code| code.code()),
            Self::Network(_) => None,
        }
    }
}

async fn dial(settings: &Settings) -> Result<(Client, Task)> {
    let Settings { host, port, .. } = settings;
    let addresses = returner_sdk::resolve(host, *port)
        .map_err(|error| Error::retry(format!("cannot find the server `{host}` (option `host`): {error}")))?;
    let opened = timeout(settings.connect_within, async {
        let mut refused = None;
        for address in addresses {
            match open(settings, address).await {
                Ok(opened) => return Ok(opened),
                Err(error) => {
                    let spoke = error.code().is_some();
                    refused = Some(error);
                    // A server that refuses the log-in would do so at its other addresses too.
                    if spoke {
                        break;
                    }
                }
            }
        }
        Err(refused)
    });
    match opened.await {
        Ok(Ok(opened)) => Ok(opened),
        Ok(Err(Some(refused))) => Err(refusal(settings, &refused)),
        Ok(Err(None)) => Err(Error::retry(format!("the server `{host}` (option `host`) has no address"))),
        Err(_) => Err(Error::retry(format!(
            "`{host}:{port}` (options `host`, `port`) did not answer within {} s",
            settings.connect_within.as_secs()
        ))),
    }
}

/// Connects to one address in the way of the mode.
async fn open(settings: &Settings, address: SocketAddr) -> Result<(Client, Task), Refused> {
    let (first, second) = settings.attempts();
    let refused = match attempt(settings, address, first).await {
        Ok(opened) => return Ok(opened),
        Err(refused) => refused,
    };
    let Some(second) = second else { return Err(refused) };
    let again = match &refused {
        Refused::Network(_) => false,
        // The server wants it the other way (`pg_hba.conf`), or TLS was only a wish and failed.
        Refused::Driver(error) => {
            refused.code() == Some("28000") || (settings.mode == Mode::Prefer && tls_failed(error))
        }
    };
    if !again {
        return Err(refused);
    }
    attempt(settings, address, second)
        .await
        .map_err(|other| if other.code() == Some("28000") { refused } else { other })
}

async fn attempt(
    settings: &Settings,
    address: SocketAddr,
    ssl_mode: SslMode,
) -> Result<(Client, Task), Refused> {
    let stream = TcpStream::connect(address).await.map_err(Refused::Network)?;
    // Where this cannot be set, it is slower at worst.
    let _ = stream.set_nodelay(true);
    let connector = Connector { config: settings.tls.clone(), host: settings.host.clone() };
    let (client, connection) =
        settings.driver(ssl_mode).connect_raw(stream, connector).await.map_err(Refused::Driver)?;
    // What ends it is told to the statements that it ends.
    let task = Task(tokio::spawn(async move { drop(connection.await) }));
    Ok((client, task))
}

/// Whether the error came before the log-in, from TLS.
fn tls_failed(error: &tokio_postgres::Error) -> bool {
    error.to_string().starts_with("error performing TLS handshake")
}

/// Why there is no connection. All of it may be mended at the server.
fn refusal(settings: &Settings, refused: &Refused) -> Error {
    let Settings { host, port, user, db, password_option, .. } = settings;
    let error = match refused {
        Refused::Network(error) => {
            return Error::retry(format!(
                "cannot connect to `{host}:{port}` (options `host`, `port`): {error}"
            ));
        }
        Refused::Driver(error) => error,
    };
    let why = text(error);
    let about = match refused.code() {
        Some("28000" | "28P01") => format!(
            "the server `{host}:{port}` refused the user `{user}`: {why}; hint: check the options `user`, \
             `{password_option}` and `sslmode`, and the server's `pg_hba.conf`"
        ),
        Some("3D000" | "42501") => {
            format!("the database `{db}` (option `db`) cannot be used on `{host}:{port}`: {why}")
        }
        Some(_) => format!("the server `{host}:{port}` refused the connection: {why}"),
        None if why.contains("server does not support TLS") => format!(
            "the server `{host}:{port}` offers no TLS, and without it no log-in is sent (option `sslmode`); \
             hint: turn `ssl` on at the server, or lower `sslmode`"
        ),
        None if tls_failed(error) => format!(
            "no TLS connection to `{host}:{port}` as the options `host`, `sslmode` and `sslrootcert` want it: {why}"
        ),
        None if why.contains("password missing") => format!(
            "the server `{host}:{port}` wants a password for the user `{user}`; hint: set the option `{password_option}`"
        ),
        None => format!("cannot log in at `{host}:{port}` (options `host`, `port`): {why}"),
    };
    Error::retry(about)
}
