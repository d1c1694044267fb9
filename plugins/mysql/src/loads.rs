//! Storing loads by the SDK's `merge_load`, and reading them.
//!
//! No gap is ever locked: new loads are inserted where the key is free, which two writers can do at once, and only
//! rows known to exist are locked to be changed, in the order of their jids.

use std::collections::BTreeMap;

use returner_sdk::{JobLoad, StoredLoad, Verdict, all_stored, merge_load, stored_load};

use crate::connect::Db;
use crate::fault::Fault;
use crate::schema::JIDS;
use crate::sql::{self, InsertRow, quote};

const HEAD: &str = "INSERT INTO `jids` (`jid`, `load`) VALUES ";
const KEEP: &str = " ON DUPLICATE KEY UPDATE `jid` = `jid`";
const REPLACE: &str = " ON DUPLICATE KEY UPDATE `load` = VALUES(`load`)";

/// How often a load that another writer inserts and removes meanwhile is tried.
const ROUNDS: u32 = 5;

/// Stores loads.
pub(crate) async fn save(db: &mut Db, loads: &[JobLoad]) -> Result<Vec<Verdict>, Fault> {
    let mut verdicts = all_stored(loads);
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by(|&a, &b| loads[a].jid.cmp(&loads[b].jid));

    for _ in 0..ROUNDS {
        order.retain(|&index| verdicts[index] == Verdict::Stored);
        if order.is_empty() {
            return Ok(verdicts);
        }
        let there = read(db, loads, &order, "").await?;
        let (known, new): (Vec<usize>, Vec<usize>) =
            order.iter().partition(|&&index| there.contains_key(&loads[index].jid));

        let rows = rows(db, loads, &new, &BTreeMap::new(), &mut verdicts);
        let wanted = rows.len() as u64;
        let added = sql::insert(db, HEAD, &rows, KEEP, &mut verdicts).await?;

        let changes = |index: &usize| {
            merge_load(there.get(&loads[*index].jid).map(String::as_str), &loads[*index]).is_some()
        };
        let known: Vec<usize> = known.into_iter().filter(changes).collect();
        if !known.is_empty() {
            change(db, loads, &known, &mut verdicts).await?;
        }
        let refused = new.iter().any(|&index| verdicts[index] != Verdict::Stored);
        if added == wanted && !refused {
            return Ok(verdicts);
        }
        // Somebody else was first with one of them: see what is there now and merge. What is done stays done.
        order = new;
    }
    Err(Fault::Later("other writers keep changing the same loads".into()))
}

/// Merges into rows that exist, under their locks.
async fn change(
    db: &mut Db,
    loads: &[JobLoad],
    known: &[usize],
    verdicts: &mut [Verdict],
) -> Result<(), Fault> {
    db.exec("START TRANSACTION").await?;
    let there = read(db, loads, known, " ORDER BY `jid` FOR UPDATE").await?;
    let rows = rows(db, loads, known, &there, verdicts);
    sql::insert(db, HEAD, &rows, REPLACE, verdicts).await?;
    db.exec("COMMIT").await?;
    Ok(())
}

async fn read(
    db: &mut Db,
    loads: &[JobLoad],
    which: &[usize],
    tail: &str,
) -> Result<BTreeMap<String, String>, Fault> {
    let jids = sql::list(which.iter().map(|&index| loads[index].jid.as_str()));
    let rows = db.rows::<2>(format!("SELECT `jid`, `load` FROM `jids` WHERE `jid` IN {jids}{tail}")).await?;
    Ok(rows.into_iter().map(|[jid, load]| (jid.unwrap_or_default(), load.unwrap_or_default())).collect())
}

fn rows(
    db: &Db,
    loads: &[JobLoad],
    which: &[usize],
    there: &BTreeMap<String, String>,
    verdicts: &mut [Verdict],
) -> Vec<InsertRow> {
    let (jid_column, load_column) = (db.schema.column(JIDS, "jid"), db.schema.column(JIDS, "load"));
    let mut rows = Vec::new();
    for &index in which {
        let load = &loads[index];
        let existing = there.get(&load.jid).map(String::as_str);
        let Some(document) = merge_load(existing, load) else { continue };
        let document = load_column.json(&document);
        let why = jid_column.too_long("jid", &load.jid).or_else(|| load_column.too_long("load", &document));
        if let Some(why) = why {
            verdicts[index] = Verdict::Reject(why);
            continue;
        }
        let mut values = String::with_capacity(document.len() + 64);
        values.push('(');
        quote(&mut values, &load.jid);
        values.push(',');
        quote(&mut values, &document);
        values.push(')');
        rows.push(InsertRow { index, values });
    }
    rows
}

/// The load of a job.
pub(crate) async fn get(db: &mut Db, jid: &str) -> Result<Option<StoredLoad>, Fault> {
    let rows =
        db.rows::<2>(format!("SELECT `jid`, `load` FROM `jids` WHERE `jid` = {}", sql::quoted(jid))).await?;
    Ok(rows.into_iter().next().map(stored))
}

/// A row of `jids` as a load.
pub(crate) fn stored([jid, load]: [Option<String>; 2]) -> StoredLoad {
    stored_load(jid.unwrap_or_default(), load.unwrap_or_default())
}
