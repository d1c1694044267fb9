//! Tables, connections and checksums of records.
//!
//! Invariants: a number (`seq`) is in `items` or in `dead`, never in both. `attempts > 0` if and only if
//! `not_before_ms > 0`. `sum` covers all that never changes in a record, its number and its sink included. Every sink
//! is written twice, in `sinks` and `sinks_copy`, because one bad page would otherwise make all items undeliverable.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::disk::{Sum, from_i64, time_i64};
use super::error::SpoolError;
use super::types::{Limits, SinkId, SinkRow};

/// Version of the tables; kept in `user_version` and in `meta`.
pub(super) const VERSION: i64 = 1;
/// "rtrd", in the header of the file.
const APPLICATION: i64 = 0x7274_7264;
pub(super) const PAGE: usize = 4096;
/// Numbers are set aside in blocks of this size, so that none is used twice even after a crash.
pub(super) const SEQ_BLOCK: i64 = 1_000_000;

/// `lane` gives a lane's fresh items by number (`not_before_ms = 0`) and its retried ones by due time, sizes included,
/// so that choosing a batch and counting read no record. `job` and `loads` serve the queries.
const TABLES: &str = "
CREATE TABLE meta(k TEXT PRIMARY KEY, v INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE sinks(id INTEGER PRIMARY KEY, plugin TEXT NOT NULL, key TEXT NOT NULL, label TEXT, options TEXT NOT NULL,
  facts TEXT NOT NULL, created_ms INTEGER NOT NULL, sum INTEGER NOT NULL, UNIQUE(plugin, key)) STRICT;
CREATE TABLE sinks_copy(id INTEGER PRIMARY KEY, plugin TEXT NOT NULL, key TEXT NOT NULL, label TEXT,
  options TEXT NOT NULL, facts TEXT NOT NULL, created_ms INTEGER NOT NULL, sum INTEGER NOT NULL) STRICT;
CREATE TABLE sink_errors(sink INTEGER PRIMARY KEY, error TEXT NOT NULL, at_ms INTEGER NOT NULL) STRICT;
CREATE TABLE items(seq INTEGER PRIMARY KEY, sink INTEGER NOT NULL, kind INTEGER NOT NULL, jid TEXT NOT NULL,
  minion TEXT NOT NULL, arrived_ms INTEGER NOT NULL, since_ms INTEGER NOT NULL, size INTEGER NOT NULL,
  attempts INTEGER NOT NULL, not_before_ms INTEGER NOT NULL, error TEXT, sum INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
CREATE INDEX lane ON items(sink, not_before_ms, seq, size, since_ms, attempts, kind);
CREATE INDEX job ON items(sink, jid);
CREATE INDEX loads ON items(sink, jid) WHERE kind = 0;
CREATE TABLE dead(seq INTEGER PRIMARY KEY, sink INTEGER NOT NULL, kind INTEGER NOT NULL, jid TEXT NOT NULL,
  minion TEXT NOT NULL, arrived_ms INTEGER NOT NULL, size INTEGER NOT NULL, attempts INTEGER NOT NULL, error TEXT,
  reason TEXT NOT NULL, class INTEGER NOT NULL, died_ms INTEGER NOT NULL, sum INTEGER NOT NULL,
  body BLOB NOT NULL) STRICT;
CREATE INDEX dead_age ON dead(died_ms, sink, size);
CREATE TABLE frames(at_ms INTEGER NOT NULL, uid BLOB NOT NULL, seen_ms INTEGER NOT NULL, PRIMARY KEY(at_ms, uid))
  STRICT, WITHOUT ROWID;
";

pub(super) const INSERT_ITEM: &str = "INSERT INTO items(seq, sink, kind, jid, minion, arrived_ms, since_ms, size, attempts, \
     not_before_ms, error, sum, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, 0, 0, NULL, ?8, ?9)";

/// Opens the file for writing, with what every writing connection needs.
pub(super) fn open_writing(path: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(Duration::from_secs(5))?;
    // A close must not touch files that may have to be rescued as they are.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    keep_plans(&conn)?;
    conn.execute_batch(
        "PRAGMA page_size = 4096; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA temp_store = MEMORY; \
         PRAGMA cache_size = -8192;",
    )?;
    conn.set_prepared_statement_cache_capacity(48);
    Ok(conn)
}

/// Has statements planned once. Otherwise SQLite plans those with a `LIMIT` anew whenever another value is bound to them, which costs more
/// than what they do.
fn keep_plans(conn: &Connection) -> Result<(), rusqlite::Error> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(|_| ())
}

/// Journal settings of the live database: a commit is on disk when it returns, unless `wait_for_disk` says otherwise.
pub(super) fn use_wal(conn: &Connection) -> Result<(), rusqlite::Error> {
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |r| r.get(0))?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN),
            Some(format!("no write-ahead log here, the journal is `{mode}`")),
        ));
    }
    conn.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA journal_size_limit = 67108864;",
    )
}

