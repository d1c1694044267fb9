//! Reading: the pool of read-only connections and the questions to the lanes.
//!
//! Invariants: readers never block the writer (write-ahead log) and hold a snapshot only for one question. An item whose
//! checksum is wrong is never given out. What is owed (settled, but not yet on disk) is not given out either: the set of
//! owed numbers is taken before the snapshot, so that nothing slips through between the two.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, Row};
use tokio::sync::Semaphore;

use super::disk::{from_i64, time_i64};
use super::error::{SpoolError, Trouble, trouble};
use super::schema::{self, record_sum};
use super::shared::{Book, Command, Shared, lock};
use super::types::*;

/// Questions at the same time; one place is kept for batches, so that no long question starves the lanes.
const QUESTIONS: usize = 3;

/// What a question is for.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    Lane,
    Question,
}

pub(super) struct ReadPool {
    path: PathBuf,
    idle: Mutex<Vec<(u64, Connection)>>,
    lanes: Semaphore,
    questions: Semaphore,
}

impl ReadPool {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, idle: Mutex::default(), lanes: Semaphore::new(2), questions: Semaphore::new(QUESTIONS) }
    }

    /// Closes the connections that nobody uses at the moment.
    pub(super) fn clear(&self) {
        lock(&self.idle).clear();
    }

    fn take(&self, generation: u64) -> Result<Connection, rusqlite::Error> {
        let mut idle = lock(&self.idle);
        idle.retain(|(g, _)| *g == generation);
        let found = idle.pop();
        drop(idle);
        found.map_or_else(|| schema::open_reading(&self.path), |(_, conn)| Ok(conn))
    }
}

/// Runs a question on a thread where it may block.
pub(super) async fn ask<T: Send + 'static>(
    shared: &Arc<Shared>,
    purpose: Purpose,
    question: impl FnOnce(&Connection) -> Result<T, SpoolError> + Send + 'static,
) -> Result<T, SpoolError> {
    let gate = match purpose {
        Purpose::Lane => &shared.readers.lanes,
        Purpose::Question => &shared.readers.questions,
    };
    let _turn = gate.acquire().await.map_err(|_| SpoolError::Closed)?;
    let inner = Arc::clone(shared);
    let task = tokio::task::spawn_blocking(move || {
        inner.readable()?;
        let generation = inner.generation();
        let result = inner.readers.take(generation).map_err(SpoolError::from).and_then(|conn| {
            let result = question(&conn);
            if result.is_ok() && inner.generation() == generation {
                lock(&inner.readers.idle).push((generation, conn));
            }
            result
        });
        result.map_err(|err| translate(&inner, generation, err))
    });
    task.await.map_err(|_| SpoolError::Closed)?
}

/// Gives an error from SQLite its meaning; damage is also told to the writer.
fn translate(shared: &Shared, generation: u64, err: SpoolError) -> SpoolError {
    let SpoolError::Sqlite(err) = err else { return err };
    match trouble(&err) {
        Trouble::Damage(reason) => {
            shared.push(Command::Damaged { reason: reason.clone(), generation });
            SpoolError::Damaged(reason)
        }
        Trouble::Disk { reason, .. } => SpoolError::Unavailable { reason },
        Trouble::Other => err.into(),
    }
}

/// One state of the database for several statements.
pub(super) fn snapshot<T>(
    conn: &Connection,
    work: impl FnOnce() -> Result<T, SpoolError>,
) -> Result<T, SpoolError> {
    conn.prepare_cached("BEGIN")?.execute([])?;
    let result = work();
    let end = conn.prepare_cached("COMMIT")?.execute([]);
    let value = result?;
    end?;
    Ok(value)
}

/// Items found, and numbers of those that are not what was written.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) items: Vec<Item>,
    pub(super) bad: Vec<u64>,
}

const COLUMNS: &str =
    "seq, sink, kind, jid, minion, arrived_ms, since_ms, attempts, not_before_ms, error, sum, body";

