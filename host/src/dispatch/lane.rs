//! One sink's lane: takes batches from the spool, has them delivered, settles them, and waits when that does not work.
//!
//! Invariants: a lane touches no other lane; an item is settled only by a verdict, by expiry after a try that failed, or because it
//! cannot be read; while the outside system is away nothing is written to the spool, the items simply stay.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::Shared;
use super::backoff::Backoff;
use super::batch::{Batch, Entry};
use super::health::State;
use super::kind::{DeliverEvents, DeliverReturns, Kind, SaveLoads};
use super::sink::Sink;
use super::strikes::Strikes;
use crate::config::Config;
use crate::item::JobLoad;
use crate::observe::chain;
use crate::plugin::Plugin;
use crate::plugin::bindings::types::{Failure, Verdict};
use crate::plugin::instance::CallError;
use crate::plugin::limits::{Limits, MAX_BATCH_BYTES, MAX_BATCH_ITEMS};
use crate::plugin::pool::{OpenError, Use};
use crate::spool::{BatchLimits, DeadClass, Settlement, now_ms};

/// How long to wait where the spool has nothing to give at the moment.
const SPOOL_PAUSE: Duration = Duration::from_millis(500);

/// Expired items that are moved to the dead letters in one commit.
const EXPIRE_STEP: usize = 1_000;

/// How long a plugin that says it cannot work is left before it is asked again.
const FAULTY_PAUSE: Duration = Duration::from_secs(30);

/// A record that the plugin crashed on stays away for so many times `delivery.first_retry`.
const ASIDE_FOR: u32 = 4;