/// Whether the next commits wait for the disk. One that does not survives the end of the process, and the machine's once a later one
/// has waited; the order of commits is kept. Not to be called within a transaction.
pub(super) fn wait_for_disk(conn: &Connection, waits: bool) -> Result<(), rusqlite::Error> {
    conn.execute_batch(if waits { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" })
}

/// Removes at most `most` ids of frames that are older than the limits say at the time `now`, in milliseconds since 1970; gives how many.
pub(super) fn forget_frames(
    conn: &Connection,
    limits: &Limits,
    now: u64,
    most: u64,
) -> Result<usize, rusqlite::Error> {
    let keep = u64::try_from(limits.frame_ids_for.as_millis()).unwrap_or(u64::MAX);
    conn.prepare_cached(
        "DELETE FROM frames WHERE (at_ms, uid) IN (SELECT at_ms, uid FROM frames WHERE at_ms < ?1 AND seen_ms < ?1 \
         ORDER BY at_ms LIMIT ?2)",
    )?
    .execute((time_i64(now.saturating_sub(keep)), time_i64(most)))
}

/// Opens the file for reading only.
pub(super) fn open_reading(path: &Path) -> Result<Connection, rusqlite::Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(Duration::from_secs(5))?;
    keep_plans(&conn)?;
    conn.execute_batch("PRAGMA query_only = ON; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -2048;")?;
    conn.set_prepared_statement_cache_capacity(32);
    Ok(conn)
}

/// Makes the tables in an empty database.
pub(super) fn create(conn: &Connection) -> Result<(), rusqlite::Error> {
    conn.execute_batch(&format!(
        "BEGIN IMMEDIATE; {TABLES} INSERT INTO meta VALUES ('schema', {VERSION}), ('floor', 1), ('probe', 0); \
         PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"
    ))
}

fn outline(conn: &Connection) -> Result<Vec<(String, Option<String>)>, rusqlite::Error> {
    let mut stmt = conn.prepare("SELECT name, sql FROM sqlite_schema ORDER BY name, sql")?;
    let rows = stmt.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?;
    rows.collect()
}

/// Whether the file holds our tables; the text says what is wrong.
pub(super) fn check_tables(conn: &Connection) -> Result<Option<String>, SpoolError> {
    let found: i64 = conn.query_row("PRAGMA user_version", [], |r| r.get(0))?;
    if found != VERSION {
        // A flipped bit must not look like a newer program: both places have to agree.
        let noted = conn.query_row("SELECT v FROM meta WHERE k = 'schema'", [], |r| r.get::<_, i64>(0));
        if found > VERSION && noted.is_ok_and(|v| v == found) {
            return Err(SpoolError::TooNew { found, known: VERSION });
        }
        return Ok(Some(format!("the header has schema version {found}")));
    }
    let model = Connection::open_in_memory()?;
    create(&model)?;
    if outline(conn)? != outline(&model)? {
        return Ok(Some("the list of tables is not ours".to_owned()));
    }
    Ok(None)
}

/// What the writer keeps in memory, read from the indexes.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) sinks: Vec<SinkRow>,
    /// Items and bytes by sink.
    pub(super) lanes: BTreeMap<i64, (u64, u64)>,
    pub(super) errors: BTreeMap<i64, (String, u64)>,
    pub(super) dead: (u64, u64),
    pub(super) next_seq: i64,
    pub(super) floor: i64,
}

