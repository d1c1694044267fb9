//! What the tests with a real Salt share: jobs to run, and the rows that are to come of them.
//!
//! Rows are read without the daemon and its plugins: by MariaDB's own client and by Python's SQLite.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use returnerd_tests::daemon::Daemon;
use returnerd_tests::mariadb::MariaDb;
use returnerd_tests::salt::{SaltLab, SaltLabBuilder};
use returnerd_tests::wait::wait_for_value;
use serde_json::{Value, json};

pub mod jobs;

/// How long a row may be on its way; generous, for a machine that is busy with other tests.
const STORED_WITHIN: Duration = Duration::from_secs(60);

/// The options of the plugin `mysql` under a prefix, such as `mysql` or `alternative.mysql`.
pub fn mysql_options(prefix: &str, server: &MariaDb, database: &str) -> Value {
    let options = [
        ("host", json!("127.0.0.1")),
        ("port", json!(server.port())),
        ("user", json!("salt")),
        ("pass", json!("salt")),
        ("db", json!(database)),
    ];
    options.into_iter().map(|(name, value)| (format!("{prefix}.{name}"), value)).collect()
}

/// Several objects as one.
pub fn merged<const N: usize>(objects: [Value; N]) -> Value {
    objects.into_iter().flat_map(|object| object.as_object().cloned().unwrap_or_default()).collect()
}

/// A daemon with these plugins beside this Salt. It makes a directory `data` for what plugins keep in files.
pub fn daemon_beside(salt: &SaltLabBuilder, plugins: &[&str]) -> Daemon {
    let daemon = Daemon::builder()
        .plugins(plugins)
        .tables(&format!(
            "[salt]\nconfig_dir = {:?}\n[delivery]\nlongest_retry = \"1s\"\n",
            salt.config_dir()
        ))
        .start();
    std::fs::create_dir(daemon.root().join("data")).unwrap();
    daemon
}

/// The database file of the plugin `sqlite3` for that daemon.
pub fn sqlite_file(daemon: &Daemon) -> PathBuf {
    daemon.root().join("data/jobs.sqlite")
}

/// Runs jobs and runners in one process; see `batch.py`.
pub fn batch(salt: &SaltLab, daemon: &Daemon, calls: &[Value]) -> Vec<Value> {
    let output = salt.python(include_str!("batch.py"), &Value::from(calls).to_string());
    let last = output.stdout.lines().last().and_then(|line| serde_json::from_str(line).ok());
    match last {
        Some(Value::Array(results)) if output.code == 0 && results.len() == calls.len() => results,
        _ => panic!("the jobs did not run\n{output}\n{}\n{}", salt.tails(), daemon.tail()),
    }
}

/// One row of `salt_returns`.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub jid: String,
    pub id: String,
    pub fun: String,
    pub success: String,
    /// The value alone.
    pub value: Value,
    /// Salt's whole record, without the value.
    pub rest: Value,
}

/// Where rows are.
#[derive(Debug, Clone)]
pub enum Store<'a> {
    MySql(&'a MariaDb, &'static str),
    Sqlite(&'a SaltLab, PathBuf),
}

impl Store<'_> {
    /// Rows of a statement, each an array of texts.
    pub fn select(&self, columns: &[&str], from: &str) -> Vec<Vec<String>> {
        let lines = match self {
            Self::MySql(server, database) => {
                let columns: Vec<String> = columns.iter().map(|name| format!("`{name}`")).collect();
                server.sql(database, &format!("SELECT JSON_ARRAY({}) FROM {from}", columns.join(", ")))
            }
            Self::Sqlite(salt, file) => {
                const PROGRAM: &str = "import json, sqlite3, sys\n\
                    file, statement = json.loads(sys.argv[2])\n\
                    for row in sqlite3.connect(file, timeout=10).execute(statement): print(json.dumps(row))";
                let statement = format!("SELECT {} FROM {from}", columns.join(", "));
                salt.python(PROGRAM, &json!([file, statement]).to_string()).success()
            }
        };
        lines.lines().map(|line| serde_json::from_str(line).expect("a row is an array of texts")).collect()
    }

    /// All rows of `salt_returns`.
    pub fn rows(&self) -> Vec<Row> {
        let parse = |text: &str| serde_json::from_str::<Value>(text).expect("a document is JSON");
        let columns = match self {
            Self::MySql(..) => ["jid", "id", "fun", "success", "return", "full_ret"],
            Self::Sqlite(..) => ["jid", "id", "fun", "success", "full_ret", "extra"],
        };
        let from = match self {
            // Until the first delivery there is no table.
            Self::Sqlite(_, file) if !file.exists() => return Vec::new(),
            _ => "salt_returns ORDER BY jid, id",
        };
        let found = self.select(&columns, from).into_iter().map(|row| {
            let mut rest = parse(&row[5]);
            let whole = rest.as_object_mut().expect("a record is an object").remove("return");
            let value = parse(&row[4]);
            if matches!(self, Self::MySql(..)) {
                assert_eq!(whole.as_ref(), Some(&value), "`full_ret` holds what `return` holds");
            }
            let [jid, id, fun, success] = [0, 1, 2, 3].map(|index| row[index].clone());
            Row { jid, id, fun, success, value, rest }
        });
        found.collect()
    }

    /// Waits until rows of all these (jid, id) are there and gives all rows by key, of which none comes twice.
    pub fn rows_of(&self, daemon: &Daemon, keys: &[(String, String)]) -> BTreeMap<(String, String), Row> {
        let mut seen = Vec::new();
        let rows = wait_for_value(
            &format!("rows of {keys:?} in {self}"),
            STORED_WITHIN,
            || daemon.tail(),
            || {
                seen = self.rows();
                let there = |(jid, id): &(String, String)| seen.iter().any(|r| r.jid == *jid && r.id == *id);
                keys.iter().all(there).then(|| seen.clone())
            },
        );
        let count = rows.len();
        let rows: BTreeMap<_, _> =
            rows.into_iter().map(|row| ((row.jid.clone(), row.id.clone()), row)).collect();
        assert_eq!(rows.len(), count, "{self} holds one row for each (jid, id)\n{}", daemon.tail());
        rows
    }

    /// Waits until rows of a function are there and gives them.
    pub fn rows_of_fun(&self, daemon: &Daemon, fun: &str, count: usize) -> Vec<Row> {
        let rows = wait_for_value(
            &format!("{count} rows of `{fun}` in {self}"),
            STORED_WITHIN,
            || daemon.tail(),
            || {
                let rows: Vec<Row> = self.rows().into_iter().filter(|row| row.fun == fun).collect();
                (rows.len() >= count).then_some(rows)
            },
        );
        assert_eq!(rows.len(), count, "{rows:#?}\n{}", daemon.tail());
        rows
    }
}

impl std::fmt::Display for Store<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::MySql(_, database) => write!(out, "MariaDB's database `{database}`"),
            Self::Sqlite(..) => write!(out, "the SQLite file"),
        }
    }
}

/// Waits until nothing waits in any lane of the daemon.
pub fn drained(daemon: &Daemon) {
    wait_for_value(
        "the daemon to have delivered all",
        STORED_WITHIN,
        || format!("{}\n{}", daemon.cli(&["status"]).stdout, daemon.tail()),
        || {
            let status: Value = daemon.cli(&["status", "--json"]).json_whatever_the_code();
            (status["spool"]["items"] == 0).then_some(())
        },
    );
}
