//! A shared server with a database for each test, both flavours behind one type, and records to store.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use returner_sdk::prelude::*;
use returner_sdk_postgres::{Jsonb, Options, Store, Text};
use returnerd_tests::postgresql::{self, PostgreSql};

/// When the records of the tests arrive unless they say otherwise: 2026-12-01 03:31:39 UTC.
pub const ARRIVED: u64 = 1_796_095_899_000;

static SHARED: Mutex<Weak<PostgreSql>> = Mutex::new(Weak::new());
static NUMBER: AtomicU32 = AtomicU32::new(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    Jsonb,
    Text,
}

/// The tables as Salt's documentation has them.
pub fn documented_tables(flavour: Flavour) -> String {
    let (document, jid, nullable, indexes) = match flavour {
        Flavour::Jsonb => (
            "jsonb",
            "varchar(255)",
            "NOT NULL",
            "CREATE INDEX idx_jids_jsonb ON jids USING gin (load) WITH (fastupdate=on);
             CREATE INDEX idx_salt_returns_return ON salt_returns USING gin (return) WITH (fastupdate=on);
             CREATE INDEX idx_salt_returns_full_ret ON salt_returns USING gin (full_ret) WITH (fastupdate=on);
             CREATE INDEX idx_salt_events_data ON salt_events USING gin (data) WITH (fastupdate=on);",
        ),
        Flavour::Text => {
            ("text", "varchar(20)", "", "CREATE INDEX idx_salt_returns_updated ON salt_returns (alter_time);")
        }
    };
    format!(
        "SET ROLE salt;
        CREATE TABLE jids (jid {jid} PRIMARY KEY, load {document} NOT NULL);
        CREATE TABLE salt_returns (
            fun varchar(50) NOT NULL, jid varchar(255) NOT NULL, return {document} NOT NULL,
            full_ret {document} {nullable}, id varchar(255) NOT NULL, success varchar(10) NOT NULL,
            alter_time TIMESTAMP WITH TIME ZONE DEFAULT now());
        CREATE INDEX idx_salt_returns_id ON salt_returns (id);
        CREATE INDEX idx_salt_returns_jid ON salt_returns (jid);
        CREATE INDEX idx_salt_returns_fun ON salt_returns (fun);
        CREATE SEQUENCE seq_salt_events_id;
        CREATE TABLE salt_events (
            id BIGINT NOT NULL UNIQUE DEFAULT nextval('seq_salt_events_id'), tag varchar(255) NOT NULL,
            data {document} NOT NULL, alter_time TIMESTAMP WITH TIME ZONE DEFAULT now(), master_id varchar(255) NOT NULL);
        CREATE INDEX idx_salt_events_tag ON salt_events (tag);
        {indexes}"
    )
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
            place.sql(&documented_tables(flavour));
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
    returner_sdk::json::parse(text).unwrap_or_else(|| panic!("no JSON: {text}"))
}

pub fn stored(verdicts: &[Verdict]) -> bool {
    verdicts.iter().all(|verdict| *verdict == Verdict::Stored)
}
