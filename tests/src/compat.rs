//! Our plugins beside Salt's own returners: the same records through both, into two stores on the same real server.
//!
//! This part starts servers and the daemon; the cases, the comparison and the table of known differences are in
//! `tests/compat`, in Python, since Salt's returners are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::env;
use crate::mariadb::{self, MariaDb};
use crate::postgresql::{self, PostgreSql};
use crate::proc::{Output, Scratch, run};
use crate::redis::Redis;
use crate::wait::wait_for_value;

/// All cases go through two returners, and four readings of all of them are compared.
const LIMIT: Duration = Duration::from_secs(300);

/// The returners that are compared.
pub const NAMES: [&str; 6] = ["mysql", "pgjsonb", "postgres", "redis", "sqlite3", "local_cache"];

/// A server, or a directory, with two stores.
struct Pair {
    /// The options for Salt's returner.
    salts: Value,
    /// The options for ours, on a store of its own.
    ours: Value,
    /// Keeps the server running.
    _server: Option<Box<dyn std::any::Any>>,
}

const SQLITE_TABLES: &str = "
    CREATE TABLE jids (jid TEXT PRIMARY KEY, load TEXT NOT NULL);
    CREATE TABLE salt_returns (fun TEXT KEY, jid TEXT KEY, id TEXT KEY, fun_args TEXT, date TEXT NOT NULL,
        full_ret TEXT NOT NULL, success TEXT NOT NULL);";

/// Python of the Salt that still has all returners.
fn python() -> PathBuf {
    env::salt_bin("3006.26").join("python")
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("compat")
}

fn mysql() -> Pair {
    let server = MariaDb::start(&["--max-allowed-packet=64M", "--innodb-log-file-size=256M"]);
    let options = |db: &str| json!({"mysql.host": "127.0.0.1", "mysql.port": server.port(), "mysql.db": db, "mysql.user": "salt", "mysql.pass": "salt"});
    for name in ["salts", "ours"] {
        server.database(name);
    }
    // Salt's returner makes no tables.
    server.sql("salts", mariadb::DOCUMENTED_TABLES);
    Pair { salts: options("salts"), ours: options("ours"), _server: Some(Box::new(server)) }
}

fn postgresql(prefix: &str, password: &str, document: &str) -> Pair {
    let server = PostgreSql::start(&[]);
    let options = |db: &str| {
        let options = [
            ("host", json!("127.0.0.1")),
            ("port", json!(server.port())),
            ("user", json!("salt")),
            (password, json!("salt")),
            ("db", json!(db)),
        ];
        options.into_iter().map(|(name, value)| (format!("{prefix}.{name}"), value)).collect()
    };
    for name in ["salts", "ours"] {
        server.database(name);
    }
    server.sql("salts", &postgresql::documented_tables(document));
    Pair { salts: options("salts"), ours: options("ours"), _server: Some(Box::new(server)) }
}

fn redis() -> Pair {
    let server = Redis::start(&[]);
    let options = |db: &str| json!({"redis.host": "127.0.0.1", "redis.port": server.port(), "redis.db": db});
    Pair { salts: options("1"), ours: options("2"), _server: Some(Box::new(server)) }
}

fn local_cache(scratch: &Scratch) -> Pair {
    let options = |name: &str| {
        let cache = scratch.path().join(name);
        fs::create_dir_all(cache.join("jobs")).unwrap();
        json!({"cachedir": cache, "local_cache.directory": cache.join("jobs")})
    };
    Pair { salts: options("salts"), ours: options("ours"), _server: None }
}

fn sqlite3(scratch: &Scratch) -> Pair {
    let options = |name: &str, seconds: f64| {
        let dir = scratch.path().join(name);
        fs::create_dir(&dir).unwrap();
        json!({"sqlite3.database": dir.join("jobs.sqlite"), "sqlite3.timeout": seconds})
    };
    // Salt's returner locks itself out, and would wait each time.
    let (salts, ours) = (options("salts", 0.1), options("ours", 10.0));
    let program = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.argv[2])";
    let file = salts["sqlite3.database"].as_str().unwrap();
    run(Command::new(python()).args(["-c", program, file, SQLITE_TABLES]), LIMIT).success();
    Pair { salts, ours, _server: None }
}

/// Compares one plugin with Salt's returner of that name; the last line printed is the result.
pub fn compare(name: &str) -> Output {
    let scratch = Scratch::new();
    let pair = match name {
        "mysql" => mysql(),
        "pgjsonb" => postgresql("returner.pgjsonb", "pass", "jsonb"),
        "postgres" => postgresql("returner.postgres", "passwd", "text"),
        "redis" => redis(),
        "sqlite3" => sqlite3(&scratch),
        "local_cache" => local_cache(&scratch),
        other => panic!("there is nothing to compare `{other}` with"),
    };
    let daemon = Daemon::builder().plugins(&[name]).tables("[delivery]\nlongest_retry = \"1s\"\n").start();
    let shims = scratch.path().join("returners");
    daemon.cli(&["salt", "install", "--dir", &shims.display().to_string(), name]).success();
    let settings = json!({
        "returner_dirs": [shims],
        "returnerd": {"socket": daemon.socket(), "inbox": daemon.inbox(), "timeout": 30},
    });
    let write = |file: &str, value: &Value| scratch.write(file, &value.to_string());
    let salts_file = write("salts.json", &pair.salts);
    let ours_file = write("ours.json", &merged(&pair.ours, &settings));

    let raised = python_program(&["write", name, &salts_file.display().to_string()]).success();
    let raised_file = scratch.write("raised.json", &raised);
    let ours = python_program(&["write", name, &ours_file.display().to_string()]).success();
    assert_eq!(ours.trim(), "{}", "our returner raised nothing\n{}", daemon.tail());
    wait_for_value(
        "the daemon to have delivered all",
        LIMIT,
        || format!("{}\n{}", daemon.cli(&["status"]).stdout, daemon.tail()),
        || {
            let status: Value = daemon.cli(&["status", "--json"]).json_whatever_the_code();
            (status["spool"]["items"] == 0).then_some(())
        },
    );
    let files = [salts_file, ours_file, raised_file].map(|file| file.display().to_string());
    python_program(&["compare", name, &files[0], &files[1], &files[2]])
}

fn python_program(arguments: &[&str]) -> Output {
    let mut command = Command::new(python());
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg("-Wignore")
        .arg(directory().join("compat.py"))
        .args(arguments);
    run(&mut command, LIMIT)
}

fn merged(one: &Value, other: &Value) -> Value {
    let objects = [one, other].map(|object| object.as_object().cloned().unwrap_or_default());
    objects.into_iter().flatten().collect()
}
