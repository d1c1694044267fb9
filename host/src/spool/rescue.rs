//! Brings the readable records of a damaged database into a new one.
//!
//! Only what carries the right checksum is taken. An item whose sink is lost cannot be delivered and becomes a dead
//! letter. Frame ids carry no checksum: a wrong one does no harm.

use std::path::Path;

use rusqlite::Connection;

use super::disk::{from_i64, now_ms, private_file, time_i64};
use super::error::SpoolError;
use super::pages::{Pages, Value, record};
use super::schema::{self, record_sum, sink_sum};
use super::types::{Damage, SinkId, SinkRow};

/// Records written in one transaction.
const STEP: u64 = 2000;

/// Fills `new` from the damaged files and counts what happened. `min_seq`: numbers below it may still be in use.
pub(super) fn rescue(
    db: &Path,
    wal: &Path,
    new: &Path,
    min_seq: i64,
    damage: &mut Damage,
) -> Result<(), SpoolError> {
    let mut pages = Pages::open(db, wal).map_err(SpoolError::io("read", db))?;
    private_file(new).map_err(SpoolError::io("create", new))?;
    let conn = schema::open_writing(new)?;
    conn.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")?;
    schema::create(&conn)?;
    conn.execute_batch("BEGIN")?;
    let mut written = 0;
    let (bad_pages, bad_cells) = pages.cells(|rowid, payload| {
        written += 1;
        if written % STEP == 0 {
            conn.execute_batch("COMMIT; BEGIN")?;
        }
        take(&conn, rowid, payload)
    })?;
    damage.bad_pages = bad_pages + pages.unreadable;
    damage.unreadable = bad_cells;
    damage.may_repeat = !pages.free_known;
    // Moved to the dead letters, and the page it came from still told of it.
    conn.execute("DELETE FROM items WHERE seq IN (SELECT seq FROM dead)", [])?;
    damage.sinks = count(&conn, "sinks")?;
    damage.orphans = orphans(&conn)?;
    damage.items = count(&conn, "items")?;
    damage.dead = count(&conn, "dead")? - damage.orphans;
    let highest: i64 = conn.query_row(
        "SELECT max(coalesce((SELECT max(seq) FROM items), 0), coalesce((SELECT max(seq) FROM dead), 0))",
        [],
        |r| r.get(0),
    )?;
    conn.execute("UPDATE meta SET v = ?1 WHERE k = 'floor'", [min_seq.max(highest.saturating_add(1))])?;
    conn.execute_batch("COMMIT; PRAGMA synchronous = FULL;")?;
    if let Err((_, err)) = conn.close() {
        return Err(err.into());
    }
    let file = std::fs::File::open(new).map_err(SpoolError::io("open", new))?;
    file.sync_all().map_err(SpoolError::io("sync", new))
}

fn count(conn: &Connection, table: &str) -> Result<u64, rusqlite::Error> {
    conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |r| Ok(from_i64(r.get(0)?)))
}

/// Takes one cell. False if it is one of our records but not as it was written.
fn take(conn: &Connection, rowid: i64, payload: &[u8]) -> Result<bool, rusqlite::Error> {
    if let Some(v) = record(payload, 13).filter(|v| v[0].is_null() && v[12].blob().is_some()) {
        return item(conn, rowid, &v).unwrap_or(Ok(false));
    }
    if let Some(v) = record(payload, 14).filter(|v| v[0].is_null() && v[13].blob().is_some()) {
        return dead(conn, rowid, &v).unwrap_or(Ok(false));
    }
    if let Some(v) = record(payload, 8).filter(|v| v[0].is_null()) {
        return sink(conn, rowid, &v).unwrap_or(Ok(false));
    }
    if let Some(v) = record(payload, 3) {
        if let (Some(at), Some(uid), Some(seen)) =
            (v[0].int(), v[1].blob().filter(|b| b.len() == 16), v[2].int())
        {
            conn.prepare_cached("INSERT OR IGNORE INTO frames VALUES (?1, ?2, ?3)")?.execute((
                at,
                uid,
                seen.min(time_i64(now_ms())),
            ))?;
        } else if v[0].is_null()
            && let (Some(error), Some(at)) = (v[1].text(), v[2].int())
        {
            conn.prepare_cached("INSERT OR IGNORE INTO sink_errors VALUES (?1, ?2, ?3)")?
                .execute((rowid, error, at))?;
        }
    }
    Ok(true)
}

type Taken = Option<Result<bool, rusqlite::Error>>;