impl Found {
    fn add(&mut self, r: &Row<'_>) -> Result<(), rusqlite::Error> {
        let (seq, sink, kind): (i64, i64, i64) = (r.get(0)?, r.get(1)?, r.get(2)?);
        let text = |i| r.get_ref(i).and_then(|v| Ok(v.as_bytes()?));
        let (jid, minion, arrived) = (text(3)?, text(4)?, r.get::<_, i64>(5)?);
        let body = r.get_ref(11)?.as_blob()?;
        let right = record_sum(seq, sink, kind, jid, minion, arrived, body) == r.get::<_, i64>(10)?;
        let texts = (String::from_utf8(jid.to_vec()), String::from_utf8(minion.to_vec()));
        match (right, Kind::from_code(kind), texts) {
            (true, Some(kind), (Ok(jid), Ok(minion))) => self.items.push(Item {
                seq: from_i64(seq),
                sink: SinkId(sink),
                kind,
                jid,
                minion,
                arrived_ms: from_i64(arrived),
                since_ms: from_i64(r.get(6)?),
                attempts: u32::try_from(r.get::<_, i64>(7)?).unwrap_or(u32::MAX),
                not_before_ms: from_i64(r.get(8)?),
                error: r.get(9)?,
                body: body.to_vec(),
            }),
            _ => self.bad.push(from_i64(seq)),
        }
        Ok(())
    }
}

/// The oldest items of a lane that are due, by number. Reads the index first, then only the records chosen.
///
/// Of the retried items those due longest are looked at, and of these and the fresh ones those with the lowest numbers are
/// taken: each step costs as much as a batch, however many are held back.
pub(super) fn batch(
    conn: &Connection,
    sink: SinkId,
    limits: BatchLimits,
    now_ms: u64,
    skip: &HashSet<u64>,
) -> Result<Found, SpoolError> {
    snapshot(conn, || {
        let want = limits.max_items.max(1);
        let most = i64::try_from(want.saturating_add(skip.len())).unwrap_or(i64::MAX);
        let mut chosen: Vec<(i64, u64)> = Vec::new();
        let mut take = |rows: &mut rusqlite::Rows<'_>| -> Result<(), rusqlite::Error> {
            while let Some(r) = rows.next()? {
                let seq: i64 = r.get(0)?;
                if !skip.contains(&from_i64(seq)) {
                    chosen.push((seq, from_i64(r.get(1)?)));
                }
            }
            Ok(())
        };
        let mut fresh = conn.prepare_cached(FRESH)?;
        take(&mut fresh.query((sink.0, most))?)?;
        let mut held = conn.prepare_cached(DUE)?;
        take(&mut held.query((sink.0, time_i64(now_ms), most))?)?;
        chosen.sort_unstable();
        let mut found = Found::default();
        let mut bytes = 0u64;
        let mut get = conn.prepare_cached(&format!("SELECT {COLUMNS} FROM items WHERE seq = ?1"))?;
        for (count, (seq, size)) in chosen.into_iter().take(want).enumerate() {
            bytes = bytes.saturating_add(size);
            if count > 0 && bytes > limits.max_bytes {
                break;
            }
            let mut rows = get.query([seq])?;
            match rows.next()? {
                Some(r) => found.add(r)?,
                // Within one snapshot an entry without its record is damage.
                None => return Err(missing(seq)),
            }
        }
        Ok(found)
    })
}

pub(super) const FRESH: &str = "SELECT seq, size FROM items INDEXED BY lane \
     WHERE sink = ?1 AND not_before_ms = 0 ORDER BY seq LIMIT ?2";
pub(super) const DUE: &str = "SELECT seq, size FROM items INDEXED BY lane \
     WHERE sink = ?1 AND not_before_ms > 0 AND not_before_ms <= ?2 ORDER BY not_before_ms, seq LIMIT ?3";

fn missing(seq: i64) -> SpoolError {
    SpoolError::Sqlite(rusqlite::Error::SqliteFailure(
        rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT),
        Some(format!("item {seq} is in the index and not in the table")),
    ))
}

/// One item by its number, if it is in a lane.
pub(super) fn one(conn: &Connection, seq: u64) -> Result<Found, SpoolError> {
    let mut found = Found::default();
    let mut get = conn.prepare_cached(&format!("SELECT {COLUMNS} FROM items WHERE seq = ?1"))?;
    let mut rows = get.query([time_i64(seq)])?;
    if let Some(r) = rows.next()? {
        found.add(r)?;
    }
    Ok(found)
}

