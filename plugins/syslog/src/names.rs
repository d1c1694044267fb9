//! The names of syslog(3), as Salt's configuration has them.
//!
//! Case does not matter, nor whether `LOG_` stands before.

use returner_sdk::{Error, Result};

const LEVELS: [(&str, u8); 8] = [
    ("LOG_EMERG", 0),
    ("LOG_ALERT", 1),
    ("LOG_CRIT", 2),
    ("LOG_ERR", 3),
    ("LOG_WARNING", 4),
    ("LOG_NOTICE", 5),
    ("LOG_INFO", 6),
    ("LOG_DEBUG", 7),
];

/// `LOG_KERN` is the kernel's own: as with syslog(3), from others it means `LOG_USER`.
const FACILITIES: [(&str, u8); 20] = [
    ("LOG_KERN", 1),
    ("LOG_USER", 1),
    ("LOG_MAIL", 2),
    ("LOG_DAEMON", 3),
    ("LOG_AUTH", 4),
    ("LOG_SYSLOG", 5),
    ("LOG_LPR", 6),
    ("LOG_NEWS", 7),
    ("LOG_UUCP", 8),
    ("LOG_CRON", 9),
    ("LOG_AUTHPRIV", 10),
    ("LOG_FTP", 11),
    ("LOG_LOCAL0", 16),
    ("LOG_LOCAL1", 17),
    ("LOG_LOCAL2", 18),
    ("LOG_LOCAL3", 19),
    ("LOG_LOCAL4", 20),
    ("LOG_LOCAL5", 21),
    ("LOG_LOCAL6", 22),
    ("LOG_LOCAL7", 23),
];

/// The options and what this plugin does for them.
const OPTIONS: [(&str, Flag); 6] = [
    ("LOG_PID", Flag::JobId),
    ("LOG_PERROR", Flag::Print),
    ("LOG_CONS", Flag::Nothing),
    ("LOG_NDELAY", Flag::Nothing),
    ("LOG_ODELAY", Flag::Nothing),
    ("LOG_NOWAIT", Flag::Nothing),
];

/// What an option of syslog(3) means here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flag {
    /// The job id stands in the process id's place.
    JobId,
    /// Each message is written to the daemon's log too.
    Print,
    /// A return that cannot be sent waits in the spool, so there is nothing to do.
    Nothing,
}

/// The number of a level.
pub(crate) fn level(name: &str) -> Result<u8> {
    find("level", name, &LEVELS)
}

/// The number of a facility.
pub(crate) fn facility(name: &str) -> Result<u8> {
    find("facility", name, &FACILITIES)
}

/// The meaning of an option.
pub(crate) fn option(name: &str) -> Result<Flag> {
    find("options", name, &OPTIONS)
}

fn find<T: Copy>(option: &str, name: &str, known: &[(&str, T)]) -> Result<T> {
    let wanted = name.trim().to_ascii_uppercase();
    let bare = |name: &str| name.strip_prefix("LOG_").unwrap_or(name).to_owned();
    known.iter().find(|(known, _)| bare(known) == bare(&wanted)).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        Error::fatal(format!(
            "the option `{option}` has `{name}`, which it does not know; hint: it may be `{}`",
            names.join("`, `")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_every_usual_spelling() {
        for name in ["LOG_LOCAL3", "local3", "Local3", " log_local3 "] {
            assert_eq!(facility(name), Ok(19), "{name}");
        }
        assert_eq!((level("debug"), level("LOG_EMERG")), (Ok(7), Ok(0)));
        assert_eq!(facility("kern"), facility("user"));
        for name in ["PID", "LOG_CONS", "LOG_NDELAY", "LOG_NOWAIT", "log_perror", "LOG_ODELAY"] {
            assert!(option(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_its_option_and_the_valid_names() {
        let cases = [level("LOG_LOUD"), facility("LOG_INFO"), option("LOG_FAST").map(|_| 0), level("LOG_")];
        for (result, words) in cases.into_iter().zip([
            ["`level`", "`LOG_LOUD`", "`LOG_WARNING`"],
            ["`facility`", "`LOG_INFO`", "`LOG_LOCAL7`"],
            ["`options`", "`LOG_FAST`", "`LOG_PERROR`"],
            ["`level`", "`LOG_`", "`LOG_DEBUG`"],
        ]) {
            let Err(Error::Fatal(why)) = result else { panic!("{result:?}") };
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
    }
}
