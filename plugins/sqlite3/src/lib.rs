//! Returner plugin `sqlite3`: stores returns, jobs and events in an SQLite file that other programs may use meanwhile.
//!
//! `vfs` opens the file with locks that others see, `schema` brings the tables into shape, `returns`, `jobs`, `events` and
//! `purge` hold the statements, `record` the shapes of what is stored, `database` transactions and errors.
//!
//! Invariants: a batch is one transaction, so that a failure leaves nothing half stored; the first return of a
//! (jid, id) stays, also in tables without a unique key.

mod database;
mod events;
mod jobs;
mod purge;
mod record;
mod returns;
mod schema;
#[cfg(test)]
mod tests;
mod vfs;

use returner_sdk::prelude::*;

use crate::database::Database;

/// The options of the manifest.
#[derive(Debug, Clone, Deserialize)]
pub struct Options {
    /// The absolute path of the file.
    pub database: String,
    /// How many seconds to wait for a lock.
    #[serde(default = "default_timeout")]
    pub timeout: f64,
}

fn default_timeout() -> f64 {
    5.0
}

/// An open database.
pub struct Store {
    database: Database,
}

impl Returner for Store {
    type Options = Options;

    async fn open(options: Options, _: &Context) -> Result<Self> {
        let mut database = Database::open(&options)?;
        schema::prepare(&mut database)?;
        Ok(Self { database })
    }

    async fn deliver(&mut self, returns: Vec<JobReturn>) -> Result<Vec<Verdict>> {
        returns::store(&mut self.database, &returns)
    }
}

impl JobCache for Store {
    async fn save_loads(&mut self, loads: Vec<JobLoad>) -> Result<Vec<Verdict>> {
        jobs::save_loads(&mut self.database, &loads)
    }

    async fn get_load(&mut self, jid: String) -> Result<Option<StoredLoad>> {
        jobs::get_load(&self.database, &jid)
    }

    async fn get_returns(&mut self, jid: String) -> Result<Vec<StoredReturn>> {
        returns::of_job(&self.database, &jid)
    }

    async fn get_jids(&mut self, filter: JidsFilter) -> Result<Vec<StoredLoad>> {
        jobs::get_jids(&self.database, &filter)
    }

    async fn get_fun(&mut self, fun: String) -> Result<Vec<StoredReturn>> {
        returns::latest(&self.database, &fun)
    }

    async fn get_minions(&mut self) -> Result<Vec<String>> {
        returns::minions(&self.database)
    }

    async fn purge(&mut self, request: PurgeRequest) -> Result<Purged> {
        purge::purge(&mut self.database, &request)
    }
}

impl EventReturner for Store {
    async fn deliver_events(&mut self, events: Vec<Event>) -> Result<Vec<Verdict>> {
        events::store(&mut self.database, &events)
    }
}

returner_sdk::export!(Store: returns, jobs, events, "manifest.toml");
