//! What the handle, the writer thread and the readers share: the queue to the writer, the book of counts, the owed
//! settlements and the state.
//!
//! Invariants: only the writer changes the book and the state, and only after a commit. Appends that wait are bounded
//! by bytes through `room`; settlements are bounded by what was given out. Locks are held for a few steps, never over a
//! file operation, and none is taken while another is held.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::error::SpoolError;
use super::read::ReadPool;
use super::schema::Loaded;
use super::types::*;

/// Units in which waiting appends are counted.
const ROOM_UNIT: u64 = 1024;

pub(super) type Reply<T> = oneshot::Sender<Result<T, SpoolError>>;

/// Something for the writer.
pub(super) enum Command {
    Append {
        frame: NewFrame,
        reply: Reply<Appended>,
        _room: OwnedSemaphorePermit,
    },
    Settle {
        list: Vec<Settlement>,
        reply: Option<Reply<Settled>>,
    },
    Sink {
        new: NewSink,
        reply: Reply<SinkId>,
    },
    Revive {
        ids: Vec<i64>,
        reply: Reply<u64>,
    },
    Discard {
        ids: Vec<i64>,
        reply: Reply<u64>,
    },
    /// A reader met damage in the files of this generation.
    Damaged {
        reason: String,
        generation: u64,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    closed: bool,
}

/// Counts as of the last commit.
#[derive(Debug, Default, Clone)]
pub(super) struct Book {
    pub(super) sinks: Arc<Vec<SinkRow>>,
    /// Items and bytes by sink.
    pub(super) lanes: BTreeMap<i64, (u64, u64)>,
    pub(super) errors: BTreeMap<i64, (String, u64)>,
    pub(super) totals: Totals,
}

impl Book {
    /// Takes what was read from the database and keeps the counters since start.
    pub(super) fn reset(&mut self, loaded: Loaded) {
        self.totals.items = loaded.lanes.values().map(|l| l.0).sum();
        self.totals.bytes = loaded.lanes.values().map(|l| l.1).sum();
        (self.totals.dead, self.totals.dead_bytes) = loaded.dead;
        self.sinks = Arc::new(loaded.sinks);
        self.lanes = loaded.lanes;
        self.errors = loaded.errors;
    }
}

pub(super) struct Shared {
    pub(super) dir: PathBuf,
    pub(super) limits: Limits,
    queue: Mutex<Queue>,
    wake: Condvar,
    room: Arc<Semaphore>,
    room_units: u32,
    book: Mutex<Book>,
    /// Settlements that wait for the disk, by number.
    owed: Mutex<HashMap<u64, Settlement>>,
    pub(super) state: watch::Sender<SpoolState>,
    /// Highest number committed, for whoever waits for work.
    pub(super) fresh: watch::Sender<u64>,
    /// Counts up whenever the files are replaced: connections of an older one are dropped.
    pub(super) generation: AtomicU64,
    /// False while there is no usable database.
    pub(super) open: AtomicBool,
    pub(super) readers: ReadPool,
    #[cfg(test)]
    pub(super) fault: super::fault::Fault,
}

impl Shared {
    pub(super) fn new(dir: PathBuf, limits: Limits) -> Self {
        let units = (limits.max_waiting_bytes / ROOM_UNIT).clamp(1, 1 << 28);
        let room_units = u32::try_from(units).unwrap_or(1 << 28);
        let state =
            SpoolState { condition: Condition::Healthy, dead_trouble: None, owed: 0, damages: Vec::new() };
        Self {
            readers: ReadPool::new(dir.join(super::DB)),
            dir,
            limits,
            queue: Mutex::default(),
            wake: Condvar::new(),
            room: Arc::new(Semaphore::new(room_units as usize)),
            room_units,
            book: Mutex::default(),
            owed: Mutex::default(),
            state: watch::Sender::new(state),
            fresh: watch::Sender::new(0),
            generation: AtomicU64::new(0),
            open: AtomicBool::new(false),
            #[cfg(test)]
            fault: super::fault::Fault::default(),
        }
    }

    /// Waits until an append of this size may wait for the writer.
    pub(super) async fn room(&self, bytes: u64) -> Result<OwnedSemaphorePermit, SpoolError> {
        let units = u32::try_from(bytes / ROOM_UNIT + 1).unwrap_or(u32::MAX).min(self.room_units);
        self.room.clone().acquire_many_owned(units).await.map_err(|_| SpoolError::Closed)
    }

    /// Gives the writer something to do. False if the spool is closed.
    pub(super) fn push(&self, command: Command) -> bool {
        let mut queue = lock(&self.queue);
        if queue.closed {
            return false;
        }
        queue.commands.push_back(command);
        let first = queue.commands.len() == 1;
        drop(queue);
        if first {
            self.wake.notify_one();
        }
        true
    }

    /// Refuses everything from now on; what is queued is still done.
    pub(super) fn shut(&self) {
        lock(&self.queue).closed = true;
        self.room.close();
        self.wake.notify_one();
    }

    /// All that waits, or nothing after `wait`. The flag is true when the spool is shut.
    pub(super) fn take(&self, wait: Duration) -> (VecDeque<Command>, bool) {
        let until = Instant::now() + wait;
        let mut queue = lock(&self.queue);
        while queue.commands.is_empty() && !queue.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            (queue, _) = self.wake.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner);
        }
        (std::mem::take(&mut queue.commands), queue.closed)
    }

    /// How many commands wait now.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.queue).commands.len()
    }

    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    pub(super) fn owed(&self) -> MutexGuard<'_, HashMap<u64, Settlement>> {
        lock(&self.owed)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// An error if there is no database to read.
    pub(super) fn readable(&self) -> Result<(), SpoolError> {
        if self.open.load(Ordering::Acquire) {
            return Ok(());
        }
        if lock(&self.queue).closed {
            return Err(SpoolError::Closed);
        }
        let reason = match &self.state.borrow().condition {
            Condition::Degraded { reason, .. } => reason.clone(),
            Condition::Healthy => "the database is being rescued".to_owned(),
        };
        Err(SpoolError::Unavailable { reason })
    }
}

/// A lock whose holder panicked is still good: every change under it is a single step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
