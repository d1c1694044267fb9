//! The durable queue: what Salt hands over lies here from its acknowledgement until it is stored outside or dead.
//!
//! # Layout of the directory (0700, files 0600)
//!
//! | file | what |
//! |---|---|
//! | `spool.db`, `-wal`, `-shm` | SQLite in WAL mode: sinks, items by lane, dead letters, frame ids |
//! | `spool.lock` | locked by the process that owns the spool |
//! | `spool.clean` | written at a clean stop, removed at start |
//! | `spool.reserve` | disk space given back when the disk is full, so that settling goes on |
//! | `spool.rescued` | note of a rescue that is being put in place |
//! | `spool.db.damaged-<date>` | a damaged database that was set aside; never removed by us |
//!
//! # Invariants
//!
//! - `append` answers after the commit of all items of the frame, or none was taken. A frame id is committed with its
//!   items, so a repeated frame is known even after a crash.
//! - Commits wait for the disk (`synchronous=FULL`), but for those of settlements alone (`NORMAL`): they are on disk with the
//!   next append, or with the checkpoint that follows a second without traffic.
//! - An item leaves its lane only by a settlement, in one commit; to the dead letters in that same commit. Numbers (`seq`)
//!   ascend in order of acceptance and are never used twice (after a rescue: not twice in the life of the process).
//! - One thread writes; everything that waits shares one commit. Readers use snapshots and never block it.
//! - Memory is bounded: by `max_waiting_bytes` for appends that wait, by `max_owed` for settlements that the disk does not
//!   take, by what the caller asks for in a batch. Payload bytes on disk are bounded by `max_bytes`, dead letters included:
//!   settling and dying never need more.
//! - Nothing is dropped: a full spool refuses, a full disk refuses, full dead letters are exported or stay in their lane.
//!
//! # After a crash
//!
//! Whatever was answered is there. What was being committed is there as a whole or not at all, frame by frame with its
//! group. What was given out and not settled is given out again: delivery is at least once. Settlements that were
//! `Deferred` are lost, and if the machine ended also those of the last moments, so those items come again. See `recover` for
//! damage and `pages` for how records are read then.

mod apply;
mod dead;
mod disk;
mod error;
#[cfg(test)]
mod fault;
pub mod measure;
mod pages;
mod read;
mod reader;
mod recover;
mod rescue;
mod schema;
mod shared;
#[cfg(test)]
mod tests;
mod types;
mod upkeep;
mod writer;

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};

pub use disk::now_ms;
pub use error::SpoolError;
pub use reader::SpoolReader;
pub use types::*;

use read::{Found, Pending, Purpose, ask};
use shared::{Command, Reply, Shared};

const DB: &str = "spool.db";
const LOCK: &str = "spool.lock";
/// Begins the key of a sink whose configuration was lost; it only names dead letters.
const LOST: &str = "lost-";
/// Dead letters moved or dropped in one transaction.
const DEAD_STEP: usize = 500;

/// A handle to the spool. Clones share it; when the last is dropped without [`Spool::close`], the writer finishes what it
/// was given and the next start counts as after a crash.
#[derive(Clone)]
pub struct Spool {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.shut();
    }
}

impl std::fmt::Debug for Spool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spool").field("dir", &self.shared().dir).finish_non_exhaustive()
    }
}

