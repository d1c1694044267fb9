//! Answering Salt's questions about jobs. What Salt's own returner wrote is read too.

use returner_sdk::{JidsFilter, StoredLoad, StoredReturn, json, serde_json::Value, stored_load};

use crate::connect::Db;
use crate::fault::Fault;
use crate::index;
use crate::scripts::JIDS;
use crate::wire::{Pipeline, list, text, texts};

/// How many keys one command reads.
const PAGE: usize = 500;

/// All returns of a job.
pub(crate) async fn returns(db: &mut Db, jid: &str) -> Result<Vec<StoredReturn>, Fault> {
    let mut fields = list(db.ask(&["HGETALL", &format!("ret:{jid}")]).await?).into_iter().map(text);
    let mut returns = Vec::with_capacity(fields.len() / 2);
    while let (Some(minion), Some(document)) = (fields.next(), fields.next()) {
        returns.push(stored(jid.to_owned(), minion.unwrap_or_default(), document.unwrap_or_default()));
    }
    Ok(returns)
}

/// The newest jobs.
pub(crate) async fn jids(db: &mut Db, filter: &JidsFilter) -> Result<Vec<StoredLoad>, Fault> {
    index::import(db).await?;
    index::trim(db).await;
    let limit = usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let mut below = filter.before.as_ref().map_or_else(|| "+".to_owned(), |before| format!("({before}"));
    let mut found = Vec::new();
    while found.len() < limit {
        let count = (limit - found.len()).min(PAGE).to_string();
        let page = texts(db.ask(&["ZREVRANGEBYLEX", JIDS, &below, "-", "LIMIT", "0", &count]).await?);
        let Some(last) = page.last() else { break };
        below = format!("({last}");
        let keys: Vec<String> = page.iter().map(|jid| format!("load:{jid}")).collect();
        let words: Vec<&str> = std::iter::once("MGET").chain(keys.iter().map(String::as_str)).collect();
        let loads = list(db.ask(&words).await?);
        for (jid, load) in page.into_iter().zip(loads) {
            // What has expired is still in the index for a while.
            let Some(load) = text(load) else { continue };
            let load = stored_load(jid, load);
            if !is_one_of(&load.document, &filter.without_funs) {
                found.push(load);
            }
        }
    }
    Ok(found)
}

/// Whether a load's function is one of these.
fn is_one_of(document: &str, funs: &[String]) -> bool {
    if funs.is_empty() {
        return false;
    }
    match json::parse(document).as_ref().and_then(|load| load.get("fun")) {
        Some(Value::String(fun)) => funs.contains(fun),
        _ => false,
    }
}

/// Each minion's latest return of a function.
pub(crate) async fn fun(db: &mut Db, fun: &str) -> Result<Vec<StoredReturn>, Fault> {
    let minions = minions(db).await?;
    let mut returns = Vec::new();
    for minions in minions.chunks(PAGE) {
        let pointers: Vec<String> = minions.iter().map(|minion| format!("{minion}:{fun}")).collect();
        let words: Vec<&str> = std::iter::once("MGET").chain(pointers.iter().map(String::as_str)).collect();
        let jids = list(db.ask(&words).await?).into_iter().map(text);
        let last: Vec<(&String, String)> =
            minions.iter().zip(jids).filter_map(|(minion, jid)| Some((minion, jid?))).collect();
        let mut pipeline = Pipeline::default();
        for (minion, jid) in &last {
            pipeline.add(&["HGET", &format!("ret:{jid}"), minion]);
        }
        // A pointer may outlive its job, and something else may stand under the job's key.
        for ((minion, jid), document) in last.into_iter().zip(db.send(&pipeline).await?) {
            if let Some(document) = text(document) {
                returns.push(stored(jid, minion.clone(), document));
            }
        }
    }
    Ok(returns)
}

/// All ids that have a return.
pub(crate) async fn minions(db: &mut Db) -> Result<Vec<String>, Fault> {
    index::trim(db).await;
    Ok(texts(db.ask(&["SMEMBERS", "minions"]).await?))
}

fn stored(jid: String, minion: String, document: String) -> StoredReturn {
    let unreadable = || format!("{{\"return\": {}}}", json::quoted(&document));
    let document = json::document(document.clone()).unwrap_or_else(unreadable);
    StoredReturn { jid, minion, document, success: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_left_out_by_the_loads_own_name_only() {
        let load = r#"{"arg": [{"fun": "b"}], "fun": "a"}"#;
        assert!(is_one_of(load, &["x".into(), "a".into()]));
        assert!(!is_one_of(load, &["b".into()]));
        assert!(!is_one_of("not JSON", &["a".into()]));
    }

    #[test]
    fn an_unreadable_document_is_a_value() {
        let ret = stored("1".into(), "m1".into(), "half a \"docu".into());
        assert_eq!(ret.document, r#"{"return": "half a \"docu"}"#);
    }
}
