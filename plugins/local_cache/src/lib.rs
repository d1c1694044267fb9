//! Returner plugin `local_cache`: keeps jobs in the files of Salt's own default job cache, which Salt reads and writes meanwhile.
//!
//! `tree` knows where a job lies and what may stand there, `stage` writes files and directories so that they appear whole, `loads` and
//! `returns` hold what stands in them, `index` the list of jobs, `questions` what is asked of it, `purge` the removal of old jobs,
//! `lock` keeps our own writers apart.
//!
//! Invariants: what Salt's functions of the same name read and write stays so, in both directions; the first return of a minion stays;
//! a file or directory appears with its whole content, which is on disk before it is called stored; an unreadable file never hides
//! others.

mod index;
mod loads;
mod lock;
mod purge;
mod questions;
mod returns;
mod stage;
mod tree;

use returner_sdk::prelude::*;

use crate::index::Index;
use crate::tree::Tree;

pub use crate::tree::Hash;

/// The options of the manifest.
#[derive(Debug, Clone, Deserialize)]
pub struct Options {
    /// The absolute path of the directory of the jobs.
    pub directory: String,
    /// The hash that names the directories of jobs.
    #[serde(default)]
    pub hash_type: Hash,
}

/// An open job cache.
pub struct Store {
    tree: Tree,
    index: Index,
}

impl Returner for Store {
    type Options = Options;

    async fn open(options: Options, _: &Context) -> Result<Self> {
        let tree = Tree::open(&options.directory, options.hash_type)?;
        purge::finish(&tree)?;
        Ok(Self { tree, index: Index::default() })
    }

    async fn deliver(&mut self, returns: Vec<JobReturn>) -> Result<Vec<Verdict>> {
        returns::store(&self.tree, &returns).await
    }
}

impl JobCache for Store {
    async fn save_loads(&mut self, loads: Vec<JobLoad>) -> Result<Vec<Verdict>> {
        loads::save(&self.tree, &loads).await
    }

    async fn get_load(&mut self, jid: String) -> Result<Option<StoredLoad>> {
        loads::get(&self.tree, &jid)
    }

    async fn get_returns(&mut self, jid: String) -> Result<Vec<StoredReturn>> {
        returns::of_job(&self.tree, &jid)
    }

    async fn get_jids(&mut self, filter: JidsFilter) -> Result<Vec<StoredLoad>> {
        questions::jids(&self.tree, &mut self.index, &filter).await
    }

    async fn get_fun(&mut self, fun: String) -> Result<Vec<StoredReturn>> {
        questions::fun(&self.tree, &mut self.index, &fun).await
    }

    async fn get_minions(&mut self) -> Result<Vec<String>> {
        questions::minions(&self.tree, &mut self.index).await
    }

    async fn purge(&mut self, request: PurgeRequest) -> Result<Purged> {
        purge::purge(&self.tree, &mut self.index, &request).await
    }
}

returner_sdk::export!(Store: returns, jobs, "manifest.toml");
