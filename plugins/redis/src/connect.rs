//! The one connection of an instance: how it is opened, used and opened again.
//!
//! Invariants: after a time-out or a lost connection the old one is never used again; with TLS asked for, no log-in is sent
//! without it; the scripts are known to the server whenever an operation runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use returner_sdk::prelude::*;
use returner_sdk::tls;
use returner_sdk::tokio::net::TcpStream;
use returner_sdk::tokio::time::timeout;

use crate::fault::{CLUSTER, Fault, fault};
use crate::index::Upkeep;
use crate::options::Settings;
use crate::scripts::{ALL, Script};
use crate::wire::{Pipeline, Reply, Wire, text, texts};

const CONNECT_SECONDS: u64 = 10;
const STATEMENT_SECONDS: u64 = 60;

/// The longest value that a server takes unless it is told otherwise.
const LONGEST_VALUE: usize = 512 << 20;

/// An open store.
pub struct Db {
    pub(crate) settings: Settings,
    /// None once it must not be used any more.
    wire: Option<Wire>,
    /// The scripts' digests.
    digests: Vec<String>,
    /// The longest value that the server takes, in bytes.
    pub(crate) max_value: usize,
    pub(crate) upkeep: Upkeep,
}

struct Opened {
    wire: Wire,
    digests: Vec<String>,
    max_value: usize,
}

impl Db {
    /// Connects, logs in and loads the scripts.
    pub(crate) async fn connect(settings: Settings) -> Result<Self> {
        let Opened { wire, digests, max_value } = dial(&settings).await?;
        Ok(Self { settings, wire: Some(wire), digests, max_value, upkeep: Upkeep::default() })
    }

    /// Runs one operation of the plugin. It is repeated once on a new connection if the old one turns out to be dead or the
    /// server has forgotten the scripts, so it must be idempotent.
    pub(crate) async fn run<T>(
        &mut self,
        operation: impl AsyncFn(&mut Self) -> Result<T, Fault>,
    ) -> Result<T> {
        let result = match operation(self).await {
            Err(Fault::Lost(_) | Fault::Forgotten) => {
                self.wire = None;
                let opened = dial(&self.settings).await?;
                (self.wire, self.digests, self.max_value) =
                    (Some(opened.wire), opened.digests, opened.max_value);
                operation(self).await
            }
            other => other,
        };
        result.map_err(|fault| {
            Error::retry(format!("`{}:{}`: {fault}", self.settings.host, self.settings.port))
        })
    }

    /// Sends commands and gives a reply for each; one may be an error.
    pub(crate) async fn send(&mut self, pipeline: &Pipeline) -> Result<Vec<Reply>, Fault> {
        if pipeline.len() == 0 {
            return Ok(Vec::new());
        }
        // It is put back only after a whole exchange.
        let Some(mut wire) = self.wire.take() else {
            return Err(Fault::Lost(std::io::ErrorKind::NotConnected.into()));
        };
        let replies = timeout(Duration::from_secs(STATEMENT_SECONDS), wire.exchange(pipeline)).await;
        let replies = replies.map_err(|_| Fault::Slow(STATEMENT_SECONDS))??;
        self.wire = Some(wire);
        Ok(replies)
    }

    /// Sends commands of which none may fail.
    pub(crate) async fn ask_all(&mut self, pipeline: &Pipeline) -> Result<Vec<Reply>, Fault> {
        let good = |reply| if let Reply::Error(error) = reply { Err(fault(error)) } else { Ok(reply) };
        self.send(pipeline).await?.into_iter().map(good).collect()
    }

    /// Sends one command, which must not fail.
    pub(crate) async fn ask(&mut self, words: &[&str]) -> Result<Reply, Fault> {
        Ok(self.ask_all(&Pipeline::one(words)).await?.pop().unwrap_or(Reply::Null))
    }

    /// Adds the call of a script to what will be sent.
    pub(crate) fn call(&self, pipeline: &mut Pipeline, script: Script, keys: &[&str], arguments: &[&str]) {
        let count = keys.len().to_string();
        let digest = self.digests.get(script as usize).map_or("", String::as_str);
        let mut words = vec!["EVALSHA", digest, &count];
        words.extend(keys);
        words.extend(arguments);
        pipeline.add(&words);
    }

    /// Calls one script, which must not fail.
    pub(crate) async fn ask_script(
        &mut self,
        script: Script,
        keys: &[&str],
        arguments: &[&str],
    ) -> Result<Reply, Fault> {
        let mut pipeline = Pipeline::default();
        self.call(&mut pipeline, script, keys, arguments);
        Ok(self.ask_all(&pipeline).await?.pop().unwrap_or(Reply::Null))
    }
}

/// Now, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Opens a connection, logs in and loads the scripts, all in one exchange.
async fn dial(settings: &Settings) -> Result<Opened> {
    let Settings { host, port, .. } = settings;
    match timeout(Duration::from_secs(CONNECT_SECONDS), open(settings)).await {
        Ok(opened) => opened,
        Err(_) => {
            // A server that expects plain text waits for the rest of what it takes for a command.
            let hint = match settings.tls {
                Some(_) => {
                    "; hint: TLS is asked for, so the port must be the server's `tls-port`; without TLS nothing is sent"
                }
                None => "",
            };
            Err(Error::retry(format!(
                "`{host}:{port}` (options `host`, `port`) did not answer within {CONNECT_SECONDS} s{hint}"
            )))
        }
    }
}

