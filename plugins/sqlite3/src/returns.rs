//! Returns: storing a batch, and the questions about them.

use std::collections::HashSet;

use returner_sdk::time::Date;
use returner_sdk::{Error, JobReturn, Result, StoredReturn, Verdict};
use rusqlite::{Connection, named_params};

use crate::database::{Database, text, verdict};
use crate::record::{self, Row};

/// Without a unique key, which tables made from Salt's documentation lack, only this keeps the first return; the
/// transaction keeps others from writing between the question and the insertion.
const INSERT: &str = "
    INSERT INTO salt_returns (fun, jid, id, fun_args, date, full_ret, success, extra)
    SELECT :fun, :jid, :id, :fun_args, :date, :full_ret, :success, :extra
    WHERE NOT EXISTS (SELECT 1 FROM salt_returns WHERE jid = :jid AND id = :id)";

/// Stores a batch in one transaction.
pub fn store(database: &mut Database, returns: &[JobReturn]) -> Result<Vec<Verdict>> {
    database.write(|transaction| returns.iter().map(|ret| verdict_on(transaction, ret)).collect())
}

fn verdict_on(connection: &Connection, ret: &JobReturn) -> rusqlite::Result<Verdict> {
    match record::extra(ret) {
        Ok(extra) => verdict(insert(connection, ret, &extra)),
        Err(error) => Ok(Err(Error::from(error)).into()),
    }
}

fn insert(connection: &Connection, ret: &JobReturn, extra: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(INSERT)?.execute(named_params! {
        ":fun": ret.fun,
        ":jid": ret.jid,
        ":id": ret.stored_id(),
        ":fun_args": ret.fun_args,
        ":date": Date::from_ms(ret.arrived_ms).python(),
        ":full_ret": ret.value,
        // The column may not be null: an unknown outcome is neither.
        ":success": match ret.success { Some(true) => "1", Some(false) => "0", None => "" },
        ":extra": extra,
    })?;
    Ok(())
}

/// All returns of a job, the first of each minion.
pub fn of_job(database: &Database, jid: &str) -> Result<Vec<StoredReturn>> {
    // Rows of equal (jid, id) come in the order of their insertion, from the index as from the table.
    select(
        database,
        "SELECT jid, id, fun, fun_args, full_ret, success, extra FROM salt_returns WHERE jid = ?1",
        jid,
    )
}

/// The latest return of a function by each minion. A row without a real job id counts only where there is no other.
pub fn latest(database: &Database, fun: &str) -> Result<Vec<StoredReturn>> {
    select(
        database,
        "SELECT r.jid, r.id, r.fun, r.fun_args, r.full_ret, r.success, r.extra
         FROM (SELECT id, coalesce(max(iif(jid GLOB '[0-9]*', jid, NULL)), max(jid)) AS jid
               FROM salt_returns WHERE fun = ?1 GROUP BY id) latest
         JOIN salt_returns r ON r.jid = latest.jid AND r.id = latest.id AND r.fun = ?1",
        fun,
    )
}

/// The ids of all minions with a return.
pub fn minions(database: &Database) -> Result<Vec<String>> {
    database.read(|connection| {
        let mut statement = connection
            .prepare_cached("SELECT DISTINCT id FROM salt_returns WHERE id IS NOT NULL ORDER BY id")?;
        let ids = statement.query_map([], |row| text(row, 0))?;
        ids.filter_map(Result::transpose).collect()
    })
}

fn select(database: &Database, sql: &str, key: &str) -> Result<Vec<StoredReturn>> {
    database.read(|connection| {
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query([key])?;
        let mut seen = HashSet::new();
        let mut returns = Vec::new();
        while let Some(row) = rows.next()? {
            let row = Row {
                jid: text(row, 0)?.unwrap_or_default(),
                id: text(row, 1)?.unwrap_or_default(),
                fun: text(row, 2)?,
                fun_args: text(row, 3)?,
                full_ret: text(row, 4)?.unwrap_or_default(),
                success: text(row, 5)?,
                extra: text(row, 6)?,
            };
            if seen.insert(row.id.clone()) {
                returns.push(row.into_stored());
            }
        }
        Ok(returns)
    })
}