/// Until something else ends the pause; as long as the clock can count.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// How a round ended.
enum Round {
    /// So many records were settled, some of them perhaps stored.
    Done { records: usize, stored: bool },
    /// The lane must wait: what happened, and the earliest next try if the plugin named one.
    Failed { cause: String, operation: &'static str, kind: Trouble },
}

enum Trouble {
    Away {
        after: Option<Duration>,
    },
    Faulty,
    /// The plugin crashed with so many records. `alone` tells that the one record at fault was put aside.
    Crash {
        records: usize,
        alone: bool,
    },
}

/// Runs a lane until the daemon stops.
pub(super) async fn run(shared: Arc<Shared>, sink: Arc<Sink>, mut stop: watch::Receiver<bool>) {
    let delivery = shared.config.load().delivery.clone();
    let mut backoff = Backoff::new(delivery.first_retry, delivery.longest_retry);
    let mut plugins = shared.registry.subscribe();
    let mut strikes = Strikes::new();
    let mut restarts = sink.restarts.subscribe();
    let mut generation = 0;
    // Since when what is in the lane waits for others to come; what was there at the start has waited enough.
    let mut since = None;
    loop {
        if *stop.borrow() {
            return;
        }
        plugins.mark_unchanged();
        if restarts.has_changed().unwrap_or(false) {
            restarts.mark_unchanged();
            strikes = Strikes::new();
            backoff.reset();
        }
        let Some(plugin) = shared.registry.find(&sink.plugin) else {
            let (depth, _) = shared.spool.depth(sink.id);
            if depth > 0 {
                let cause = format!(
                    "no plugin `{}` is loaded; hint: put `{}.wasm` into the plugins directory",
                    sink.plugin, sink.plugin
                );
                sink.health.trouble(State::Faulty, "load", "-", &cause);
            }
            tokio::select! {
                _ = stop.changed() => return,
                _ = plugins.changed() => {}
                () = sink.wake.notified(), if depth == 0 => {}
            }
            continue;
        };
        if std::mem::replace(&mut generation, plugin.generation) != plugin.generation {
            strikes = Strikes::new();
            backoff.reset();
        }
        if !wait_for_work(&shared, &sink, &plugin, since, restarts.clone(), &mut stop).await {
            continue;
        }
        // While the lane waited the plugin may have been replaced or removed.
        if shared.registry.find(&sink.plugin).is_none_or(|now| now.generation != plugin.generation) {
            continue;
        }
        since = Some(Instant::now());
        match round(&shared, &sink, &plugin, strikes.cap()).await {
            Round::Done { records, stored } => {
                backoff.reset();
                strikes.passed(records, stored, Instant::now());
                sink.health.set_strikes(strikes.count());
            }
            Round::Failed { cause, operation, kind } => {
                let mut pause = backoff.next();
                let state = match kind {
                    Trouble::Away { after } => {
                        pause = pause.max(after.unwrap_or_default());
                        State::Down { until: Instant::now() + pause }
                    }
                    Trouble::Faulty => {
                        pause = FAULTY_PAUSE;
                        State::Faulty
                    }
                    Trouble::Crash { records, alone } => {
                        sink.health.count(|counts| counts.crashes += 1);
                        if alone {
                            // The record is out of the way; nothing is gained by waiting as for a system that is away.
                            pause = pause.min(delivery.first_retry);
                        }
                        let count = strikes.crash(records, alone, Instant::now());
                        sink.health.set_strikes(count);
                        let settings = shared.config.load().plugin(&sink.plugin);
                        if count >= Limits::of(&settings).quarantine_after {
                            pause = NEVER;
                            State::Quarantined
                        } else {
                            State::Down { until: Instant::now() + pause }
                        }
                    }
                };
                sink.health.count(|counts| counts.retried += 1);
                sink.health.trouble(state, operation, "-", &cause);
                let until = tokio::time::Instant::now() + pause;
                let mut restarted = restarts.clone();
                loop {
                    tokio::select! {
                        _ = stop.changed() => return,
                        () = tokio::time::sleep_until(until) => break,
                        _ = restarted.changed() => break,
                        // Another plugin's new file changes nothing for this one.
                        _ = plugins.changed() => {
                            let now = shared.registry.find(&sink.plugin).map(|plugin| plugin.generation);
                            if now != Some(plugin.generation) { break }
                        }
                    }
                }
            }
        }
    }
}

/// Waits until a batch is worth delivering: it is full, or what waits has waited long enough. False to look again.
async fn wait_for_work(
    shared: &Shared,
    sink: &Sink,
    plugin: &Plugin,
    mut since: Option<Instant>,
    mut restarts: watch::Receiver<u64>,
    stop: &mut watch::Receiver<bool>,
) -> bool {
    let batch = &plugin.manifest.batch;
    let age = Duration::from_millis(batch.max_age_ms.into());
    let mut idle = false;
    loop {
        if *stop.borrow() {
            return false;
        }
        let woken = sink.wake.notified();
        tokio::pin!(woken);
        woken.as_mut().enable();
        let (depth, bytes) = shared.spool.depth(sink.id);
        let pause = if depth == 0 {
            idle = true;
            None
        } else {
            if std::mem::take(&mut idle) {
                since = Some(Instant::now());
            }
            let waited = since.map_or(age, |since| since.elapsed());
            if depth >= u64::from(batch.max_items) || bytes >= batch.max_bytes || waited >= age {
                match shared.spool.next_due(sink.id, &HashSet::new()).await {
                    Ok(Some(due)) if due <= now_ms() => return true,
                    Ok(Some(due)) => Some(Duration::from_millis(due.saturating_sub(now_ms()).max(1))),
                    // All that is there is settled, and only the disk does not know yet.
                    Ok(None) => Some(SPOOL_PAUSE),
                    Err(error) => {
                        tracing::warn!(sink = %sink.label, "cannot look into the lane: {}", chain(&error));
                        Some(SPOOL_PAUSE)
                    }
                }
            } else {
                Some((age - waited).max(Duration::from_millis(1)))
            }
        };
        tokio::select! {
            _ = stop.changed() => return false,
            () = woken => {}
            _ = restarts.changed() => return false,
            () = async { tokio::time::sleep(pause.unwrap_or_default()).await }, if pause.is_some() => {}
        }
    }
}

async fn round(shared: &Shared, sink: &Sink, plugin: &Arc<Plugin>, cap: usize) -> Round {
    let config = shared.config.load_full();
    let most = usize::try_from(plugin.manifest.batch.max_items).unwrap_or(usize::MAX).min(MAX_BATCH_ITEMS);
    let max_bytes = plugin.manifest.batch.max_bytes.min(MAX_BATCH_BYTES);
    let limits = BatchLimits { max_items: most.min(cap), max_bytes };
    let items = match shared.spool.batch(sink.id, limits, now_ms(), &HashSet::new()).await {
        Ok(items) => items,
        Err(error) => {
            return Round::Failed {
                cause: chain(&error),
                operation: "read the spool",
                kind: Trouble::Away { after: None },
            };
        }
    };
    if items.is_empty() {
        return Round::Done { records: 0, stored: false };
    }
    let records = items.len();
    let others = shared.spool.depth(sink.id).0 > records as u64;
    let batch = Batch::new(items, plugin.interfaces.jobs, |jid| sink.recent(|recent| recent.has_load(jid)));
    let mut delivery = Delivery {
        sink,
        jobs: plugin.interfaces.jobs,
        settlements: Vec::with_capacity(batch.items.len()),
        settled: vec![false; batch.items.len()],
        batch: &batch,
        first_retry: config.delivery.first_retry,
        longest_retry: config.delivery.longest_retry,
        max_age_ms: u64::try_from(config.delivery.max_age.as_millis()).unwrap_or(u64::MAX),
        held_jids: Vec::new(),
        operation: "read",
        stored: 0,
        put_aside: others && records == 1,
        is_aside: false,
    };
    for (at, why) in &batch.unreadable {
        delivery.dead(*at, DeadClass::Damaged, why.clone());
    }
    let outcome = delivery.deliver(shared, plugin, &config).await;
    let stored = delivery.stored;
    let alone = delivery.is_aside;
    if let Err(error) = shared.spool.settle(delivery.settlements).await {
        // What was delivered may be delivered again; every plugin expects that.
        return Round::Failed {
            cause: chain(&error),
            operation: "settle",
            kind: Trouble::Away { after: None },
        };
    }
    if let Err(Round::Failed { cause, .. }) = &outcome {
        expire(shared, sink, config.delivery.max_age, cause).await;
    }
    match outcome {
        Ok(()) => {
            if stored > 0 {
                sink.health.up();
            }
            Round::Done { records, stored: stored > 0 }
        }
        Err(Round::Failed { cause, operation, kind: Trouble::Crash { .. } }) => {
            let kind = Trouble::Crash { records, alone };
            Round::Failed { cause, operation, kind }
        }
        Err(failed) => failed,
    }
}

/// After a failure: what is too old does not get another try.
async fn expire(shared: &Shared, sink: &Sink, max_age: Duration, cause: &str) {
    let before = now_ms().saturating_sub(u64::try_from(max_age.as_millis()).unwrap_or(u64::MAX));
    let reason = expired(cause);
    loop {
        let (depth, _) = shared.spool.depth(sink.id);
        match shared.spool.expire(sink.id, before, EXPIRE_STEP, &reason, &HashSet::new()).await {
            Ok(0) => return,
            Ok(count) => {
                tracing::warn!(sink = %sink.label, count, "dead letters: {reason}");
                sink.health.count(|counts| counts.expired += count);
                if shared.spool.depth(sink.id).0 >= depth {
                    // There is no room for dead letters; the spool holds the records back and says so.
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(sink = %sink.label, "cannot move expired records: {}", chain(&error));
                return;
            }
        }
    }
}

fn expired(cause: &str) -> String {
    format!("not stored within `delivery.max_age`; last: {cause}")
}

struct Delivery<'a> {
    sink: &'a Sink,
    /// Whether the plugin answers questions about jobs; else nothing need be remembered for them.
    jobs: bool,
    batch: &'a Batch,
    settlements: Vec<Settlement>,
    settled: Vec<bool>,
    first_retry: Duration,
    longest_retry: Duration,
    max_age_ms: u64,
    /// Jobs whose load is to be tried again; their returns wait for it.
    held_jids: Vec<String>,
    /// What is being done, for log lines.
    operation: &'static str,
    stored: u64,
    /// The batch is one record, and others wait behind it: should the plugin crash, the record lets them pass.
    put_aside: bool,
    /// That is done.
    is_aside: bool,
}

impl Delivery<'_> {
    async fn deliver(&mut self, shared: &Shared, plugin: &Arc<Plugin>, config: &Config) -> Result<(), Round> {
        let mut lease = self
            .sink
            .pool
            .take(Use::Deliver, shared.registry.host(), plugin, config)
            .await
            .map_err(|error| open_failed(&error))?;
        let batch = self.batch;
        if plugin.interfaces.jobs {
            let loads: Vec<&Entry<JobLoad>> = batch.loads.iter().collect();
            self.send(&mut lease, loads, SaveLoads).await?;
        } else {
            // A notifier has no place for loads; there is nothing to keep.
            for entry in &batch.loads {
                self.stored(&entry.items);
            }
        }
        let held = std::mem::take(&mut self.held_jids);
        let (waiting, ready): (Vec<_>, Vec<_>) =
            batch.returns.iter().partition(|entry| held.contains(&entry.record.jid));
        for entry in waiting {
            self.retry(&entry.items, "the load of its job is not stored yet".into(), None);
        }
        self.send(&mut lease, ready, DeliverReturns).await?;
        self.send(&mut lease, batch.events.iter().collect(), DeliverEvents).await
    }

