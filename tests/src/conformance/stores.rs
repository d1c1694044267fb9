//! The stores: one for each plugin that is a job cache, each with a server or directory of its own.
//!
//! What is looked at or copied without the plugin goes by the layout that the plugin's README states.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::env;
use crate::mariadb::{self, MariaDb};
use crate::postgresql::{self, PostgreSql};
use crate::proc::{Scratch, run};
use crate::redis::{self, Redis};

const LIMIT: Duration = Duration::from_secs(60);

/// Where a plugin keeps jobs: a server or files, new and empty.
pub trait Store: Debug {
    /// The plugin's name.
    fn plugin(&self) -> &'static str;

    /// What Salt's configuration says of the plugin.
    fn opts(&self) -> Value;

    /// The server, if there is one: files have none.
    fn server(&mut self) -> Option<&mut dyn Server> {
        None
    }

    /// Copies the load of a stored job, without the plugin, to `copies` jobs: those that `copy_of` gives for 1, 2, ….
    fn copy_load(&self, template: &str, copies: u32);
}

/// A server that may be away for a while and keeps its data.
pub trait Server {
    /// Stops it in order.
    fn stop(&mut self);

    /// Starts it again at the same address, after stopping it if it runs.
    fn restart(&mut self);
}

macro_rules! server {
    ($kind:ty) => {
        impl Server for $kind {
            fn stop(&mut self) {
                <$kind>::stop(self);
            }

            fn restart(&mut self) {
                <$kind>::restart(self);
            }
        }
    };
}
server!(MariaDb);
server!(PostgreSql);
server!(Redis);

/// The names of all plugins that keep jobs.
pub const PLUGINS: [&str; 6] = ["mysql", "sqlite3", "pgjsonb", "postgres", "redis", "local_cache"];

/// A new store for a plugin; none, with a line on stderr, where its server is not installed.
pub fn store(plugin: &str) -> Option<Box<dyn Store>> {
    let (needs, installed) = match plugin {
        "mysql" => ("mariadbd", mariadb::installed().is_some()),
        "pgjsonb" | "postgres" => ("postgres", postgresql::installed().is_some()),
        "redis" => ("redis-server", redis::installed().is_some()),
        _ => ("", true),
    };
    if !installed {
        eprintln!("SKIPPED: `{plugin}` is not tried, since `{needs}` is not installed");
        return None;
    }
    Some(match plugin {
        // The default of 16 MiB is too little for a return of 10 MiB, which the table holds twice.
        "mysql" => Box::new(MySql(MariaDb::start(&["--max-allowed-packet=64M"]))),
        "sqlite3" => Box::new(Sqlite3(Scratch::new())),
        "pgjsonb" => {
            Box::new(Postgres { plugin: "pgjsonb", password: "pass", server: PostgreSql::start(&[]) })
        }
        "postgres" => {
            Box::new(Postgres { plugin: "postgres", password: "passwd", server: PostgreSql::start(&[]) })
        }
        "redis" => Box::new(RedisStore(Redis::start(&[]))),
        "local_cache" => Box::new(LocalCache::new()),
        other => panic!("`{other}` is no job cache"),
    })
}

/// The id of a copy of a job: the template's with a number in place of its last six digits.
pub fn copy_of(template: &str, number: u32) -> String {
    format!("{}{number:06}", &template[..14])
}

#[derive(Debug)]
struct MySql(MariaDb);

impl Store for MySql {
    fn plugin(&self) -> &'static str {
        "mysql"
    }

    fn opts(&self) -> Value {
        json!({"mysql.host": "127.0.0.1", "mysql.port": self.0.port(), "mysql.pass": "salt"})
    }

    fn server(&mut self) -> Option<&mut dyn Server> {
        Some(&mut self.0)
    }

    fn copy_load(&self, template: &str, copies: u32) {
        let jid = format!("CONCAT('{}', LPAD(seq, 6, '0'))", &template[..14]);
        self.0.sql(
            "salt",
            &format!(
                "INSERT INTO jids (jid, `load`) SELECT {jid}, REPLACE(`load`, '{template}', {jid}) \
                 FROM jids JOIN seq_1_to_{copies} WHERE jid = '{template}'"
            ),
        );
    }
}

#[derive(Debug)]
struct Sqlite3(Scratch);

impl Sqlite3 {
    fn file(&self) -> PathBuf {
        self.0.path().join("jobs.sqlite")
    }
}

impl Store for Sqlite3 {
    fn plugin(&self) -> &'static str {
        "sqlite3"
    }

    fn opts(&self) -> Value {
        json!({"sqlite3.database": self.file(), "sqlite3.timeout": 30})
    }

    fn copy_load(&self, template: &str, copies: u32) {
        const SCRIPT: &str = "import sqlite3, sys\n\
            database = sqlite3.connect(sys.argv[1], timeout=30)\n\
            database.execute(sys.argv[2])\n\
            database.commit()";
        let jid = format!("'{}' || printf('%06d', n)", &template[..14]);
        let sql = format!(
            "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {copies}) \
             INSERT INTO jids (jid, load) SELECT {jid}, replace(load, '{template}', {jid}) \
             FROM jids JOIN number WHERE jid = '{template}'"
        );
        let mut command = Command::new(env::salt_bin("3008.4").join("python"));
        run(command.args(["-c", SCRIPT]).arg(self.file()).arg(sql), LIMIT).success();
    }
}