impl Spool {
    /// Opens the spool in this directory, makes it if need be, and says what was found. Blocks for as long as that takes
    /// (with a million items under a second). A damaged database or a full disk is no error: see [`Recovery`].
    ///
    /// # Errors
    /// If another process has it, if a newer program wrote it, if the directory cannot be made.
    pub fn open(dir: impl AsRef<Path>, limits: Limits) -> Result<(Self, Recovery), SpoolError> {
        let dir = dir.as_ref();
        let lock = recover::lock(dir)?;
        let dir = dir.canonicalize().map_err(SpoolError::io("find", dir))?;
        let shared = Arc::new(Shared::new(dir.clone(), limits));
        let mut writer = writer::Writer::new(Arc::clone(&shared), lock);
        let recovery = writer.start()?;
        std::thread::Builder::new()
            .name("spool-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(SpoolError::io("start the writer of", dir))?;
        Ok((Self { handle: Arc::new(Handle { shared }) }, recovery))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    async fn command<T>(&self, make: impl FnOnce(Reply<T>) -> Command) -> Result<T, SpoolError> {
        let (reply, answer) = oneshot::channel();
        if !self.shared().push(make(reply)) {
            return Err(SpoolError::Closed);
        }
        answer.await.map_err(|_| SpoolError::Closed)?
    }

    /// The number of the sink with this plugin and key; registers it if it is new.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub async fn sink(&self, new: NewSink) -> Result<SinkId, SpoolError> {
        let known = self.sinks();
        if let Some(row) = known.iter().find(|s| s.plugin == new.plugin && s.key == new.key) {
            return Ok(row.id);
        }
        self.command(|reply| Command::Sink { new, reply }).await
    }

    /// All sinks, by number. Options in it are secret.
    #[must_use]
    pub fn sinks(&self) -> Arc<Vec<SinkRow>> {
        Arc::clone(&self.shared().book().sinks)
    }

    /// Takes a frame: answers when all of it is on disk. Waits for room if more than `max_waiting_bytes` wait for the disk.
    /// Once called it may happen even if the future is dropped.
    ///
    /// # Errors
    /// `Full`, `Unavailable`: nothing was taken, try again later; the others: this frame is not acceptable.
    pub async fn append(&self, frame: NewFrame) -> Result<Appended, SpoolError> {
        let bytes =
            frame.items.iter().map(|i| (i.body.len() + i.jid.len() + i.minion.len() + 128) as u64).sum();
        let room = self.shared().room(bytes).await?;
        self.command(|reply| Command::Append { frame, reply, _room: room }).await
    }

    /// Writes what became of items. A number that is no longer there is passed over.
    ///
    /// # Errors
    /// `Unavailable` if the disk takes nothing and `max_owed` settlements wait already.
    pub async fn settle(&self, list: Vec<Settlement>) -> Result<Settled, SpoolError> {
        if list.is_empty() {
            return Ok(Settled::Committed);
        }
        self.command(|reply| Command::Settle { list, reply: Some(reply) }).await
    }

    /// The oldest items of a lane that are due and not in `skip` (what the caller has given out and not settled yet), by
    /// number. Costs as much as the batch, however long the lane is.
    ///
    /// # Errors
    /// `Unavailable` while the disk fails or too many settlements are owed; `Damaged` when damage was met just now.
    pub async fn batch(
        &self,
        sink: SinkId,
        limits: BatchLimits,
        now_ms: u64,
        skip: &HashSet<u64>,
    ) -> Result<Vec<Item>, SpoolError> {
        let skip = self.passed_over(skip)?;
        let found =
            ask(self.shared(), Purpose::Lane, move |c| read::batch(c, sink, limits, now_ms, &skip)).await?;
        Ok(self.sound(found))
    }

    /// When the lane's next item is due, 0 for at once; `None` if it has none but those in `skip`.
    ///
    /// # Errors
    /// As [`Spool::batch`].
    pub async fn next_due(&self, sink: SinkId, skip: &HashSet<u64>) -> Result<Option<u64>, SpoolError> {
        let skip = self.passed_over(skip)?;
        ask(self.shared(), Purpose::Lane, move |c| read::next_due(c, sink, &skip)).await
    }

    fn passed_over(&self, skip: &HashSet<u64>) -> Result<HashSet<u64>, SpoolError> {
        let owed = self.shared().owed();
        if owed.len() >= self.shared().limits.max_owed {
            return Err(SpoolError::Unavailable {
                reason: format!("{} settlements wait for the disk; the lanes pause", owed.len()),
            });
        }
        Ok(skip.iter().chain(owed.keys()).copied().collect())
    }

    /// Sends damaged items to the dead letters and gives the others.
    fn sound(&self, found: Found) -> Vec<Item> {
        if !found.bad.is_empty() {
            tracing::error!(items = ?found.bad, "items are not what was written; they become dead letters");
            let dead = |seq| Settlement::Dead {
                seq,
                reason: "the record did not come back from the disk as it was written".to_owned(),
                class: DeadClass::Damaged,
            };
            let list = found.bad.into_iter().map(dead).collect();
            self.shared().push(Command::Settle { list, reply: None });
        }
        found.items
    }

    /// Makes dead letters of items of a lane whose patience began before `older_than_ms`, at most `limit` and none in
    /// `skip`; each gets `reason` and keeps its last error. Gives how many.
    ///
    /// # Errors
    /// If the lane cannot be read or the disk takes nothing.
    pub async fn expire(
        &self,
        sink: SinkId,
        older_than_ms: u64,
        limit: usize,
        reason: &str,
        skip: &HashSet<u64>,
    ) -> Result<u64, SpoolError> {
        let skip = self.passed_over(skip)?;
        let found = ask(self.shared(), Purpose::Question, move |c| {
            read::overdue(c, sink, older_than_ms, limit, &skip)
        })
        .await?;
        let count = found.len() as u64;
        let dead = |seq| Settlement::Dead { seq, reason: reason.to_owned(), class: DeadClass::Expired };
        self.settle(found.into_iter().map(dead).collect()).await?;
        Ok(count)
    }

    async fn pending(&self, sink: SinkId, what: Pending) -> Result<Vec<Item>, SpoolError> {
        let owed: HashSet<u64> = {
            let owed = self.shared().owed();
            owed.values().filter(|s| !matches!(s, Settlement::Retry { .. })).map(Settlement::seq).collect()
        };
        let found =
            ask(self.shared(), Purpose::Question, move |c| read::pending(c, sink, &what, &owed)).await?;
        Ok(self.sound(found))
    }

    /// All that waits in a lane for one job, oldest first.
    ///
    /// # Errors
    /// If the lane cannot be read.
    pub async fn pending_of_job(&self, sink: SinkId, jid: &str) -> Result<Vec<Item>, SpoolError> {
        self.pending(sink, Pending::Job(jid.to_owned())).await
    }

    /// Loads that wait in a lane, newest job first, of jobs older than `before`.
    ///
    /// # Errors
    /// If the lane cannot be read.
    pub async fn pending_loads(
        &self,
        sink: SinkId,
        before: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Item>, SpoolError> {
        self.pending(sink, Pending::Loads { before: before.map(str::to_owned), limit }).await
    }

    /// Returns that wait in a lane, newest first, with numbers below `before`: call again with the last number to go on.
    ///
    /// # Errors
    /// If the lane cannot be read.
    pub async fn pending_returns(
        &self,
        sink: SinkId,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Item>, SpoolError> {
        self.pending(sink, Pending::Returns { before, limit }).await
    }

    /// The sums and counters, from memory.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.shared().book().totals
    }

    /// Items of a lane and their payload bytes as of the last commit, from memory.
    #[must_use]
    pub fn depth(&self, sink: SinkId) -> (u64, u64) {
        self.shared().book().lanes.get(&sink.0).copied().unwrap_or_default()
    }

    /// An item that is still in a lane.
    ///
    /// # Errors
    /// If the lanes cannot be read.
    pub async fn item(&self, seq: u64) -> Result<Option<Item>, SpoolError> {
        let owed = self.shared().owed().get(&seq).is_some_and(|s| !matches!(s, Settlement::Retry { .. }));
        if owed {
            return Ok(None);
        }
        let found = ask(self.shared(), Purpose::Question, move |c| read::one(c, seq)).await?;
        Ok(self.sound(found).pop())
    }

    /// All numbers by lane; reads the index only.
    ///
    /// # Errors
    /// If the lanes cannot be read.
    pub async fn stats(&self) -> Result<Stats, SpoolError> {
        let book = self.shared().book().clone();
        ask(self.shared(), Purpose::Question, move |c| read::stats(c, &book)).await
    }

    /// The state now.
    #[must_use]
    pub fn state(&self) -> SpoolState {
        self.shared().state.borrow().clone()
    }

    /// The state, to be waited on.
    #[must_use]
    pub fn state_changes(&self) -> watch::Receiver<SpoolState> {
        self.shared().state.subscribe()
    }

    /// The highest number taken, to be waited on: changes after every commit that put something into a lane.
    #[must_use]
    pub fn arrivals(&self) -> watch::Receiver<u64> {
        self.shared().fresh.subscribe()
    }

    /// Dead letters by number, without their records.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn dead_list(&self, filter: DeadFilter) -> Result<Vec<DeadRow>, SpoolError> {
        ask(self.shared(), Purpose::Question, move |c| dead::list(c, &filter, 0, usize::MAX)).await
    }

    /// One dead letter with its record.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn dead_show(&self, id: u64) -> Result<Option<DeadLetter>, SpoolError> {
        ask(self.shared(), Purpose::Question, move |c| dead::show(c, id)).await
    }