    /// Hands records over, halving on a rejection of the whole call until the record at fault stands alone.
    async fn send<K: Kind>(
        &mut self,
        lease: &mut crate::plugin::pool::Lease<'_>,
        entries: Vec<&Entry<K::Record>>,
        kind: K,
    ) -> Result<(), Round> {
        self.operation = K::OPERATION;
        let mut waiting = vec![entries];
        while let Some(entries) = waiting.pop() {
            if entries.is_empty() {
                continue;
            }
            let records: Vec<K::Record> = entries.iter().map(|entry| entry.record.clone()).collect();
            let result = match lease.instance() {
                Ok(instance) => K::call(instance, records).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(verdicts) => {
                    self.sink.health.count(|counts| counts.batches += 1);
                    for (entry, verdict) in entries.iter().zip(verdicts) {
                        match verdict {
                            Verdict::Stored => {
                                if self.jobs {
                                    kind.note(self.sink, &entry.record);
                                }
                                self.stored(&entry.items);
                            }
                            Verdict::Retry(info) => {
                                kind.held(&entry.record, &mut self.held_jids);
                                self.retry(&entry.items, info.why, info.after_ms);
                            }
                            Verdict::Reject(why) => self.reject(&entry.items, &why),
                        }
                    }
                }
                Err(CallError::Failure(Failure::Reject(why))) if entries.len() == 1 => {
                    self.reject(&entries[0].items, &why);
                }
                Err(CallError::Failure(Failure::Reject(_))) => {
                    let (front, back) = entries.split_at(entries.len() / 2);
                    waiting.push(back.to_vec());
                    waiting.push(front.to_vec());
                }
                Err(error) => {
                    if error.is_strike() && self.put_aside {
                        // It stays away for longer than the lane pauses, so that others are before it.
                        let aside = self.first_retry.saturating_mul(ASIDE_FOR).as_millis();
                        self.retry(&entries[0].items, chain(&error), u32::try_from(aside).ok());
                        self.is_aside = true;
                    }
                    return Err(call_failed(&error, K::OPERATION));
                }
            }
        }
        Ok(())
    }

