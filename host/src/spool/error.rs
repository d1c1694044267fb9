//! The one error type of the spool, and how SQLite's codes are read.

use std::io;
use std::path::PathBuf;

use rusqlite::ErrorCode;

/// What can go wrong in the spool. Sizes are in bytes.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The high-water mark is reached; nothing was taken.
    #[error(
        "spool is full: {bytes} of {max_bytes} bytes in {items} items; \
         hint: look at `returnerd status` for the lane that does not drain, or raise `spool.max_bytes`"
    )]
    Full {
        /// Payload bytes held now, dead letters included.
        bytes: u64,
        /// The configured mark.
        max_bytes: u64,
        /// Items held now, dead letters included.
        items: u64,
    },
    /// The disk does not take writes at the moment; the spool goes on trying by itself.
    #[error("spool cannot write now: {reason}; hint: free space or repair the disk, no restart is needed")]
    Unavailable {
        /// What the disk said.
        reason: String,
    },
    /// One item is larger than the spool accepts.
    #[error("item of {size} bytes is larger than the limit of {limit}; hint: raise `spool.max_item_bytes`")]
    TooLarge {
        /// Payload bytes of the item.
        size: u64,
        /// The configured limit.
        limit: u64,
    },
    /// The item names a sink that was never registered.
    #[error("unknown sink {0}")]
    UnknownSink(i64),
    /// A number does not fit the store.
    #[error("value of `{0}` is out of range")]
    OutOfRange(&'static str),
    /// Another process has the spool.
    #[error("spool `{path}` is in use by another process; hint: is another returnerd running?")]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// A newer returnerd wrote the database.
    #[error("spool has schema version {found}, this program knows {known}; hint: run the newer returnerd")]
    TooNew {
        /// Version in the file.
        found: i64,
        /// Version of this program.
        known: i64,
    },
    /// The database is damaged; recovery was started, the call can be repeated.
    #[error("spool database is damaged: {0}; it is being set aside and rescued")]
    Damaged(String),
    /// The spool was closed.
    #[error("spool is closed")]
    Closed,
    /// A file operation failed.
    #[error("cannot {what} `{path}`")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Writing an export failed.
    #[error("cannot write the export")]
    Export(#[source] io::Error),
    /// SQLite said no for a reason that is none of the above.
    #[error("spool database error")]
    Sqlite(#[from] rusqlite::Error),
}

impl SpoolError {
    pub(super) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// True if waiting may help: the caller should keep the item elsewhere and try again.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Unavailable { .. } | Self::Damaged(_))
    }
}

/// What an error from SQLite means for the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// No space left, a quota, or a disk that fails: degraded until a probe works.
    Disk {
        /// True if space is what is missing.
        full: bool,
        reason: String,
    },
    /// The file's content is wrong: set aside and rescue.
    Damage(String),
    /// Anything else: this statement's own fault.
    Other,
}

pub(super) fn trouble(err: &rusqlite::Error) -> Trouble {
    let reason = || err.to_string();
    match err.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Trouble::Disk { full: true, reason: reason() },
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::ReadOnly) => {
            // SQLITE_IOERR_CORRUPTFS and a short read are signs of damage, not of a disk that is full.
            match err.sqlite_extended_error_code() {
                Some(rusqlite::ffi::SQLITE_IOERR_CORRUPTFS | rusqlite::ffi::SQLITE_IOERR_SHORT_READ) => {
                    Trouble::Damage(reason())
                }
                _ => Trouble::Disk { full: false, reason: reason() },
            }
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Trouble::Damage(reason()),
        Some(_) => Trouble::Other,
        // A column of the wrong type can only come from a damaged page: all tables are STRICT.
        None => match err {
            rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..)
            | rusqlite::Error::FromSqlConversionFailure(..) => Trouble::Damage(reason()),
            _ => Trouble::Other,
        },
    }
}
