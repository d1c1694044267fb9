//! One running copy of a plugin.
//!
//! Invariants: one call at a time, each under two clocks (the epoch for a guest that computes, a timer for one that waits); after a
//! trap, a timeout or a host error the store is poisoned, so the instance reports itself dead and is dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wasmtime::component::{Instance as WasmInstance, InstancePre, ResourceTableError};
use wasmtime::{PoolConcurrencyLimitError, Store, UpdateDeadline};

use super::bindings::types::{self, Failure, Verdict};
use super::bindings::{events, jobs, lifecycle, returns};
use super::engine::Host;
use super::limits::{HOSTCALL_BYTES, Limits, MAX_HANDLES, MAX_INSTANCES, MAX_RESOURCES, TICK};
use super::reason::Secrets;
use super::state::State;
use super::stdio::LogBudget;
use crate::policy::Policy;
use crate::policy::directories::DirectoryError;
use crate::policy::egress::Egress;
use crate::policy::http::client::Client;
use crate::policy::own::OwnPlaces;

/// Why a call gave no answer of the plugin's own.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The plugin answered with a failure of the whole call.
    #[error("{}", failure_text(.0))]
    Failure(Failure),
    /// It trapped, or broke a limit.
    #[error("the plugin crashed in `{function}`: {why}")]
    Trap {
        /// The function.
        function: &'static str,
        /// The trap, with the limit that was broken if one was.
        why: String,
    },
    /// It used up its time.
    #[error(
        "the plugin did not answer `{function}` within {limit:?}; hint: `call_within` in its table in returnerd.toml sets the limit"
    )]
    Timeout {
        /// The function.
        function: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// Its answer does not fit the question.
    #[error("the plugin answered `{function}` with {got} verdicts for {expected} records")]
    Verdicts {
        /// The function.
        function: &'static str,
        /// Records handed over.
        expected: usize,
        /// Verdicts that came back.
        got: usize,
    },
    /// A directory that it was granted cannot be opened.
    #[error("cannot prepare the plugin's surroundings")]
    Directory(#[from] DirectoryError),
    /// As many instances run as the engine has places for.
    #[error(
        "all {MAX_INSTANCES} instances that can run at once are in use; those without work are closed, and then it is tried again"
    )]
    Crowded,
    /// An earlier call ended the instance.
    #[error("the plugin's instance ended in an earlier call")]
    Gone,
    /// It lacks the interface.
    #[error("the plugin does not export `{0}`")]
    Missing(&'static str),
}

impl CallError {
    /// Whether it counts against the plugin.
    pub fn is_strike(&self) -> bool {
        matches!(self, Self::Trap { .. } | Self::Timeout { .. } | Self::Verdicts { .. })
    }
}

fn failure_text(failure: &Failure) -> &str {
    match failure {
        Failure::Retry(info) => &info.why,
        Failure::Reject(why) | Failure::Fatal(why) => why,
    }
}

/// The exports of a plugin, looked up once when it is loaded.
pub(crate) struct Exports {
    pub(crate) pre: InstancePre<State>,
    lifecycle: lifecycle::GuestIndices,
    returns: Option<returns::GuestIndices>,
    jobs: Option<jobs::GuestIndices>,
    events: Option<events::GuestIndices>,
}

impl Exports {
    pub(crate) fn new(pre: InstancePre<State>, has: super::file::Interfaces) -> wasmtime::Result<Self> {
        Ok(Self {
            lifecycle: lifecycle::GuestIndices::new(&pre)?,
            returns: has.returns.then(|| returns::GuestIndices::new(&pre)).transpose()?,
            jobs: has.jobs.then(|| jobs::GuestIndices::new(&pre)).transpose()?,
            events: has.events.then(|| events::GuestIndices::new(&pre)).transpose()?,
            pre,
        })
    }
}

/// What an instance is opened with.
pub struct Opening<'a> {
    /// The sink's short name.
    pub sink: &'a str,
    /// The options as one JSON object.
    pub options: String,
    /// The id of the minion or master.
    pub id: &'a str,
    /// `master` or `minion`.
    pub role: &'a str,
    /// The limits.
    pub limits: Limits,
    /// What it may reach.
    pub policy: &'a Policy,
    /// The check of its connections.
    pub egress: &'a Egress,
    /// The sink's HTTP client.
    pub http: &'a Arc<Client>,
    /// What no grant gives.
    pub own: &'a OwnPlaces,
    /// What it may log.
    pub log: &'a LogBudget,
    /// What nobody may see.
    pub secrets: &'a Secrets,
}

/// One running copy.
pub struct Instance {
    store: Store<State>,
    lifecycle: lifecycle::Guest,
    returns: Option<returns::Guest>,
    jobs: Option<jobs::Guest>,
    events: Option<events::Guest>,
    limits: Limits,
    renew_at: Instant,
    calls_left: u64,
    secrets: Secrets,
    dead: bool,
    /// Keeps the plugin's exports, and so its generation, alive as long as one of its instances runs.
    _exports: Arc<Exports>,
}

