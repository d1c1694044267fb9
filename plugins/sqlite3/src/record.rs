//! The shapes of what is stored, and how they become the contract's documents again.
//!
//! `full_ret` holds the value alone, as Salt's own returner writes it, so that everything that reads such tables goes on
//! working; the other keys of Salt's record (return code, user, metadata, …) stand in `extra`. Rows that Salt wrote have no
//! `extra`; then the record is made from the columns.
//!
//! Invariant: reading never fails. A text that is no JSON, such as the `NaN` of Python's encoder, is repaired or shown
//! as text.

use std::fmt::Write;

use returner_sdk::serde::de::{Deserializer, MapAccess, Visitor};
use returner_sdk::{JobReturn, StoredReturn, serde_json};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The keys of a JSON object with their values as text, in order. Nesting of any depth is kept as it is.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry::<String, &'de RawValue>()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

impl Fields<'_> {
    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(name, _)| name == key)
    }

    /// Whether `key` holds this text.
    fn says(&self, key: &str, text: &str) -> bool {
        self.0.iter().any(|(name, value)| {
            name == key && serde_json::from_str::<String>(value.get()).is_ok_and(|v| v == text)
        })
    }
}

/// What `extra` holds for a return: its record without the value.
pub fn extra(ret: &JobReturn) -> serde_json::Result<String> {
    let fields: Fields<'_> = serde_json::from_str(&ret.document)?;
    Ok(object(
        fields.0.iter().filter(|(key, _)| key != "return").map(|(key, value)| (key.as_str(), value.get())),
    ))
}

/// One row of `salt_returns`.
#[derive(Debug, Default)]
pub struct Row {
    /// The job id.
    pub jid: String,
    /// The minion or resource.
    pub id: String,
    /// The function.
    pub fun: Option<String>,
    /// The arguments: JSON if we wrote them, Python's text if Salt did.
    pub fun_args: Option<String>,
    /// The value as JSON.
    pub full_ret: String,
    /// The outcome as text.
    pub success: Option<String>,
    /// The rest of the record, if we wrote the row.
    pub extra: Option<String>,
}

impl Row {
    /// The row as the contract wants it; `document` is always a whole record.
    pub fn into_stored(self) -> StoredReturn {
        let success = match self.success.as_deref().unwrap_or_default() {
            "1" | "true" | "True" => Some(true),
            "0" | "false" | "False" => Some(false),
            _ => None,
        };
        let document = self.document(success);
        StoredReturn { jid: self.jid, minion: self.id, document, success }
    }

    fn document(&self, success: Option<bool>) -> String {
        let value = json(&self.full_ret);
        let extra = self.extra.as_deref().and_then(|extra| serde_json::from_str::<Fields<'_>>(extra).ok());
        if let Some(extra) = extra {
            let rest = extra.0.iter().filter(|(key, _)| key != "return");
            return object(
                rest.map(|(key, value)| (key.as_str(), value.get())).chain([("return", value.as_str())]),
            );
        }
        // Some keep the whole record here, as the column's name says.
        if let Ok(fields) = serde_json::from_str::<Fields<'_>>(&value)
            && fields.has("return")
            && fields.says("jid", &self.jid)
            && fields.says("id", &self.id)
        {
            return value;
        }
        let mut fields = vec![("jid", quoted(&self.jid)), ("id", quoted(&self.id))];
        if let Some(fun) = &self.fun {
            fields.push(("fun", quoted(fun)));
        }
        if let Some(args) =
            self.fun_args.as_ref().filter(|args| serde_json::from_str::<Vec<&RawValue>>(args).is_ok())
        {
            fields.push(("fun_args", args.clone()));
        }
        if let Some(success) = success {
            fields.push(("success", success.to_string()));
        }
        fields.push(("return", value));
        object(fields.iter().map(|(key, value)| (*key, value.as_str())))
    }
}

/// A stored load as the text of an object. One that was encoded twice is decoded; none if it cannot be read.
pub fn load(stored: &str) -> Option<String> {
    let text = json(stored);
    if serde_json::from_str::<Fields<'_>>(&text).is_ok() {
        return Some(text);
    }
    let inner = json(&serde_json::from_str::<String>(&text).ok()?);
    serde_json::from_str::<Fields<'_>>(&inner).is_ok().then_some(inner)
}

