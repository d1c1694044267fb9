//! Storing loads by the SDK's `merge_load`, and reading them.
//!
//! New loads are inserted where the key is free, which two writers can do at once; rows known to exist are locked to be
//! changed, in the order of their jids.

use std::borrow::Cow;
use std::collections::BTreeMap;

use returner_sdk::{JobLoad, StoredLoad, Verdict, all_stored, merge_load, stored_load};

use crate::connect::{Db, many, one};
use crate::fault::{Fault, text};
use crate::schema::JIDS;
use crate::sql::{Insert, Row};

const KEY: &[&str] = &["jid"];
const COLUMNS: [&str; 2] = ["jid", "load"];

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
        let added = Insert::new(&db.schema, JIDS, KEY, &COLUMNS).run(db, &rows, &mut verdicts).await?;

        let changes = |index: &usize| {
            merge_load(there.get(&loads[*index].jid).map(String::as_str), &loads[*index]).is_some()
        };
        let known: Vec<usize> = known.into_iter().filter(changes).collect();
        let vanished = change(db, loads, known, &mut verdicts).await?;
        let refused = new.iter().any(|&index| verdicts[index] != Verdict::Stored);
        if added == wanted && !refused && vanished.is_empty() {
            return Ok(verdicts);
        }
        // Somebody else was first with one of them, or removed one: see what is there now and merge. What is done
        // stays done.
        order = new;
        order.extend(vanished);
        order.sort_by(|&a, &b| loads[a].jid.cmp(&loads[b].jid));
    }
    Err(Fault::Later("other writers keep changing the same loads".into()))
}

/// Merges into rows that exist, under their locks; gives those that do not exist any more.
async fn change(
    db: &mut Db,
    loads: &[JobLoad],
    known: Vec<usize>,
    verdicts: &mut [Verdict],
) -> Result<Vec<usize>, Fault> {
    let mut vanished = Vec::new();
    let mut parts = vec![known];
    while let Some(mut part) = parts.pop() {
        if part.is_empty() {
            continue;
        }
        db.exec("BEGIN").await?;
        match change_part(db, loads, &part, verdicts).await {
            Ok(gone) => {
                db.exec("COMMIT").await?;
                vanished.extend(gone);
            }
            Err(Fault::Data(error)) => {
                db.exec("ROLLBACK").await?;
                match part[..] {
                    [index] => {
                        verdicts[index] =
                            Verdict::Reject(format!("the server refuses the load: {}", text(&error)))
                    }
                    _ => {
                        let right = part.split_off(part.len() / 2);
                        parts.extend([right, part]);
                    }
                }
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(vanished)
}

async fn change_part(
    db: &Db,
    loads: &[JobLoad],
    known: &[usize],
    verdicts: &mut [Verdict],
) -> Result<Vec<usize>, Fault> {
    let there = read(db, loads, known, " ORDER BY jid FOR UPDATE").await?;
    let (present, vanished): (Vec<usize>, Vec<usize>) =
        known.iter().partition(|&&index| there.contains_key(&loads[index].jid));
    let rows = rows(db, loads, &present, &there, verdicts);
    if !rows.is_empty() {
        let jids: Vec<&str> = rows.iter().map(|row| row.texts[0].as_ref()).collect();
        let documents: Vec<&str> = rows.iter().map(|row| row.texts[1].as_ref()).collect();
        let value = db.schema.column(JIDS, "load").cast("u.load");
        let sql = format!(
            "UPDATE jids SET load = {value} FROM unnest($1, $2) AS u (jid, load) WHERE jids.jid = u.jid"
        );
        db.change(&sql, &[many(&jids), many(&documents)]).await?;
    }
    Ok(vanished)
}

async fn read(
    db: &Db,
    loads: &[JobLoad],
    which: &[usize],
    tail: &str,
) -> Result<BTreeMap<String, String>, Fault> {
    let jids: Vec<&str> = which.iter().map(|&index| loads[index].jid.as_str()).collect();
    let sql = format!("SELECT jid::text, load::text FROM jids WHERE jid = ANY ($1){tail}");
    let rows = db.rows::<2>(&sql, &[many(&jids)]).await?;
    Ok(rows.into_iter().map(|[jid, load]| (jid.unwrap_or_default(), load.unwrap_or_default())).collect())
}

fn rows<'a>(
    db: &Db,
    loads: &'a [JobLoad],
    which: &[usize],
    there: &BTreeMap<String, String>,
    verdicts: &mut [Verdict],
) -> Vec<Row<'a>> {
    let (jid_column, load_column) = (db.schema.column(JIDS, "jid"), db.schema.column(JIDS, "load"));
    let mut rows = Vec::new();
    for &index in which {
        let load = &loads[index];
        let existing = there.get(&load.jid).map(String::as_str);
        let Some(document) = merge_load(existing, load) else { continue };
        if let Some(why) = jid_column.too_long("jid", &load.jid) {
            verdicts[index] = Verdict::Reject(why);
            continue;
        }
        let document = load_column.json(&document).into_owned();
        rows.push(Row { index, texts: vec![Cow::Borrowed(&load.jid), Cow::Owned(document)] });
    }
    rows
}

/// The load of a job.
pub(crate) async fn get(db: &Db, jid: &str) -> Result<Option<StoredLoad>, Fault> {
    let sql = "SELECT jid::text, load::text FROM jids WHERE jid = $1";
    Ok(db.rows::<2>(sql, &[one(&jid)]).await?.into_iter().next().map(stored))
}

/// A row of `jids` as a load.
pub(crate) fn stored([jid, load]: [Option<String>; 2]) -> StoredLoad {
    stored_load(jid.unwrap_or_default(), load.unwrap_or_default())
}
