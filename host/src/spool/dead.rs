//! Dead letters: which ones are meant, showing them, and writing them out as JSON lines.
//!
//! Invariants: listing reads no record. A dead letter leaves the table only by an operator's word, back into its lane in
//! the same commit, or after it is on disk in an export file whose name and content are synced.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};
use serde::Serialize;

use super::disk::{from_i64, private_dir, private_file, stamp, sync_dir, time_i64};
use super::error::SpoolError;
use super::schema::record_sum;
use super::types::*;

const COLUMNS: &str = "d.seq, d.sink, s.plugin, d.kind, d.jid, d.minion, d.arrived_ms, d.attempts, d.error, d.reason, \
     d.class, d.died_ms, d.size";
const FROM: &str = "FROM dead AS d LEFT JOIN sinks AS s ON s.id = d.sink";

/// A dead letter with its record, as a line of an export.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    row: &'a DeadRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    /// Only there if the record is not what was written.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    damaged: bool,
}

fn row(r: &Row<'_>) -> Result<DeadRow, rusqlite::Error> {
    Ok(DeadRow {
        id: from_i64(r.get(0)?),
        sink: SinkId(r.get(1)?),
        plugin: r.get(2)?,
        // A kind that does not exist can only stand in a damaged letter, which never goes to a plugin.
        kind: Kind::from_code(r.get(3)?).unwrap_or(Kind::Event),
        jid: r.get(4)?,
        minion: r.get(5)?,
        arrived_ms: from_i64(r.get(6)?),
        attempts: u32::try_from(r.get::<_, i64>(7)?).unwrap_or(u32::MAX),
        error: r.get(8)?,
        reason: r.get(9)?,
        class: DeadClass::from_code(r.get(10)?),
        died_ms: from_i64(r.get(11)?),
        size: from_i64(r.get(12)?),
    })
}

/// The condition for a filter, with its values; `after` goes on behind a number.
fn condition(filter: &DeadFilter, after: i64) -> (String, Vec<Sql>) {
    let mut text = "d.seq > ?1".to_owned();
    let mut values = vec![Sql::Integer(after)];
    let mut and = |part: &str, value: Sql| {
        values.push(value);
        text.push_str(" AND ");
        text.push_str(&part.replace('?', &format!("?{}", values.len())));
    };
    if let Some(ids) = &filter.ids {
        let list: Vec<String> = ids.iter().map(ToString::to_string).collect();
        and("d.seq IN (SELECT value FROM json_each(?))", Sql::Text(format!("[{}]", list.join(","))));
    }
    if let Some(sink) = filter.sink {
        and("d.sink = ?", Sql::Integer(sink.0));
    }
    if let Some(plugin) = &filter.plugin {
        and("s.plugin = ?", Sql::Text(plugin.clone()));
    }
    if let Some(class) = filter.class {
        and("d.class = ?", Sql::Integer(class.code()));
    }
    if let Some(part) = &filter.reason {
        and("(instr(d.reason, ?) OR instr(coalesce(d.error, ''), ?))", Sql::Text(part.clone()));
    }
    if let Some(at) = filter.before_ms {
        and("d.died_ms < ?", Sql::Integer(time_i64(at)));
    }
    if let Some(at) = filter.after_ms {
        and("d.died_ms >= ?", Sql::Integer(time_i64(at)));
    }
    (text, values)
}

