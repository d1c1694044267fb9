//! What is asked of the list of jobs.
//!
//! `get_jids` reads the loads that it answers. `get_fun` looks at the jobs of the function, newest first; the function of a job is in
//! the index, or else its load is read once. `get_minions` looks into jobs, newest first. The last two end after a while, and then say
//! so: what was not seen for so many jobs is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use returner_sdk::{JidsFilter, Result, StoredLoad, StoredReturn};

use crate::index::Index;
use crate::tree::{self, RETURN, Tree};
use crate::{loads, returns};

/// How long the list may take to be brought up to date. Salt's side waits for a few seconds.
const REFRESH_WITHIN: Duration = Duration::from_millis(2_000);
/// How long to look into jobs.
const LOOK_FOR: Duration = Duration::from_millis(1_500);

/// The newest jobs, newest first.
pub async fn jids(tree: &Tree, index: &mut Index, filter: &JidsFilter) -> Result<Vec<StoredLoad>> {
    index.refresh(tree, REFRESH_WITHIN).await?;
    let unwanted = |fun: &str| filter.without_funs.iter().any(|without| without == fun);
    let limit = usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let (mut found, mut learnt) = (Vec::new(), Vec::new());
    for (jid, fun) in index.newest(filter.before.as_deref()) {
        if found.len() >= limit {
            break;
        }
        if fun.as_deref().is_some_and(unwanted) {
            continue;
        }
        let Some((load, its_fun)) = loads::listed(tree, &jid)? else { continue };
        if fun.is_none() && !its_fun.is_empty() {
            learnt.push((jid, its_fun.clone()));
        }
        if !unwanted(&its_fun) {
            found.push(load);
        }
    }
    learn(tree, index, learnt).await?;
    Ok(found)
}

/// Each minion's latest return of a function.
pub async fn fun(tree: &Tree, index: &mut Index, fun: &str) -> Result<Vec<StoredReturn>> {
    index.refresh(tree, REFRESH_WITHIN).await?;
    let deadline = Instant::now() + LOOK_FOR;
    let mut latest: BTreeMap<String, StoredReturn> = BTreeMap::new();
    let mut learnt = Vec::new();
    for (jid, known) in index.newest(None) {
        if known.as_deref().is_some_and(|known| known != fun) {
            continue;
        }
        if Instant::now() >= deadline {
            eprintln!("jobs older than {jid} were not looked into for returns of `{fun}`");
            break;
        }
        if known.is_none() {
            let Some(its_fun) = loads::function(tree, &jid)?.filter(|its_fun| !its_fun.is_empty()) else {
                continue;
            };
            learnt.push((jid.clone(), its_fun.clone()));
            if its_fun != fun {
                continue;
            }
        }
        let job = tree.job(&jid);
        let mut load = None;
        for minion in tree::names(&job)?.unwrap_or_default() {
            if !latest.contains_key(&minion)
                && let Some(ret) = returns::read(&job, &jid, &minion, &mut load)?
            {
                latest.insert(minion, ret);
            }
        }
    }
    learn(tree, index, learnt).await?;
    Ok(latest.into_values().collect())
}

/// The ids of the minions that have a return.
pub async fn minions(tree: &Tree, index: &mut Index) -> Result<Vec<String>> {
    index.refresh(tree, REFRESH_WITHIN).await?;
    let deadline = Instant::now() + LOOK_FOR;
    let mut minions = BTreeSet::new();
    for (jid, _) in index.newest(None) {
        if Instant::now() >= deadline {
            eprintln!("jobs older than {jid} were not looked into for minions");
            break;
        }
        let job = tree.job(&jid);
        for name in tree::names(&job)?.unwrap_or_default() {
            if !name.starts_with('.') && !minions.contains(&name) && job.join(&name).join(RETURN).is_file() {
                minions.insert(name);
            }
        }
    }
    Ok(minions.into_iter().collect())
}

async fn learn(tree: &Tree, index: &mut Index, learnt: Vec<(std::rc::Rc<str>, String)>) -> Result<()> {
    learnt.iter().for_each(|(jid, fun)| index.learn(jid, fun));
    index.save(tree).await
}
