//! The shapes of what is stored, and how they become the contract's documents again.
//!
//! `full_ret` holds the value alone, as Salt's own returner writes it, so that everything that reads such tables goes on
//! working; the other keys of Salt's record (return code, user, metadata, …) stand in `extra`. Rows that Salt wrote have no
//! `extra`; then the record is made from the columns.
//!
//! Invariant: reading never fails. A text that is no JSON, such as the `NaN` of Python's encoder, is repaired or shown
//! as text.

use returner_sdk::json::{self, object, quoted};
use returner_sdk::rows::outcome;
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
        let success = outcome(self.success.as_deref());
        let document = self.document(success);
        StoredReturn { jid: self.jid, minion: self.id, document, success }
    }

    fn document(&self, success: Option<bool>) -> String {
        let value = text(&self.full_ret);
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

/// The text if it is JSON; repaired if only Python's names for special numbers are in the way; else quoted.
fn text(text: &str) -> String {
    json::repaired(text).unwrap_or_else(|| quoted(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(full_ret: &str) -> String {
        let row = Row { jid: "1".into(), id: "m1".into(), full_ret: full_ret.into(), ..Row::default() };
        row.into_stored().document
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
    fn a_value_that_is_no_json_is_shown_as_text() {
        assert!(stored("[1, Infinity]").ends_with(r#""return": [1, "Infinity"]}"#));
        assert!(stored("{'a': \"b\"}").ends_with(r#""return": "{'a': \"b\"}"}"#));
    }

    #[test]
    fn deep_nesting_is_kept() {
        let deep = format!("{}1{}", "[".repeat(1_000), "]".repeat(1_000));
        assert!(stored(&deep).contains(&deep));
    }
}
