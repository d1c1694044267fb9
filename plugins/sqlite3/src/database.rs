//! The open file: its options, its transactions, and what SQLite's errors mean to the operator.
//!
//! Invariants: every write happens in an `IMMEDIATE` transaction, so that what it read cannot change under it; the journal
//! is a rollback journal that is synced with `FULL`, so that what was committed survives a loss of power.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use returner_sdk::{Error, Result, Verdict};
use rusqlite::ffi::{SQLITE_CONSTRAINT_NOTNULL, SQLITE_READONLY_DBMOVED};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, Row, Transaction, TransactionBehavior};

use crate::{Options, vfs};

/// The longest `timeout` in seconds.
const MAX_TIMEOUT: f64 = 600.0;

/// The pages that are kept in memory, as `cache_size` has it: less than none means KiB. A batch of a thousand changes the
/// indexes in a thousand places; what does not stay in memory is read, and written before its time, at each of them.
const CACHE_KIB: i64 = -16 * 1024;

/// An open database file.
pub struct Database {
    connection: Connection,
    at: At,
}

/// What messages need to know.
struct At {
    path: PathBuf,
    timeout: Duration,
}

impl Database {
    /// Opens the file of the options, or makes it. A fatal error names the option.
    pub fn open(options: &Options) -> Result<Self> {
        let path = PathBuf::from(&options.database);
        let timeout = options.timeout;
        if !(0.0..=MAX_TIMEOUT).contains(&timeout) {
            return Err(Error::fatal(format!(
                "`sqlite3.timeout` is {timeout}, not between 0 and {MAX_TIMEOUT} seconds"
            )));
        }
        check_path(&path)?;
        check_header(&path)?;
        let at = At { path, timeout: Duration::from_secs_f64(timeout) };
        let connection = prepared(&at).map_err(|error| at.explain(&error))?;
        Ok(Self { connection, at })
    }

    /// Runs something that only reads.
    pub fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        work(&self.connection).map_err(|error| self.at.explain(&error))
    }

    /// Runs one transaction; it is rolled back if `work` fails.
    pub fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T> {
        let connection = &mut self.connection;
        let run = || {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        run().map_err(|error| self.at.explain(&error))
    }

    /// The path of the file, for messages.
    pub fn path(&self) -> &Path {
        &self.at.path
    }
}

fn check_path(path: &Path) -> Result<()> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(Error::fatal(format!("`sqlite3.database` is `{shown}`, not an absolute path")));
    }
    let directory = path.parent().unwrap_or(path);
    match directory.metadata() {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => {
            return Err(Error::fatal(format!(
                "`sqlite3.database` is `{shown}`, but `{}` is not a directory",
                directory.display()
            )));
        }
        Err(error) => {
            return Err(Error::fatal(format!(
                "`sqlite3.database` is `{shown}`, but its directory cannot be reached: {error}; hint: make `{}` and let \
                 returnerd's user write to it",
                directory.display()
            )));
        }
    }
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => {
            Err(Error::fatal(format!("`sqlite3.database` is `{shown}`, which is a directory, not a file")))
        }
        _ => Ok(()),
    }
}

/// Refuses what SQLite would only complain about later, and less clearly.
fn check_header(path: &Path) -> Result<()> {
    let mut header = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(20).read_to_end(&mut header)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(Error::fatal(format!(
                "`sqlite3.database`: cannot read `{}`: {error}; hint: let returnerd's user read and write it",
                path.display()
            )));
        }
    };
    if header.is_empty() {
        return Ok(());
    }
    if !header.starts_with(b"SQLite format 3\0") {
        return Err(not_a_database(path, "it has another header"));
    }
    if header.get(18..20).is_some_and(|versions| versions.contains(&2)) {
        return Err(Error::fatal(format!(
            "`sqlite3.database`: `{path}` is in WAL mode, which needs memory shared with other programs; hint: \
             `sqlite3 {path} 'PRAGMA journal_mode=DELETE'` while nothing else has it open",
            path = path.display()
        )));
    }
    Ok(())
}

fn not_a_database(path: &Path, why: impl Display) -> Error {
    Error::fatal(format!(
        "`sqlite3.database`: `{path}` is damaged or not an SQLite database: {why}; hint: look at it with \
         `sqlite3 {path} 'PRAGMA integrity_check'`, and restore it or move it away",
        path = path.display()
    ))
}

fn prepared(at: &At) -> rusqlite::Result<Connection> {
    let connection = vfs::open(&at.path)?;
    connection.busy_timeout(at.timeout)?;
    connection.set_prepared_statement_cache_capacity(32);
    // Statement journals and sorters would be files in a directory that is not granted.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cache_size", CACHE_KIB)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // With `FULL`, truncating the journal is synced and removing it is not, so this mode alone keeps every commit.
    connection.pragma_update_and_check(None, "journal_mode", "TRUNCATE", |row| row.get::<_, String>(0))?;
    Ok(connection)
}

impl At {
    fn explain(&self, error: &rusqlite::Error) -> Error {
        let path = self.path.display();
        let rusqlite::Error::SqliteFailure(failure, _) = error else {
            return Error::retry(format!("`{path}`: {error}"));
        };
        match failure.code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Error::retry(format!(
                "`{path}` has been locked by another program for longer than {} s (`sqlite3.timeout`)",
                self.timeout.as_secs_f64()
            )),
            ErrorCode::DiskFull => Error::retry(format!("the disk of `{path}` is full")),
            ErrorCode::ReadOnly if failure.extended_code != SQLITE_READONLY_DBMOVED => Error::fatal(format!(
                "`sqlite3.database`: `{path}` cannot be written: {error}; hint: let returnerd's user write to the file and \
                 its directory"
            )),
            ErrorCode::PermissionDenied => Error::fatal(format!(
                "`sqlite3.database`: `{path}` cannot be locked: {error}; hint: let returnerd's user write to it"
            )),
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => not_a_database(&self.path, error),
            ErrorCode::TooBig => Error::reject(format!("the record is too large for SQLite: {error}")),
            ErrorCode::ConstraintViolation if failure.extended_code == SQLITE_CONSTRAINT_NOTNULL => {
                Error::fatal(format!(
                    "`sqlite3.database`: a table of `{path}` wants a value that Salt does not give: {error}; hint: give \
                     the column a default"
                ))
            }
            ErrorCode::ConstraintViolation => Error::reject(format!("`{path}` refuses the record: {error}")),
            // Opening the file again, which follows, tells the cause if it lasts.
            _ => Error::retry(format!("`{path}`: {error}")),
        }
    }
}

/// The verdict on a record of a running transaction: what is the record's own fault rejects it, anything else ends
/// the transaction.
pub fn verdict(result: rusqlite::Result<()>) -> rusqlite::Result<Verdict> {
    let Err(error) = result else { return Ok(Verdict::Stored) };
    match &error {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::TooBig => Ok(Verdict::Reject(format!("the record is too large for SQLite: {error}"))),
            ErrorCode::ConstraintViolation if failure.extended_code != SQLITE_CONSTRAINT_NOTNULL => {
                Ok(Verdict::Reject(format!("the table refuses the record: {error}")))
            }
            _ => Err(error),
        },
        _ => Err(error),
    }
}

/// A column as text, whatever its type: other programs wrote here too.
pub fn text(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<String>> {
    Ok(match row.get_ref(index)? {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
    })
}
