//! Records, stores and looks at them, for the tests that talk to the socket without Salt.
#![allow(dead_code, reason = "no test uses all of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use returnerd_tests::client::Client;
use returnerd_tests::daemon::{Daemon, DaemonBuilder};
use returnerd_tests::env;
use returnerd_tests::mariadb::MariaDb;
use returnerd_tests::proc::run;
pub use returnerd_tests::records::*;
use serde_json::{Value, json};

/// Retries so quick that no test waits for them.
pub const QUICK: &str = "[delivery]\nfirst_retry = \"50ms\"\nlongest_retry = \"300ms\"\n";

/// Events with these tags.
pub fn events(tags: &[&str]) -> Value {
    tags.iter().map(|tag| json!({ "tag": tag, "data": { "_stamp": "2026-12-01T03:31:39.637001" } })).collect()
}

/// A database of a MariaDB that the tests of one program share, so that each need not start its own.
#[derive(Debug, Clone)]
pub struct Database {
    pub server: Arc<MariaDb>,
    pub name: String,
}

impl Database {
    /// A new, empty one.
    pub fn new() -> Self {
        static SHARED: Mutex<Weak<MariaDb>> = Mutex::new(Weak::new());
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let server = shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(MariaDb::start(&[]));
            *shared = Arc::downgrade(&server);
            server
        });
        let name = format!("t{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server.database(&name);
        Self { server, name }
    }

    /// What Salt's configuration would say of it.
    pub fn opts(&self) -> Value {
        mysql_opts(self.server.port(), &self.name)
    }

    /// What it prints for a query.
    pub fn sql(&self, query: &str) -> String {
        self.server.sql(&self.name, query)
    }

    /// The job ids and minions of the stored returns.
    pub fn returns(&self) -> Vec<String> {
        lines(&self.sql("SELECT CONCAT(jid, ' ', id) FROM salt_returns ORDER BY 1"))
    }
}

/// Options of the plugin `mysql` for a server on loopback.
pub fn mysql_opts(port: u16, database: &str) -> Value {
    json!({ "mysql.host": "127.0.0.1", "mysql.port": port, "mysql.db": database })
}

/// An SQLite file, read without the daemon and its plugin.
#[derive(Debug, Clone)]
pub struct SqliteFile(pub PathBuf);

impl SqliteFile {
    /// The one in the daemon's directory.
    pub fn of(daemon: &Daemon) -> Self {
        Self::named(daemon, "jobs")
    }

    /// One of several in the daemon's directory.
    pub fn named(daemon: &Daemon, name: &str) -> Self {
        let data = daemon.root().join("data");
        std::fs::create_dir_all(&data).unwrap();
        Self(data.join(format!("{name}.sqlite")))
    }

    /// What Salt's configuration would say of it.
    pub fn opts(&self) -> Value {
        json!({ "sqlite3.database": self.0 })
    }

    /// The lines of a query with one column.
    pub fn sql(&self, query: &str) -> Vec<String> {
        const SCRIPT: &str = "import sqlite3, sys\n\
            for (text,) in sqlite3.connect(sys.argv[1], timeout=30).execute(sys.argv[2]): print(text)";
        let mut command = Command::new(python());
        command.arg("-c").arg(SCRIPT).arg(&self.0).arg(query);
        lines(&run(&mut command, LIMIT).success())
    }

    /// The job ids and minions of the stored returns.
    pub fn returns(&self) -> Vec<String> {
        self.sql("SELECT jid || ' ' || id FROM salt_returns ORDER BY 1")
    }
}

/// A Python that is there.
pub fn python() -> PathBuf {
    env::salt_bin("3008.4").join("python")
}

/// The lines of a text.
pub fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// A daemon with these plugins, quick in trying again.
pub fn quick(plugins: &[&str]) -> DaemonBuilder {
    Daemon::builder().plugins(plugins).tables(QUICK)
}

/// A client that sends these options.
pub fn client(daemon: &Daemon, opts: &[Value]) -> Client {
    daemon.client().with_opts(joined(opts))
}

/// Several options as one map.
pub fn joined(opts: &[Value]) -> Value {
    opts.iter().filter_map(Value::as_object).flatten().map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// The dead letters.
pub fn dead(daemon: &Daemon) -> Vec<Value> {
    daemon.cli(&["dead", "list", "--json"]).json().as_array().unwrap().clone()
}

/// Runs `returnerd` without a daemon of the lab, with this configuration.
pub fn returnerd(config: &Path, args: &[&str]) -> returnerd_tests::proc::Output {
    run(Command::new(env::returnerd()).arg("--config").arg(config).args(args), LIMIT)
}
