//! The returner `mysql`: returns, loads and events in MySQL or MariaDB, in the tables that Salt's own returner
//! documents or in better ones that it creates.
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
mod schema;
mod sql;
mod store;

pub use connect::Db;
pub use options::Options;

use returner_sdk::prelude::*;

impl Returner for Db {
    type Options = Options;

    async fn open(options: Options, _: &Context) -> Result<Self> {
        Self::connect(options.settings()?).await
    }

    async fn deliver(&mut self, returns: Vec<JobReturn>) -> Result<Vec<Verdict>> {
        self.run(async |db| store::deliver(db, &returns).await).await
    }

    async fn close(self) {
        self.disconnect().await;
    }
}

impl JobCache for Db {
    async fn save_loads(&mut self, loads: Vec<JobLoad>) -> Result<Vec<Verdict>> {
        self.run(async |db| loads::save(db, &loads).await).await
    }

    async fn get_load(&mut self, jid: String) -> Result<Option<StoredLoad>> {
        self.run(async |db| loads::get(db, &jid).await).await
    }

    async fn get_returns(&mut self, jid: String) -> Result<Vec<StoredReturn>> {
        self.run(async |db| jobs::returns(db, &jid).await).await
    }

    async fn get_jids(&mut self, filter: JidsFilter) -> Result<Vec<StoredLoad>> {
        self.run(async |db| jobs::jids(db, &filter).await).await
    }

    async fn get_fun(&mut self, fun: String) -> Result<Vec<StoredReturn>> {
        self.run(async |db| jobs::fun(db, &fun).await).await
    }

    async fn get_minions(&mut self) -> Result<Vec<String>> {
        self.run(async |db| jobs::minions(db).await).await
    }

    async fn purge(&mut self, request: PurgeRequest) -> Result<Purged> {
        self.run(async |db| purge::purge(db, &request).await).await
    }
}

impl EventReturner for Db {
    async fn deliver_events(&mut self, events: Vec<Event>) -> Result<Vec<Verdict>> {
        self.run(async |db| events::deliver(db, &events).await).await
    }
}

returner_sdk::export!(Db: returns, jobs, events, "manifest.toml");
