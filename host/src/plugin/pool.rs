//! The instances of one sink: one that delivers and one that answers questions, each with its own connection.
//!
//! Invariants: an instance is used by one caller at a time; it is of the plugin's present generation or renewed before its next use; an
//! instance that died is dropped with its caller's lease.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Mutex, MutexGuard};

use super::Plugin;
use super::engine::Host;
use super::instance::{CallError, Instance, Opening};
use super::limits::Limits;
use super::reason::Secrets;
use super::stdio::LogBudget;
use crate::config::Config;
use crate::policy::egress::Egress;
use crate::policy::http::client::Client;
use crate::policy::http::connect::system_resolver;
use crate::policy::http::rules::Rules;
use crate::policy::http::settings::{Settings, SettingsError};
use crate::policy::own::{OwnError, OwnPlaces, refuse_own};
use crate::policy::{AllowError, Policy, allow_line};
use crate::salt::options::{OptionsError, Resolved, load_files};

/// What an instance is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Delivering; the instance stays.
    Deliver,
    /// Answering a question; the instance is closed when it has been idle for a while.
    Query,
}

/// Why there is no instance.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It did not open.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A line of `allow` is wrong.
    #[error(transparent)]
    Allow(#[from] AllowError),
    /// It would be given a directory or socket of the daemon's own.
    #[error(transparent)]
    Own(#[from] OwnError),
    /// A file that an option names cannot be read.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The settings of its HTTP client do not work.
    #[error(transparent)]
    Http(#[from] SettingsError),
}

struct Held {
    instance: Instance,
    generation: u64,
    used: Instant,
}

type Slot = Mutex<Option<Held>>;

/// See the module.
pub struct Pool {
    label: String,
    id: String,
    role: String,
    options: Resolved,
    deliver: Slot,
    query: Slot,
    egress: std::sync::Mutex<Option<Egress>>,
    /// Outlives instances, so that their connections are used again.
    http: std::sync::Mutex<Option<Arc<Client>>>,
    log: LogBudget,
    close_error: std::sync::Mutex<Option<String>>,
}

/// An instance in use.
pub struct Lease<'a> {
    slot: MutexGuard<'a, Option<Held>>,
}

impl Pool {
    /// An empty pool for a sink.
    pub fn new(label: &str, id: &str, role: &str, options: Resolved) -> Self {
        Self {
            label: label.to_owned(),
            id: id.to_owned(),
            role: role.to_owned(),
            options,
            deliver: Slot::default(),
            query: Slot::default(),
            egress: std::sync::Mutex::default(),
            http: std::sync::Mutex::default(),
            log: LogBudget::default(),
            close_error: std::sync::Mutex::default(),
        }
    }

    /// The options it opens instances with.
    pub fn options(&self) -> &Resolved {
        &self.options
    }

    /// How often the sink was refused a connection, and what last.
    pub fn refusals(&self) -> (u64, Option<String>) {
        let egress = self.egress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        egress.as_ref().map_or((0, None), Egress::refusals)
    }

    /// Lines and bytes of its output that were left out.
    pub fn log_dropped(&self) -> (u64, u64) {
        self.log.dropped()
    }

    /// Why an instance did not close in order, if the last one did not.
    pub fn close_error(&self) -> Option<String> {
        self.close_error.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    async fn retire(&self, held: Held) {
        let error = held.instance.close().await.err().map(|error| crate::observe::chain(&error));
        if let Some(error) = &error {
            tracing::warn!(sink = %self.label, "an instance did not close: {error}");
        }
        *self.close_error.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = error;
    }

    /// Takes the instance for a use, opening or renewing it as needed. Waits while another caller has it.
    pub async fn take(
        &self,
        usage: Use,
        host: &Host,
        plugin: &Arc<Plugin>,
        config: &Config,
    ) -> Result<Lease<'_>, OpenError> {
        let mut slot = match usage {
            Use::Deliver => self.deliver.lock().await,
            Use::Query => self.query.lock().await,
        };
        let stale = slot
            .as_ref()
            .is_some_and(|held| held.generation != plugin.generation || !held.instance.is_usable());
        if stale && let Some(held) = slot.take() {
            self.retire(held).await;
        }
        if slot.is_none() {
            let instance = self.open(host, plugin, config).await?;
            *slot = Some(Held { instance, generation: plugin.generation, used: Instant::now() });
        }
        Ok(Lease { slot })
    }

    async fn open(&self, host: &Host, plugin: &Arc<Plugin>, config: &Config) -> Result<Instance, OpenError> {
        let settings = &config.plugin(plugin.name());
        let wishes = plugin.manifest.wishes(&self.options);
        let policy = Policy::new(plugin.name(), wishes, &settings.allow, settings.mode)?;
        for wish in &policy.grants {
            refuse_own(plugin.name(), wish, config)?;
        }
        for wish in &policy.refused {
            let line = allow_line(plugin.name(), wish);
            tracing::warn!(sink = %self.label, "the plugin wishes to reach `{wish}`, which is not granted; hint: {line} would allow it");
        }
        let egress = {
            // A new check for each opening: what the operator granted may have changed.
            let egress = Egress::new(plugin.name(), policy.endpoints(), policy.observe);
            *self.egress.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(egress.clone());
            egress
        };
        let http = self.http(plugin.name(), settings, &policy, &egress)?;
        let options = load_files(&self.options, |path| std::fs::read_to_string(path))?;
        let secrets = Secrets::new(&options, self.options.secret_names());
        let options = serde_json::Value::Object(options).to_string();
        let opening = Opening {
            sink: &self.label,
            options,
            id: &self.id,
            role: &self.role,
            limits: Limits::of(settings),
            policy: &policy,
            egress: &egress,
            http: &http,
            own: &OwnPlaces::of(config),
            log: &self.log,
            secrets: &secrets,
        };
        Ok(Instance::open(host, plugin.exports.clone(), opening).await?)
    }

    /// The sink's HTTP client: a new one if what is granted or set, or a file of certificates, has changed.
    fn http(
        &self,
        plugin: &str,
        settings: &crate::config::Plugin,
        policy: &Policy,
        egress: &Egress,
    ) -> Result<Arc<Client>, SettingsError> {
        let settings = Settings::load(plugin, &settings.http)?;
        let rules = Rules::new(policy.web());
        let mut slot = self.http.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(client) = slot.as_ref().filter(|client| client.is_of(&settings, &rules)) {
            client.report_to(egress);
            return Ok(client.clone());
        }
        let client = Arc::new(Client::new(settings, rules, egress, system_resolver())?);
        *slot = Some(client.clone());
        Ok(client)
    }

    /// Closes the instance for questions if it has been idle, and with `all` the one that delivers; called from time to time.
    pub async fn close_idle(&self, limits: &Limits, all: bool) {
        for slot in [Some(&self.query), all.then_some(&self.deliver)].into_iter().flatten() {
            if let Ok(mut slot) = slot.try_lock()
                && slot.as_ref().is_some_and(|held| held.used.elapsed() > limits.idle)
                && let Some(held) = slot.take()
            {
                self.retire(held).await;
            }
        }
    }

    /// Closes all instances, waiting for those in use.
    pub async fn close(&self) {
        for slot in [&self.deliver, &self.query] {
            if let Some(held) = slot.lock().await.take() {
                self.retire(held).await;
            }
        }
    }
}

impl Lease<'_> {
    /// The instance. None only if it died in an earlier call of the same lease.
    pub fn instance(&mut self) -> Result<&mut Instance, CallError> {
        if self.slot.as_ref().is_some_and(|held| held.instance.is_dead()) {
            *self.slot = None;
        }
        match self.slot.as_mut() {
            Some(held) => {
                held.used = Instant::now();
                Ok(&mut held.instance)
            }
            None => Err(CallError::Gone),
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if self.slot.as_ref().is_some_and(|held| held.instance.is_dead()) {
            *self.slot = None;
        }
    }
}
