//! Waiting for a condition instead of for a time.
//!
//! Every wait has a limit; when it is over the test panics with what it waited for and what is known by then.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(20);

/// Waits until `condition` holds.
pub fn wait_for(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    wait_for_value(what, limit, String::new, || condition().then_some(()));
}

/// Waits until `probe` gives a value. `context` tells more when it does not: log tails, a last answer.
pub fn wait_for_value<T>(
    what: &str,
    limit: Duration,
    context: impl FnOnce() -> String,
    mut probe: impl FnMut() -> Option<T>,
) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        if began.elapsed() >= limit {
            panic!("waited {limit:?} in vain for {what}\n{}", context());
        }
        sleep(STEP);
    }
}

/// The last lines of files, each under its name, for messages. A file that is not there is named as such.
pub fn tails<'a>(files: impl IntoIterator<Item = &'a Path>, lines: usize) -> String {
    let mut text = String::new();
    for file in files {
        let _ = writeln!(text, "--- {}", file.display());
        match fs::read(file) {
            Ok(bytes) => {
                let content = String::from_utf8_lossy(&bytes);
                let all: Vec<&str> = content.lines().collect();
                for line in &all[all.len().saturating_sub(lines)..] {
                    let _ = writeln!(text, "{line}");
                }
            }
            Err(error) => {
                let _ = writeln!(text, "({error})");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_as_soon_as_there_is_a_value() {
        let mut calls = 0;
        let value = wait_for_value("three calls", Duration::from_secs(5), String::new, || {
            calls += 1;
            (calls == 3).then_some(calls)
        });
        assert_eq!(value, 3);
    }

    #[test]
    #[should_panic(expected = "in vain for the impossible\nknown: nothing")]
    fn a_wait_in_vain_says_what_for_and_what_is_known() {
        wait_for_value("the impossible", Duration::ZERO, || "known: nothing".to_owned(), || None::<()>);
    }

    #[test]
    fn tails_gives_the_last_lines_and_names_a_missing_file() {
        let dir = tempfile::tempdir().unwrap();
        let (log, missing) = (dir.path().join("log"), dir.path().join("none"));
        fs::write(&log, "one\ntwo\nthree\n").unwrap();
        let text = tails([log.as_path(), missing.as_path()], 2);
        assert!(text.contains("two\nthree\n") && !text.contains("\none\n"), "{text}");
        assert!(text.contains("none\n("), "{text}");
    }
}
