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
use super::health::State;
use super::round::{Ahead, Round, Trouble, round};
use super::sink::Sink;
use super::strikes::Strikes;
use crate::observe::chain;
use crate::plugin::Plugin;
use crate::plugin::limits::Limits;
use crate::spool::now_ms;

/// How long to wait where the spool has nothing to give at the moment.
const SPOOL_PAUSE: Duration = Duration::from_millis(500);

/// How long a plugin that says it cannot work is left before it is asked again.
const FAULTY_PAUSE: Duration = Duration::from_secs(30);

/// Until something else ends the pause; as long as the clock can count.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Runs a lane until the daemon stops.
pub(super) async fn run(shared: Arc<Shared>, sink: Arc<Sink>, stop: watch::Receiver<bool>) {
    let mut ahead = Ahead::default();
    rounds(&shared, &sink, stop, &mut ahead).await;
    if let Err(error) = ahead.settled().await {
        tracing::warn!(sink = %sink.label, "the last batch is delivered again at the next start: {}", chain(&error));
    }
}

async fn rounds(shared: &Arc<Shared>, sink: &Arc<Sink>, mut stop: watch::Receiver<bool>, ahead: &mut Ahead) {
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
            ahead.forget();
        }
        let Some(plugin) = shared.registry.find(&sink.plugin) else {
            ahead.forget();
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
            ahead.forget();
        }
        if !ahead.has_next()
            && !wait_for_work(shared, sink, &plugin, since, restarts.clone(), &mut stop).await
        {
            continue;
        }
        // While the lane waited the plugin may have been replaced or removed.
        if shared.registry.find(&sink.plugin).is_none_or(|now| now.generation != plugin.generation) {
            continue;
        }
        since = Some(Instant::now());
        match round(shared, sink, &plugin, strikes.cap(), ahead).await {
            Round::Done { records, stored } => {
                backoff.reset();
                strikes.passed(records, stored, Instant::now());
                sink.health.set_strikes(strikes.count());
            }
            Round::Failed { cause, operation, kind } => {
                ahead.forget();
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