/// Dead letters by number, without their records, behind the number `after`.
pub(super) fn list(
    conn: &Connection,
    filter: &DeadFilter,
    after: u64,
    most: usize,
) -> Result<Vec<DeadRow>, SpoolError> {
    let (text, values) = condition(filter, time_i64(after));
    let most = most.min(filter.limit.unwrap_or(usize::MAX));
    let limit = i64::try_from(most).unwrap_or(i64::MAX);
    let mut stmt =
        conn.prepare(&format!("SELECT {COLUMNS} {FROM} WHERE {text} ORDER BY d.seq LIMIT {limit}"))?;
    let rows = stmt.query_map(params_from_iter(values), row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// One dead letter with its record.
pub(super) fn show(conn: &Connection, id: u64) -> Result<Option<DeadLetter>, SpoolError> {
    let sql = format!("SELECT {COLUMNS}, d.body, d.sum {FROM} WHERE d.seq = ?1");
    let letter = |r: &Row<'_>| Ok(DeadLetter { row: row(r)?, body: r.get(13)?, sound: is_sound(r)? });
    Ok(conn.prepare_cached(&sql)?.query_row([time_i64(id)], letter).optional()?)
}

/// Compares the checksum of a row that ends with `body, sum`.
fn is_sound(r: &Row<'_>) -> Result<bool, rusqlite::Error> {
    let text = |i| r.get_ref(i).and_then(|v| Ok(v.as_bytes()?));
    let sum =
        record_sum(r.get(0)?, r.get(1)?, r.get(3)?, text(4)?, text(5)?, r.get(6)?, r.get_ref(13)?.as_blob()?);
    Ok(sum == r.get::<_, i64>(14)?)
}

/// Writes dead letters as JSON lines; gives how many.
pub(super) fn export(conn: &Connection, filter: &DeadFilter, out: &mut dyn Write) -> Result<u64, SpoolError> {
    let (text, values) = condition(filter, 0);
    let limit = filter.limit.map_or(-1, |l| i64::try_from(l).unwrap_or(i64::MAX));
    let mut stmt = conn.prepare(&format!(
        "SELECT {COLUMNS}, d.body, d.sum {FROM} WHERE {text} ORDER BY d.seq LIMIT {limit}"
    ))?;
    let mut rows = stmt.query(params_from_iter(values))?;
    let mut count = 0;
    while let Some(r) = rows.next()? {
        line(r, out).map_err(SpoolError::Export)??;
        count += 1;
    }
    out.flush().map_err(SpoolError::Export)?;
    Ok(count)
}

/// One line; the outer error is the writing, the inner one the reading.
fn line(r: &Row<'_>, out: &mut dyn Write) -> io::Result<Result<(), rusqlite::Error>> {
    let (row, body, damaged) =
        match row(r).and_then(|row| Ok((row, r.get_ref(13)?.as_blob()?, !is_sound(r)?))) {
            Ok(both) => both,
            Err(err) => return Ok(Err(err)),
        };
    let text = std::str::from_utf8(body).ok();
    let body_base64 = text.is_none().then(|| STANDARD.encode(body));
    serde_json::to_writer(&mut *out, &Line { row: &row, body: text, body_base64, damaged })?;
    out.write_all(b"\n")?;
    Ok(Ok(()))
}

/// Writes the oldest dead letters, `excess` bytes or more of them, to a new file, syncs it, and removes them from the
/// table within the caller's transaction. Gives how many and how many bytes. The inner error is that of the file.
pub(super) fn export_oldest(
    conn: &Connection,
    dir: &Path,
    excess: u64,
    now: u64,
) -> Result<Result<(u64, u64), SpoolError>, rusqlite::Error> {
    let mut oldest = conn.prepare("SELECT seq, size FROM dead ORDER BY died_ms, seq")?;
    let mut rows = oldest.query([])?;
    let (mut ids, mut bytes) = (Vec::new(), 0);
    while bytes < excess {
        let Some(r) = rows.next()? else { break };
        ids.push(r.get::<_, i64>(0)?);
        bytes += from_i64(r.get(1)?);
    }
    let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(Ok((0, 0))) };
    let name = format!("dead-{}-{first}-{last}.jsonl", stamp(now));
    match write_file(conn, dir, &name, &ids) {
        Ok(()) => {}
        Err(SpoolError::Sqlite(err)) => return Err(err),
        Err(err) => return Ok(Err(err)),
    }
    let mut remove = conn.prepare_cached("DELETE FROM dead WHERE seq = ?1")?;
    for id in &ids {
        remove.execute([id])?;
    }
    tracing::warn!(
        count = ids.len(),
        bytes,
        file = name,
        "dead letters reached their limit; the oldest were exported"
    );
    Ok(Ok((ids.len() as u64, bytes)))
}

fn write_file(conn: &Connection, dir: &Path, name: &str, ids: &[i64]) -> Result<(), SpoolError> {
    private_dir(dir)?;
    let (part, path) = (dir.join(format!(".{name}.part")), dir.join(name));
    let written = write_lines(conn, &part, ids);
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written?;
    fs::rename(&part, &path).and_then(|()| sync_dir(dir)).map_err(SpoolError::io("write export", path))
}

fn write_lines(conn: &Connection, part: &Path, ids: &[i64]) -> Result<(), SpoolError> {
    let failed = || SpoolError::io("write export", part);
    let file: File = private_file(part).map_err(failed())?;
    file.set_len(0).map_err(failed())?;
    let mut out = BufWriter::new(file);
    let mut get = conn.prepare(&format!("SELECT {COLUMNS}, d.body, d.sum {FROM} WHERE d.seq = ?1"))?;
    for id in ids {
        let mut rows = get.query([id])?;
        if let Some(r) = rows.next()? {
            line(r, &mut out).map_err(failed())??;
        }
    }
    let file = out.into_inner().map_err(|e| failed()(e.into_error()))?;
    file.sync_all().map_err(failed())
}
