//! The returner `redis`: returns and loads in Redis or Valkey, under the keys of Salt's own returner and a few of ours.
//!
//! Invariants: every function may be repeated as a whole, as each write is a no-op where its key is stored; a record is
//! answered `stored` only after the server has taken it; whatever grows has a time to live or leaves with its job; no
//! command walks through all keys in one go.

mod connect;
mod fault;
mod index;
mod jobs;
mod loads;
mod options;
mod purge;
mod scripts;
mod store;
mod wire;

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

returner_sdk::export!(Db: returns, jobs, "manifest.toml");