    /// Puts dead letters back into their lanes as if they were new, in small commits. Those whose sink was lost stay.
    ///
    /// # Errors
    /// If the disk takes nothing; what was done until then stays done.
    pub async fn dead_retry(&self, filter: DeadFilter) -> Result<u64, SpoolError> {
        self.dead_each(filter, |ids, reply| Command::Revive { ids, reply }).await
    }

    /// Removes dead letters for good, in small commits.
    ///
    /// # Errors
    /// As [`Spool::dead_retry`].
    pub async fn dead_drop(&self, filter: DeadFilter) -> Result<u64, SpoolError> {
        self.dead_each(filter, |ids, reply| Command::Discard { ids, reply }).await
    }

    async fn dead_each(
        &self,
        filter: DeadFilter,
        command: fn(Vec<i64>, Reply<u64>) -> Command,
    ) -> Result<u64, SpoolError> {
        let mut left = filter.limit.unwrap_or(usize::MAX);
        let (mut after, mut done) = (0, 0);
        loop {
            let (filter, most) = (filter.clone(), left.min(DEAD_STEP));
            let rows =
                ask(self.shared(), Purpose::Question, move |c| dead::list(c, &filter, after, most)).await?;
            let Some(last) = rows.last() else { return Ok(done) };
            after = last.id;
            left -= rows.len();
            let ids = rows.iter().map(|r| disk::time_i64(r.id)).collect();
            done += self.command(|reply| command(ids, reply)).await?;
        }
    }

    /// Writes dead letters to `out` as JSON lines and gives it back with how many there were. They stay.
    ///
    /// # Errors
    /// If they cannot be read or written.
    pub async fn dead_export<W: Write + Send + 'static>(
        &self,
        filter: DeadFilter,
        mut out: W,
    ) -> Result<(W, u64), SpoolError> {
        ask(self.shared(), Purpose::Question, move |c| {
            let count = dead::export(c, &filter, &mut out)?;
            Ok((out, count))
        })
        .await
    }

    /// SQLite's full check and the checksum of every record. Takes as long as reading everything.
    ///
    /// # Errors
    /// If the database cannot be read at all.
    pub async fn verify(&self) -> Result<Verified, SpoolError> {
        ask(self.shared(), Purpose::Question, read::verify).await
    }

    /// Finishes what was given to the writer, closes the files and notes that the stop was clean. Other clones then get
    /// `Closed`.
    pub async fn close(self) {
        let (reply, done) = oneshot::channel();
        if self.shared().push(Command::Close { reply }) {
            let _ = done.await;
        }
    }
}
