//! The soak: producers hand over returns, loads and events while the daemon is killed, MariaDB is killed and restarted, and the
//! connection to it is cut, at moments drawn from a seed. Then everything is counted where it should be.
//!
//! A producer does what the shim and its inbox do: a frame without an answer is sent again, with the same `uid`, until there is
//! one. So every frame is accepted in the end, and each of its records must be in its store exactly once, or a dead letter.

use std::collections::HashMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rmpv::Value as Msgpack;
use serde_json::{Value, json};

use crate::client::{Answer, Client, encode};
use crate::daemon::Daemon;
use crate::env;
use crate::mariadb::MariaDb;
use crate::proc::run;
use crate::proxy::Proxy;
use crate::salt::SaltVersion;
use crate::wait::wait_for_value;

const PRODUCERS: u64 = 4;
/// After the last disturbance, everything must have arrived within this time.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);
/// Larger than what the server takes: such a return must become a dead letter, alone.
const TOO_LARGE: usize = 3 << 20;
/// Of so many returns to MariaDB one is too large.
const LARGE_EVERY: u64 = 400;

/// What a soak found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Records that were acknowledged.
    pub accepted: u64,
    /// Records found in their store.
    pub stored: u64,
    /// Dead letters.
    pub dead: u64,
    /// Records still in the spool.
    pub pending: u64,
    /// Records that are nowhere.
    pub lost: u64,
    /// Rows beyond the first of a record.
    pub duplicates: u64,
    /// How often the daemon was killed.
    pub kills: u64,
}

impl Outcome {
    /// Whether nothing was lost, nothing came twice, and the daemon was killed often enough to mean something.
    pub fn is_good(&self) -> bool {
        self.lost == 0 && self.duplicates == 0 && self.pending == 0 && self.kills >= 10
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { accepted, stored, dead, pending, lost, duplicates, kills } = self;
        write!(
            out,
            "soak: accepted {accepted} stored {stored} dead {dead} pending {pending} lost {lost} \
             duplicates {duplicates} kills {kills}"
        )
    }
}

/// The two stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Store {
    MariaDb,
    Sqlite,
}

/// A record that was acknowledged: where it belongs, and what it is found by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Accepted {
    Return(Store, String),
    Load(Store, String),
    Event(Store, String),
}

/// Runs for about this long, at least until the daemon was killed ten times, and counts.
pub fn soak(duration: Duration, seed: u64) -> Outcome {
    let mut server = MariaDb::start(&["--max-allowed-packet=2M"]);
    let proxy = Proxy::start(server.port());
    let mut daemon = Daemon::builder()
        .plugins(&["mysql", "sqlite3"])
        // Dead letters past their limit would go into files, where nobody counts them.
        .tables(
            "[spool]\nmax_dead_size = \"64 GiB\"\n[delivery]\nfirst_retry = \"50ms\"\nlongest_retry = \"1s\"\n",
        )
        .start();
    // A plugin gets no directory that holds the daemon's own files.
    let data = daemon.root().join("data");
    std::fs::create_dir(&data).unwrap();
    let database = data.join("soak.sqlite");
    let opts = json!({
        "mysql.host": "127.0.0.1", "mysql.port": proxy.port(), "sqlite3.database": database,
    });

    let stop = Arc::new(AtomicBool::new(false));
    let accepted = Arc::new(Mutex::new(Vec::new()));
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|number| {
            let producer = Producer {
                number,
                random: fastrand::Rng::with_seed(seed.wrapping_add(number + 1)),
                socket: daemon.socket().to_path_buf(),
                opts: opts.clone(),
                client: None,
                stop: stop.clone(),
            };
            let accepted = accepted.clone();
            thread::spawn(move || producer.run(&accepted))
        })
        .collect();

    let mut random = fastrand::Rng::with_seed(seed);
    let began = Instant::now();
    let mut kills = 0;
    while began.elapsed() < duration || kills < 10 {
        thread::sleep(Duration::from_millis(random.u64(100..1_500)));
        match random.u8(..8) {
            0..=4 => {
                daemon.kill();
                kills += 1;
                daemon.start();
            }
            5 => {
                server.kill();
                thread::sleep(Duration::from_millis(random.u64(..800)));
                server.restart();
            }
            _ => proxy.cut(),
        }
    }
    stop.store(true, Ordering::Relaxed);
    for producer in producers {
        producer.join().expect("a producer goes on until it is told to stop");
    }
    let accepted = std::mem::take(&mut *accepted.lock().expect("no producer failed"));

    let status = wait_for_value(
        "the lanes to run empty",
        SETTLE_LIMIT,
        || daemon.tail(),
        || {
            let status = status(&daemon);
            (status["spool"]["items"] == 0).then_some(status)
        },
    );
    let dead = dead(&daemon);
    daemon.stop();
    let found = Found { mariadb: mariadb_rows(&server), sqlite: sqlite_rows(&database) };
    let mut outcome = Outcome {
        accepted: accepted.len() as u64,
        pending: status["spool"]["items"].as_u64().expect("it is a number"),
        kills,
        ..Outcome::default()
    };
    for record in &accepted {
        match found.count(record) {
            0 if dead.contains_key(record) => outcome.dead += 1,
            0 => {
                outcome.lost += 1;
                eprintln!("lost: {record:?}");
            }
            rows => {
                outcome.stored += 1;
                outcome.duplicates += rows - 1;
            }
        }
    }
    outcome
}

