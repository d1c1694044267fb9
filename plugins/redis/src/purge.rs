//! Removing what is old, a bounded number of records at a time.
//!
//! A job goes only when its last record is older than the cutoff: first its returns, then its load. There are no archives.

use returner_sdk::{PurgeRequest, Purged};

use crate::connect::Db;
use crate::fault::Fault;
use crate::index;
use crate::scripts::{JIDS, LAST, MINIONS, Script};
use crate::wire::{list, number};

/// How many records one script may remove, as the server does nothing else meanwhile.
const STEP: u64 = 200;
/// The same where it must look into the documents.
const SLOW_STEP: u64 = 20;

/// Removes old jobs.
pub(crate) async fn purge(db: &mut Db, request: &PurgeRequest) -> Result<Purged, Fault> {
    index::import(db).await?;
    let (step, pointers) = if db.settings.ttl == 0 { (SLOW_STEP, "1") } else { (STEP, "0") };
    let limit = u64::from(request.limit);
    let cutoff = request.cutoff_ms.to_string();
    let (mut removed, mut more) = (0, true);
    while more && removed < limit {
        let budget = (limit - removed).min(step).to_string();
        let keys = [LAST, JIDS, MINIONS, "minions"];
        let counts = list(db.ask_script(Script::Purge, &keys, &[&cutoff, &budget, pointers]).await?);
        removed += counts.first().map_or(0, number);
        more = counts.get(1).is_some_and(|more| number(more) == 1);
    }
    Ok(Purged { removed, more })
}
