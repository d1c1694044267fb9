//! Answering Salt's questions about jobs. Rows that Salt itself wrote are read too.

use std::collections::BTreeSet;

use returner_sdk::rows::one_for_each_id;
use returner_sdk::{JidsFilter, StoredLoad, StoredReturn, json};

use crate::connect::Db;
use crate::fault::Fault;
use crate::loads;
use crate::schema::RETURNS;
use crate::sql::{list, quoted};

/// All returns of a job, one for each id.
pub(crate) async fn returns(db: &mut Db, jid: &str) -> Result<Vec<StoredReturn>, Fault> {
    let rows = db
        .rows::<4>(format!(
            "SELECT `jid`, `id`, `full_ret`, `success` FROM `salt_returns` WHERE `jid` = {} ORDER BY `alter_time`",
            quoted(jid)
        ))
        .await?;
    Ok(one_for_each_id(rows))
}

/// The newest jobs.
pub(crate) async fn jids(db: &mut Db, filter: &JidsFilter) -> Result<Vec<StoredLoad>, Fault> {
    let mut sql = String::from("SELECT `jid`, `load` FROM `jids` WHERE TRUE");
    if let Some(before) = &filter.before {
        sql.push_str(&format!(" AND `jid` < {}", quoted(before)));
    }
    for fun in &filter.without_funs {
        // As Salt writes it, and as others may.
        let name = json::quoted(fun);
        for pair in [format!("\"fun\": {name}"), format!("\"fun\":{name}")] {
            sql.push_str(&format!(" AND LOCATE({}, `load`) = 0", quoted(&pair)));
        }
    }
    sql.push_str(&format!(" ORDER BY `jid` DESC LIMIT {}", filter.limit));
    Ok(db.rows::<2>(sql).await?.into_iter().map(loads::stored).collect())
}

/// Each minion's latest return of a function.
pub(crate) async fn fun(db: &mut Db, fun: &str) -> Result<Vec<StoredReturn>, Fault> {
    let column = db.schema.column(RETURNS, "fun");
    let cut = column.cut(fun);
    // A column that cuts names may hold another function under the same beginning.
    let shortened = cut.is_some();
    let mut matches = format!("`fun` = {}", quoted(cut.as_deref().unwrap_or(fun)));
    if shortened {
        let document = db.schema.column(RETURNS, "full_ret");
        let pair = format!("\"fun\": {}", json::quoted(fun));
        matches.push_str(&format!(" AND LOCATE({}, `full_ret`) > 0", quoted(&document.json(&pair))));
    }
    let latest = db
        .rows::<2>(format!("SELECT `id`, MAX(`jid`) FROM `salt_returns` WHERE {matches} GROUP BY `id`"))
        .await?;
    let mut rows = Vec::with_capacity(latest.len());
    for part in latest.chunks(500) {
        let ids = list(part.iter().filter_map(|[id, _]| id.as_deref()));
        let jids: BTreeSet<&str> = part.iter().filter_map(|[_, jid]| jid.as_deref()).collect();
        let found = db
            .rows::<4>(format!(
                "SELECT `jid`, `id`, `full_ret`, `success` FROM `salt_returns` \
                 WHERE `jid` IN {} AND `id` IN {ids} AND {matches} ORDER BY `jid` DESC, `alter_time`",
                list(jids)
            ))
            .await?;
        rows.extend(found);
    }
    Ok(one_for_each_id(rows))
}

/// All ids that have a return.
pub(crate) async fn minions(db: &mut Db) -> Result<Vec<String>, Fault> {
    let rows = db.rows::<1>("SELECT DISTINCT `id` FROM `salt_returns`").await?;
    Ok(rows.into_iter().flatten().flatten().collect())
}