struct Producer {
    number: u64,
    random: fastrand::Rng,
    socket: std::path::PathBuf,
    opts: Value,
    client: Option<Client>,
    stop: Arc<AtomicBool>,
}

impl Producer {
    fn run(mut self, accepted: &Mutex<Vec<Accepted>>) {
        let mut step = 0;
        while !self.stop.load(Ordering::Relaxed) {
            step += 1;
            let (op, store, keys, records) = self.next(step);
            let returner = match store {
                Store::MariaDb => "mysql",
                Store::Sqlite => "sqlite3",
            };
            let mut frame = None;
            loop {
                match self.attempt(op, returner, &keys, &mut frame) {
                    Some(answer) if answer.ok => break,
                    Some(answer) => assert!(
                        matches!(answer.code.as_str(), "unavailable" | "full"),
                        "the daemon refused for good: {} ({})",
                        answer.error,
                        answer.code
                    ),
                    None => {}
                }
                thread::sleep(Duration::from_millis(10));
            }
            accepted.lock().expect("no producer failed").extend(records);
        }
    }

    /// Sends once; none if the connection broke before the answer.
    fn attempt(
        &mut self,
        op: &str,
        returner: &str,
        keys: &Value,
        frame: &mut Option<Msgpack>,
    ) -> Option<Answer> {
        if self.client.is_none() {
            self.client =
                Client::connect(&self.socket).ok().map(|client| client.with_opts(self.opts.clone()));
        }
        let client = self.client.as_mut()?;
        let request = frame.get_or_insert_with(|| client.request(op, returner, keys.clone()));
        let answer =
            client.send_frame(&encode(request)).ok().and_then(|()| client.read_answer().ok().flatten());
        if answer.is_none() {
            self.client = None;
        }
        answer
    }