/// What is said in place of a load that cannot be read.
pub fn unreadable_load(jid: &str) -> String {
    object([("jid", quoted(jid).as_str()), ("Error", "\"the stored load is unreadable\"")].into_iter())
}

/// Milliseconds since 1970 as Salt's returner writes a date, but in UTC: `2026-12-01 03:31:39.637000`.
pub fn date(ms: u64) -> String {
    let (days, within) = (ms / 86_400_000, ms % 86_400_000);
    // Days are counted from 1 March 0000, so that the leap day ends a year; eras are of 400 years.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let day = day - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (seconds, millis) = (within / 1_000, within % 1_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03}000")
}

/// An object, spaced as Python does it.
fn object<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::from("{");
    for (index, (key, value)) in fields.enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{}: {value}", quoted(key));
    }
    text.push('}');
    text
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The text if it is JSON; repaired if only Python's names for special numbers are in the way; else quoted.
fn json(text: &str) -> String {
    let valid = |text: &str| serde_json::from_str::<&RawValue>(text).is_ok();
    if valid(text) {
        return text.to_owned();
    }
    let repaired = repair(text);
    if valid(&repaired) { repaired } else { quoted(text) }
}

/// Quotes `NaN`, `Infinity` and `-Infinity` outside of texts, as the host does it.
fn repair(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    let mut inside = false;
    while let Some(next) = rest.chars().next() {
        let mut taken = next.len_utf8();
        if inside && next == '\\' {
            taken += rest.chars().nth(1).map_or(0, char::len_utf8);
        } else if next == '"' {
            inside = !inside;
        } else if !inside
            && let Some(name) = ["NaN", "Infinity", "-Infinity"].into_iter().find(|n| rest.starts_with(n))
        {
            let _ = write!(out, "\"{name}\"");
            rest = rest.get(name.len()..).unwrap_or_default();
            continue;
        }
        out.push_str(rest.get(..taken).unwrap_or_default());
        rest = rest.get(taken..).unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(full_ret: &str) -> String {
        let row = Row { jid: "1".into(), id: "m1".into(), full_ret: full_ret.into(), ..Row::default() };
        row.into_stored().document
    }

    #[test]
    fn a_date_is_written_as_python_writes_it() {
        assert_eq!(date(0), "1970-01-01 00:00:00.000000");
        assert_eq!(date(951_782_399_999), "2000-02-28 23:59:59.999000");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00:00.000000");
        assert_eq!(date(1_796_096_499_637), "2026-12-01 03:41:39.637000");
        assert_eq!(date(4_102_444_799_000), "2099-12-31 23:59:59.000000");
    }

    #[test]
    fn a_value_alone_becomes_a_record() {
        assert_eq!(stored("true"), r#"{"jid": "1", "id": "m1", "return": true}"#);
        // A runner's value has a key `return` of its own.
        assert_eq!(
            stored(r#"{"jid": "1", "return": 5}"#),
            r#"{"jid": "1", "id": "m1", "return": {"jid": "1", "return": 5}}"#
        );
    }

    #[test]
    fn a_whole_record_stays_as_it_is() {
        let record = r#"{"id": "m1", "jid": "1", "return": 5, "retcode": 2}"#;
        assert_eq!(stored(record), record);
    }

    #[test]
    fn pythons_special_numbers_are_quoted_outside_of_texts() {
        assert_eq!(
            repair(r#"{"a\"NaN": [NaN, -Infinity, "NaN"]}"#),
            r#"{"a\"NaN": ["NaN", "-Infinity", "NaN"]}"#
        );
        assert!(stored("[1, Infinity]").ends_with(r#""return": [1, "Infinity"]}"#));
        assert!(stored("{'a': \"b\"}").ends_with(r#""return": "{'a': \"b\"}"}"#));
    }

    #[test]
    fn a_load_that_was_encoded_twice_is_decoded() {
        assert_eq!(load(r#""{\"fun\": \"f\"}""#).as_deref(), Some(r#"{"fun": "f"}"#));
        assert_eq!(load(r#""{}""#).as_deref(), Some("{}"));
        assert_eq!(load("[1]"), None);
        assert_eq!(load("{'fun': 'f'}"), None);
    }

    #[test]
    fn deep_nesting_is_kept() {
        let deep = format!("{}1{}", "[".repeat(1_000), "]".repeat(1_000));
        assert!(stored(&deep).contains(&deep));
    }
}
