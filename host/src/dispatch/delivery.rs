//! Handing one batch over: loads before returns before events, and a settlement for each item from the verdicts.
//!
//! Invariants: an item gets at most one settlement; what got none stays untouched in the lane.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::backoff::Backoff;
use super::batch::{Batch, Entry};
use super::kind::{DeliverEvents, DeliverReturns, Kind, SaveLoads};
use super::round::{Round, Trouble};
use super::sink::Sink;
use crate::config::Config;
use crate::observe::chain;
use crate::plugin::Plugin;
use crate::plugin::bindings::types::{Failure, Verdict};
use crate::plugin::instance::CallError;
use crate::plugin::pool::{Lease, OpenError, Use};
use crate::spool::{DeadClass, Item, Settlement, now_ms};

/// A record that the plugin crashed on stays away for so many times `delivery.first_retry`.
const ASIDE_FOR: u32 = 4;

/// Why something is dead that was not stored in time.
pub(super) fn expired(cause: &str) -> String {
    format!("not stored within `delivery.max_age`; last: {cause}")
}

/// See the module.
pub(super) struct Delivery<'a> {
    sink: &'a Sink,
    /// Whether the plugin answers questions about jobs; else nothing need be remembered for them.
    jobs: bool,
    items: Vec<Item>,
    /// What becomes of the items so far.
    pub(super) settlements: Vec<Settlement>,
    settled: Vec<bool>,
    first_retry: Duration,
    longest_retry: Duration,
    max_age_ms: u64,
    /// Jobs whose load is to be tried again; their returns wait for it.
    held_jids: Vec<String>,
    /// What is being done, for log lines.
    operation: &'static str,
    /// Records that were stored.
    pub(super) stored: u64,
    /// The batch is one record, and others wait behind it: should the plugin crash, the record lets them pass.
    put_aside: bool,
    /// That is done.
    pub(super) is_aside: bool,
}

impl<'a> Delivery<'a> {
    /// A delivery of items; with `put_aside` a single record at fault lets others pass.
    pub(super) fn new(
        sink: &'a Sink,
        plugin: &Plugin,
        config: &Config,
        items: Vec<Item>,
        put_aside: bool,
    ) -> Self {
        Self {
            sink,
            jobs: plugin.interfaces.jobs,
            settlements: Vec::with_capacity(items.len()),
            settled: vec![false; items.len()],
            items,
            first_retry: config.delivery.first_retry,
            longest_retry: config.delivery.longest_retry,
            max_age_ms: u64::try_from(config.delivery.max_age.as_millis()).unwrap_or(u64::MAX),
            held_jids: Vec::new(),
            operation: "read",
            stored: 0,
            put_aside,
            is_aside: false,
        }
    }

    /// Hands over the records of the batch that the items came from.
    pub(super) async fn deliver(
        &mut self,
        shared: &Shared,
        plugin: &Arc<Plugin>,
        config: &Config,
        batch: Batch,
    ) -> Result<(), Round> {
        for (at, why) in batch.unreadable {
            self.dead(at, DeadClass::Damaged, why);
        }
        let mut lease = self
            .sink
            .pool
            .take(Use::Deliver, shared.registry.host(), plugin, config)
            .await
            .map_err(|error| open_failed(&error))?;
        if plugin.interfaces.jobs {
            self.send(&mut lease, batch.loads, SaveLoads).await?;
        } else {
            // A notifier has no place for loads; there is nothing to keep.
            for entry in &batch.loads {
                self.stored(&entry.items);
            }
        }
        let held = std::mem::take(&mut self.held_jids);
        let (waiting, ready): (Vec<_>, Vec<_>) =
            batch.returns.into_iter().partition(|entry| held.contains(&entry.record.jid));
        for entry in waiting {
            self.retry(&entry.items, "the load of its job is not stored yet".into(), None);
        }
        self.send(&mut lease, ready, DeliverReturns).await?;
        self.send(&mut lease, batch.events, DeliverEvents).await
    }

    /// Hands records over, halving on a rejection of the whole call until the record at fault stands alone.
    async fn send<K: Kind>(
        &mut self,
        lease: &mut Lease<'_>,
        entries: Vec<Entry<K::Record>>,
        kind: K,
    ) -> Result<(), Round> {
        self.operation = K::OPERATION;
        let (items, records): (Vec<Vec<usize>>, Vec<K::Sent>) =
            entries.into_iter().map(|entry| (entry.items, entry.record.into())).unzip();
        let mut waiting = vec![(items.as_slice(), records.as_slice())];
        while let Some((items, records)) = waiting.pop() {
            if records.is_empty() {
                continue;
            }
            let result = match lease.instance() {
                Ok(instance) => K::call(instance, records).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(verdicts) => {
                    self.sink.health.count(|counts| counts.batches += 1);
                    for ((items, record), verdict) in items.iter().zip(records).zip(verdicts) {
                        match verdict {
                            Verdict::Stored => {
                                if self.jobs {
                                    kind.note(self.sink, record);
                                }
                                self.stored(items);
                            }
                            Verdict::Retry(info) => {
                                kind.held(record, &mut self.held_jids);
                                self.retry(items, info.why, info.after_ms);
                            }
                            Verdict::Reject(why) => self.reject(items, &why),
                        }
                    }
                }
                Err(CallError::Failure(Failure::Reject(why))) if records.len() == 1 => {
                    self.reject(&items[0], &why);
                }
                Err(CallError::Failure(Failure::Reject(_))) => {
                    let middle = records.len() / 2;
                    let ((items, more_items), (records, more_records)) =
                        (items.split_at(middle), records.split_at(middle));
                    waiting.push((more_items, more_records));
                    waiting.push((items, records));
                }
                Err(error) => {
                    if error.is_strike() && self.put_aside {
                        // It stays away for longer than the lane pauses, so that others are before it.
                        let aside = self.first_retry.saturating_mul(ASIDE_FOR).as_millis();
                        self.retry(&items[0], chain(&error), u32::try_from(aside).ok());
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
            let item = &self.items[at];
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
            let jid = self.items[items[0]].jid.clone();
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
        let item = &self.items[at];
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
            self.settlements.push(make(self.items[at].seq));
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
