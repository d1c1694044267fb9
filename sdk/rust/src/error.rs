//! The errors of a plugin and how they become the contract's `failure` and `verdict`.

use crate::{Failure, RetryInfo, Verdict};

/// The result of a plugin's function.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something could not be done, sorted by what the host should do about it.
///
/// An error of the network or a time limit turns into `Retry` by `?`, JSON that cannot be read into `Reject`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The outside system is away, full or slow: try again, at the earliest after `after_ms` milliseconds.
    #[error("{why}")]
    Retry {
        /// The reason, for the operator.
        why: String,
        /// The earliest time of the next try in milliseconds from now; none leaves it to the host.
        after_ms: Option<u32>,
    },
    /// This can never be stored.
    #[error("{0}")]
    Reject(String),
    /// The plugin cannot work as it is configured; name the option.
    #[error("{0}")]
    Fatal(String),
}

impl Error {
    /// `Retry` without a time.
    pub fn retry(why: impl ToString) -> Self {
        Self::Retry { why: why.to_string(), after_ms: None }
    }

    /// `Reject`.
    pub fn reject(why: impl ToString) -> Self {
        Self::Reject(why.to_string())
    }

    /// `Fatal`.
    pub fn fatal(why: impl ToString) -> Self {
        Self::Fatal(why.to_string())
    }

    /// The same error with what was being done put before its text.
    #[must_use]
    pub fn context(self, doing: &str) -> Self {
        match self {
            Self::Retry { why, after_ms } => Self::Retry { why: format!("{doing}: {why}"), after_ms },
            Self::Reject(why) => Self::Reject(format!("{doing}: {why}")),
            Self::Fatal(why) => Self::Fatal(format!("{doing}: {why}")),
        }
    }
}

/// An error with its causes, each said once; for errors of drivers, whose own text may lack them.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::retry(error)
    }
}

impl From<tokio::time::error::Elapsed> for Error {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Self::retry("timed out")
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self::Reject(format!("invalid JSON: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Retry { why, after_ms } => Self::Retry(RetryInfo { why, after_ms }),
            Error::Reject(why) => Self::Reject(why),
            Error::Fatal(why) => Self::Fatal(why),
        }
    }
}

impl From<Result<()>> for Verdict {
    /// The verdict on one record. A fatal error leaves the record for later, as the fault is not the record's.
    fn from(result: Result<()>) -> Self {
        match result {
            Ok(()) => Self::Stored,
            Err(Error::Retry { why, after_ms }) => Self::Retry(RetryInfo { why, after_ms }),
            Err(Error::Fatal(why)) => Self::Retry(RetryInfo { why, after_ms: None }),
            Err(Error::Reject(why)) => Self::Reject(why),
        }
    }
}
