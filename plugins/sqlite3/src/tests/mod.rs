//! Tests through the traits, as the host calls them, against files that SQLite itself and Salt's own statements share.

mod files;
mod jobs;
mod returns;

use std::path::Path;

use returner_sdk::prelude::*;
use returner_sdk::tokio;
use rusqlite::Connection;

use crate::{Options, Store};

/// The tables of Salt's documentation.
const DOCUMENTED: &str = "
    CREATE TABLE jids (jid TEXT PRIMARY KEY, load TEXT NOT NULL);
    CREATE TABLE salt_returns (
      fun TEXT KEY, jid TEXT KEY, id TEXT KEY, fun_args TEXT, date TEXT NOT NULL, full_ret TEXT NOT NULL,
      success TEXT NOT NULL);";

/// The statement by which Salt's own returner writes.
const SALT_INSERT: &str = "
    INSERT INTO salt_returns (fun, jid, id, fun_args, date, full_ret, success)
    VALUES ('test.ping', ?1, ?2, '[]', ?3, ?4, 1)";

/// The cutoff of the tests in milliseconds and as a jid: 2026-12-01 00:00:00.
const CUTOFF: (u64, &str) = (1_796_083_200_000, "20261201000000000000");
const DAY: u64 = 86_400_000;

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn options(path: &Path, timeout: f64) -> Options {
    Options { database: path.display().to_string(), timeout }
}

fn try_open(path: &Path) -> Result<Store> {
    run(Store::open(options(path, 0.1), &Context::default()))
}

fn open(path: &Path) -> Store {
    try_open(path).unwrap()
}

fn fatal(result: Result<Store>) -> String {
    match result {
        Err(Error::Fatal(why)) => why,
        Err(other) => panic!("not fatal: {other:?}"),
        Ok(_) => panic!("it opened"),
    }
}

/// A directory with a database; `native` is another program's connection to it.
struct Shared {
    _dir: tempfile::TempDir,
    path: std::path::PathBuf,
    native: Connection,
}

fn shared(tables: &str) -> Shared {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("salt.db");
    let native = Connection::open(&path).unwrap();
    native.execute_batch(tables).unwrap();
    Shared { _dir: dir, path, native }
}

impl Shared {
    fn count(&self, table: &str) -> i64 {
        self.native.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }

    fn text(&self, sql: &str) -> String {
        self.native.query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

fn ret(jid: &str, minion: &str, value: &str) -> JobReturn {
    JobReturn {
        jid: jid.into(),
        minion: minion.into(),
        resource_id: None,
        fun: "test.ping".into(),
        fun_args: "[]".into(),
        value: value.into(),
        document: format!(
            r#"{{"jid": "{jid}", "id": "{minion}", "fun": "test.ping", "fun_args": [], "return": {value}, "retcode": 2}}"#
        ),
        success: Some(false),
        retcode: Some(2),
        trimmed: false,
        arrived_ms: CUTOFF.0,
    }
}

fn load(jid: &str, kind: LoadKind, document: &str, minions: &[&str]) -> JobLoad {
    JobLoad {
        jid: jid.into(),
        kind,
        document: document.into(),
        minions: minions.iter().map(|id| (*id).to_owned()).collect(),
        end_time: None,
        arrived_ms: CUTOFF.0,
    }
}

fn event(id: u64, tag: &str, arrived_ms: u64) -> Event {
    Event { id, tag: tag.into(), data: r#"{"_stamp": "x"}"#.into(), master: "master".into(), arrived_ms }
}
