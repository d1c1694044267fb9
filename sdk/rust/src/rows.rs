//! What stores share that keep Salt's records as rows of tables: how a record becomes a row and a row a record again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::{JobReturn, StoredReturn, json};

impl JobReturn {
    /// The id under which a store with a single id column keeps it: the resource that answered, as Salt's master does it,
    /// or the minion.
    pub fn stored_id(&self) -> &str {
        self.resource_id.as_deref().unwrap_or(&self.minion)
    }
}

/// The outcome in a column `success`, as we, Salt and servers write it; none if it says nothing.
pub fn outcome(success: Option<&str>) -> Option<bool> {
    match success? {
        "1" | "True" | "true" | "t" => Some(true),
        "0" | "False" | "false" | "f" => Some(false),
        _ => None,
    }
}

/// Returns from rows of jid, id, document and `success`: the first row of each id, since a table without a unique key may hold
/// several. A document that is not JSON is shown as a value.
pub fn one_for_each_id(rows: Vec<[Option<String>; 4]>) -> Vec<StoredReturn> {
    let mut seen = BTreeSet::new();
    let mut returns = Vec::with_capacity(rows.len());
    for [jid, id, document, success] in rows {
        let id = id.unwrap_or_default();
        if seen.insert(id.clone()) {
            let document = document.unwrap_or_default();
            let unreadable = || json::object([("return", json::quoted(&document).as_str())]);
            let document = json::document(document.clone()).unwrap_or_else(unreadable);
            let success = outcome(success.as_deref());
            returns.push(StoredReturn { jid: jid.unwrap_or_default(), minion: id, document, success });
        }
    }
    returns
}

/// Of records with these keys: the first of each key, in order of the keys, and those that repeat a key, each with the first one's
/// position. A store with one row for each key takes the former, in an order in which writers do not deadlock; the latter fare as
/// their first one did.
pub fn first_of_each<K: Ord>(keys: impl IntoIterator<Item = K>) -> (BTreeMap<K, usize>, Vec<(usize, usize)>) {
    let mut firsts = BTreeMap::new();
    let mut repeats = Vec::new();
    for (position, key) in keys.into_iter().enumerate() {
        match firsts.entry(key) {
            Entry::Occupied(first) => repeats.push((position, *first.get())),
            Entry::Vacant(free) => {
                free.insert(position);
            }
        }
    }
    (firsts, repeats)
}

/// An event's data with its whole tag under `__tag__`, for a table whose column cuts tags.
pub fn with_tag(data: &str, tag: &str) -> String {
    let tag = json::quoted(tag);
    match data.trim_start().strip_prefix('{').map(str::trim_start) {
        Some("}") => format!("{{\"__tag__\": {tag}}}"),
        Some(rest) => format!("{{\"__tag__\": {tag}, {rest}"),
        None => format!("{{\"__tag__\": {tag}, \"data\": {data}}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_with_one_key_are_the_first_one_and_its_repeats() {
        let (firsts, repeats) = first_of_each(["b", "a", "b", "c", "a", "b"]);
        assert_eq!(firsts.into_iter().collect::<Vec<_>>(), [("a", 1), ("b", 0), ("c", 3)]);
        assert_eq!(repeats, [(2, 0), (4, 1), (5, 0)]);
    }

    #[test]
    fn of_several_rows_the_first_stands_and_unreadable_ones_are_values() {
        let row = |id: &str, document: &str, success: &str| {
            [Some("1".to_owned()), Some(id.to_owned()), Some(document.to_owned()), Some(success.to_owned())]
        };
        let returns = one_for_each_id(vec![
            row("m1", r#"{"return": 1}"#, "1"),
            row("m1", r#"{"return": 2}"#, "0"),
            row("m2", "half a \"docu", ""),
        ]);
        assert_eq!(returns.len(), 2);
        assert_eq!((returns[0].document.as_str(), returns[0].success), (r#"{"return": 1}"#, Some(true)));
        assert_eq!(returns[1].document, r#"{"return": "half a \"docu"}"#);
        assert_eq!(returns[1].success, None);
    }

    #[test]
    fn an_outcome_is_read_as_whoever_wrote_it() {
        assert_eq!(["1", "True", "true", "t"].map(|text| outcome(Some(text))), [Some(true); 4]);
        assert_eq!(["0", "False", "false", "f"].map(|text| outcome(Some(text))), [Some(false); 4]);
        assert_eq!([outcome(None), outcome(Some(""))], [None; 2]);
    }

    #[test]
    fn a_cut_tag_stays_whole_in_the_data() {
        assert_eq!(with_tag("{\"a\": 1}", "t/\"x"), r#"{"__tag__": "t/\"x", "a": 1}"#);
        assert_eq!(with_tag("{}", "t"), r#"{"__tag__": "t"}"#);
    }
}
