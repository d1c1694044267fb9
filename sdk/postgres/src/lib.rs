//! What the returner plugins for PostgreSQL share: the connection, the tables that Salt's own returners document, and
//! every function of the contract on them. A plugin adds its manifest and says of which type its documents are.
//!
//! Invariants: every function may be repeated as a whole, as each write is a no-op where its key is stored; a record
//! is answered `stored` only after the server has committed it; what a table cannot hold is changed by a stated,
//! reversible rule or rejected with the reason, never cut silently.

mod connect;
mod events;
mod fault;
mod jobs;
mod loads;
mod options;
mod purge;
mod returns;
mod schema;
mod sql;
mod tls;

use std::marker::PhantomData;

use connect::Db;
pub use options::Options;
use returner_sdk::prelude::*;

/// What sets one of the plugins apart.
pub trait Flavour: 'static {
    /// The type of documents in tables that the plugin makes.
    const DOCUMENT: &'static str;
    /// What Salt calls the option with the password.
    const PASSWORD: &'static str;
}

/// The plugin `pgjsonb`.
#[derive(Debug)]
pub struct Jsonb;

impl Flavour for Jsonb {
    const DOCUMENT: &'static str = "jsonb";
    const PASSWORD: &'static str = "pass";
}

/// The plugin `postgres`.
#[derive(Debug)]
pub struct Text;

impl Flavour for Text {
    const DOCUMENT: &'static str = "text";
    const PASSWORD: &'static str = "passwd";
}

/// An open store.
pub struct Store<F> {
    db: Db,
    flavour: PhantomData<F>,
}

impl<F: Flavour> Returner for Store<F> {
    type Options = Options;

    async fn open(options: Options, _: &Context) -> Result<Self> {
        let db = Db::connect(options.settings(F::PASSWORD)?, F::DOCUMENT).await?;
        Ok(Self { db, flavour: PhantomData })
    }

    async fn deliver(&mut self, returns: Vec<JobReturn>) -> Result<Vec<Verdict>> {
        self.db.run(async |db| returns::deliver(db, &returns).await).await
    }

    async fn close(self) {
        self.db.disconnect().await;
    }
}

impl<F: Flavour> JobCache for Store<F> {
    async fn save_loads(&mut self, loads: Vec<JobLoad>) -> Result<Vec<Verdict>> {
        self.db.run(async |db| loads::save(db, &loads).await).await
    }

    async fn get_load(&mut self, jid: String) -> Result<Option<StoredLoad>> {
        self.db.run(async |db| loads::get(db, &jid).await).await
    }

    async fn get_returns(&mut self, jid: String) -> Result<Vec<StoredReturn>> {
        self.db.run(async |db| jobs::returns(db, &jid).await).await
    }

    async fn get_jids(&mut self, filter: JidsFilter) -> Result<Vec<StoredLoad>> {
        self.db.run(async |db| jobs::jids(db, &filter).await).await
    }

    async fn get_fun(&mut self, fun: String) -> Result<Vec<StoredReturn>> {
        self.db.run(async |db| jobs::fun(db, &fun).await).await
    }

    async fn get_minions(&mut self) -> Result<Vec<String>> {
        self.db.run(async |db| jobs::minions(db).await).await
    }

    async fn purge(&mut self, request: PurgeRequest) -> Result<Purged> {
        self.db.run(async |db| purge::purge(db, &request).await).await
    }
}

impl<F: Flavour> EventReturner for Store<F> {
    async fn deliver_events(&mut self, events: Vec<Event>) -> Result<Vec<Verdict>> {
        self.db.run(async |db| events::deliver(db, &events).await).await
    }
}