/// The columns that both tables have, if the checksum over them is right.
fn sound(rowid: i64, v: &[Value<'_>], sum: Value<'_>, body: &[u8]) -> Option<()> {
    let (sink, kind) = (v.get(1)?.int()?, v.get(2)?.int()?);
    let (jid, minion, arrived) = (v.get(3)?.text()?, v.get(4)?.text()?, v.get(5)?.int()?);
    let right =
        record_sum(rowid, sink, kind, jid.as_bytes(), minion.as_bytes(), arrived, body) == sum.int()?;
    (right && rowid > 0 && rowid < i64::MAX / 2).then_some(())
}

fn item(conn: &Connection, rowid: i64, v: &[Value<'_>]) -> Taken {
    let body = v.get(12)?.blob()?;
    let sum = *v.get(11)?;
    sound(rowid, v, sum, body)?;
    // These are not covered by the checksum: made to agree rather than trusted.
    let attempts = v.get(8)?.int().unwrap_or(0).clamp(0, 1_000_000);
    let not_before = if attempts == 0 {
        0
    } else {
        v.get(9)?.int().unwrap_or(1).clamp(1, time_i64(now_ms() + 86_400_000))
    };
    let row = (
        rowid,
        v.get(1)?.int(),
        v.get(2)?.int(),
        v.get(3)?.text(),
        v.get(4)?.text(),
        v.get(5)?.int(),
        v.get(6)?.int().unwrap_or(0),
        i64::try_from(body.len()).ok()?,
        attempts,
        not_before,
        v.get(10)?.text(),
        sum.int(),
        body,
    );
    let insert = || {
        conn.prepare_cached(
            "INSERT OR IGNORE INTO items VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )?
        .execute(row)
    };
    Some(insert().map(|_| true))
}

fn dead(conn: &Connection, rowid: i64, v: &[Value<'_>]) -> Taken {
    let body = v.get(13)?.blob()?;
    let sum = *v.get(12)?;
    sound(rowid, v, sum, body)?;
    let row = (
        rowid,
        v.get(1)?.int(),
        v.get(2)?.int(),
        v.get(3)?.text(),
        v.get(4)?.text(),
        v.get(5)?.int(),
        i64::try_from(body.len()).ok()?,
        v.get(7)?.int().unwrap_or(0).clamp(0, 1_000_000),
        v.get(8)?.text(),
        v.get(9)?.text().unwrap_or("unknown"),
        v.get(10)?.int().unwrap_or(2),
        v.get(11)?.int().unwrap_or(0),
        sum.int(),
        body,
    );
    let insert = || {
        conn.prepare_cached(
            "INSERT OR IGNORE INTO dead VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(row)
    };
    Some(insert().map(|_| true))
}

fn sink(conn: &Connection, rowid: i64, v: &[Value<'_>]) -> Taken {
    let label = v.get(3)?;
    let row = SinkRow {
        id: SinkId(rowid),
        plugin: v.get(1)?.text()?.to_owned(),
        key: v.get(2)?.text()?.to_owned(),
        label: if label.is_null() { None } else { Some(label.text()?.to_owned()) },
        options: v.get(4)?.text()?.to_owned(),
        facts: v.get(5)?.text()?.to_owned(),
        created_ms: from_i64(v.get(6)?.int()?),
    };
    (sink_sum(&row) == v.get(7)?.int()?).then(|| schema::insert_sink(conn, &row).map(|()| true))
}

/// Gives records without a sink a name to stand under, and makes the items among them dead letters.
fn orphans(conn: &Connection) -> Result<u64, rusqlite::Error> {
    let mut stmt = conn.prepare(
        "SELECT DISTINCT sink FROM (SELECT sink FROM items UNION SELECT sink FROM dead) \
         WHERE sink NOT IN (SELECT id FROM sinks)",
    )?;
    let lost = stmt.query_map([], |r| r.get::<_, i64>(0))?.collect::<Result<Vec<_>, _>>()?;
    let mut moved = 0;
    for id in lost {
        let row = SinkRow {
            id: SinkId(id),
            plugin: "unknown".to_owned(),
            key: format!("{}{id}", super::LOST),
            options: "{}".to_owned(),
            label: Some("configuration lost".to_owned()),
            facts: "{}".to_owned(),
            created_ms: now_ms(),
        };
        schema::insert_sink(conn, &row)?;
        moved += conn.execute(
            "INSERT INTO dead SELECT seq, sink, kind, jid, minion, arrived_ms, size, attempts, error, \
             'the configuration of its sink was lost in a damaged database', 2, ?2, sum, body FROM items WHERE sink = ?1",
            (id, time_i64(now_ms())),
        )?;
        conn.execute("DELETE FROM items WHERE sink = ?1", [id])?;
    }
    Ok(moved as u64)
}
