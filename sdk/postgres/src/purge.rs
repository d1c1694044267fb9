//! Removing what is old, a bounded number of rows at a time.
//!
//! A job goes only when all its returns are older than the cutoff: first its returns, then its load. Everything is
//! found by the keys of the tables: a return is never older than its job, so that jids, which begin with the job's
//! time, lead to the old returns, also in tables without an index on `alter_time`. What is archived is copied by the
//! statement that removes it.

use returner_sdk::{PurgeRequest, Purged};

use crate::connect::{Db, Param, many, number, one};
use crate::fault::Fault;
use crate::schema::{EVENTS, JIDS, RETURNS};

/// How many jobs one query looks at.
const JOBS_AT_ONCE: u32 = 100;

/// Events of the table's sequence, which Salt's own returner takes, have ids below this, those of returnerd above. Within
/// both ids grow with time.
const FIRST_OWN_ID: i64 = 1 << 40;

struct Purge<'a> {
    request: &'a PurgeRequest,
    /// Whether the row at hand is old, in SQL.
    old: String,
    /// How many rows this call may still remove.
    left: u64,
}

/// Removes old records.
pub(crate) async fn purge(db: &Db, request: &PurgeRequest) -> Result<Purged, Fault> {
    if request.archive {
        for table in [JIDS, RETURNS, EVENTS] {
            let sql = format!(
                "CREATE TABLE IF NOT EXISTS {table}_archive (LIKE {table} INCLUDING DEFAULTS INCLUDING INDEXES)"
            );
            db.exec(&sql).await?;
        }
    }
    // A row without a time goes by its job's.
    let old = format!("coalesce(alter_time < to_timestamp({}), true)", request.cutoff_ms.min(1 << 47) / 1000);
    let mut purge = Purge { request, old, left: u64::from(request.limit) };
    // Whoever runs out of its share has more to do.
    purge.returns(db).await?;
    purge.loads(db).await?;
    purge.events(db).await?;
    Ok(Purged { removed: u64::from(request.limit) - purge.left, more: purge.left == 0 })
}

impl Purge<'_> {
    async fn returns(&mut self, db: &Db) -> Result<(), Fault> {
        let mut last = String::new();
        while self.left > 0 {
            let sql = format!(
                "SELECT jid::text, count(*)::text, bool_and({})::text FROM salt_returns \
                 WHERE jid > $1 AND jid < $2 GROUP BY jid ORDER BY jid LIMIT {JOBS_AT_ONCE}",
                self.old
            );
            let jobs =
                db.rows::<3>(&sql, &[one(&last.as_str()), one(&self.request.cutoff_jid.as_str())]).await?;
            if jobs.is_empty() {
                return Ok(());
            }
            let mut whole = Vec::new();
            let mut room = self.left;
            for [jid, count, old] in jobs {
                let Some(jid) = jid else { continue };
                if old.as_deref() == Some("true") {
                    let count = count.and_then(|count| count.parse().ok()).unwrap_or(u64::MAX);
                    if count > room && whole.is_empty() {
                        // A job with more returns than may go at once goes in parts, oldest first.
                        let rows = format!(
                            "ctid = ANY (ARRAY(SELECT ctid FROM salt_returns WHERE jid = $1 AND {} \
                             ORDER BY alter_time, id LIMIT $2))",
                            self.old
                        );
                        let limit = i64::try_from(self.left).unwrap_or(i64::MAX);
                        return self.remove(db, RETURNS, &rows, &[one(&jid.as_str()), number(&limit)]).await;
                    }
                    if count > room {
                        break;
                    }
                    room -= count;
                    whole.push(jid.clone());
                }
                last = jid;
            }
            if !whole.is_empty() {
                let rows = format!("jid = ANY ($1) AND {}", self.old);
                self.remove(db, RETURNS, &rows, &[many(&whole)]).await?;
            }
        }
        Ok(())
    }

    async fn loads(&mut self, db: &Db) -> Result<(), Fault> {
        while self.left > 0 {
            let before = self.left;
            let limit = i64::try_from(before.min(1000)).unwrap_or(1000);
            let rows = "ctid = ANY (ARRAY(SELECT j.ctid FROM jids j WHERE j.jid < $1 \
                        AND NOT EXISTS (SELECT 1 FROM salt_returns r WHERE r.jid = j.jid) ORDER BY j.jid LIMIT $2))";
            self.remove(db, JIDS, rows, &[one(&self.request.cutoff_jid.as_str()), number(&limit)]).await?;
            if self.left == before {
                break;
            }
        }
        Ok(())
    }

    async fn events(&mut self, db: &Db) -> Result<(), Fault> {
        for (first, end) in [(i64::MIN, FIRST_OWN_ID), (FIRST_OWN_ID, i64::MAX)] {
            let mut from = first;
            // Behind a page without an old event there is none.
            while self.left > 0 {
                let limit = i64::try_from(self.left.min(1000)).unwrap_or(1000);
                let sql = format!(
                    "SELECT max(id)::text, bool_or({})::text FROM (SELECT id, alter_time FROM salt_events \
                     WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3) AS page",
                    self.old
                );
                let page = db.rows::<2>(&sql, &[number(&from), number(&end), number(&limit)]).await?;
                let Some([Some(last), Some(old)]) = page.into_iter().next() else { break };
                let Ok(last) = last.parse::<i64>() else { break };
                if old != "true" {
                    break;
                }
                let rows = format!("id >= $1 AND id <= $2 AND {}", self.old);
                self.remove(db, EVENTS, &rows, &[number(&from), number(&last)]).await?;
                from = last.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Removes the rows that a condition names, and copies them where that was asked for.
    async fn remove(&mut self, db: &Db, table: &str, rows: &str, params: &[Param<'_>]) -> Result<(), Fault> {
        let sql = if self.request.archive {
            let names = db.schema.names(table);
            // A record that was archived before (it was delivered again later) stays as it was.
            format!(
                "WITH gone AS (DELETE FROM {table} WHERE {rows} RETURNING {names}), \
                 kept AS (INSERT INTO {table}_archive ({names}) SELECT {names} FROM gone ON CONFLICT DO NOTHING) \
                 SELECT count(*)::text FROM gone"
            )
        } else {
            format!(
                "WITH gone AS (DELETE FROM {table} WHERE {rows} RETURNING 1) SELECT count(*)::text FROM gone"
            )
        };
        let removed = db.rows::<1>(&sql, params).await?;
        let removed = removed.into_iter().flatten().flatten().next().and_then(|count| count.parse().ok());
        self.left = self.left.saturating_sub(removed.unwrap_or(0));
        Ok(())
    }
}
