//! Storing returns: one row for each (jid, id), the first one stands.
//!
//! `success` is `true`, `false`, or empty where the outcome is unknown. Salt's own readers never look at the column,
//! and an empty text is neither a success nor a failure to reports that count the two.

use std::borrow::Cow;

use returner_sdk::rows::first_of_each;
use returner_sdk::{JobReturn, Verdict, all_stored};

use crate::connect::Db;
use crate::fault::Fault;
use crate::schema::{Column, RETURNS};
use crate::sql::{Insert, Row, moment};

const KEY: &[&str] = &["id", "jid"];
const COLUMNS: [&str; 7] = ["fun", "jid", "return", "id", "success", "full_ret", "alter_time"];

/// Stores a batch.
pub(crate) async fn deliver(db: &mut Db, returns: &[JobReturn]) -> Result<Vec<Verdict>, Fault> {
    let mut verdicts = all_stored(returns);
    let (firsts, repeats) = first_of_each(returns.iter().map(|ret| (&ret.jid, ret.stored_id())));
    let columns = COLUMNS.map(|name| db.schema.column(RETURNS, name));
    let mut rows = Vec::with_capacity(firsts.len());
    for &index in firsts.values() {
        match row(db, &columns, &returns[index]) {
            Ok(texts) => rows.push(Row { index, texts }),
            Err(why) => verdicts[index] = Verdict::Reject(why),
        }
    }
    Insert::new(&db.schema, RETURNS, KEY, &COLUMNS).run(db, &rows, &mut verdicts).await?;
    for (index, first) in repeats {
        verdicts[index] = verdicts[first].clone();
    }
    Ok(verdicts)
}

/// The values of a row, or why it can never be stored.
fn row<'a>(db: &mut Db, columns: &[Column; 7], ret: &'a JobReturn) -> Result<Vec<Cow<'a, str>>, String> {
    let [fun, jid, value, id, _, document, _] = columns;
    let too_long = jid.too_long("jid", &ret.jid).or_else(|| id.too_long("id", ret.stored_id()));
    if let Some(why) = too_long {
        return Err(why);
    }
    let cut = fun.cut(&ret.fun);
    if cut.is_some() {
        db.note_once("fun", || {
            format!(
                "the column `fun` of `salt_returns` is too narrow for `{}`: it is cut there and whole in `full_ret`; \
                 hint: ALTER TABLE salt_returns ALTER COLUMN fun TYPE varchar(512)",
                ret.fun
            )
        });
    }
    Ok(vec![
        cut.map_or(Cow::Borrowed(ret.fun.as_str()), Cow::Owned),
        Cow::Borrowed(&ret.jid),
        value.json(&ret.value),
        Cow::Borrowed(ret.stored_id()),
        Cow::Borrowed(match ret.success {
            Some(true) => "true",
            Some(false) => "false",
            None => "",
        }),
        document.json(&ret.document),
        Cow::Owned(moment(ret.arrived_ms)),
    ])
}
