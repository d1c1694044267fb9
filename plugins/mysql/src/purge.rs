//! Removing what is old, a bounded number of rows at a time.
//!
//! A job goes only when all its returns are older than the cutoff: first its returns, then its load. Everything is
//! found by the keys of the tables: a return is never older than its job, so that jids, which begin with the job's
//! time, lead to the old returns, also in tables without an index on `alter_time`. What is archived is copied in
//! the transaction that removes it.

use returner_sdk::{PurgeRequest, Purged};

use crate::connect::Db;
use crate::fault::Fault;
use crate::schema::{EVENTS, JIDS, RETURNS};
use crate::sql::{list, quoted};

/// How many jobs one query looks at.
const JOBS_AT_ONCE: u32 = 100;

struct Purge<'a> {
    request: &'a PurgeRequest,
    /// The cutoff in SQL.
    cutoff: String,
    /// How many rows this call may still remove.
    left: u64,
}

/// Removes old records.
pub(crate) async fn purge(db: &mut Db, request: &PurgeRequest) -> Result<Purged, Fault> {
    if request.archive {
        for table in [JIDS, RETURNS, EVENTS] {
            db.exec(format!("CREATE TABLE IF NOT EXISTS `{table}_archive` LIKE `{table}`")).await?;
        }
    }
    let cutoff = format!("FROM_UNIXTIME({})", request.cutoff_ms / 1000);
    let mut purge = Purge { request, cutoff, left: u64::from(request.limit) };
    // Whoever runs out of its share has more to do.
    purge.returns(db).await?;
    if purge.left > 0 {
        purge.loads(db).await?;
    }
    if purge.left > 0 {
        purge.events(db).await?;
    }
    Ok(Purged { removed: u64::from(request.limit) - purge.left, more: purge.left == 0 })
}

impl Purge<'_> {
    async fn returns(&mut self, db: &mut Db) -> Result<(), Fault> {
        let mut last = String::new();
        while self.left > 0 {
            let jobs = db
                .rows::<3>(format!(
                    "SELECT `jid`, COUNT(*), MAX(`alter_time`) >= {} FROM `salt_returns` \
                     WHERE `jid` > {} AND `jid` < {} GROUP BY `jid` ORDER BY `jid` LIMIT {JOBS_AT_ONCE}",
                    self.cutoff,
                    quoted(&last),
                    quoted(&self.request.cutoff_jid)
                ))
                .await?;
            if jobs.is_empty() {
                return Ok(());
            }
            let mut whole = Vec::new();
            let mut room = self.left;
            for [jid, count, young] in jobs {
                let Some(jid) = jid else { continue };
                if young.as_deref() == Some("0") {
                    let count = count.and_then(|count| count.parse().ok()).unwrap_or(u64::MAX);
                    if count > room && whole.is_empty() {
                        // A job with more returns than may go at once goes in parts, oldest first.
                        let rows = format!(
                            "`jid` = {} ORDER BY `alter_time`, `id` LIMIT {}",
                            quoted(&jid),
                            self.left
                        );
                        return self.remove(db, RETURNS, &rows).await;
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
                let jids = list(whole.iter().map(String::as_str));
                let rows = format!("`jid` IN {jids} AND `alter_time` < {}", self.cutoff);
                self.remove(db, RETURNS, &rows).await?;
            }
        }
        Ok(())
    }

    async fn loads(&mut self, db: &mut Db) -> Result<(), Fault> {
        let mut last = String::new();
        while self.left > 0 {
            let jids = db
                .rows::<1>(format!(
                    "SELECT `jid` FROM `jids` WHERE `jid` > {} AND `jid` < {} ORDER BY `jid` LIMIT {}",
                    quoted(&last),
                    quoted(&self.request.cutoff_jid),
                    self.left.min(1000)
                ))
                .await?;
            let jids: Vec<String> = jids.into_iter().flatten().flatten().collect();
            let Some(end) = jids.last() else { return Ok(()) };
            last.clone_from(end);
            let all = list(jids.iter().map(String::as_str));
            let kept = db
                .rows::<1>(format!("SELECT DISTINCT `jid` FROM `salt_returns` WHERE `jid` IN {all}"))
                .await?;
            let kept: std::collections::BTreeSet<String> = kept.into_iter().flatten().flatten().collect();
            let gone: Vec<&str> =
                jids.iter().filter(|jid| !kept.contains(*jid)).map(String::as_str).collect();
            if !gone.is_empty() {
                self.remove(db, JIDS, &format!("`jid` IN {}", list(gone))).await?;
            }
        }
        Ok(())
    }

    async fn events(&mut self, db: &mut Db) -> Result<(), Fault> {
        // Ids grow with time: behind a page without an old event there is none.
        let mut last = "-1".to_owned();
        while self.left > 0 {
            let page = db
                .rows::<3>(format!(
                    "SELECT MAX(`id`), SUM(`alter_time` < {}), COUNT(*) FROM (SELECT `id`, `alter_time` \
                     FROM `salt_events` WHERE `id` > {last} ORDER BY `id` LIMIT {}) AS page",
                    self.cutoff,
                    self.left.min(1000)
                ))
                .await?;
            let Some([Some(end), Some(old), _]) = page.into_iter().next() else { return Ok(()) };
            if old == "0" {
                return Ok(());
            }
            let rows = format!("`id` > {last} AND `id` <= {end} AND `alter_time` < {}", self.cutoff);
            self.remove(db, EVENTS, &rows).await?;
            last = end;
        }
        Ok(())
    }

    /// Removes the rows that a condition names, after copying them where that was asked for.
    async fn remove(&mut self, db: &mut Db, table: &str, rows: &str) -> Result<(), Fault> {
        let removed = if self.request.archive {
            db.exec("START TRANSACTION").await?;
            // A record that was archived before (it was delivered again later) stays as it was.
            let key = if table == EVENTS { "id" } else { "jid" };
            db.exec(format!(
                "INSERT INTO `{table}_archive` SELECT * FROM `{table}` WHERE {rows} \
                 ON DUPLICATE KEY UPDATE `{table}_archive`.`{key}` = `{table}_archive`.`{key}`"
            ))
            .await?;
            let removed = db.exec(format!("DELETE FROM `{table}` WHERE {rows}")).await?;
            db.exec("COMMIT").await?;
            removed
        } else {
            db.exec(format!("DELETE FROM `{table}` WHERE {rows}")).await?
        };
        self.left = self.left.saturating_sub(removed);
        Ok(())
    }
}
