//! A sink: one plugin with one set of resolved options, and all that belongs to it in memory.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::health::Health;
use super::recent::Recent;
use crate::observe::Throttle;
use crate::plugin::pool::Pool;
use crate::salt::options::Resolved;
use crate::spool::SinkId;

/// See the module.
pub struct Sink {
    /// Its key in the spool.
    pub id: SinkId,
    /// The plugin's name.
    pub plugin: String,
    /// A short name: the plugin's, with a number if there are several.
    pub label: String,
    /// Its instances.
    pub pool: Pool,
    /// Its condition.
    pub health: Health,
    /// Wakes its lane.
    pub wake: Notify,
    /// Counts the operator's restarts: the lane tries at once, whatever its back-off, and forgets the strikes.
    pub restarts: watch::Sender<u64>,
    /// Holds back floods of like lines about its records.
    pub throttle: Throttle,
    /// When old jobs were last removed because `keep` says so.
    kept: Mutex<Option<Instant>>,
    recent: Mutex<Recent>,
    purging: tokio::sync::Mutex<()>,
}

impl Sink {
    /// A sink with nothing in memory.
    pub fn new(id: SinkId, plugin: &str, label: &str, salt_id: &str, role: &str, options: Resolved) -> Self {
        Self {
            id,
            plugin: plugin.to_owned(),
            label: label.to_owned(),
            pool: Pool::new(label, salt_id, role, options),
            health: Health::new(label),
            wake: Notify::new(),
            restarts: watch::channel(0).0,
            throttle: Throttle::default(),
            kept: Mutex::default(),
            recent: Mutex::default(),
            purging: tokio::sync::Mutex::new(()),
        }
    }

    /// Works with what was lately seen.
    pub fn recent<R>(&self, run: impl FnOnce(&mut Recent) -> R) -> R {
        run(&mut self.recent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a clean-up that is made every so often is due; then the next one is not before that.
    pub fn purge_due(&self, every: Duration) -> bool {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let due = kept.is_none_or(|last| last.elapsed() >= every);
        if due {
            *kept = Some(Instant::now());
        }
        due
    }

    /// The right to purge; none while a purge is under way.
    pub fn start_purge(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        self.purging.try_lock().ok()
    }
}
