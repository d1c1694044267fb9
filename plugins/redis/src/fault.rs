//! What can go wrong at the server, sorted by what to do about it.

use std::io;

/// An exchange that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The connection is gone: open another and repeat.
    #[error("the connection was lost: {0}")]
    Lost(#[from] io::Error),
    /// The server has forgotten our scripts: load them and repeat.
    #[error("the server does not know a script that was just loaded")]
    Forgotten,
    /// The server did not answer in time. The connection must not be used again.
    #[error("the server did not answer within {0} s")]
    Slow(u64),
    /// The server refuses, whatever the record.
    #[error("{0}")]
    Server(String),
}

/// What a server's error says about the record it answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grade {
    /// The key holds something else: this record can never be stored so.
    Record,
    /// The script must be loaded again.
    Forgotten,
    /// All records would be refused; with what to do about it.
    Server(&'static str),
    /// Not known: this record may go through later.
    Other,
}

/// The codes that concern the whole server, and what to do about them.
const SERVER: [(&str, &str); 19] = [
    ("OOM", FULL),
    ("READONLY", "name the primary in `host`, not a replica"),
    ("MISCONF", "the server cannot write its snapshot: look at its disk and log"),
    ("LOADING", "the server is reading its data and will answer soon"),
    ("MASTERDOWN", "the replica has lost its primary; name the primary in `host`"),
    ("NOREPLICAS", "the server wants more replicas (`min-replicas-to-write`)"),
    ("BUSY", "somebody's script runs for long at the server"),
    ("UNKILLABLE", "somebody's script runs for long at the server"),
    ("NOAUTH", "set `password`, and `username` for an ACL user"),
    ("WRONGPASS", "check `username` and `password`"),
    ("NOPERM", RIGHTS),
    ("MOVED", CLUSTER),
    ("ASK", CLUSTER),
    ("CLUSTERDOWN", CLUSTER),
    ("CROSSSLOT", CLUSTER),
    ("TRYAGAIN", CLUSTER),
    ("DENIED", "the server is in protected mode: set a password there, and `password` here"),
    ("EXECABORT", ""),
    ("NOTBUSY", ""),
];

const FULL: &str = "raise `maxmemory` at the server or let jobs expire sooner (`keep_jobs_seconds`)";
const RIGHTS: &str = "give the user the commands and keys that the plugin's README lists";
/// What to do about a cluster.
pub(crate) const CLUSTER: &str = "the server is a node of a Redis Cluster, which this plugin does not speak to: name a single \
                                  server, or one with replicas, in `host`";

/// Sorts a server's error.
pub(crate) fn grade(error: &str) -> Grade {
    // Up to Redis 6 an error within a script stands behind a text about the script.
    let inner = error.split_once("Error running script").and_then(|(_, rest)| rest.split_once(": @"));
    let inner = inner.and_then(|(_, rest)| rest.split_once(": ")).map_or(error, |(_, inner)| inner);
    let code = inner.trim_start_matches('-').split_whitespace().next().unwrap_or_default();
    match code {
        "WRONGTYPE" => Grade::Record,
        "NOSCRIPT" => Grade::Forgotten,
        _ => match SERVER.iter().find(|(known, _)| *known == code) {
            Some((_, hint)) => Grade::Server(hint),
            // Some releases put no code before what a script may not do.
            None if inner.contains("OOM command not allowed") => Grade::Server(FULL),
            None if inner.contains("can't run this command")
                || inner.contains("can't access at least one") =>
            {
                Grade::Server(RIGHTS)
            }
            None => Grade::Other,
        },
    }
}

/// The fault behind an error that answers no record.
pub(crate) fn fault(error: String) -> Fault {
    match grade(&error) {
        Grade::Forgotten => Fault::Forgotten,
        Grade::Server(hint) if !hint.is_empty() => {
            Fault::Server(format!("the server says `{error}`; hint: {hint}"))
        }
        _ => Fault::Server(format!("the server says `{error}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_sorted_by_whom_they_concern() {
        let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
        let nested = format!("ERR Error running script (call to f_0a): @user_script:5: {wrong}");
        assert_eq!((grade(wrong), grade(&nested)), (Grade::Record, Grade::Record));
        assert_eq!(grade("NOSCRIPT No matching script. Please use EVAL."), Grade::Forgotten);
        for code in
            ["OOM", "READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "WRONGPASS", "MOVED", "CLUSTERDOWN"]
        {
            assert!(
                matches!(grade(&format!("{code} something")), Grade::Server(hint) if !hint.is_empty()),
                "{code}"
            );
        }
        let oom = "ERR Error running script (call to f_0a): @user_script:1: @user_script: 1: -OOM command not allowed when \
                   used memory > 'maxmemory'.";
        assert!(matches!(grade(oom), Grade::Server(_)));
        assert_eq!(grade("ERR something else"), Grade::Other);
    }
}