/// Counts everything without reading a record. Damage that shows in the counts is an `Err(Damaged)`.
pub(super) fn load(conn: &Connection) -> Result<Loaded, SpoolError> {
    let mut out = Loaded { sinks: sinks(conn)?, ..Loaded::default() };
    let mut total = 0;
    let mut stmt =
        conn.prepare("SELECT sink, count(*), sum(size) FROM items INDEXED BY lane GROUP BY sink")?;
    let mut rows = stmt.query([])?;
    while let Some(row) = rows.next()? {
        let (sink, count, bytes): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if count < 0 || bytes < 0 || !out.sinks.iter().any(|s| s.id.0 == sink) {
            return Err(SpoolError::Damaged(format!("items of an unknown sink {sink}")));
        }
        total += count;
        out.lanes.insert(sink, (from_i64(count), from_i64(bytes)));
    }
    let by_job: i64 = conn.query_row("SELECT count(*) FROM items INDEXED BY job", [], |r| r.get(0))?;
    if by_job != total {
        return Err(SpoolError::Damaged(format!("indexes disagree: {total} items by lane, {by_job} by job")));
    }
    let mut stmt = conn.prepare("SELECT sink, error, at_ms FROM sink_errors")?;
    let mut rows = stmt.query([])?;
    while let Some(row) = rows.next()? {
        out.errors.insert(row.get(0)?, (row.get(1)?, from_i64(row.get(2)?)));
    }
    out.dead =
        conn.query_row("SELECT count(*), coalesce(sum(size), 0) FROM dead INDEXED BY dead_age", [], |r| {
            Ok((from_i64(r.get(0)?), from_i64(r.get(1)?)))
        })?;
    out.floor = conn.query_row("SELECT v FROM meta WHERE k = 'floor'", [], |r| r.get(0))?;
    let highest: i64 = conn.query_row(
        "SELECT max(coalesce((SELECT max(seq) FROM items), 0), coalesce((SELECT max(seq) FROM dead), 0))",
        [],
        |r| r.get(0),
    )?;
    out.next_seq = out.floor.max(highest.saturating_add(1));
    if out.next_seq < 1 || out.next_seq > i64::MAX / 2 {
        return Err(SpoolError::Damaged(format!("numbers have reached {}", out.next_seq)));
    }
    Ok(out)
}

/// All sinks; one that is not what was written is damage.
pub(super) fn sinks(conn: &Connection) -> Result<Vec<SinkRow>, SpoolError> {
    let mut stmt = conn
        .prepare("SELECT id, plugin, key, label, options, facts, created_ms, sum FROM sinks ORDER BY id")?;
    let mut rows = stmt.query([])?;
    let mut out = Vec::new();
    while let Some(r) = rows.next()? {
        let row = SinkRow {
            id: SinkId(r.get(0)?),
            plugin: r.get(1)?,
            key: r.get(2)?,
            label: r.get(3)?,
            options: r.get(4)?,
            facts: r.get(5)?,
            created_ms: from_i64(r.get(6)?),
        };
        if sink_sum(&row) != r.get::<_, i64>(7)? {
            return Err(SpoolError::Damaged(format!("sink {} is not what was written", row.id.0)));
        }
        out.push(row);
    }
    Ok(out)
}

/// Writes a sink and its copy.
pub(super) fn insert_sink(conn: &Connection, row: &SinkRow) -> Result<(), rusqlite::Error> {
    for table in ["sinks", "sinks_copy"] {
        conn.prepare_cached(&format!(
            "INSERT OR IGNORE INTO {table} VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"
        ))?
        .execute((
            row.id.0,
            &row.plugin,
            &row.key,
            &row.label,
            &row.options,
            &row.facts,
            super::disk::time_i64(row.created_ms),
            sink_sum(row),
        ))?;
    }
    Ok(())
}

/// Checksum of a sink.
pub(super) fn sink_sum(row: &SinkRow) -> i64 {
    Sum::new(1)
        .int(row.id.0)
        .bytes(row.plugin.as_bytes())
        .bytes(row.key.as_bytes())
        .int(i64::from(row.label.is_some()))
        .bytes(row.label.as_deref().unwrap_or_default().as_bytes())
        .bytes(row.options.as_bytes())
        .bytes(row.facts.as_bytes())
        .int(super::disk::time_i64(row.created_ms))
        .end()
}

/// Checksum of a record; the same in `items` and in `dead`.
pub(super) fn record_sum(
    seq: i64,
    sink: i64,
    kind: i64,
    jid: &[u8],
    minion: &[u8],
    arrived_ms: i64,
    body: &[u8],
) -> i64 {
    Sum::new(2).int(seq).int(sink).int(kind).bytes(jid).bytes(minion).int(arrived_ms).bytes(body).end()
}
