//! The one connection of an instance: how it is opened, used and opened again.
//!
//! Invariants: the session's SQL mode is strict and knows backslash escapes, and its character set is utf8mb4 (what
//! `sql` relies on); after a time-out or a lost connection the old one is never used again; with TLS asked for, no
//! log-in is sent without it.

use std::collections::BTreeSet;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, DriverError, Row};
use returner_sdk::prelude::*;
use returner_sdk::tokio::time::{sleep, timeout};

use crate::fault::{Fault, text};
use crate::options::Settings;
use crate::schema::Schema;

const CONNECT_SECONDS: u64 = 10;
const STATEMENT_SECONDS: u64 = 60;
const LOCK_SECONDS: u64 = 10;
const REPEATS_AFTER_CONFLICT: u32 = 8;

/// An open store.
pub struct Db {
    settings: Settings,
    conn: Conn,
    pub(crate) schema: Schema,
    /// The server's `max_allowed_packet`, in bytes.
    pub(crate) max_packet: usize,
    noted: BTreeSet<&'static str>,
}

impl Db {
    /// Connects, looks at the tables and creates missing ones.
    pub(crate) async fn connect(settings: Settings) -> Result<Self> {
        let (conn, max_packet) = dial(&settings).await?;
        let mut db = Self { settings, conn, schema: Schema::default(), max_packet, noted: BTreeSet::new() };
        db.schema = match Schema::prepare(&mut db).await {
            Ok(schema) => schema,
            Err(fault) => {
                let Settings { host, port, db, .. } = &db.settings;
                return Err(Error::retry(format!(
                    "the tables of database `{db}` (option `db`) on `{host}:{port}` cannot be used: {fault}"
                )));
            }
        };
        Ok(db)
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
                    *self = Self::connect(self.settings.clone()).await?;
                    self.noted = noted;
                }
                Err(Fault::Conflict(_)) if conflicts < REPEATS_AFTER_CONFLICT => {
                    // A deadlock has rolled back everything, a lock time-out only its statement.
                    if let Err(fault) = self.exec("ROLLBACK").await {
                        return Err(self.named(&fault));
                    }
                    // Sessions that collided wait for different times.
                    let spread = u64::from(self.conn.id() % 7 + 1);
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

    /// Runs a statement; gives the number of rows it changed.
    pub(crate) async fn exec(&mut self, sql: impl AsRef<str>) -> Result<u64, Fault> {
        within(STATEMENT_SECONDS, self.conn.query_drop(sql.as_ref())).await?;
        Ok(self.conn.affected_rows())
    }

    /// Runs a query; gives its rows, each with its columns as text.
    pub(crate) async fn rows<const N: usize>(
        &mut self,
        sql: impl AsRef<str>,
    ) -> Result<Vec<[Option<String>; N]>, Fault> {
        let rows: Vec<Row> = within(STATEMENT_SECONDS, self.conn.query(sql.as_ref())).await?;
        Ok(rows
            .into_iter()
            .map(|mut row| std::array::from_fn(|column| column_text(&mut row, column)))
            .collect())
    }

    /// Runs an operation while this session holds the named lock of a table, against other instances of the plugin.
    pub(crate) async fn with_lock<T>(
        &mut self,
        table: &str,
        operation: impl AsyncFn(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        // Hashed, as a lock's name may have 64 characters at most.
        let name = format!("CONCAT('returnerd.', MD5(CONCAT(DATABASE(), '.{table}')))");
        let got = self.rows::<1>(format!("SELECT GET_LOCK({name}, {LOCK_SECONDS})")).await?;
        if !matches!(got.as_slice(), [[Some(one)]] if one == "1") {
            return Err(Fault::Later(format!(
                "another writer holds the table `{table}` for over {LOCK_SECONDS} s"
            )));
        }
        let result = operation(self).await;
        match &result {
            // The server has released it with the session, or will once it sees that the session is gone.
            Err(Fault::Lost(_) | Fault::Slow(_)) => {}
            _ => {
                self.exec(format!("DO RELEASE_LOCK({name})")).await?;
            }
        }
        result
    }

    /// Writes a line to the host's log, once for each kind of line while the instance lives.
    pub(crate) fn note_once(&mut self, kind: &'static str, line: impl FnOnce() -> String) {
        if self.noted.insert(kind) {
            eprintln!("{}", line());
        }
    }

    /// Says goodbye.
    pub(crate) async fn disconnect(self) {
        // The server cleans up after a connection that just ends, too.
        let _ = timeout(Duration::from_secs(1), self.conn.disconnect()).await;
    }
}

fn column_text(row: &mut Row, column: usize) -> Option<String> {
    match row.take::<mysql_async::Value, _>(column)? {
        mysql_async::Value::NULL => None,
        mysql_async::Value::Bytes(bytes) => Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }),
        other => Some(other.as_sql(true)),
    }
}

