//! What the writer does beside its commits: keeping a reserve of disk space, probing a disk that failed, copying the
//! write-ahead log into the database, giving free pages back, closing.
//!
//! Invariants: after an error of the disk the spool is degraded until a probe has written and the reserve is there again.
//! Each step here is small, because appends wait meanwhile.

use std::sync::atomic::Ordering;
use std::time::Instant;

use nix::fcntl::posix_fallocate;
use rusqlite::Connection;

use super::disk::{now_ms, private_file};
use super::error::{Trouble, trouble};
use super::recover;
use super::schema;
use super::types::Condition;
use super::writer::Writer;

/// Pages given back to the file system in one idle step.
const VACUUM_PAGES: i64 = 512;

/// Frame ids forgotten in one idle step.
const FORGET_AT_REST: u64 = 2_000;

impl Writer {
    pub(super) fn reserve_path(&self) -> std::path::PathBuf {
        self.shared.dir.join("spool.reserve")
    }

    pub(super) fn drop_reserve(&self) -> bool {
        std::fs::remove_file(self.reserve_path()).is_ok()
    }

    /// Sets disk space aside, so that settling goes on when the disk is full.
    pub(super) fn make_reserve(&self) -> Result<(), std::io::Error> {
        #[cfg(test)]
        self.shared.fault.at("reserve").map_err(std::io::Error::other)?;
        let size = self.shared.limits.reserve_bytes;
        if size == 0 {
            return Ok(());
        }
        let file = private_file(&self.reserve_path())?;
        if file.metadata()?.len() < size {
            let done = posix_fallocate(&file, 0, i64::try_from(size).unwrap_or(i64::MAX));
            if let Err(errno) = done {
                self.drop_reserve();
                return Err(errno.into());
            }
            file.sync_all()?;
        }
        Ok(())
    }

    /// Sees whether the disk works again.
    pub(super) fn probe(&mut self) {
        if self.probe_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        match self.try_disk() {
            Ok(()) => {
                self.probe_at = None;
                tracing::info!("spool takes items again");
                self.shared.state.send_modify(|s| s.condition = Condition::Healthy);
            }
            Err(reason) => self.degrade(reason),
        }
    }

    pub(super) fn try_disk(&mut self) -> Result<(), String> {
        if self.conn.is_none() {
            self.open().map(|_| ()).map_err(|e| recover::chain(&e))?;
        }
        let Some(conn) = &self.conn else { return Ok(()) };
        // What is owed goes first: it may be what makes room.
        let result = empty_log(conn).and_then(|()| vacuum(conn, VACUUM_PAGES)).and_then(|()| self.pay_owed());
        let result = result.and_then(|()| self.probe_write());
        if let Err(err) = result {
            self.lost_connection(&err);
            return Err(err.to_string());
        }
        self.make_reserve().map_err(|e| format!("cannot keep the reserve: {e}"))
    }

    fn probe_write(&self) -> Result<(), rusqlite::Error> {
        let Some(conn) = &self.conn else { return Ok(()) };
        #[cfg(test)]
        self.shared.fault.at("probe")?;
        conn.execute("UPDATE meta SET v = v + 1 WHERE k = 'probe'", [])?;
        empty_log(conn)
    }

    pub(super) fn checkpoint(&mut self) {
        let Some(conn) = &self.conn else { return };
        #[cfg(test)]
        let result = self.shared.fault.at("checkpoint").and_then(|()| checkpoint(conn));
        #[cfg(not(test))]
        let result = checkpoint(conn);
        self.unwritten = 0;
        if let Err(err) = result {
            self.upkeep_failed(&err);
        }
    }

    /// Small steps while nothing else is to do: forget frame ids, give free pages back.
    pub(super) fn tidy(&mut self) {
        if self.degraded() {
            return;
        }
        let Some(conn) = &self.conn else { return };
        let step = || -> Result<bool, rusqlite::Error> {
            let gone = schema::forget_frames(conn, &self.shared.limits, now_ms(), FORGET_AT_REST)?;
            let free: i64 = conn.query_row("PRAGMA freelist_count", [], |r| r.get(0))?;
            let all: i64 = conn.query_row("PRAGMA page_count", [], |r| r.get(0))?;
            // A lane that fills again soon reuses the pages: only what is much is given back.
            let spare = free > 1024 && free > all / 4;
            if spare {
                vacuum(conn, VACUUM_PAGES)?;
            }
            Ok(gone > 0 || spare)
        };
        match step() {
            Ok(true) => self.unwritten += 1,
            Ok(false) => {}
            Err(err) => self.upkeep_failed(&err),
        }
    }

    pub(super) fn upkeep_failed(&mut self, err: &rusqlite::Error) {
        match trouble(err) {
            Trouble::Disk { full, reason } => {
                self.lost_connection(err);
                if full {
                    self.drop_reserve();
                }
                self.degrade(reason);
            }
            Trouble::Damage(reason) => self.rebuild(&reason),
            Trouble::Other => tracing::warn!(%err, "upkeep of the spool failed; it is tried again"),
        }
    }

    pub(super) fn close(&mut self, clean: bool) {
        self.shared.open.store(false, Ordering::Release);
        self.shared.generation.fetch_add(1, Ordering::AcqRel);
        self.shared.readers.clear();
        if let Some(check) = self.check.take() {
            check.stop();
        }
        if let Some(conn) = self.conn.take()
            && clean
        {
            let done = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get::<_, i64>(0));
            drop(conn);
            match done {
                Ok(0) if self.shared.owed().is_empty() => recover::mark_clean(&self.shared.dir),
                Ok(_) => {}
                Err(err) => {
                    tracing::warn!(%err, "spool was not closed cleanly; it is checked at the next start")
                }
            }
        }
        self.lock = None;
    }
}

fn checkpoint(conn: &Connection) -> Result<(), rusqlite::Error> {
    conn.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?.query_row([], |_| Ok(()))
}

/// Copies the log into the database and gives its space back.
pub(super) fn empty_log(conn: &Connection) -> Result<(), rusqlite::Error> {
    conn.prepare_cached("PRAGMA wal_checkpoint(TRUNCATE)")?.query_row([], |_| Ok(()))
}

fn vacuum(conn: &Connection, pages: i64) -> Result<(), rusqlite::Error> {
    let mut stmt = conn.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
    let mut rows = stmt.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}
