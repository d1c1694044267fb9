//! What can go wrong at the server, sorted by what to do about it.

use mysql_async::{DriverError, IoError};
use returner_sdk::{Error, chain};

/// A statement that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The connection is gone: open another and repeat.
    #[error("the connection was lost: {}", text(.0))]
    Lost(#[source] mysql_async::Error),
    /// Another session was in the way: repeat.
    #[error("another session held the lock: {}", text(.0))]
    Conflict(#[source] mysql_async::Error),
    /// The server refused the values.
    #[error("{}", text(.0))]
    Data(#[source] mysql_async::Error),
    /// The server did not answer in time. The connection must not be used again.
    #[error("the server did not answer within {0} s")]
    Slow(u64),
    /// Anything else at the server: no space, no right, no table.
    #[error("{}", text(.0))]
    Server(#[source] mysql_async::Error),
    /// Something else that may heal by itself or at the server.
    #[error("{0}")]
    Later(String),
}

impl From<mysql_async::Error> for Fault {
    fn from(error: mysql_async::Error) -> Self {
        match &error {
            mysql_async::Error::Server(server) => match (server.code, server.state.get(..2)) {
                // Shut down, killed, timed out while idle, or lost on the way.
                (1053 | 1077..=1079 | 1152..=1161 | 1184 | 1317 | 1927 | 3169 | 4031, _) => Self::Lost(error),
                // Lock wait, deadlock, row changed since it was read; Galera reports its conflicts as deadlocks.
                (1020 | 1205 | 1213 | 1613 | 1614, _) => Self::Conflict(error),
                (1047, _) => Self::Lost(error),
                (1366 | 3140 | 3819 | 3903 | 4025, _) | (_, Some("22" | "23")) => Self::Data(error),
                _ => Self::Server(error),
            },
            mysql_async::Error::Io(_)
            | mysql_async::Error::Driver(
                DriverError::ConnectionClosed
                | DriverError::PacketOutOfOrder
                | DriverError::UnexpectedPacket { .. },
            ) => Self::Lost(error),
            _ => Self::Server(error),
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        // Even refused values are not the end here: what a call cannot pin on one record, it does not give up.
        Self::retry(fault)
    }
}

/// The driver's error without its prefixes, with its causes.
pub(crate) fn text(error: &mysql_async::Error) -> String {
    match error {
        mysql_async::Error::Server(server) => format!("{} (server error {})", server.message, server.code),
        mysql_async::Error::Io(IoError::Io(io)) => chain(io),
        mysql_async::Error::Io(IoError::Tls(tls)) => chain(tls),
        mysql_async::Error::Driver(driver) => driver.to_string().trim_end_matches('.').to_owned(),
        other => chain(other),
    }
}