    fn stored(&mut self, items: &[usize]) {
        for &at in items {
            self.stored += 1;
            self.settle(at, |seq| Settlement::Delivered { seq });
        }
        let count = items.len() as u64;
        self.sink.health.count(|counts| counts.stored += count);
    }

    fn retry(&mut self, items: &[usize], why: String, after_ms: Option<u32>) {
        for &at in items {
            let item = &self.batch.items[at];
            if now_ms().saturating_sub(item.since_ms) > self.max_age_ms {
                self.dead(at, DeadClass::Expired, expired(&why));
                continue;
            }
            let pause = Backoff::pause(self.first_retry, self.longest_retry, item.attempts)
                .max(Duration::from_millis(after_ms.unwrap_or(0).into()));
            let not_before_ms = now_ms() + u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            let error = why.clone();
            self.settle(at, |seq| Settlement::Retry { seq, not_before_ms, error });
            self.sink.health.count(|counts| counts.retried += 1);
        }
        if !items.is_empty() {
            let jid = self.batch.items[items[0]].jid.clone();
            if let Some(held_back) = self.sink.throttle.pass("retry") {
                let operation = self.operation;
                tracing::info!(sink = %self.sink.label, operation, jid, held_back, "tried again later: {why}");
            }
        }
    }

    fn reject(&mut self, items: &[usize], why: &str) {
        for &at in items {
            self.dead(at, DeadClass::Rejected, why.to_owned());
        }
    }

    fn dead(&mut self, at: usize, class: DeadClass, reason: String) {
        let item = &self.batch.items[at];
        let (jid, minion) = (item.jid.clone(), item.minion.clone());
        if let Some(held_back) = self.sink.throttle.pass(class.as_str()) {
            let (operation, class) = (self.operation, class.as_str());
            tracing::warn!(sink = %self.sink.label, operation, jid, minion, class, held_back, "dead letter: {reason}");
        }
        self.sink.health.count(|counts| match class {
            DeadClass::Rejected => counts.rejected += 1,
            DeadClass::Expired => counts.expired += 1,
            DeadClass::Damaged => {}
        });
        self.settle(at, |seq| Settlement::Dead { seq, reason, class });
    }

    fn settle(&mut self, at: usize, make: impl FnOnce(u64) -> Settlement) {
        if !std::mem::replace(&mut self.settled[at], true) {
            self.settlements.push(make(self.batch.items[at].seq));
        }
    }
}

fn open_failed(error: &OpenError) -> Round {
    match error {
        OpenError::Call(error) => call_failed(error, "open"),
        other => Round::Failed { cause: chain(other), operation: "open", kind: Trouble::Faulty },
    }
}

fn call_failed(error: &CallError, operation: &'static str) -> Round {
    let kind = match error {
        CallError::Failure(Failure::Retry(info)) => {
            Trouble::Away { after: info.after_ms.map(|ms| Duration::from_millis(ms.into())) }
        }
        CallError::Crowded => Trouble::Away { after: None },
        CallError::Failure(_) | CallError::Directory(_) | CallError::Missing(_) => Trouble::Faulty,
        CallError::Trap { .. } | CallError::Timeout { .. } | CallError::Verdicts { .. } | CallError::Gone => {
            Trouble::Crash { records: 0, alone: false }
        }
    };
    Round::Failed { cause: chain(error), operation, kind }
}
