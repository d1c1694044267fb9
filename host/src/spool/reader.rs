//! Looking into a spool from another process while the daemon owns it: for the command line. Nothing here writes.

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use rusqlite::Connection;

use super::error::SpoolError;
use super::shared::{Book, lock};
use super::types::*;
use super::{DB, dead, read, schema};

/// A read-only view of a spool. Its calls block.
pub struct SpoolReader {
    conn: Mutex<Connection>,
}

impl SpoolReader {
    /// Opens the spool in this directory for reading, whether a daemon runs or not.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, SpoolError> {
        let path = dir.as_ref().join(DB);
        std::fs::metadata(&path).map_err(SpoolError::io("find", &path))?;
        let conn = schema::open_reading(&path)?;
        if let Some(odd) = schema::check_tables(&conn)? {
            return Err(SpoolError::Damaged(odd));
        }
        Ok(Self { conn: Mutex::new(conn) })
    }

    /// All sinks, by number. Options in it are secret.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn sinks(&self) -> Result<Vec<SinkRow>, SpoolError> {
        schema::sinks(&lock(&self.conn))
    }

    /// Numbers by lane; the counters since start are 0, they live in the daemon.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn stats(&self) -> Result<Stats, SpoolError> {
        let conn = lock(&self.conn);
        let mut book = Book::default();
        book.reset(schema::load(&conn)?);
        read::stats(&conn, &book)
    }

    /// Dead letters by number, without their records.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn dead_list(&self, filter: &DeadFilter) -> Result<Vec<DeadRow>, SpoolError> {
        dead::list(&lock(&self.conn), filter, 0, usize::MAX)
    }

    /// One dead letter with its record.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn dead_show(&self, id: u64) -> Result<Option<DeadLetter>, SpoolError> {
        dead::show(&lock(&self.conn), id)
    }

    /// Writes dead letters to `out` as JSON lines; gives how many.
    ///
    /// # Errors
    /// If they cannot be read or written.
    pub fn dead_export(&self, filter: &DeadFilter, out: &mut dyn Write) -> Result<u64, SpoolError> {
        dead::export(&lock(&self.conn), filter, out)
    }

    /// SQLite's full check and the checksum of every record.
    ///
    /// # Errors
    /// If the database cannot be read at all.
    pub fn verify(&self) -> Result<Verified, SpoolError> {
        read::verify(&lock(&self.conn))
    }
}
