//! The one rule by which loads meet in a store, so that every plugin follows the same.
//!
//! A stored load carries what is not Salt's under three keys of its document: `Minions` (Salt's own name for the
//! expected minions), `EndTime`, and `__stub__: true` on a load that was made from a return.

use serde_json::{Map, Value};

use crate::{JobLoad, LoadKind, StoredLoad, json};

const STUB: &str = "__stub__";
const MINIONS: &str = "Minions";
const END_TIME: &str = "EndTime";

/// The document to store for `incoming` where `existing` is stored, or none if that can stay as it is.
///
/// A published load replaces a stub and is itself kept; minions are united and sorted; the latest end time stands.
/// An existing text that is no JSON object (something else wrote it) counts as a stub.
pub fn merge_load(existing: Option<&str>, incoming: &JobLoad) -> Option<String> {
    let old = existing.and_then(parse);
    let old_is_stub = old.as_ref().is_none_or(|map| map.contains_key(STUB));
    let mut new = match &old {
        Some(map) if !(old_is_stub && incoming.kind == LoadKind::Published) => map.clone(),
        _ => {
            let mut map = parse(&incoming.document).unwrap_or_default();
            if incoming.kind == LoadKind::Published {
                map.remove(STUB);
            } else {
                map.insert(STUB.into(), Value::Bool(true));
            }
            map
        }
    };

    let mut minions: Vec<String> = names(old.as_ref()).chain(names(Some(&new))).collect();
    minions.extend(incoming.minions.iter().cloned());
    minions.sort();
    minions.dedup();
    if !minions.is_empty() {
        new.insert(MINIONS.into(), minions.into());
    }

    let old_end = old.as_ref().and_then(|map| map.get(END_TIME)).and_then(Value::as_str).map(str::to_owned);
    if let Some(end) = old_end.max(incoming.end_time.clone()) {
        new.insert(END_TIME.into(), Value::String(end));
    }

    if old.as_ref() == Some(&new) { None } else { Some(json::to_text(&Value::Object(new))) }
}

/// A stored document as Salt wants to see it: without the mark of a stub.
pub fn clean_load(document: &str) -> String {
    if !document.contains(STUB) {
        return document.to_owned();
    }
    match parse(document) {
        Some(mut map) => {
            map.remove(STUB);
            json::to_text(&Value::Object(map))
        }
        None => document.to_owned(),
    }
}

/// A load as it was read from a store. One that nobody can read is shown with an `Error` in place of its content, so that the
/// jobs beside it are still seen.
pub fn stored_load(jid: String, stored: String) -> StoredLoad {
    let document = match json::load(stored) {
        Some(document) => clean_load(&document),
        None => {
            eprintln!("the stored load of job {jid} is not readable");
            json::object([
                ("jid", json::quoted(&jid).as_str()),
                ("Error", "\"the stored load is unreadable\""),
            ])
        }
    };
    StoredLoad { jid, document }
}

fn parse(text: &str) -> Option<Map<String, Value>> {
    match json::parse(text)? {
        Value::Object(map) => Some(map),
        _ => None,
    }
}

fn names(map: Option<&Map<String, Value>>) -> impl Iterator<Item = String> {
    let list = map.and_then(|map| map.get(MINIONS)).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(kind: LoadKind, document: &str, minions: &[&str]) -> JobLoad {
        JobLoad {
            jid: "20261201033139637056".into(),
            kind,
            document: document.into(),
            minions: minions.iter().map(|m| (*m).to_owned()).collect(),
            end_time: None,
            arrived_ms: 0,
        }
    }

    #[test]
    fn a_published_load_replaces_a_stub_and_keeps_its_minions() {
        let stub = merge_load(None, &load(LoadKind::Stub, r#"{"fun": "test.ping", "tgt": "m1"}"#, &["m1"]));
        let stub = stub.expect("a first load is stored");
        assert!(stub.contains("__stub__"));
        let merged = merge_load(
            Some(&stub),
            &load(LoadKind::Published, r#"{"fun": "test.ping", "tgt": "*", "user": "ops"}"#, &["m2"]),
        );
        assert_eq!(
            merged.as_deref(),
            Some(r#"{"fun": "test.ping", "tgt": "*", "user": "ops", "Minions": ["m1", "m2"]}"#)
        );
    }

    #[test]
    fn a_published_load_is_not_replaced() {
        let stored = r#"{"fun": "test.ping", "tgt": "*"}"#;
        for kind in [LoadKind::Published, LoadKind::Stub, LoadKind::Addition] {
            assert_eq!(merge_load(Some(stored), &load(kind, r#"{"fun": "x", "tgt": "m1"}"#, &[])), None);
        }
    }

    #[test]
    fn an_addition_unites_minions_and_keeps_the_latest_end() {
        let mut addition = load(LoadKind::Addition, "{}", &["m3", "m1"]);
        addition.end_time = Some("2026, Dec 01 03:31:40.000000".into());
        let merged = merge_load(Some(r#"{"fun": "f", "Minions": ["m1"]}"#), &addition).expect("it changes");
        assert_eq!(
            merged,
            r#"{"fun": "f", "Minions": ["m1", "m3"], "EndTime": "2026, Dec 01 03:31:40.000000"}"#
        );
        addition.end_time = Some("2026, Dec 01 03:31:39.000000".into());
        assert_eq!(merge_load(Some(&merged), &addition), None);
    }

    #[test]
    fn an_unreadable_stored_load_is_replaced() {
        let merged = merge_load(Some("\"{}\""), &load(LoadKind::Published, r#"{"fun": "f"}"#, &[]));
        assert_eq!(merged.as_deref(), Some(r#"{"fun": "f"}"#));
    }

    #[test]
    fn a_deeply_nested_load_is_kept() {
        let deep = format!(r#"{{"fun": "f", "arg": {}1{}}}"#, "[".repeat(900), "]".repeat(900));
        assert_eq!(merge_load(None, &load(LoadKind::Published, &deep, &[])).as_deref(), Some(deep.as_str()));
    }

    #[test]
    fn the_mark_of_a_stub_is_not_shown() {
        assert_eq!(clean_load(r#"{"fun": "f", "__stub__": true}"#), r#"{"fun": "f"}"#);
    }
}