/// When the next item of a lane is due: 0 for at once, `None` if there is none but those in `skip`.
pub(super) fn next_due(
    conn: &Connection,
    sink: SinkId,
    skip: &HashSet<u64>,
) -> Result<Option<u64>, SpoolError> {
    let most = i64::try_from(skip.len() + 1).unwrap_or(i64::MAX);
    let mut stmt = conn.prepare_cached(
        "SELECT seq, not_before_ms FROM items INDEXED BY lane WHERE sink = ?1 ORDER BY not_before_ms, seq LIMIT ?2",
    )?;
    let mut rows = stmt.query((sink.0, most))?;
    while let Some(r) = rows.next()? {
        if !skip.contains(&from_i64(r.get(0)?)) {
            return Ok(Some(from_i64(r.get(1)?)));
        }
    }
    Ok(None)
}

/// Numbers of items whose patience ended, at most `limit`.
pub(super) fn overdue(
    conn: &Connection,
    sink: SinkId,
    older_than_ms: u64,
    limit: usize,
    skip: &HashSet<u64>,
) -> Result<Vec<u64>, SpoolError> {
    let mut stmt = conn
        .prepare_cached("SELECT seq FROM items INDEXED BY lane WHERE sink = ?1 AND since_ms < ?2 LIMIT ?3")?;
    let most = i64::try_from(limit.saturating_add(skip.len())).unwrap_or(i64::MAX);
    let mut rows = stmt.query((sink.0, time_i64(older_than_ms), most))?;
    let mut out = Vec::new();
    while let Some(r) = rows.next()? {
        let seq = from_i64(r.get(0)?);
        if !skip.contains(&seq) && out.len() < limit {
            out.push(seq);
        }
    }
    Ok(out)
}

/// Which items a query wants.
pub(super) enum Pending {
    /// All of one job, oldest first.
    Job(String),
    /// Loads, newest job first, older than this job.
    Loads { before: Option<String>, limit: usize },
    /// Returns, newest first, older than this number.
    Returns { before: Option<u64>, limit: usize },
}

pub(super) fn pending(
    conn: &Connection,
    sink: SinkId,
    what: &Pending,
    owed: &HashSet<u64>,
) -> Result<Found, SpoolError> {
    let mut found = Found::default();
    let spare = |limit: usize| i64::try_from(limit.saturating_add(owed.len())).unwrap_or(i64::MAX);
    let (filter, limit) = match what {
        Pending::Job(_) => ("INDEXED BY job WHERE sink = ?1 AND jid = ?2 ORDER BY seq LIMIT ?3", usize::MAX),
        Pending::Loads { before: Some(_), limit } => (
            "INDEXED BY loads WHERE sink = ?1 AND kind = 0 AND jid < ?2 ORDER BY jid DESC, seq DESC LIMIT ?3",
            *limit,
        ),
        Pending::Loads { before: None, limit } => (
            "INDEXED BY loads WHERE sink = ?1 AND kind = 0 AND ?2 = '' ORDER BY jid DESC, seq DESC LIMIT ?3",
            *limit,
        ),
        Pending::Returns { limit, .. } => ("", *limit),
    };
    snapshot(conn, || {
        let mut add = |r: &Row<'_>| -> Result<(), rusqlite::Error> {
            if found.items.len() < limit && !owed.contains(&from_i64(r.get(0)?)) {
                found.add(r)?;
            }
            Ok(())
        };
        match what {
            Pending::Returns { before, limit } => {
                let before = before.map_or(i64::MAX, time_i64);
                for seq in newest_returns(conn, sink, before, spare(*limit))? {
                    let mut get =
                        conn.prepare_cached(&format!("SELECT {COLUMNS} FROM items WHERE seq = ?1"))?;
                    let mut rows = get.query([seq])?;
                    if let Some(r) = rows.next()? {
                        add(r)?;
                    }
                }
            }
            Pending::Job(jid) | Pending::Loads { before: Some(jid), .. } => {
                let mut stmt = conn.prepare_cached(&format!("SELECT {COLUMNS} FROM items {filter}"))?;
                let mut rows = stmt.query((sink.0, jid, spare(limit)))?;
                while let Some(r) = rows.next()? {
                    add(r)?;
                }
            }
            Pending::Loads { before: None, .. } => {
                let mut stmt = conn.prepare_cached(&format!("SELECT {COLUMNS} FROM items {filter}"))?;
                let mut rows = stmt.query((sink.0, "", spare(limit)))?;
                while let Some(r) = rows.next()? {
                    add(r)?;
                }
            }
        }
        Ok(())
    })?;
    Ok(found)
}

