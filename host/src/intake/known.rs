//! The sinks that were lately found for the options of requests: Salt sends the same options with every return.
//!
//! Invariants: an answer is what resolving the same options anew would give, as only equal ones of the same plugin file under the same
//! configuration count; few are kept, since jobs can bring any options of their own.

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::{Map, Value};

use crate::config::Config;
use crate::dispatch::sink::Sink;
use crate::plugin::Plugin;
use crate::salt::frame::{Envelope, Role};
use crate::salt::options::Layers;

/// Sets of options that are kept in mind; one is looked at after the other.
const MOST: usize = 16;

/// See the module.
#[derive(Default)]
pub(super) struct Known {
    entries: Mutex<Vec<Entry>>,
}

/// All that a sink depends on.
struct Entry {
    /// Does not keep a plugin that was removed.
    plugin: Weak<Plugin>,
    config: Arc<Config>,
    id: String,
    role: Role,
    layers: Arc<Layers>,
    ret_config: Option<String>,
    ret_kwargs: Option<Map<String, Value>>,
    salt: Arc<Map<String, Value>>,
    sink: Arc<Sink>,
}

impl Entry {
    fn is_of(&self, plugin: &Arc<Plugin>) -> bool {
        // Nothing else can be at the address as long as this weak pointer is there.
        ptr::eq(self.plugin.as_ptr(), Arc::as_ptr(plugin))
    }

    fn is_for(&self, plugin: &Arc<Plugin>, config: &Arc<Config>, envelope: &Envelope) -> bool {
        self.is_of(plugin)
            && Arc::ptr_eq(&self.config, config)
            && self.role == envelope.role
            && self.id == envelope.id
            && self.ret_config == envelope.ret_config
            && self.layers == envelope.layers
            && self.salt == envelope.salt
            && self.ret_kwargs == envelope.ret_kwargs
    }
}

impl Known {
    /// The sink for the options of this request, if it was found lately.
    pub(super) fn find(
        &self,
        plugin: &Arc<Plugin>,
        config: &Arc<Config>,
        envelope: &Envelope,
    ) -> Option<Arc<Sink>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().find(|entry| entry.is_for(plugin, config, envelope)).map(|entry| entry.sink.clone())
    }

    /// Keeps what was found, in place of the oldest.
    pub(super) fn keep(
        &self,
        plugin: &Arc<Plugin>,
        config: &Arc<Config>,
        envelope: &Envelope,
        sink: &Arc<Sink>,
    ) {
        let entry = Entry {
            plugin: Arc::downgrade(plugin),
            config: config.clone(),
            id: envelope.id.clone(),
            role: envelope.role,
            layers: envelope.layers.clone(),
            ret_config: envelope.ret_config.clone(),
            ret_kwargs: envelope.ret_kwargs.clone(),
            salt: envelope.salt.clone(),
            sink: sink.clone(),
        };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        // Of an older configuration or an older file of the plugin nothing is asked any more.
        entries.retain(|entry| {
            Arc::ptr_eq(&entry.config, config) && (entry.sink.plugin != plugin.name() || entry.is_of(plugin))
        });
        if entries.len() >= MOST {
            entries.remove(0);
        }
        entries.push(entry);
    }
}
