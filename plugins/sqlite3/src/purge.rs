//! Removing what is old, a bounded number of rows at a time.
//!
//! Invariants: a job goes only when all its returns are old, its load only after its returns; a copy for the archive is in
//! the transaction that removes the row. Stopping anywhere loses nothing.

use returner_sdk::time::Date;
use returner_sdk::{PurgeRequest, Purged, Result};
use rusqlite::{Connection, ToSql, named_params};

use crate::database::Database;
use crate::schema;

/// What is removed from which table, in this order. Salt writes its dates in local time, so for a row of Salt's own
/// the job id, which is in UTC, decides together with the date.
const STEPS: [(&str, &str); 4] = [
    (
        "salt_returns",
        "jid < :jid AND jid GLOB '[0-9]*'
         AND NOT EXISTS (SELECT 1 FROM salt_returns other WHERE other.jid = salt_returns.jid AND other.date >= :date)",
    ),
    // Rows without a real job id share one, so each goes by itself.
    ("salt_returns", "date < :date AND coalesce(jid, '') NOT GLOB '[0-9]*' AND :jid IS NOT NULL"),
    (
        "jids",
        "jid < :jid AND jid GLOB '[0-9]*' AND :date IS NOT NULL
         AND NOT EXISTS (SELECT 1 FROM salt_returns WHERE salt_returns.jid = jids.jid)",
    ),
    ("salt_events", "alter_time < :date AND :jid IS NOT NULL"),
];

/// Removes at most `limit` rows, in one transaction.
pub fn purge(database: &mut Database, request: &PurgeRequest) -> Result<Purged> {
    let date = Date::from_ms(request.cutoff_ms).python();
    let limit = i64::from(request.limit.max(1));
    // With nothing to do, nobody has to be kept from writing.
    let any = |connection: &Connection| {
        for (table, condition) in STEPS {
            if !rows(connection, table, condition, &request.cutoff_jid, &date, 1)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    };
    if !database.read(any)? {
        return Ok(Purged { removed: 0, more: false });
    }
    let removed = database.write(|transaction| {
        let mut left = limit;
        for (table, condition) in STEPS {
            if left == 0 {
                break;
            }
            let rows = rows(transaction, table, condition, &request.cutoff_jid, &date, left)?;
            if request.archive && !rows.is_empty() {
                archive(transaction, table, &rows)?;
            }
            let mut delete = transaction.prepare_cached(&format!("DELETE FROM {table} WHERE rowid = ?1"))?;
            for row in &rows {
                delete.execute([row])?;
                left -= 1;
            }
        }
        Ok(limit - left)
    })?;
    Ok(Purged { removed: removed.unsigned_abs(), more: removed == limit })
}

fn rows(
    connection: &Connection,
    table: &str,
    condition: &str,
    jid: &str,
    date: &str,
    limit: i64,
) -> rusqlite::Result<Vec<i64>> {
    let mut statement =
        connection.prepare_cached(&format!("SELECT rowid FROM {table} WHERE {condition} LIMIT :limit"))?;
    let parameters: &[(&str, &dyn ToSql)] = named_params! { ":jid": jid, ":date": date, ":limit": limit };
    statement.query_map(parameters, |row| row.get(0))?.collect()
}

/// Copies rows into the archive table, which is made, or widened, to have the same columns.
fn archive(connection: &Connection, table: &str, rows: &[i64]) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS {table}_archive AS SELECT * FROM {table} WHERE 0"
    ))?;
    let columns = schema::columns(connection, table)?;
    let archived = schema::columns(connection, &format!("{table}_archive"))?;
    for column in columns.difference(&archived) {
        connection.execute_batch(&format!("ALTER TABLE {table}_archive ADD COLUMN {}", name(column)))?;
    }
    let list = columns.iter().map(|column| name(column)).collect::<Vec<_>>().join(", ");
    let mut copy = connection.prepare_cached(&format!(
        "INSERT INTO {table}_archive ({list}) SELECT {list} FROM {table} WHERE rowid = ?1"
    ))?;
    for row in rows {
        copy.execute([row])?;
    }
    Ok(())
}

fn name(column: &str) -> String {
    format!("\"{}\"", column.replace('"', "\"\""))
}