/// Both plugins for PostgreSQL.
#[derive(Debug)]
struct Postgres {
    plugin: &'static str,
    /// The option with the password.
    password: &'static str,
    server: PostgreSql,
}

impl Store for Postgres {
    fn plugin(&self) -> &'static str {
        self.plugin
    }

    fn opts(&self) -> Value {
        let options = [
            ("host", json!("127.0.0.1")),
            ("port", json!(self.server.port())),
            ("db", json!("salt")),
            (self.password, json!("salt")),
        ];
        options.into_iter().map(|(name, value)| (format!("returner.{}.{name}", self.plugin), value)).collect()
    }

    fn server(&mut self) -> Option<&mut dyn Server> {
        Some(&mut self.server)
    }

    fn copy_load(&self, template: &str, copies: u32) {
        let jid = format!("'{}' || lpad(n::text, 6, '0')", &template[..14]);
        let kind = if self.plugin == "pgjsonb" { "jsonb" } else { "text" };
        self.server.sql(
            "salt",
            &format!(
                "INSERT INTO jids (jid, load) SELECT {jid}, replace(load::text, '{template}', {jid})::{kind} \
                 FROM jids, generate_series(1, {copies}) AS n WHERE jid = '{template}'"
            ),
        );
    }
}

#[derive(Debug)]
struct RedisStore(Redis);

impl Store for RedisStore {
    fn plugin(&self) -> &'static str {
        "redis"
    }

    fn opts(&self) -> Value {
        // Without this a request with another keep time of Salt's would have other options.
        json!({"redis.host": "127.0.0.1", "redis.port": self.0.port(), "redis.keep_jobs_seconds": 86_400})
    }

    fn server(&mut self) -> Option<&mut dyn Server> {
        Some(&mut self.0)
    }

    fn copy_load(&self, template: &str, copies: u32) {
        const SCRIPT: &str = "\
            local load = redis.call('GET', 'load:' .. ARGV[1])\n\
            local last = redis.call('ZSCORE', 'returnerd:last', ARGV[1])\n\
            for number = 1, ARGV[2] do\n\
              local jid = ARGV[1]:sub(1, 14) .. string.format('%06d', number)\n\
              redis.call('SET', 'load:' .. jid, (load:gsub(ARGV[1], jid)), 'PX', 86400000)\n\
              redis.call('ZADD', 'returnerd:jids', 0, jid)\n\
              redis.call('ZADD', 'returnerd:last', last, jid)\n\
            end";
        self.0.cli(&["EVAL", SCRIPT, "0", template, &copies.to_string()]);
    }
}

/// The memory that files of 100,000 jobs take, amply.
const ROOM: u64 = 3 << 30;

#[derive(Debug)]
struct LocalCache {
    scratch: Scratch,
}

impl LocalCache {
    fn new() -> Self {
        // Hundreds of thousands of files cost a disk minutes.
        let memory = Path::new("/dev/shm");
        let free =
            nix::sys::statvfs::statvfs(memory).map_or(0, |of| of.blocks_available() * of.fragment_size());
        let scratch = if free > ROOM { Scratch::new_in(memory) } else { Scratch::new() };
        fs::create_dir(scratch.path().join("jobs")).unwrap();
        Self { scratch }
    }

    fn directory(&self) -> PathBuf {
        self.scratch.path().join("jobs")
    }

    fn job(&self, jid: &str) -> PathBuf {
        let digest: String = Sha256::digest(jid).iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory().join(&digest[..2]).join(&digest[2..])
    }
}

impl Store for LocalCache {
    fn plugin(&self) -> &'static str {
        "local_cache"
    }

    fn opts(&self) -> Value {
        json!({"local_cache.directory": self.directory()})
    }

    fn copy_load(&self, template: &str, copies: u32) {
        let files: Vec<(String, Vec<u8>)> = fs::read_dir(self.job(template))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap()))
            .collect();
        let copy = |number: u32| {
            let jid = copy_of(template, number);
            let job = self.job(&jid);
            fs::create_dir_all(&job).unwrap();
            for (name, content) in &files {
                fs::write(job.join(name), replaced(content, template.as_bytes(), jid.as_bytes())).unwrap();
            }
        };
        std::thread::scope(|scope| {
            for first in 1..=2 {
                scope.spawn(move || (first..=copies).step_by(2).for_each(copy));
            }
        });
    }
}

/// The bytes with each `from` replaced by `to`, which is as long.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for start in 0..=bytes.len().saturating_sub(from.len()) {
        if bytes[start..].starts_with(from) {
            bytes[start..start + from.len()].copy_from_slice(to);
        }
    }
    bytes
}