    fn next(&mut self, step: u64) -> (&'static str, Store, Value, Vec<Accepted>) {
        let store = if self.random.bool() { Store::MariaDb } else { Store::Sqlite };
        // A valid job id that no other producer makes.
        let jid = format!("20261201{:02}{:010}", self.number + 10, step);
        match self.random.u8(..10) {
            0..=6 => {
                let large = store == Store::MariaDb && step.is_multiple_of(LARGE_EVERY);
                let value = if large {
                    "x".repeat(TOO_LARGE)
                } else {
                    format!("grüße 🦀 {}", "x".repeat(self.random.usize(..2_000)))
                };
                let ret = json!({
                    "jid": jid, "id": "m1", "fun": "test.echo", "fun_args": [value], "return": value,
                    "success": true, "retcode": 0,
                });
                ("return", store, json!({ "ret": ret }), vec![Accepted::Return(store, jid)])
            }
            7..=8 => {
                let load = json!({ "jid": jid, "fun": "test.ping", "tgt": "*", "tgt_type": "glob", "arg": [], "user": "root" });
                (
                    "load",
                    store,
                    json!({ "jid": jid, "load": load, "minions": ["m1"] }),
                    vec![Accepted::Load(store, jid)],
                )
            }
            _ => {
                let tags: Vec<String> = (0..3).map(|part| format!("soak/{jid}/{part}")).collect();
                let events: Vec<Value> = tags
                    .iter()
                    .map(|tag| json!({ "tag": tag, "data": { "_stamp": "2026-12-01T03:31:39.637001", "n": step } }))
                    .collect();
                let records = tags.into_iter().map(|tag| Accepted::Event(store, tag)).collect();
                ("events", store, json!({ "events": events }), records)
            }
        }
    }
}

fn status(daemon: &Daemon) -> Value {
    let output = daemon.cli(&["status", "--json"]);
    serde_json::from_str(&output.stdout).unwrap_or_default()
}

/// The dead letters, as what was accepted.
fn dead(daemon: &Daemon) -> HashMap<Accepted, u64> {
    let mut dead = HashMap::new();
    let letters = daemon.cli(&["dead", "list", "--json"]).json();
    for letter in letters.as_array().into_iter().flatten() {
        let store = if letter["plugin"] == "mysql" { Store::MariaDb } else { Store::Sqlite };
        let jid = letter["jid"].as_str().unwrap_or_default().to_owned();
        let record = match letter["kind"].as_str() {
            Some("return") => Accepted::Return(store, jid),
            _ => Accepted::Load(store, jid),
        };
        *dead.entry(record).or_default() += 1;
    }
    dead
}

/// Rows by what they are found by.
#[derive(Debug, Default)]
struct Rows {
    returns: HashMap<String, u64>,
    loads: HashMap<String, u64>,
    events: HashMap<String, u64>,
}

struct Found {
    mariadb: Rows,
    sqlite: Rows,
}

impl Found {
    fn count(&self, record: &Accepted) -> u64 {
        let rows = |store: &Store| match store {
            Store::MariaDb => &self.mariadb,
            Store::Sqlite => &self.sqlite,
        };
        let found = match record {
            Accepted::Return(store, jid) => rows(store).returns.get(jid),
            Accepted::Load(store, jid) => rows(store).loads.get(jid),
            Accepted::Event(store, tag) => rows(store).events.get(tag),
        };
        found.copied().unwrap_or(0)
    }
}

const QUERIES: [&str; 3] =
    ["SELECT jid FROM salt_returns", "SELECT jid FROM jids", "SELECT tag FROM salt_events"];

fn count(lines: &str) -> HashMap<String, u64> {
    let mut counts = HashMap::new();
    for line in lines.lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

fn mariadb_rows(server: &MariaDb) -> Rows {
    let [returns, loads, events] = QUERIES.map(|query| count(&server.sql("salt", query)));
    Rows { returns, loads, events }
}

/// Read by Python's SQLite, without the daemon and its plugin.
fn sqlite_rows(database: &std::path::Path) -> Rows {
    const SCRIPT: &str = "import sqlite3, sys\n\
        for (text,) in sqlite3.connect(sys.argv[1], timeout=30).execute(sys.argv[2]): print(text)";
    let python = env::salt_bin(SaltVersion::V3008.number()).join("python");
    let [returns, loads, events] = QUERIES.map(|query| {
        let mut command = Command::new(&python);
        command.arg("-c").arg(SCRIPT).arg(database).arg(query);
        count(&run(&mut command, Duration::from_secs(60)).success())
    });
    Rows { returns, loads, events }
}
