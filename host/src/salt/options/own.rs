//! Settings of Salt's own that an option may take its value from (`from_salt` in a manifest), as the shim sends them with
//! every request.

use serde_json::{Map, Value};

/// How long Salt keeps jobs, in seconds; 0 is for ever.
const KEEP: &str = "keep_jobs_seconds";
/// The older name of it, in hours, which 3006 still honours.
const KEEP_HOURS: &str = "keep_jobs";
/// Whether old jobs are to be archived.
const ARCHIVE: &str = "archive_jobs";

/// The settings there are.
pub const NAMES: [&str; 2] = [KEEP, ARCHIVE];

/// A setting's value, if Salt has it set, and the key that it stands under.
pub fn find(salt: &Map<String, Value>, name: &str) -> Option<(&'static str, Value)> {
    match name {
        KEEP => keep_seconds(salt),
        ARCHIVE => salt.get(ARCHIVE).filter(|value| !value.is_null()).map(|value| (ARCHIVE, value.clone())),
        _ => None,
    }
}

fn keep_seconds(salt: &Map<String, Value>) -> Option<(&'static str, Value)> {
    let number = |key: &str| salt.get(key).filter(|value| value.is_number());
    match number(KEEP) {
        Some(seconds) => Some((KEEP, seconds.clone())),
        None => number(KEEP_HOURS)?.as_f64().map(|hours| (KEEP_HOURS, Value::from(hours * 3_600.0))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(salt: Value, name: &str) -> Option<(&'static str, Value)> {
        find(salt.as_object().unwrap(), name)
    }

    #[test]
    fn the_keep_time_is_in_seconds_and_zero_is_a_value() {
        let keep = |salt| found(salt, KEEP);
        assert_eq!(keep(json!({"keep_jobs_seconds": 0, "keep_jobs": 2})), Some((KEEP, json!(0))));
        assert_eq!(keep(json!({"keep_jobs": 2})), Some((KEEP_HOURS, json!(7200.0))));
        assert_eq!(keep(json!({"keep_jobs_seconds": null})), None);
        assert_eq!(keep(json!({})), None);
    }

    #[test]
    fn only_known_settings_are_given() {
        assert_eq!(found(json!({"archive_jobs": true}), ARCHIVE), Some((ARCHIVE, json!(true))));
        assert_eq!(found(json!({"user": "root"}), "user"), None);
        assert!(
            NAMES
                .iter()
                .all(|name| found(json!({"archive_jobs": true, "keep_jobs_seconds": 1}), name).is_some())
        );
    }
}
