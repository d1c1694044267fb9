//! Events: storing a batch, each under its own id, so that one delivered twice is stored once.

use returner_sdk::time::Date;
use returner_sdk::{Event, Result, Verdict};
use rusqlite::{Connection, params};

use crate::database::{Database, verdict};

/// Stores a batch in one transaction.
pub fn store(database: &mut Database, events: &[Event]) -> Result<Vec<Verdict>> {
    database.write(|transaction| events.iter().map(|event| verdict_on(transaction, event)).collect())
}

fn verdict_on(connection: &Connection, event: &Event) -> rusqlite::Result<Verdict> {
    let Ok(id) = i64::try_from(event.id) else {
        return Ok(Verdict::Reject(format!("the event's id {} is not below 2^63", event.id)));
    };
    verdict(insert(connection, id, event))
}

fn insert(connection: &Connection, id: i64, event: &Event) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO salt_events (id, tag, data, alter_time, master_id) SELECT ?1, ?2, ?3, ?4, ?5
             WHERE NOT EXISTS (SELECT 1 FROM salt_events WHERE id = ?1)",
        )?
        .execute(params![
            id,
            event.tag,
            event.data,
            Date::from_ms(event.arrived_ms).python(),
            event.master
        ])?;
    Ok(())
}
