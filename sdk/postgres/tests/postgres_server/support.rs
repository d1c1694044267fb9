//! A shared server with a database for each test, both flavours behind one type.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use returner_sdk::prelude::*;
use returner_sdk_postgres::{Jsonb, Options, Store, Text};
pub use returnerd_tests::plugin_records::*;
use returnerd_tests::postgresql::{self, PostgreSql};

static SHARED: Mutex<Weak<PostgreSql>> = Mutex::new(Weak::new());
static NUMBER: AtomicU32 = AtomicU32::new(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    Jsonb,
    Text,
}

impl Flavour {
    fn document(self) -> &'static str {
        match self {
            Self::Jsonb => "jsonb",
            Self::Text => "text",
        }
    }
}

/// Whether there is a server to test with; says so if not.
pub fn available() -> bool {
    let there = postgresql::installed().is_some();
    if !there {
        eprintln!("SKIPPED: PostgreSQL is not installed");
    }
    there
}

/// A database of the shared server.
pub struct Place {
    pub server: Arc<PostgreSql>,
    pub name: String,
    pub flavour: Flavour,
    /// Whether its tables are those of Salt's documentation.
    pub old: bool,
}

impl Place {
    fn new(flavour: Flavour, old: bool) -> Self {
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let server = shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(PostgreSql::start(&[]));
            *shared = Arc::downgrade(&server);
            server
        });
        drop(shared);
        let name = format!("t{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server.database(&name);
        let place = Self { server, name, flavour, old };
        if old {
            place.sql(&postgresql::documented_tables(flavour.document()));
        }
        place
    }

    /// An empty database, in which the plugin makes its own tables.
    pub fn fresh(flavour: Flavour) -> Option<Self> {
        available().then(|| Self::new(flavour, false))
    }

    /// A database with the tables of Salt's documentation.
    pub fn documented(flavour: Flavour) -> Option<Self> {
        available().then(|| Self::new(flavour, true))
    }

    /// Both flavours with both kinds of tables, for each of which a server is there.
    pub fn all() -> impl Iterator<Item = Self> {
        let kinds =
            [(Flavour::Jsonb, false), (Flavour::Jsonb, true), (Flavour::Text, false), (Flavour::Text, true)];
        kinds.into_iter().filter(|_| available()).map(|(flavour, old)| Self::new(flavour, old))
    }

    pub fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.name, sql)
    }

    pub fn options(&self) -> Options {
        Options { db: self.name.clone(), ..options(self.server.port()) }
    }

    pub async fn open(&self) -> Db {
        Db::open(self.flavour, self.options()).await.unwrap()
    }
}

/// Options for a server of the tests.
pub fn options(port: u16) -> Options {
    Options { host: "127.0.0.1".into(), port, ..Options::default() }
}

/// An open store of either flavour.
pub enum Db {
    Jsonb(Store<Jsonb>),
    Text(Store<Text>),
}

macro_rules! either {
    ($($name:ident ($argument:ty) -> $result:ty;)*) => {
        impl Db {
            $(pub async fn $name(&mut self, argument: $argument) -> Result<$result> {
                match self {
                    Self::Jsonb(store) => store.$name(argument).await,
                    Self::Text(store) => store.$name(argument).await,
                }
            })*
        }
    };
}

either! {
    deliver(Vec<JobReturn>) -> Vec<Verdict>;
    deliver_events(Vec<Event>) -> Vec<Verdict>;
    save_loads(Vec<JobLoad>) -> Vec<Verdict>;
    get_load(String) -> Option<StoredLoad>;
    get_returns(String) -> Vec<StoredReturn>;
    get_jids(JidsFilter) -> Vec<StoredLoad>;
    get_fun(String) -> Vec<StoredReturn>;
    purge(PurgeRequest) -> Purged;
}

impl Db {
    pub async fn open(flavour: Flavour, options: Options) -> Result<Self> {
        let context = Context::default();
        Ok(match flavour {
            Flavour::Jsonb => Self::Jsonb(Store::open(options, &context).await?),
            Flavour::Text => Self::Text(Store::open(options, &context).await?),
        })
    }

    pub async fn get_minions(&mut self) -> Result<Vec<String>> {
        match self {
            Self::Jsonb(store) => store.get_minions().await,
            Self::Text(store) => store.get_minions().await,
        }
    }

    pub async fn close(self) {
        match self {
            Self::Jsonb(store) => store.close().await,
            Self::Text(store) => store.close().await,
        }
    }
}

/// The reason of an opening that is to be tried again.
pub fn retry(result: Result<Db>) -> String {
    match result.err() {
        Some(Error::Retry { why, .. }) => why,
        other => panic!("no retry: {other:?}"),
    }
}

/// Why a record was rejected.
pub fn why(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Reject(why) => why,
        other => panic!("not rejected: {other:?}"),
    }
}
