//! One round of a lane: the next batch, its delivery, its settlement; and what goes on beside the delivery.
//!
//! While one batch is delivered the next is read and decoded, and the one before it is settled, so that the outside system does not
//! wait for the disk, nor for the decoding.
//!
//! Invariants: an item is in one batch at a time, as what is read leaves out what is given out and not settled; the next batch is read
//! ahead only if it is full; of a sink that fails or is replaced nothing read ahead is kept; settlements are made in turn. After a
//! crash up to two batches are delivered again, instead of one.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::Shared;
use super::batch::Batch;
use super::delivery::{Delivery, expired};
use super::sink::Sink;
use crate::observe::chain;
use crate::plugin::Plugin;
use crate::plugin::limits::{MAX_BATCH_BYTES, MAX_BATCH_ITEMS};
use crate::spool::{BatchLimits, Settled, Settlement, SinkId, Spool, SpoolError, now_ms};

/// Expired items that are moved to the dead letters in one commit.
const EXPIRE_STEP: usize = 1_000;

/// How a round ended.
pub(super) enum Round {
    /// So many records were settled, some of them perhaps stored.
    Done { records: usize, stored: bool },
    /// The lane must wait: what happened, and the earliest next try if the plugin named one.
    Failed { cause: String, operation: &'static str, kind: Trouble },
}

/// What is the matter.
pub(super) enum Trouble {
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

/// What goes on beside a delivery.
#[derive(Default)]
pub(super) struct Ahead {
    /// The next batch.
    next: Option<JoinHandle<Result<Batch, SpoolError>>>,
    /// The settlement of the batch before.
    settling: Option<Settling>,
}

struct Settling {
    /// The numbers of its items.
    seqs: Vec<u64>,
    done: JoinHandle<Result<Settled, SpoolError>>,
}

impl Ahead {
    /// Whether a batch is being read that is worth delivering.
    pub(super) fn has_next(&self) -> bool {
        self.next.is_some()
    }

    /// Leaves what was read ahead in the lane.
    pub(super) fn forget(&mut self) {
        self.next = None;
    }

    /// Waits until all is settled.
    pub(super) async fn settled(&mut self) -> Result<(), SpoolError> {
        match self.settling.take() {
            Some(settling) => settling.done.await.map_err(|_| SpoolError::Closed)?.map(drop),
            None => Ok(()),
        }
    }

    fn settle(&mut self, spool: &Spool, seqs: Vec<u64>, list: Vec<Settlement>) {
        let spool = spool.clone();
        let done = tokio::spawn(async move { spool.settle(list).await });
        self.settling = Some(Settling { seqs, done });
    }

    fn read(&mut self, spool: &Spool, sink: SinkId, limits: BatchLimits, given_out: &[u64]) {
        let settling = self.settling.iter().flat_map(|settling| &settling.seqs);
        let skip = given_out.iter().chain(settling).copied().collect();
        let spool = spool.clone();
        self.next = Some(tokio::spawn(async move { read(&spool, sink, limits, &skip).await }));
    }
}

async fn read(
    spool: &Spool,
    sink: SinkId,
    limits: BatchLimits,
    skip: &HashSet<u64>,
) -> Result<Batch, SpoolError> {
    Ok(Batch::new(spool.batch(sink, limits, now_ms(), skip).await?))
}

/// Delivers a batch of at most `cap` records and settles it.
pub(super) async fn round(
    shared: &Shared,
    sink: &Sink,
    plugin: &Arc<Plugin>,
    cap: usize,
    ahead: &mut Ahead,
) -> Round {
    let away = |error: &SpoolError, operation| Round::Failed {
        cause: chain(error),
        operation,
        kind: Trouble::Away { after: None },
    };
    let config = shared.config.load_full();
    let most = usize::try_from(plugin.manifest.batch.max_items).unwrap_or(usize::MAX).min(MAX_BATCH_ITEMS);
    let max_bytes = plugin.manifest.batch.max_bytes.min(MAX_BATCH_BYTES);
    let limits = BatchLimits { max_items: most.min(cap), max_bytes };
    let next = match ahead.next.take() {
        Some(next) => next.await.unwrap_or(Err(SpoolError::Closed)),
        None => match ahead.settled().await {
            Ok(()) => read(&shared.spool, sink.id, limits, &HashSet::new()).await,
            Err(error) => return away(&error, "settle"),
        },
    };
    let mut batch = match next {
        Ok(batch) => batch,
        Err(error) => return away(&error, "read the spool"),
    };
    let records = batch.items.len();
    if records == 0 {
        return Round::Done { records: 0, stored: false };
    }
    if plugin.interfaces.jobs {
        batch.add_stubs(|jid| sink.recent(|recent| recent.has_load(jid)));
    }
    let seqs: Vec<u64> = batch.items.iter().map(|item| item.seq).collect();
    // What is being settled may be counted still.
    let settling = ahead.settling.as_ref().map_or(0, |settling| settling.seqs.len());
    let (depth, bytes) = shared.spool.depth(sink.id);
    let others = depth.saturating_sub((records + settling) as u64);
    // About: what the others have of the lane's bytes.
    let bytes_left = bytes / depth.max(1) * others;
    if cap >= most && (others >= most as u64 || bytes_left >= max_bytes) {
        ahead.read(&shared.spool, sink.id, limits, &seqs);
    }
    let items = std::mem::take(&mut batch.items);
    let mut delivery = Delivery::new(sink, plugin, &config, items, others > 0 && records == 1);
    let outcome = delivery.deliver(shared, plugin, &config, batch).await;
    let (settlements, stored, alone) = (delivery.settlements, delivery.stored, delivery.is_aside);
    let mut settled = ahead.settled().await;
    if outcome.is_ok() && ahead.has_next() {
        ahead.settle(&shared.spool, seqs, settlements);
    } else {
        settled = settled.and(shared.spool.settle(settlements).await.map(drop));
    }
    if let Err(error) = settled {
        // What was delivered may be delivered again; every plugin expects that.
        return away(&error, "settle");
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