async fn within<T>(
    seconds: u64,
    statement: impl Future<Output = Result<T, mysql_async::Error>>,
) -> Result<T, Fault> {
    match timeout(Duration::from_secs(seconds), statement).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Fault::Slow(seconds)),
    }
}

/// Opens a connection and sets its session up; gives the server's packet limit too.
async fn dial(settings: &Settings) -> Result<(Conn, usize)> {
    let Settings { host, port, .. } = settings;
    let addresses = returner_sdk::resolve(host, *port)
        .map_err(|error| Error::retry(format!("cannot find the server `{host}` (option `host`): {error}")))?;
    let addresses = addresses.into_iter().map(|address| address.ip()).collect();
    let opened = timeout(Duration::from_secs(CONNECT_SECONDS), async {
        let mut conn = Conn::new(settings.driver(addresses)).await?;
        conn.query_drop("SET NAMES utf8mb4").await?;
        conn.query_drop(
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
             autocommit = 1, innodb_lock_wait_timeout = 10",
        )
        .await?;
        let packet: Option<usize> = conn.query_first("SELECT @@max_allowed_packet").await?;
        Ok((conn, packet.unwrap_or(1 << 20)))
    });
    match opened.await {
        Ok(Ok(opened)) => Ok(opened),
        Ok(Err(error)) => Err(refusal(settings, &error)),
        Err(_) => Err(Error::retry(format!(
            "`{host}:{port}` (options `host`, `port`) did not answer within {CONNECT_SECONDS} s"
        ))),
    }
}

/// Why there is no connection. Nearly all of it may be mended at the server, so only an unusable key is fatal.
fn refusal(settings: &Settings, error: &mysql_async::Error) -> Error {
    let Settings { host, port, user, db, tls, .. } = settings;
    let why = text(error);
    let about = match error {
        mysql_async::Error::Server(server) => match server.code {
            1045 | 1698 | 1862 | 1820 | 3118 => format!(
                "the server `{host}:{port}` refused the user `{user}`: {why}; hint: check the options `user` and \
                 `pass` and from which hosts the account may log in"
            ),
            3159 => format!("the server `{host}:{port}` wants TLS: {why}; hint: set `ssl_ca`"),
            1044 | 1049 => {
                format!("the database `{db}` (option `db`) cannot be used on `{host}:{port}`: {why}")
            }
            _ => format!("the server `{host}:{port}` refused the connection: {why}"),
        },
        mysql_async::Error::Driver(DriverError::NoKeyFound) => {
            return Error::fatal("the file of the option `ssl_key` holds no private key");
        }
        mysql_async::Error::Driver(DriverError::NoClientSslFlagFromServer) => format!(
            "the server `{host}:{port}` offers no TLS, and without it no log-in is sent; \
             hint: turn TLS on at the server, or remove the `ssl_` options"
        ),
        _ if *tls => {
            format!("no verified TLS connection to `{host}:{port}` (options `host`, `ssl_ca`): {why}")
        }
        _ => format!("cannot connect to `{host}:{port}` (options `host`, `port`): {why}"),
    };
    Error::retry(about)
}
