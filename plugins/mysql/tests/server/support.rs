//! A shared server with a database for each test.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use returner_mysql::{Db, Options};
use returner_sdk::prelude::*;
use returnerd_tests::mariadb::{self, MariaDb};
pub use returnerd_tests::plugin_records::*;

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
        place.sql(mariadb::DOCUMENTED_TABLES);
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
