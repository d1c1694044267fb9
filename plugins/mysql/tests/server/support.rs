//! A shared server with a database for each test, and records to store.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use returner_mysql::{Db, Options};
use returner_sdk::prelude::*;
use returnerd_tests::mariadb::{self, MariaDb};

/// The tables as Salt's documentation has them.
pub const DOCUMENTED: &str = "
CREATE TABLE `jids` (`jid` varchar(255) NOT NULL, `load` mediumtext NOT NULL, UNIQUE KEY `jid` (`jid`))
    ENGINE=InnoDB DEFAULT CHARSET=utf8;
CREATE TABLE `salt_returns` (
    `fun` varchar(50) NOT NULL, `jid` varchar(255) NOT NULL, `return` mediumtext NOT NULL,
    `id` varchar(255) NOT NULL, `success` varchar(10) NOT NULL, `full_ret` mediumtext NOT NULL,
    `alter_time` TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    KEY `id` (`id`), KEY `jid` (`jid`), KEY `fun` (`fun`)) ENGINE=InnoDB DEFAULT CHARSET=utf8;
CREATE TABLE `salt_events` (
    `id` BIGINT NOT NULL AUTO_INCREMENT, `tag` varchar(255) NOT NULL, `data` mediumtext NOT NULL,
    `alter_time` TIMESTAMP DEFAULT CURRENT_TIMESTAMP, `master_id` varchar(255) NOT NULL,
    PRIMARY KEY (`id`), KEY `tag` (`tag`)) ENGINE=InnoDB DEFAULT CHARSET=utf8;";

/// When the records of the tests arrive unless they say otherwise: 2026-12-01 03:31:39 UTC.
pub const ARRIVED: u64 = 1_796_095_899_000;

static SHARED: Mutex<Weak<MariaDb>> = Mutex::new(Weak::new());
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Whether there is a server to test with; says so if not.
pub fn available() -> bool {
    let there = mariadb::installed().is_some();
    if !there {
        eprintln!("SKIPPED: `mariadbd` is not installed");
    }
    there
}

/// A database of the shared server.
pub struct Place {
    pub server: Arc<MariaDb>,
    pub name: String,
}

impl Place {
    fn new() -> Self {
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let server = shared.upgrade().unwrap_or_else(|| {
            let server =
                Arc::new(MariaDb::start(&["--max-allowed-packet=64M", "--innodb-log-file-size=256M"]));
            *shared = Arc::downgrade(&server);
            server
        });
        let name = format!("t{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server.database(&name);
        Self { server, name }
    }

    /// An empty database, in which the plugin makes its own tables.
    pub fn fresh() -> Option<Self> {
        available().then(Self::new)
    }

    /// A database with the tables of Salt's documentation.
    pub fn documented() -> Option<Self> {
        let place = Self::fresh()?;
        place.sql(DOCUMENTED);
        Some(place)
    }

    /// One of each kind.
    pub fn both() -> impl Iterator<Item = Self> {
        [Self::fresh(), Self::documented()].into_iter().flatten()
    }

    pub fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.name, sql)
    }

    pub fn options(&self) -> Options {
        Options { db: self.name.clone(), ..options(self.server.port()) }
    }

    pub async fn open(&self) -> Db {
        open(self.options()).await.unwrap()
    }
}

/// Options for a server of the tests.
pub fn options(port: u16) -> Options {
    Options { host: "127.0.0.1".into(), port, ..Options::default() }
}

pub async fn open(options: Options) -> Result<Db> {
    Db::open(options, &Context::default()).await
}

/// Runs a test's async part.
pub fn block<T>(future: impl Future<Output = T>) -> T {
    returner_sdk::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A return with this value (JSON).
pub fn ret(jid: &str, minion: &str, fun: &str, value: &str) -> JobReturn {
    JobReturn {
        jid: jid.into(),
        minion: minion.into(),
        resource_id: None,
        fun: fun.into(),
        fun_args: "[]".into(),
        value: value.into(),
        document: format!(
            r#"{{"jid": "{jid}", "id": "{minion}", "fun": "{fun}", "return": {value}, "retcode": 0, "success": true}}"#
        ),
        success: Some(true),
        retcode: Some(0),
        trimmed: false,
        arrived_ms: ARRIVED,
    }
}

/// A load as Salt publishes it.
pub fn load(jid: &str, fun: &str) -> JobLoad {
    JobLoad {
        jid: jid.into(),
        kind: LoadKind::Published,
        document: format!(r#"{{"fun": "{fun}", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "ops"}}"#),
        minions: Vec::new(),
        end_time: None,
        arrived_ms: ARRIVED,
    }
}

pub fn event(id: u64, tag: &str, data: &str) -> Event {
    Event { id, tag: tag.into(), data: data.into(), master: "master1".into(), arrived_ms: ARRIVED }
}

pub fn json(text: &str) -> returner_sdk::serde_json::Value {
    returner_sdk::serde_json::from_str(text).unwrap()
}

pub fn stored(verdicts: &[Verdict]) -> bool {
    verdicts.iter().all(|verdict| *verdict == Verdict::Stored)
}
