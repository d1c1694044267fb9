//! A sink: one plugin with one set of resolved options, and all that belongs to it in memory.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::health::Health;
use super::recent::Recent;
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
    /// Asks the lane to try at once, whatever its back-off.
    pub retry_now: Notify,
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
            retry_now: Notify::new(),
            recent: Mutex::default(),
            purging: tokio::sync::Mutex::new(()),
        }
    }

    /// Works with what was lately seen.
    pub fn recent<R>(&self, run: impl FnOnce(&mut Recent) -> R) -> R {
        run(&mut self.recent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The right to purge; none while a purge is under way.
    pub fn start_purge(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        self.purging.try_lock().ok()
    }
}
