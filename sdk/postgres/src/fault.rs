//! What can go wrong at the server, sorted by what to do about it.

use returner_sdk::{Error, chain};

/// A statement that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The connection is gone, or what was known of the tables is no longer true: open another and repeat.
    #[error("the connection was lost: {}", text(.0))]
    Lost(#[source] tokio_postgres::Error),
    /// Another session was in the way: repeat.
    #[error("another session was in the way: {}", text(.0))]
    Conflict(#[source] tokio_postgres::Error),
    /// The server refused the values.
    #[error("{}", text(.0))]
    Data(#[source] tokio_postgres::Error),
    /// The server did not answer in time. The connection must not be used again.
    #[error("the server did not answer within {0} s")]
    Slow(u64),
    /// Anything else at the server: no space, no right, a lock that is not given back.
    #[error("{}", text(.0))]
    Server(#[source] tokio_postgres::Error),
    /// Something else that may heal by itself or at the server.
    #[error("{0}")]
    Later(String),
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(code) = error.code().map(|code| code.code().to_owned()) else { return Self::Lost(error) };
        match code.as_str() {
            // Shut down, killed, or ended for idleness; a server that became a standby; tables that were replaced.
            "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" | "25006" | "42P01" | "42703"
            | "42P10" => Self::Lost(error),
            "40001" | "40P01" => Self::Conflict(error),
            // A trigger that raises an error, and a view's condition.
            "P0001" | "44000" => Self::Data(error),
            // A column of somebody else's that wants a value, and a partition that nobody has made yet.
            "23502" => Self::Server(error),
            "23514" if error.as_db_error().is_some_and(|server| server.constraint().is_none()) => {
                Self::Server(error)
            }
            _ => match code.get(..2) {
                Some("08") => Self::Lost(error),
                // Bad values, broken constraints, limits such as a text's or an index's.
                Some("22" | "23" | "54") => Self::Data(error),
                _ => Self::Server(error),
            },
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
pub(crate) fn text(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(server) => {
            let code = server.code().code();
            // Elsewhere the detail may show a whole row.
            let detail = server.detail().filter(|_| code.starts_with("22")).unwrap_or_default();
            let colon = if detail.is_empty() { "" } else { ": " };
            format!("{}{colon}{} (server error {code})", server.message(), detail.trim_end_matches('.'))
        }
        None => chain(error),
    }
}
