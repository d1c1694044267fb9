//! The systems that returns are stored in: a real server or file, the plugin's options for it, and a count of what is there.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use returnerd_tests::mariadb::{self, MariaDb};
use returnerd_tests::postgresql::{self, PostgreSql};
use returnerd_tests::proc::Scratch;
use returnerd_tests::redis::{self, Redis};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

/// A system with the default settings of its durability: a commit is on disk.
pub(crate) enum System {
    MySql(MariaDb),
    PgJsonb(PostgreSql),
    Redis(Box<Redis>),
    Sqlite3(Scratch),
}

impl System {
    pub(crate) fn start(name: &str) -> Option<Self> {
        match name {
            "mysql" => mariadb::installed().map(|_| {
                // The rows of one step fit into the server's memory, as they would on a server of its own.
                Self::MySql(MariaDb::start(&[
                    "--max-allowed-packet=64M",
                    "--innodb-log-file-size=512M",
                    "--innodb-buffer-pool-size=1G",
                ]))
            }),
            "pgjsonb" => postgresql::installed()
                .map(|_| Self::PgJsonb(PostgreSql::start(&["max_wal_size=4GB", "shared_buffers=1GB"]))),
            "redis" => redis::installed().map(|_| Self::Redis(Box::new(Redis::start(&[])))),
            _ => {
                let scratch = Scratch::new();
                fs::create_dir(scratch.path().join("data")).unwrap();
                Some(Self::Sqlite3(scratch))
            }
        }
    }

    /// The plugin.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::MySql(_) => "mysql",
            Self::PgJsonb(_) => "pgjsonb",
            Self::Redis(_) => "redis",
            Self::Sqlite3(_) => "sqlite3",
        }
    }

    /// The plugin's options.
    pub(crate) fn options(&self) -> Value {
        let server =
            |port| json!({"host": "127.0.0.1", "port": port, "user": "salt", "pass": "salt", "db": "salt"});
        match self {
            Self::MySql(server_) => server(server_.port()),
            Self::PgJsonb(server_) => server(server_.port()),
            Self::Redis(server_) => json!({"host": "127.0.0.1", "port": server_.port(), "db": "0"}),
            Self::Sqlite3(_) => json!({"database": self.file(), "timeout": 5.0}),
        }
    }

    /// The lines of `allow` that the plugin needs.
    pub(crate) fn allow(&self) -> Vec<String> {
        vec![match self {
            Self::MySql(server) => format!("tcp://127.0.0.1:{}", server.port()),
            Self::PgJsonb(server) => format!("tcp://127.0.0.1:{}", server.port()),
            Self::Redis(server) => format!("tcp://127.0.0.1:{}", server.port()),
            Self::Sqlite3(scratch) => format!("dir://{}", scratch.path().join("data").display()),
        }]
    }

    /// The processor time that the server has taken; none where there is no server.
    pub(crate) fn cpu(&self) -> Duration {
        match self {
            Self::MySql(server) => server.cpu(),
            Self::PgJsonb(server) => server.cpu(),
            Self::Redis(server) => server.cpu(),
            Self::Sqlite3(_) => Duration::ZERO,
        }
    }

    /// How many returns are stored.
    pub(crate) fn count(&self) -> usize {
        const ALL: &str = "SELECT count(*) FROM salt_returns";
        let text = match self {
            Self::MySql(server) => server.sql("salt", ALL),
            Self::PgJsonb(server) => server.sql("salt", ALL),
            Self::Redis(server) => {
                const FIELDS: &str = "local n = 0; for _, key in ipairs(redis.call('KEYS', 'ret:*')) do n = n + redis.call('HLEN', key) end; return n";
                server.cli(&["EVAL", FIELDS, "0"])
            }
            Self::Sqlite3(_) => {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
                let file = Connection::open_with_flags(self.file(), flags).unwrap();
                file.query_row(ALL, [], |row| row.get::<_, i64>(0)).unwrap().to_string()
            }
        };
        text.trim().parse().unwrap()
    }

    /// Empties it, so that each step finds it small. The tables must be there.
    pub(crate) fn clear(&self) {
        match self {
            Self::MySql(server) => drop(server.sql("salt", "TRUNCATE salt_returns; TRUNCATE jids")),
            Self::PgJsonb(server) => drop(server.sql("salt", "TRUNCATE salt_returns, jids")),
            Self::Redis(server) => drop(server.cli(&["FLUSHALL"])),
            Self::Sqlite3(_) => {
                let file = Connection::open(self.file()).unwrap();
                file.execute_batch("DELETE FROM salt_returns; DELETE FROM jids").unwrap();
            }
        }
    }

    fn file(&self) -> PathBuf {
        match self {
            Self::Sqlite3(scratch) => scratch.path().join("data/jobs.sqlite"),
            _ => PathBuf::new(),
        }
    }
}
