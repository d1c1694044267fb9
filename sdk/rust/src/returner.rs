//! The traits a plugin implements.

use serde::de::DeserializeOwned;

use crate::{
    Error, Event, JidsFilter, JobLoad, JobReturn, PurgeRequest, Purged, Result, StoredLoad, StoredReturn,
    Verdict,
};

/// Where and under which name an instance runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// A short name of the sink, for messages.
    pub sink: String,
    /// The id of the minion or master beside the host.
    pub id: String,
    /// `master` or `minion`.
    pub role: String,
}

/// A plugin that takes returns. Implement `store`, or `deliver` where a batch can be stored at once.
///
/// When a whole call fails with [`Error::Retry`], the value is dropped and `open` is called again before the next
/// call, so a plugin need not repair a broken connection itself; [`Returner::REOPEN`] changes that.
#[allow(async_fn_in_trait)]
pub trait Returner: Sized + 'static {
    /// The plugin's options, by their names in the manifest.
    type Options: DeserializeOwned;

    /// Whether a call that failed with [`Error::Retry`] drops the value, so that `open` connects anew. False suits a plugin without a
    /// connection of its own, which then keeps what it remembers.
    const REOPEN: bool = true;

    /// Connects. Called again after a failure.
    async fn open(options: Self::Options, context: &Context) -> Result<Self>;

    /// Stores one return.
    async fn store(&mut self, ret: JobReturn) -> Result<()> {
        Err(Error::Fatal(format!("this plugin takes no returns (got one of job {})", ret.jid)))
    }

    /// Stores a batch: one verdict for each return, in the same order.
    async fn deliver(&mut self, returns: Vec<JobReturn>) -> Result<Vec<Verdict>> {
        let mut verdicts = Vec::with_capacity(returns.len());
        for ret in returns {
            let result = self.store(ret).await;
            // With nothing stored yet a retry may be the connection's fault: failing the call opens a new one.
            if let (Err(error @ (Error::Retry { .. } | Error::Fatal(_))), true) =
                (&result, verdicts.is_empty())
            {
                return Err(error.clone());
            }
            verdicts.push(result.into());
        }
        Ok(verdicts)
    }

    /// Says goodbye to the outside system.
    async fn close(self) {}
}

/// A plugin that can be Salt's `master_job_cache`. The functions are those of the interface `jobs`.
#[allow(async_fn_in_trait, missing_docs)]
pub trait JobCache: Returner {
    async fn save_loads(&mut self, loads: Vec<JobLoad>) -> Result<Vec<Verdict>>;
    async fn get_load(&mut self, jid: String) -> Result<Option<StoredLoad>>;
    async fn get_returns(&mut self, jid: String) -> Result<Vec<StoredReturn>>;
    async fn get_jids(&mut self, filter: JidsFilter) -> Result<Vec<StoredLoad>>;
    async fn get_fun(&mut self, fun: String) -> Result<Vec<StoredReturn>>;
    async fn get_minions(&mut self) -> Result<Vec<String>>;
    async fn purge(&mut self, request: PurgeRequest) -> Result<Purged>;
}

/// A plugin that takes events.
#[allow(async_fn_in_trait)]
pub trait EventReturner: Returner {
    /// Stores a batch of events, never an empty one: one verdict for each, in the same order.
    async fn deliver_events(&mut self, events: Vec<Event>) -> Result<Vec<Verdict>>;
}
