//! A shared server with a database for each test.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use returner_redis::{Db, Options};
use returner_sdk::prelude::*;
pub use returnerd_tests::plugin_records::*;
use returnerd_tests::redis::{self, Redis};

static SHARED: Mutex<Weak<Redis>> = Mutex::new(Weak::new());
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Whether there is a server to test with; says so if not.
pub fn available() -> bool {
    let there = redis::installed().is_some();
    if !there {
        eprintln!("SKIPPED: `redis-server` is not installed");
    }
    there
}

/// A database of the shared server.
pub struct Place {
    pub server: Arc<Redis>,
    db: u32,
}

impl Place {
    /// An empty database.
    pub fn fresh() -> Option<Self> {
        if !available() {
            return None;
        }
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let server = shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Redis::start(&["--databases", "200", "--appendfsync", "no"]));
            *shared = Arc::downgrade(&server);
            server
        });
        Some(Self { server, db: NUMBER.fetch_add(1, Ordering::Relaxed) })
    }

    pub fn cli(&self, words: &[&str]) -> String {
        self.server.cli_in(self.db, words)
    }

    pub fn options(&self) -> Options {
        Options { db: self.db.to_string(), ..options(self.server.port()) }
    }

    pub async fn open(&self) -> Db {
        open(self.options()).await.unwrap()
    }

    /// The time to live of a key in seconds; -1 for ever, -2 if it is not there.
    pub fn ttl(&self, key: &str) -> i64 {
        self.cli(&["TTL", key]).parse().unwrap()
    }
}

/// Options for a server of the tests.
pub fn options(port: u16) -> Options {
    Options { host: "127.0.0.1".into(), port, ..Options::default() }
}

pub async fn open(options: Options) -> Result<Db> {
    Db::open(options, &Context::default()).await
}

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}