impl Instance {
    /// Makes and opens an instance.
    pub(crate) async fn open(
        host: &Host,
        exports: Arc<Exports>,
        opening: Opening<'_>,
    ) -> Result<Self, CallError> {
        let limits = opening.limits;
        let state = State::new(&opening)?;
        let mut store = Store::new(host.engine(), state);
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(HOSTCALL_BYTES);
        store.set_max_component_handles(MAX_HANDLES);
        store.epoch_deadline_callback(|mut context| {
            let state = context.data_mut();
            state.cpu_ticks = state.cpu_ticks.saturating_sub(1);
            if state.cpu_ticks == 0 {
                return Err(wasmtime::Error::msg(
                    "it used up its time on the processor; hint: `cpu_per_call` in its table in returnerd.toml sets the limit",
                ));
            }
            Ok(UpdateDeadline::Yield(1))
        });
        prepare(&mut store, &limits);
        let instantiated = tokio::time::timeout(limits.open, instantiate(&mut store, &exports))
            .await
            .map_err(|_| CallError::Timeout { function: "start", limit: limits.open })?;
        let (lifecycle, returns, jobs, events) = match instantiated {
            Ok(parts) => parts,
            // The plugin did nothing wrong.
            Err(error) if error.chain().any(|cause| cause.is::<PoolConcurrencyLimitError>()) => {
                return Err(CallError::Crowded);
            }
            Err(error) => return Err(trap("start", &error, &mut store)),
        };
        let mut instance = Self {
            store,
            lifecycle,
            returns,
            jobs,
            events,
            limits,
            renew_at: Instant::now() + jittered(limits.renew_after),
            calls_left: jittered_count(limits.renew_after_calls),
            secrets: opening.secrets.clone(),
            dead: false,
            _exports: exports,
        };
        let config = lifecycle::Config {
            options: opening.options,
            sink: opening.sink.to_owned(),
            id: opening.id.to_owned(),
            role: opening.role.to_owned(),
        };
        let guest = instance.lifecycle.clone();
        instance.call("open", limits.open, async |store| guest.call_open(store, &config).await).await?;
        Ok(instance)
    }

    /// Whether it can take another call.
    pub fn is_usable(&self) -> bool {
        !self.dead
            && self.calls_left > 0
            && Instant::now() < self.renew_at
            && self.store.data().limiter.peak() < self.limits.renew_above
    }

    /// Whether its store is poisoned.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Says goodbye. An error does not matter for the records any more, but the operator may want to know.
    pub async fn close(mut self) -> Result<(), CallError> {
        if self.dead {
            return Ok(());
        }
        let limit = self.limits.close;
        let guest = self.lifecycle.clone();
        self.call("close", limit, async |store| guest.call_close(store).await.map(Ok)).await
    }

    /// `returns.deliver`.
    pub async fn deliver(&mut self, returns: &[types::JobReturn]) -> Result<Vec<Verdict>, CallError> {
        let guest = self.returns.clone().ok_or(CallError::Missing("returns"))?;
        let expected = returns.len();
        let limit = self.limits.call;
        let verdicts = self
            .call("returns.deliver", limit, async |store| guest.call_deliver(store, returns).await)
            .await?;
        self.checked("returns.deliver", verdicts, expected)
    }

    /// `events.deliver`.
    pub async fn deliver_events(&mut self, events: &[types::Event]) -> Result<Vec<Verdict>, CallError> {
        let guest = self.events.clone().ok_or(CallError::Missing("events"))?;
        let expected = events.len();
        let limit = self.limits.call;
        let verdicts =
            self.call("events.deliver", limit, async |store| guest.call_deliver(store, events).await).await?;
        self.checked("events.deliver", verdicts, expected)
    }

    /// `jobs.save-loads`.
    pub async fn save_loads(&mut self, loads: &[types::JobLoad]) -> Result<Vec<Verdict>, CallError> {
        let guest = self.jobs.clone().ok_or(CallError::Missing("jobs"))?;
        let expected = loads.len();
        let limit = self.limits.call;
        let verdicts = self
            .call("jobs.save-loads", limit, async |store| guest.call_save_loads(store, loads).await)
            .await?;
        self.checked("jobs.save-loads", verdicts, expected)
    }

    /// `jobs.get-load`.
    pub async fn get_load(&mut self, jid: &str) -> Result<Option<jobs::StoredLoad>, CallError> {
        let guest = self.jobs.clone().ok_or(CallError::Missing("jobs"))?;
        let limit = self.limits.call;
        self.call("jobs.get-load", limit, async |store| guest.call_get_load(store, jid).await).await
    }

    /// `jobs.get-returns`.
    pub async fn get_returns(&mut self, jid: &str) -> Result<Vec<jobs::StoredReturn>, CallError> {
        let guest = self.jobs.clone().ok_or(CallError::Missing("jobs"))?;
        let limit = self.limits.call;
        self.call("jobs.get-returns", limit, async |store| guest.call_get_returns(store, jid).await).await
    }