/// Numbers of the newest returns. Fresh items come from the index in order; retried ones are sorted.
fn newest_returns(
    conn: &Connection,
    sink: SinkId,
    before: i64,
    limit: i64,
) -> Result<Vec<i64>, rusqlite::Error> {
    let mut seqs: Vec<i64> = Vec::new();
    for held in [
        "SELECT seq FROM items AS i INDEXED BY lane WHERE sink = ?1 AND not_before_ms = 0 AND seq < ?2 AND kind = 1 \
         ORDER BY seq DESC LIMIT ?3",
        "SELECT seq FROM items AS i INDEXED BY lane WHERE sink = ?1 AND not_before_ms > 0 AND seq < ?2 AND kind = 1 \
         ORDER BY seq DESC LIMIT ?3",
    ] {
        let mut stmt = conn.prepare_cached(held)?;
        let rows = stmt.query_map((sink.0, before, limit), |r| r.get(0))?;
        for seq in rows {
            seqs.push(seq?);
        }
    }
    seqs.sort_unstable_by(|a, b| b.cmp(a));
    seqs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(seqs)
}

/// Numbers of all lanes: counts from the book, ages and attempts from the index.
pub(super) fn stats(conn: &Connection, book: &Book) -> Result<Stats, SpoolError> {
    snapshot(conn, || {
        let mut lanes = Vec::with_capacity(book.sinks.len());
        for sink in book.sinks.iter() {
            let first: Option<i64> = conn
                .prepare_cached(
                    "SELECT arrived_ms FROM items WHERE seq = (SELECT seq FROM items INDEXED BY lane \
                     WHERE sink = ?1 AND not_before_ms = 0 ORDER BY seq LIMIT 1)",
                )?
                .query_map([sink.id.0], |r| r.get(0))?
                .next()
                .transpose()?;
            let (retried, oldest, attempts): (i64, Option<i64>, Option<i64>) = conn
                .prepare_cached(
                    "SELECT count(*), min(since_ms), max(attempts) FROM items INDEXED BY lane \
                     WHERE sink = ?1 AND not_before_ms > 0",
                )?
                .query_row([sink.id.0], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
            let (depth, bytes) = book.lanes.get(&sink.id.0).copied().unwrap_or_default();
            lanes.push(LaneStats {
                sink: sink.id,
                plugin: sink.plugin.clone(),
                label: sink.label.clone(),
                depth,
                bytes,
                retried: from_i64(retried),
                oldest_ms: [first, oldest].into_iter().flatten().min().map(from_i64),
                max_attempts: u32::try_from(attempts.unwrap_or(0)).unwrap_or(u32::MAX),
                last_error: book.errors.get(&sink.id.0).cloned(),
            });
        }
        Ok(Stats { lanes, totals: book.totals })
    })
}

/// SQLite's full check and the checksum of every record.
pub(super) fn verify(conn: &Connection) -> Result<Verified, SpoolError> {
    let mut out = Verified { problems: super::recover::integrity(conn, 100)?, ..Verified::default() };
    for table in ["items", "dead"] {
        let mut stmt = conn
            .prepare(&format!("SELECT seq, sink, kind, jid, minion, arrived_ms, sum, body FROM {table}"))?;
        let mut rows = stmt.query([])?;
        while let Some(r) = rows.next()? {
            let seq: i64 = r.get(0)?;
            let text = |i| r.get_ref(i).and_then(|v| Ok(v.as_bytes()?));
            let body = r.get_ref(7)?.as_blob().map_err(rusqlite::Error::from)?;
            let sum = record_sum(seq, r.get(1)?, r.get(2)?, text(3)?, text(4)?, r.get(5)?, body);
            out.checked += 1;
            if sum != r.get::<_, i64>(6)? && out.unreadable.len() < 100 {
                out.unreadable.push(from_i64(seq));
            }
        }
    }
    Ok(out)
}
