//! Storing loads by the SDK's `merge_load`, and reading them.
//!
//! A load is replaced only if it is still what was merged with; else the server answers what it is now, and that is merged
//! again. A new load takes one exchange, like its whole batch.

use std::collections::BTreeMap;

use returner_sdk::{JobLoad, RetryInfo, StoredLoad, Verdict, all_stored, merge_load, stored_load};

use crate::connect::Db;
use crate::fault::Fault;
use crate::index;
use crate::scripts::{JIDS, LAST, Script};
use crate::store::{too_long, verdict};
use crate::wire::{Pipeline, Reply, text};

/// How often a load that other writers keep changing is tried.
const ROUNDS: u32 = 8;

/// Stores loads.
pub(crate) async fn save(db: &mut Db, loads: &[JobLoad]) -> Result<Vec<Verdict>, Fault> {
    let ttl = (db.settings.ttl * 1000).to_string();
    let mut verdicts = all_stored(loads);
    // What is believed to be stored, by the record.
    let mut open: BTreeMap<usize, Option<String>> = (0..loads.len()).map(|index| (index, None)).collect();
    for _ in 0..ROUNDS {
        let mut pipeline = Pipeline::default();
        let mut sent = Vec::with_capacity(open.len());
        for (index, there) in std::mem::take(&mut open) {
            let load = &loads[index];
            let Some(document) = merge_load(there.as_deref(), load) else { continue };
            if document.len() > db.max_value {
                verdicts[index] = too_long(document.len(), db.max_value);
                continue;
            }
            let key = format!("load:{}", load.jid);
            let (known, arrived) = (if there.is_some() { "1" } else { "0" }, load.arrived_ms.to_string());
            let expected = there.as_deref().unwrap_or_default();
            let arguments = [load.jid.as_str(), known, expected, &document, &ttl, &arrived];
            db.call(&mut pipeline, Script::Load, &[&key, JIDS, LAST], &arguments);
            sent.push(index);
        }
        for (index, reply) in sent.into_iter().zip(db.send(&pipeline).await?) {
            match reply {
                Reply::Integer(_) => {}
                Reply::Error(_) => verdicts[index] = verdict(reply)?,
                other => {
                    open.insert(index, text(other));
                }
            }
        }
        if open.is_empty() {
            break;
        }
    }
    for index in open.into_keys() {
        let why = "other writers keep changing the same load".to_owned();
        verdicts[index] = Verdict::Retry(RetryInfo { why, after_ms: None });
    }
    index::trim(db).await;
    Ok(verdicts)
}

/// The load of a job.
pub(crate) async fn get(db: &mut Db, jid: &str) -> Result<Option<StoredLoad>, Fault> {
    let load = text(db.ask(&["GET", &format!("load:{jid}")]).await?);
    Ok(load.map(|load| stored_load(jid.to_owned(), load)))
}