    /// `jobs.get-jids`.
    pub async fn get_jids(&mut self, filter: &jobs::JidsFilter) -> Result<Vec<jobs::StoredLoad>, CallError> {
        let guest = self.jobs.clone().ok_or(CallError::Missing("jobs"))?;
        let limit = self.limits.call;
        self.call("jobs.get-jids", limit, async |store| guest.call_get_jids(store, filter).await).await
    }

    /// `jobs.get-fun`.
    pub async fn get_fun(&mut self, fun: &str) -> Result<Vec<jobs::StoredReturn>, CallError> {
        let guest = self.jobs.clone().ok_or(CallError::Missing("jobs"))?;
        let limit = self.limits.call;
        self.call("jobs.get-fun", limit, async |store| guest.call_get_fun(store, fun).await).await
    }

    /// `jobs.get-minions`.
    pub async fn get_minions(&mut self) -> Result<Vec<String>, CallError> {
        let guest = self.jobs.clone().ok_or(CallError::Missing("jobs"))?;
        let limit = self.limits.call;
        self.call("jobs.get-minions", limit, async |store| guest.call_get_minions(store).await).await
    }

    /// `jobs.purge`.
    pub async fn purge(&mut self, request: &jobs::PurgeRequest) -> Result<jobs::Purged, CallError> {
        let guest = self.jobs.clone().ok_or(CallError::Missing("jobs"))?;
        let limit = self.limits.call;
        self.call("jobs.purge", limit, async |store| guest.call_purge(store, request).await).await
    }

    fn checked(
        &mut self,
        function: &'static str,
        verdicts: Vec<Verdict>,
        expected: usize,
    ) -> Result<Vec<Verdict>, CallError> {
        if verdicts.len() == expected {
            return Ok(verdicts.into_iter().map(|verdict| self.secrets.verdict(verdict)).collect());
        }
        self.dead = true;
        Err(CallError::Verdicts { function, expected, got: verdicts.len() })
    }

    async fn call<R>(
        &mut self,
        function: &'static str,
        limit: Duration,
        run: impl AsyncFnOnce(&mut Store<State>) -> wasmtime::Result<Result<R, Failure>>,
    ) -> Result<R, CallError> {
        prepare(&mut self.store, &self.limits);
        self.calls_left = self.calls_left.saturating_sub(1);
        // Should this future be dropped half way, the store cannot be used again.
        self.dead = true;
        match tokio::time::timeout(limit, run(&mut self.store)).await {
            Err(_) => Err(CallError::Timeout { function, limit }),
            Ok(Err(error)) => Err(trap(function, &error, &mut self.store)),
            Ok(Ok(Err(failure))) => {
                self.dead = matches!(failure, Failure::Fatal(_));
                Err(CallError::Failure(self.secrets.failure(failure)))
            }
            Ok(Ok(Ok(answer))) => {
                self.dead = false;
                Ok(answer)
            }
        }
    }
}

type Guests = (lifecycle::Guest, Option<returns::Guest>, Option<jobs::Guest>, Option<events::Guest>);

async fn instantiate(store: &mut Store<State>, exports: &Exports) -> wasmtime::Result<Guests> {
    let instance: WasmInstance = exports.pre.instantiate_async(&mut *store).await?;
    let lifecycle = exports.lifecycle.load(&mut *store, &instance)?;
    let returns = exports.returns.as_ref().map(|x| x.load(&mut *store, &instance)).transpose()?;
    let jobs = exports.jobs.as_ref().map(|x| x.load(&mut *store, &instance)).transpose()?;
    let events = exports.events.as_ref().map(|x| x.load(&mut *store, &instance)).transpose()?;
    Ok((lifecycle, returns, jobs, events))
}

fn prepare(store: &mut Store<State>, limits: &Limits) {
    store.data_mut().cpu_ticks = limits.cpu_ticks;
    store.set_epoch_deadline(1);
}

fn trap(function: &'static str, error: &wasmtime::Error, store: &mut Store<State>) -> CallError {
    let mut why = format!("{:#}", error.root_cause());
    if let Some(refused) = store.data_mut().limiter.take_refused() {
        why = format!("{refused} ({why})");
    }
    if error.chain().any(|cause| cause.to_string() == ResourceTableError::Full.to_string()) {
        why = format!("it has more than {MAX_RESOURCES} open files, sockets and streams");
    }
    tracing::debug!(function, error = format!("{error:#}"), "a plugin crashed");
    CallError::Trap { function, why }
}

/// A count between 0.9 and 1.1 of the given one.
fn jittered_count(count: u64) -> u64 {
    let spread = count / 10;
    (count - spread).saturating_add(fastrand::u64(..=spread.saturating_mul(2))).max(1)
}

/// A time between 0.9 and 1.1 of the given one, so that instances are not renewed in step.
fn jittered(time: Duration) -> Duration {
    time.mul_f64(0.9 + 0.2 * fastrand::f64()).max(TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_by_count_are_spread() {
        let counts: Vec<u64> = (0..100).map(|_| jittered_count(1_000)).collect();
        assert!(counts.iter().all(|count| (900..=1_100).contains(count)), "{counts:?}");
        assert!(counts.iter().any(|count| *count != counts[0]));
        assert_eq!(jittered_count(1), 1);
    }
}