async fn open(settings: &Settings) -> Result<Opened> {
    let Settings { host, port, .. } = settings;
    let addresses = returner_sdk::resolve(host, *port)
        .map_err(|error| Error::retry(format!("cannot find the server `{host}` (option `host`): {error}")))?;
    let stream = TcpStream::connect(&addresses[..]).await.map_err(|error| {
        Error::retry(format!("cannot connect to `{host}:{port}` (options `host`, `port`): {error}"))
    })?;
    let _ = stream.set_nodelay(true);
    let mut wire = match &settings.tls {
        None => Wire::new(stream),
        Some(config) => Wire::new(tls::connect(Arc::clone(config), host, stream).await.map_err(|error| {
            Error::retry(format!(
                "no verified TLS connection to `{host}:{port}` (options `host`, `ssl_ca_certs`), and without it nothing is \
                 sent: {error}; hint: the port must be the server's `tls-port`"
            ))
        })?),
    };

    let mut pipeline = Pipeline::default();
    match (&settings.username, &settings.password) {
        (Some(username), Some(password)) => pipeline.add(&["AUTH", username, password]),
        (None, Some(password)) => pipeline.add(&["AUTH", password]),
        _ => {}
    }
    let log_in = pipeline.len();
    pipeline.add(&["SELECT", &settings.db.to_string()]);
    let select = pipeline.len();
    for script in ALL {
        pipeline.add(&["SCRIPT", "LOAD", script]);
    }
    let scripts = pipeline.len();
    pipeline.add(&["CONFIG", "GET", "maxmemory*"]);
    pipeline.add(&["CONFIG", "GET", "proto-max-bulk-len"]);
    pipeline.add(&["INFO", "server"]);
    let replies = wire.exchange(&pipeline).await.map_err(|error| {
        let hint = match settings.tls {
            None => "is it the port of a Redis server, and not its `tls-port`, which needs `ssl`?",
            Some(_) => "is it the port of a Redis server, and does it want a certificate (`ssl_certfile`)?",
        };
        Error::retry(format!(
            "`{host}:{port}` (options `host`, `port`) does not answer as Redis does: {error}; hint: {hint}"
        ))
    })?;

    let mut digests = Vec::with_capacity(ALL.len());
    for (at, reply) in replies.iter().enumerate().take(scripts) {
        match reply {
            Reply::Error(error) if at < log_in => return Err(refused_log_in(settings, error)),
            Reply::Error(error) if at < select && error.contains("index") => {
                return Err(Error::retry(format!(
                    "the server `{host}:{port}` has no database {} (option `db`): it says `{error}`; hint: raise \
                     `databases` at the server",
                    settings.db
                )));
            }
            Reply::Error(error) => {
                return Err(Error::retry(format!("`{host}:{port}`: {}", fault(error.clone()))));
            }
            _ if at >= select => digests.extend(text(reply.clone())),
            _ => {}
        }
    }
    let mut rest = replies.into_iter().skip(scripts);
    let mut next = || rest.next().unwrap_or(Reply::Null);
    warn_of_eviction(settings, &texts(next()));
    // A user may lack the right to ask; then the usual limit is taken.
    let max_value = texts(next()).get(1).and_then(|limit| limit.parse().ok()).unwrap_or(LONGEST_VALUE);
    if text(next()).is_some_and(|info| info.contains("_mode:cluster")) {
        return Err(Error::retry(format!("`{host}:{port}`: {CLUSTER}")));
    }
    Ok(Opened { wire, digests, max_value })
}

/// Why the server lets nobody in. All of it may be mended at the server.
fn refused_log_in(settings: &Settings, error: &str) -> Error {
    let Settings { host, port, username, .. } = settings;
    let who =
        username.as_ref().map_or_else(|| "its default user".to_owned(), |name| format!("the user `{name}`"));
    let hint = if error.contains("without any password") || error.contains("no password is set") {
        "the server has no password for it: remove the option `password`, or set `requirepass` at the server"
    } else if error.contains("wrong number of arguments") {
        "servers before Redis 6 know no users: remove the option `username`"
    } else if error.starts_with("LOADING") {
        "the server is reading its data and will answer soon"
    } else {
        "check the options `username` and `password`, and that the user is `on` at the server"
    };
    Error::retry(format!(
        "the server `{host}:{port}` refused to log in {who}: it says `{error}`; hint: {hint}"
    ))
}

/// Says once that the server may throw jobs away.
fn warn_of_eviction(settings: &Settings, pairs: &[String]) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let value =
        |name: &str| pairs.chunks_exact(2).find(|pair| pair[0] == name).map_or("", |pair| pair[1].as_str());
    let (limit, policy) = (value("maxmemory"), value("maxmemory-policy"));
    if !matches!(limit, "" | "0")
        && !matches!(policy, "" | "noeviction")
        && !SAID.swap(true, Ordering::Relaxed)
    {
        eprintln!(
            "`{}:{}` removes keys by itself when it is over its {limit} bytes (`maxmemory-policy {policy}`), stored jobs \
             too; hint: set `maxmemory-policy noeviction` at the server",
            settings.host, settings.port
        );
    }
}
