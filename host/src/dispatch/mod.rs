//! From the spool to the sinks: which sinks there are, their lanes, and the answers to questions.
//!
//! Invariants: one sink for each plugin and set of resolved options, known by the same key after a restart; one lane and one task for each
//! sink, so a sink that is down holds up no other.

mod backoff;
mod batch;
mod delivery;
pub mod health;
mod kind;
pub mod lane;
mod page_size;
pub mod query;
pub mod recent;
mod round;
pub mod sink;
mod strikes;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::query::QueryError;
use self::sink::Sink;
use crate::config::Config;
use crate::plugin::Plugin;
use crate::plugin::limits::Limits;
use crate::plugin::registry::Registry;
use crate::salt::options::Resolved;
use crate::spool::{NewSink, SinkId, Spool, SpoolError};

/// How often it is looked at whether something is to be done beside deliveries.
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(5);

/// How often old jobs are removed where `keep` is set.
const PURGE_EVERY: Duration = Duration::from_secs(3_600);

/// What lanes and questions share.
pub struct Shared {
    /// The configuration as last read.
    pub config: ArcSwap<Config>,
    /// The plugins.
    pub registry: Arc<Registry>,
    /// The durable queue.
    pub spool: Spool,
}

/// What is kept of a sink in the spool, beside its key: enough to open it again after a restart.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Kept {
    resolved: Resolved,
    salt_id: String,
    role: String,
}

/// See the module.
pub struct Dispatch {
    shared: Arc<Shared>,
    sinks: Mutex<Sinks>,
    lanes: Mutex<JoinSet<()>>,
    /// What lanes and questions run on.
    runtime: Handle,
    stop: watch::Receiver<bool>,
}

#[derive(Default)]
struct Sinks {
    by_key: HashMap<(String, String), Arc<Sink>>,
    all: Vec<Arc<Sink>>,
}

impl Dispatch {
    /// Opens the lanes of all sinks that the spool knows, on this runtime.
    pub fn start(shared: Arc<Shared>, stop: watch::Receiver<bool>, runtime: Handle) -> Arc<Self> {
        let lanes = Mutex::new(JoinSet::new());
        let dispatch = Arc::new(Self { shared, sinks: Mutex::default(), lanes, runtime, stop });
        for row in dispatch.shared.spool.sinks().iter() {
            match serde_json::from_str::<Kept>(&row.options) {
                Ok(kept) => {
                    dispatch.add(row.id, &row.plugin, &row.key, kept);
                }
                Err(error) => {
                    tracing::error!(sink = row.plugin.as_str(), %error, "the options of a sink in the spool cannot be read; its items stay there");
                }
            }
        }
        let idle = dispatch.clone();
        dispatch
            .lanes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .spawn_on(async move { idle.housekeeping().await }, &dispatch.runtime);
        dispatch
    }

    /// What lanes and questions share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The sink for a plugin with these options, made if it is new.
    pub async fn sink(
        &self,
        plugin: &Plugin,
        resolved: &Resolved,
        salt_id: &str,
        role: &str,
    ) -> Result<Arc<Sink>, SpoolError> {
        let key = (plugin.name().to_owned(), resolved.key.clone());
        if let Some(sink) = self.lock().by_key.get(&key) {
            return Ok(sink.clone());
        }
        let kept = Kept { resolved: resolved.clone(), salt_id: salt_id.to_owned(), role: role.to_owned() };
        let new = NewSink {
            plugin: plugin.name().to_owned(),
            key: resolved.key.clone(),
            options: serde_json::to_string(&kept).unwrap_or_default(),
            label: None,
            facts: serde_json::json!({ "version": plugin.manifest.version }).to_string(),
        };
        let id = self.shared.spool.sink(new).await?;
        Ok(self.add(id, plugin.name(), &resolved.key, kept))
    }

    /// Has a question answered where the lanes run: guests work there, and whoever takes from Salt does not wait for them.
    pub async fn answer<T: Send + 'static>(
        &self,
        question: impl Future<Output = Result<T, QueryError>> + Send + 'static,
    ) -> Result<T, QueryError> {
        self.runtime.spawn(question).await.unwrap_or_else(|error| Err(QueryError::CutOff(error)))
    }

    /// Starts removing old jobs from a sink, for which nobody waits.
    pub fn purge(&self, sink: Arc<Sink>, keep: Duration, archive: bool) {
        self.runtime.spawn(query::purge_quietly(self.shared.clone(), sink, keep, archive));
    }

    /// All sinks, oldest first.
    pub fn sinks(&self) -> Vec<Arc<Sink>> {
        self.lock().all.clone()
    }

    /// Sinks by a plugin's name, or the one with this label.
    pub fn named(&self, name: &str) -> Vec<Arc<Sink>> {
        let sinks = self.lock();
        let labelled: Vec<_> =
            sinks.all.iter().filter(|sink| sink.label == name && name.contains('#')).cloned().collect();
        if labelled.is_empty() {
            sinks.all.iter().filter(|sink| sink.plugin == name).cloned().collect()
        } else {
            labelled
        }
    }

    /// Waits until all lanes have ended, after `stop` was set; those that take longer than `limit` are cut off, with their items kept.
    pub async fn finish(&self, limit: Duration) {
        let mut lanes = std::mem::take(&mut *self.lanes.lock().unwrap_or_else(PoisonError::into_inner));
        let ended = tokio::time::timeout(limit, async { while lanes.join_next().await.is_some() {} }).await;
        if ended.is_err() {
            tracing::warn!(
                lanes = lanes.len(),
                "lanes are cut off in the middle of a call; their items stay in the spool"
            );
            lanes.abort_all();
            while lanes.join_next().await.is_some() {}
        } else {
            for sink in self.sinks() {
                let _ = tokio::time::timeout(Duration::from_secs(2), sink.pool.close()).await;
            }
        }
    }

    fn add(&self, id: SinkId, plugin: &str, key: &str, kept: Kept) -> Arc<Sink> {
        let mut sinks = self.lock();
        let by_key = (plugin.to_owned(), key.to_owned());
        if let Some(sink) = sinks.by_key.get(&by_key) {
            return sink.clone();
        }
        let number = sinks.all.iter().filter(|sink| sink.plugin == plugin).count() + 1;
        let label = if number == 1 { plugin.to_owned() } else { format!("{plugin}#{number}") };
        let sink = Arc::new(Sink::new(id, plugin, &label, &kept.salt_id, &kept.role, kept.resolved));
        sinks.by_key.insert(by_key, sink.clone());
        sinks.all.push(sink.clone());
        drop(sinks);
        let lane = lane::run(self.shared.clone(), sink.clone(), self.stop.clone());
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).spawn_on(lane, &self.runtime);
        sink
    }

    /// What is done from time to time: closing idle instances, removing old jobs.
    async fn housekeeping(&self) {
        let mut stop = self.stop.clone();
        loop {
            tokio::select! {
                _ = stop.changed() => return,
                () = tokio::time::sleep(HOUSEKEEPING_EVERY) => {}
            }
            for sink in self.sinks() {
                let settings = self.shared.config.load().plugin(&sink.plugin);
                let crowded = self.shared.registry.host().is_crowded();
                sink.pool.close_idle(&Limits::of(&settings), crowded).await;
                if let Some(keep) = settings.keep
                    && !keep.is_zero()
                    && sink.purge_due(PURGE_EVERY)
                {
                    self.purge(sink, keep, false);
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sinks> {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
