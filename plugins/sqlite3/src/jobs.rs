//! Loads: saving them by the SDK's rule, and the questions about them. A load that cannot be read never hides others.

use returner_sdk::{
    JidsFilter, JobLoad, Result, StoredLoad, Verdict, all_stored, json, merge_load, serde_json, stored_load,
};
use rusqlite::{Connection, OptionalExtension, params};

use crate::database::{Database, text, verdict};

/// Saves loads in one transaction.
pub fn save_loads(database: &mut Database, loads: &[JobLoad]) -> Result<Vec<Verdict>> {
    if loads.is_empty() {
        return Ok(all_stored(loads));
    }
    database.write(|transaction| loads.iter().map(|load| verdict(save(transaction, load))).collect())
}

fn save(connection: &Connection, load: &JobLoad) -> rusqlite::Result<()> {
    let stored = stored(connection, &load.jid)?;
    let readable =
        stored.as_deref().map(|text| json::load(text.to_owned()).unwrap_or_else(|| text.to_owned()));
    if let Some(document) = merge_load(readable.as_deref(), load) {
        // Not by a conflict clause, since a table may lack the key.
        let sql = if stored.is_some() {
            "UPDATE jids SET load = ?2 WHERE jid = ?1"
        } else {
            "INSERT INTO jids (jid, load) VALUES (?1, ?2)"
        };
        connection.prepare_cached(sql)?.execute(params![load.jid, document])?;
    }
    Ok(())
}

fn stored(connection: &Connection, jid: &str) -> rusqlite::Result<Option<String>> {
    let mut statement = connection.prepare_cached("SELECT load FROM jids WHERE jid = ?1")?;
    let load = statement.query_row([jid], |row| text(row, 0)).optional()?;
    Ok(load.map(Option::unwrap_or_default))
}

/// The load of a job.
pub fn get_load(database: &Database, jid: &str) -> Result<Option<StoredLoad>> {
    let load = database.read(|connection| stored(connection, jid))?;
    Ok(load.map(|load| stored_load(jid.to_owned(), load)))
}

/// The newest jobs, newest first.
pub fn get_jids(database: &Database, filter: &JidsFilter) -> Result<Vec<StoredLoad>> {
    let without = serde_json::to_string(&filter.without_funs)?;
    database.read(|connection| {
        // A blob is greater than every text, so no `before` means all.
        let mut statement = connection.prepare_cached(
            "SELECT jid, load FROM jids
             WHERE jid < coalesce(?1, x'')
               AND coalesce(iif(json_valid(load), json_extract(load, '$.fun'), ''), '')
                   NOT IN (SELECT value FROM json_each(?2))
             ORDER BY jid DESC LIMIT ?3",
        )?;
        let rows = statement.query_map(params![filter.before, without, filter.limit], |row| {
            Ok(stored_load(text(row, 0)?.unwrap_or_default(), text(row, 1)?.unwrap_or_default()))
        })?;
        rows.collect()
    })
}
