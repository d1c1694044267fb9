//! Settings of Salt's own that an option may take its value from (`from_salt` in a manifest), as the shim sends them with
//! every request.
//!
//! Invariant: a plugin learns no setting but those of [`NAMES`], whatever its manifest asks, since Salt's configuration holds secrets.

use serde_json::{Map, Value};

/// How long Salt keeps jobs, in seconds; 0 is for ever.
const KEEP: &str = "keep_jobs_seconds";
/// The older name of it, in hours, which 3006 still honours.
const KEEP_HOURS: &str = "keep_jobs";
/// Whether old jobs are to be archived.
const ARCHIVE: &str = "archive_jobs";
/// Where Salt keeps its files.
const CACHE: &str = "cachedir";
/// The hash that names Salt's job directories.
const HASH: &str = "hash_type";

/// The settings there are.
pub const NAMES: [&str; 4] = [KEEP, ARCHIVE, CACHE, HASH];

/// Where an option takes its value from: a setting as it is (`hash_type`), or a text around one (`{cachedir}/jobs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source<'a> {
    before: &'a str,
    name: &'a str,
    after: &'a str,
}

impl<'a> Source<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let Some((before, rest)) = text.split_once('{') else {
            return Some(Self { before: "", name: text, after: "" });
        };
        let (name, after) = rest.split_once('}')?;
        Some(Self { before, name, after })
    }
}

/// Whether a manifest may say `from_salt = "<text>"`.
pub fn is_known(text: &str) -> bool {
    Source::parse(text).is_some_and(|source| NAMES.contains(&source.name))
}

/// The value for `from_salt = "<text>"`, if Salt has the setting, and the key that it stands under.
pub fn find(salt: &Map<String, Value>, text: &str) -> Option<(&'static str, Value)> {
    let source = Source::parse(text)?;
    let (key, value) = setting(salt, source.name)?;
    match &value {
        Value::String(inner) if text != source.name => {
            Some((key, Value::from(format!("{}{inner}{}", source.before, source.after))))
        }
        _ if text == source.name => Some((key, value)),
        _ => None,
    }
}

/// Of a whole configuration of Salt's the settings that there are.
pub fn only(salt: &Map<String, Value>) -> Map<String, Value> {
    let known = |key: &String| NAMES.contains(&key.as_str()) || key == KEEP_HOURS;
    salt.iter().filter(|(key, _)| known(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn setting(salt: &Map<String, Value>, name: &str) -> Option<(&'static str, Value)> {
    let name = NAMES.into_iter().find(|known| *known == name)?;
    if name == KEEP {
        return keep_seconds(salt);
    }
    let value = salt.get(name).filter(|value| !value.is_null() && value.as_str() != Some(""))?;
    Some((name, value.clone()))
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
        assert!(is_known("hash_type") && is_known("{cachedir}/jobs"));
        for other in ["user", "", "{user}/x", "{cachedir", "keep_jobs"] {
            assert!(!is_known(other), "{other}");
        }
        let all = json!({"cachedir": "/c", "keep_jobs": 1, "user": "root", "mysql.pass": "secret"});
        assert_eq!(Value::Object(only(all.as_object().unwrap())), json!({"cachedir": "/c", "keep_jobs": 1}));
    }

    #[test]
    fn a_setting_may_stand_in_a_text() {
        let salt = json!({"cachedir": "/var/cache/salt/master", "hash_type": "", "archive_jobs": true});
        assert_eq!(
            found(salt.clone(), "{cachedir}/jobs"),
            Some((CACHE, json!("/var/cache/salt/master/jobs")))
        );
        assert_eq!(found(salt.clone(), "hash_type"), None);
        assert_eq!(found(salt, "{archive_jobs}/x"), None);
    }
}
