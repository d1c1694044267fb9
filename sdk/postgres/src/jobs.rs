//! Answering Salt's questions about jobs. Rows that Salt itself wrote are read too.

use returner_sdk::rows::one_for_each_id;
use returner_sdk::{JidsFilter, StoredLoad, StoredReturn, json};

use crate::connect::{Db, many, number, one};
use crate::fault::Fault;
use crate::loads;
use crate::schema::{JIDS, Kind, RETURNS};

/// The columns of a return. Salt's text tables may lack the document; then the value stands for it.
const RETURN: &str = "jid::text, id::text, coalesce(full_ret::text, return::text), success::text";

/// All returns of a job, one for each id.
pub(crate) async fn returns(db: &Db, jid: &str) -> Result<Vec<StoredReturn>, Fault> {
    let sql = format!("SELECT {RETURN} FROM salt_returns WHERE jid = $1 ORDER BY alter_time");
    Ok(one_for_each_id(db.rows::<4>(&sql, &[one(&jid)]).await?))
}

/// The newest jobs.
pub(crate) async fn jids(db: &Db, filter: &JidsFilter) -> Result<Vec<StoredLoad>, Fault> {
    let load = db.schema.column(JIDS, "load");
    let (unwanted, wanted) = match load.kind {
        Kind::Json(_) => (filter.without_funs.clone(), "coalesce(load ->> 'fun', '') <> ALL ($1)"),
        // As Salt writes it, and as others may.
        _ => {
            let names = filter.without_funs.iter().map(|fun| json::quoted(fun));
            let pairs = names.flat_map(|name| [format!("\"fun\": {name}"), format!("\"fun\":{name}")]);
            (
                pairs.map(|pair| load.json(&pair).into_owned()).collect(),
                "NOT EXISTS (SELECT 1 FROM unnest($1) AS pair WHERE strpos(load, pair) > 0)",
            )
        }
    };
    let limit = i64::from(filter.limit);
    let before = filter.before.as_deref().unwrap_or_default();
    let page = if filter.before.is_some() { "jid < $3" } else { "$3 = ''" };
    let sql = format!(
        "SELECT jid::text, load::text FROM jids WHERE {wanted} AND {page} ORDER BY jid DESC LIMIT $2"
    );
    let rows = db.rows::<2>(&sql, &[many(&unwanted), number(&limit), one(&before)]).await?;
    Ok(rows.into_iter().map(loads::stored).collect())
}

/// Each minion's latest return of a function.
pub(crate) async fn fun(db: &Db, fun: &str) -> Result<Vec<StoredReturn>, Fault> {
    let cut = db.schema.column(RETURNS, "fun").cut(fun);
    // A column that cuts names may hold another function under the same beginning: the document tells them apart.
    // For a job of several functions it has them as a list.
    let whole = json::quoted(fun);
    let list = format!("[{}]", whole.replace(',', "\", \""));
    let document = db.schema.column(RETURNS, "full_ret");
    let (names, same) = match (&cut, document.kind) {
        (None, _) => (Vec::new(), "cardinality($2) = 0"),
        (Some(_), Kind::Json(_)) => (vec![whole, list], "full_ret::jsonb -> 'fun' = ANY ($2::jsonb[])"),
        (Some(_), _) => (
            vec![format!("\"fun\": {whole}"), format!("\"fun\": {list}")],
            "EXISTS (SELECT 1 FROM unnest($2) AS pair WHERE strpos(full_ret, pair) > 0)",
        ),
    };
    let names: Vec<_> = names.iter().map(|name| document.json(name)).collect();
    let sql = format!(
        "SELECT DISTINCT ON (id) {RETURN} FROM salt_returns WHERE fun = $1 AND {same} \
         ORDER BY id, jid DESC, alter_time"
    );
    let fun = cut.as_deref().unwrap_or(fun);
    Ok(one_for_each_id(db.rows::<4>(&sql, &[one(&fun), many(&names)]).await?))
}

/// All ids that have a return, by steps through the index: there are far fewer of them than of rows.
pub(crate) async fn minions(db: &Db) -> Result<Vec<String>, Fault> {
    let sql = "WITH RECURSIVE step (id) AS (\
               (SELECT id FROM salt_returns ORDER BY id LIMIT 1) UNION ALL \
               SELECT (SELECT r.id FROM salt_returns r WHERE r.id > step.id ORDER BY r.id LIMIT 1) \
               FROM step WHERE step.id IS NOT NULL) \
               SELECT id::text FROM step WHERE id IS NOT NULL";
    Ok(db.rows::<1>(sql, &[]).await?.into_iter().flatten().flatten().collect())
}
