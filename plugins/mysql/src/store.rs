//! Storing returns: one row for each (jid, id), the first one stands.
//!
//! With a unique key the server keeps it so. Without one (Salt's documented table) a named lock keeps other instances
//! out between looking for the keys and inserting the missing rows.
//!
//! `success` is `1`, `0`, or empty where the outcome is unknown. Salt's own readers never look at the column, and an
//! empty text is neither a success nor a failure to reports that count `1` and `0`.

use std::collections::BTreeSet;

use returner_sdk::rows::first_of_each;
use returner_sdk::{JobReturn, Verdict, all_stored};

use crate::connect::Db;
use crate::fault::Fault;
use crate::schema::{Column, RETURNS, Schema};
use crate::sql::{self, InsertRow, quote};

const HEAD: &str = "INSERT INTO `salt_returns` \
                    (`fun`, `jid`, `return`, `id`, `success`, `full_ret`, `alter_time`) VALUES ";
/// Changes nothing. Unlike INSERT IGNORE it does not hide that a value was cut.
const KEEP: &str = " ON DUPLICATE KEY UPDATE `id` = `id`";

struct Columns {
    fun: Column,
    jid: Column,
    value: Column,
    id: Column,
    document: Column,
}

impl Columns {
    fn of(schema: &Schema) -> Self {
        let column = |name| schema.column(RETURNS, name);
        Self {
            fun: column("fun"),
            jid: column("jid"),
            value: column("return"),
            id: column("id"),
            document: column("full_ret"),
        }
    }
}

fn key(ret: &JobReturn) -> (&str, &str) {
    (&ret.jid, ret.stored_id())
}

/// Stores a batch.
pub(crate) async fn deliver(db: &mut Db, returns: &[JobReturn]) -> Result<Vec<Verdict>, Fault> {
    let mut verdicts = all_stored(returns);
    let columns = Columns::of(&db.schema);

    let (firsts, repeats) = first_of_each(returns.iter().map(key));
    let mut rows = Vec::with_capacity(firsts.len());
    for &index in firsts.values() {
        match row(db, &columns, &returns[index]) {
            Ok(values) => rows.push(InsertRow { index, values }),
            Err(why) => verdicts[index] = Verdict::Reject(why),
        }
    }

    if db.schema.returns_have_key {
        let wanted = rows.len() as u64;
        let added = sql::insert(db, HEAD, &rows, KEEP, &mut verdicts).await?;
        if added < wanted && columns.id.folds {
            reject_foreign_twins(db, returns, &rows, &mut verdicts).await?;
        }
    } else if !rows.is_empty() {
        let outcome = db
            .with_lock(RETURNS, async |db| {
                let mut verdicts = verdicts.clone();
                let there = stored_keys(db, returns, &rows).await?;
                let missing = |row: &&InsertRow| !contains(&there, &returns[row.index]);
                let rows: Vec<InsertRow> = rows
                    .iter()
                    .filter(missing)
                    .map(|row| InsertRow { index: row.index, values: row.values.clone() })
                    .collect();
                sql::insert(db, HEAD, &rows, "", &mut verdicts).await?;
                Ok(verdicts)
            })
            .await?;
        verdicts = outcome;
    }
    for (index, first) in repeats {
        verdicts[index] = verdicts[first].clone();
    }
    Ok(verdicts)
}

/// The values of a row, or why it can never be stored.
fn row(db: &mut Db, columns: &Columns, ret: &JobReturn) -> Result<String, String> {
    let id = ret.stored_id();
    let value = columns.value.json(&ret.value);
    let document = columns.document.json(&ret.document);
    let checks = [
        (&columns.jid, "jid", ret.jid.as_str()),
        (&columns.id, "id", id),
        (&columns.value, "return", &value),
        (&columns.document, "full_ret", &document),
    ];
    if let Some(why) = checks.into_iter().find_map(|(column, name, text)| column.too_long(name, text)) {
        return Err(why);
    }
    let fun = columns.fun.cut(&ret.fun);
    if fun.is_some() {
        db.note_once("fun", || {
            format!(
                "the column `fun` of `salt_returns` is too narrow for `{}`: it is cut there and whole in `full_ret`; \
                 hint: ALTER TABLE `salt_returns` MODIFY `fun` varchar(255) CHARACTER SET utf8mb4 NOT NULL",
                ret.fun
            )
        });
    }

    let mut out = String::with_capacity(value.len() + document.len() + 256);
    out.push('(');
    quote(&mut out, fun.as_deref().unwrap_or(&ret.fun));
    out.push(',');
    quote(&mut out, &ret.jid);
    out.push(',');
    quote(&mut out, &value);
    out.push(',');
    quote(&mut out, id);
    out.push_str(match ret.success {
        Some(true) => ",'1',",
        Some(false) => ",'0',",
        None => ",'',",
    });
    quote(&mut out, &document);
    out.push(',');
    out.push_str(&sql::moment(ret.arrived_ms));
    out.push(')');
    Ok(out)
}

type Keys = BTreeSet<(String, String)>;

fn contains(keys: &Keys, ret: &JobReturn) -> bool {
    keys.contains(&(ret.jid.clone(), ret.stored_id().to_owned()))
}

/// The keys of a batch that are stored, at least; it may give others that the server deems equal to them.
async fn stored_keys(db: &mut Db, returns: &[JobReturn], rows: &[InsertRow]) -> Result<Keys, Fault> {
    let jids: BTreeSet<&str> = rows.iter().map(|row| returns[row.index].jid.as_str()).collect();
    let ids: BTreeSet<&str> = rows.iter().map(|row| returns[row.index].stored_id()).collect();
    let found = db
        .rows::<2>(format!(
            "SELECT `jid`, `id` FROM `salt_returns` WHERE `jid` IN {} AND `id` IN {}",
            sql::list(jids),
            sql::list(ids)
        ))
        .await?;
    Ok(found.into_iter().map(|[jid, id]| (jid.unwrap_or_default(), id.unwrap_or_default())).collect())
}

/// A unique key that folds case takes `Web1` and `web1` for the same minion and keeps only the first.
async fn reject_foreign_twins(
    db: &mut Db,
    returns: &[JobReturn],
    rows: &[InsertRow],
    verdicts: &mut [Verdict],
) -> Result<(), Fault> {
    let there = stored_keys(db, returns, rows).await?;
    for row in rows {
        let ret = &returns[row.index];
        if verdicts[row.index] == Verdict::Stored && !contains(&there, ret) {
            verdicts[row.index] = Verdict::Reject(format!(
                "the column `id` of `salt_returns` does not tell `{}` from another id that has a return in job {}; \
                 hint: give the column the collation `utf8mb4_bin`",
                ret.stored_id(),
                ret.jid
            ));
        }
    }
    Ok(())
}
