//! Storing returns: a field for each minion in the hash of the job, the first one stands.

use returner_sdk::{JobReturn, RetryInfo, Verdict};

use crate::connect::{Db, now_ms};
use crate::fault::{Fault, Grade, fault, grade};
use crate::index;
use crate::scripts::{LAST, MINIONS, Script};
use crate::wire::{Pipeline, Reply};

/// Stores a batch in one exchange.
pub(crate) async fn deliver(db: &mut Db, returns: &[JobReturn]) -> Result<Vec<Verdict>, Fault> {
    let (ttl, now) = ((db.settings.ttl * 1000).to_string(), now_ms().to_string());
    let mut pipeline = Pipeline::default();
    for ret in returns.iter().filter(|ret| ret.document.len() <= db.max_value) {
        let id = ret.stored_id();
        let [job, load] = ["ret:", "load:"].map(|kind| format!("{kind}{}", ret.jid));
        let pointer = format!("{id}:{}", ret.fun);
        let keys = [&job, &pointer, "minions", &load, LAST, MINIONS];
        let arrived = ret.arrived_ms.to_string();
        let arguments = [ret.jid.as_str(), id, &ret.document, &ttl, &arrived, &now];
        db.call(&mut pipeline, Script::Return, &keys, &arguments);
    }
    let mut replies = db.send(&pipeline).await?.into_iter();
    let mut verdicts = Vec::with_capacity(returns.len());
    for ret in returns {
        verdicts.push(if ret.document.len() > db.max_value {
            too_long(ret.document.len(), db.max_value)
        } else {
            verdict(replies.next().unwrap_or(Reply::Null))?
        });
    }
    index::trim(db).await;
    Ok(verdicts)
}

/// What became of a record, by the reply to its script. A fault is one that all records share.
pub(crate) fn verdict(reply: Reply) -> Result<Verdict, Fault> {
    let Reply::Error(error) = reply else { return Ok(Verdict::Stored) };
    match grade(&error) {
        Grade::Record => Ok(Verdict::Reject(format!(
            "the server refuses the record, as something else stands under one of its keys: it says `{error}`"
        ))),
        Grade::Other => Ok(Verdict::Retry(RetryInfo {
            why: format!("the server refuses the record: it says `{error}`"),
            after_ms: None,
        })),
        Grade::Forgotten | Grade::Server(_) => Err(fault(error)),
    }
}

/// The verdict on a value that the server would not take.
pub(crate) fn too_long(size: usize, limit: usize) -> Verdict {
    Verdict::Reject(format!(
        "{size} bytes are over the {limit} that the server takes as one value; hint: raise `proto-max-bulk-len` at the server"
    ))
}
