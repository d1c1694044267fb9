//! Answers to Salt's questions: what the plugin has, joined with what is still on its way or lately went there.
//!
//! Invariants: a caller reads what it wrote; a job seen lately costs no question to the outside system; with that system down, known jobs
//! are answered and everything else is an error, never an empty answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::page_size::PageSize;
use super::recent::{Job, join_loads};
use super::sink::Sink;
use crate::item::{JobLoad, LoadKind, Record};
use crate::observe::chain;
use crate::plugin::bindings::jobs;
use crate::plugin::instance::{CallError, Instance};
use crate::plugin::pool::{OpenError, Use};
use crate::salt::records::stub_load;
use crate::spool::{Item, SpoolError};

/// A question waits at most this long for the outside system: less than the shim's own limit, so that the caller gets our reason
/// instead of its own time-out.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// A lane that failed this lately is not asked again.
const FAIL_FAST: Duration = Duration::from_secs(5);

/// Bytes of one list; a longer one is cut to the newest jobs.
const MAX_LIST: usize = 48 << 20;

/// Loads on their way that are read at once for a list.
const PENDING_LOADS: usize = 5_000;

/// Returns on their way that are looked at for lists, `get_fun` and `get_minions`: the newest.
const PENDING_RETURNS: usize = 10_000;

/// Returns on their way that are read at once.
const PENDING_PAGE: usize = 100;

/// The function that Salt probes running jobs with, and that job lists leave out.
const FIND_JOB: &str = "saltutil.find_job";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The plugin stores no jobs.
    #[error(
        "`{0}` cannot answer questions about jobs, since it only takes returns; hint: name a store such as `sqlite3` or `mysql` as `master_job_cache`"
    )]
    NoJobs(String),
    /// No plugin serves the sink.
    #[error("no plugin `{0}` is loaded")]
    NoPlugin(String),
    /// The outside system is away.
    #[error("`{sink}` cannot be reached at the moment: {why}")]
    Unavailable {
        /// The sink.
        sink: String,
        /// The reason.
        why: String,
    },
    /// The plugin could not be opened.
    #[error("`{sink}` cannot be asked")]
    Open {
        /// The sink.
        sink: String,
        /// The reason.
        source: Box<OpenError>,
    },
    /// The call failed.
    #[error("`{sink}` cannot answer")]
    Call {
        /// The sink.
        sink: String,
        /// The reason.
        source: CallError,
    },
    /// The spool cannot be read.
    #[error("cannot read what is on its way to `{sink}`")]
    Spool {
        /// The sink.
        sink: String,
        /// The reason.
        source: SpoolError,
    },
    /// The daemon ends, or a fault of ours.
    #[error("the question was cut off")]
    CutOff(#[source] tokio::task::JoinError),
}

/// Runs one question on the sink's instance for questions. An error is the value, so that the caller can answer without the store.
macro_rules! ask {
    ($shared:expr, $sink:expr, |$instance:ident| $call:expr) => {{
        let (shared, sink): (&Shared, &Sink) = ($shared, $sink);
        let question = async {
            let plugin = shared
                .registry
                .find(&sink.plugin)
                .ok_or_else(|| QueryError::NoPlugin(sink.plugin.clone()))?;
            if !plugin.interfaces.jobs {
                return Err(QueryError::NoJobs(sink.plugin.clone()));
            }
            if let Some(why) = sink.health.fresh_failure(FAIL_FAST) {
                return Err(QueryError::Unavailable { sink: sink.label.clone(), why });
            }
            let config = shared.config.load_full();
            let mut lease =
                sink.pool.take(Use::Query, shared.registry.host(), &plugin, &config).await.map_err(
                    |source| QueryError::Open { sink: sink.label.clone(), source: Box::new(source) },
                )?;
            let call = |source| QueryError::Call { sink: sink.label.clone(), source };
            let $instance: &mut Instance = lease.instance().map_err(call)?;
            $call.await.map_err(call)
        };
        match tokio::time::timeout(ANSWER_WITHIN, question).await {
            Ok(answer) => answer,
            Err(_) => Err(QueryError::Unavailable {
                sink: sink.label.clone(),
                why: format!("no answer within {ANSWER_WITHIN:?}"),
            }),
        }
    }};
}

/// What is on its way for one job, with what is lately known of it.
async fn known(shared: &Shared, sink: &Sink, jid: &str) -> Result<Job, QueryError> {
    let spool = |source| QueryError::Spool { sink: sink.label.clone(), source };
    // First what waits, then what is remembered: an item that is delivered in between is found in one of them.
    let pending = shared.spool.pending_of_job(sink.id, jid).await.map_err(spool)?;
    let mut job = sink.recent(|recent| recent.get(jid).cloned()).unwrap_or_default();
    for item in pending {
        match Record::from_bytes(&item.body) {
            Ok(Record::Load(load)) => join(&mut job.load, load),
            Ok(Record::Return(ret)) => {
                // It is delivered with a stub if no load comes, so the stub is known already.
                if job.load.as_ref().is_none_or(|load| load.kind == LoadKind::Addition) {
                    join(&mut job.load, stub_load(&ret));
                }
                let minion = ret.resource_id.unwrap_or(ret.minion);
                job.returns.entry(minion).or_insert_with(|| ret.document.into());
            }
            Ok(Record::Event(_)) => {}
            Err(error) => tracing::warn!(jid, error = chain(&error), "a waiting item cannot be read"),
        }
    }
    Ok(job)
}

fn join(known: &mut Option<JobLoad>, load: JobLoad) {
    *known = Some(match known.take() {
        Some(known) => join_loads(known, load),
        None => load,
    });
}

/// `get_load`: the load as JSON text.
pub async fn get_load(shared: &Shared, sink: &Sink, jid: &str) -> Result<Option<String>, QueryError> {
    // The common case, asked before every `salt` command prints a line.
    if let Some(load) = sink.recent(|recent| recent.get(jid).and_then(|job| job.load.clone()))
        && load.kind == LoadKind::Published
    {
        return Ok(Some(document(None, Some(&load))));
    }
    let job = known(shared, sink, jid).await?;
    if let Some(load) = job.load.as_ref().filter(|load| load.kind == LoadKind::Published) {
        return Ok(Some(document(None, Some(load))));
    }
    let stored = ask!(shared, sink, |instance| instance.get_load(jid));
    match (stored, job.load) {
        (Ok(None), None) => Ok(None),
        (Ok(stored), load) => Ok(Some(document(stored.as_ref().map(|s| s.document.as_str()), load.as_ref()))),
        // A stub is less than the truth, but more than an error about a job that is known.
        (Err(_), Some(load)) => Ok(Some(document(None, Some(&load)))),
        (Err(error), None) => Err(error),
    }
}

/// `get_jid`: whole returns as JSON text by minion.
pub async fn get_jid(
    shared: &Shared,
    sink: &Sink,
    jid: &str,
) -> Result<BTreeMap<String, String>, QueryError> {
    let job = known(shared, sink, jid).await?;
    let mut all = BTreeMap::new();
    match ask!(shared, sink, |instance| instance.get_returns(jid)) {
        Ok(stored) => all.extend(stored.into_iter().map(|ret| (ret.minion, ret.document))),
        Err(error) if job.load.is_none() && job.returns.is_empty() => return Err(error),
        Err(error) => {
            tracing::info!(sink = %sink.label, jid, error = chain(&error), "answering from what is still here");
        }
    }
    for (minion, document) in job.returns {
        all.entry(minion).or_insert_with(|| document.to_string());
    }
    Ok(all)
}

/// The loads that wait, joined by job: at least as many of the newest jobs as are wanted, each with all that waits for it.
async fn waiting_loads(
    shared: &Shared,
    sink: &Sink,
    wanted: usize,
) -> Result<BTreeMap<String, JobLoad>, QueryError> {
    let mut jobs: BTreeMap<String, JobLoad> = BTreeMap::new();
    let mut before: Option<String> = None;
    loop {
        let items = shared
            .spool
            .pending_loads(sink.id, before.as_deref(), PENDING_LOADS)
            .await
            .map_err(|source| QueryError::Spool { sink: sink.label.clone(), source })?;
        let full = items.len() >= PENDING_LOADS;
        // The page may end in the middle of a job, which the next one then begins with.
        let cut = match (items.first(), items.last()) {
            (Some(first), Some(last)) if full && first.jid != last.jid => Some(last.jid.clone()),
            _ => None,
        };
        let last = items.last().map(|item| item.jid.clone());
        for item in items {
            if cut.as_ref() == Some(&item.jid) {
                continue;
            }
            if let Ok(Record::Load(load)) = Record::from_bytes(&item.body) {
                let joined = match jobs.remove(&load.jid) {
                    Some(known) => join_loads(known, load),
                    None => load,
                };
                jobs.insert(joined.jid.clone(), joined);
            }
        }
        if !full || jobs.len() >= wanted {
            return Ok(jobs);
        }
        before = cut.map(|jid| format!("{jid}\0")).or(last);
    }
}

/// The newest returns that wait, in pages, so that a lane full of large ones is not read at once.
async fn waiting_returns(shared: &Shared, sink: &Sink) -> Result<Vec<Item>, QueryError> {
    let mut all: Vec<Item> = Vec::new();
    let mut bytes = 0;
    while all.len() < PENDING_RETURNS && bytes < MAX_LIST {
        let before = all.last().map(|item| item.seq);
        let page = shared
            .spool
            .pending_returns(sink.id, before, PENDING_PAGE)
            .await
            .map_err(|source| QueryError::Spool { sink: sink.label.clone(), source })?;
        let last = page.len() < PENDING_PAGE;
        bytes += page.iter().map(|item| item.body.len()).sum::<usize>();
        all.extend(page);
        if last {
            break;
        }
    }
    Ok(all)
}

/// `get_jids` and `get_jids_filter`: loads as JSON text, newest first. None lists all that fit.
pub async fn list(
    shared: &Shared,
    sink: &Sink,
    count: Option<usize>,
    without_find_job: bool,
) -> Result<Vec<(String, String)>, QueryError> {
    let wanted = count.unwrap_or(usize::MAX);
    let without_funs: Vec<String> = if without_find_job { vec![FIND_JOB.to_owned()] } else { vec![] };
    // First what waits, then what is stored: what is delivered in between is found in one of them.
    let mut pending = waiting_loads(shared, sink, wanted).await?;
    let returns = waiting_returns(shared, sink).await?;
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    let mut before = None;
    let mut bytes = 0;
    let mut size = PageSize::default();
    while all.len() < wanted && bytes < MAX_LIST {
        let limit = u32::try_from(wanted - all.len()).unwrap_or(u32::MAX).min(size.jobs());
        let filter = jobs::JidsFilter { limit, before: before.clone(), without_funs: without_funs.clone() };
        let asked = Instant::now();
        let page = ask!(shared, sink, |instance| instance.get_jids(&filter))?;
        size.learn(asked.elapsed(), ANSWER_WITHIN);
        let full = page.len() >= limit as usize;
        before = page.last().map(|load| load.jid.clone());
        for stored in page {
            bytes += stored.document.len() + stored.jid.len();
            all.insert(stored.jid, stored.document);
        }
        if !full {
            break;
        }
    }
    if bytes >= MAX_LIST {
        tracing::warn!(sink = %sink.label, jobs = all.len(), "the list of jobs is cut to the newest; hint: ask for a number of jobs");
    }
    // Of a job whose return came before its load, the store has nothing yet either.
    for item in returns {
        if !all.contains_key(&item.jid)
            && !pending.contains_key(&item.jid)
            && let Ok(Record::Return(ret)) = Record::from_bytes(&item.body)
        {
            pending.insert(item.jid, stub_load(&ret));
        }
    }
    for (jid, load) in pending {
        if without_find_job && is_find_job(&load.document) {
            continue;
        }
        let text = document(all.get(&jid).map(String::as_str), Some(&load));
        all.insert(jid, text);
    }
    Ok(all.into_iter().rev().take(wanted).collect())
}

/// `get_fun`: the latest whole return of a function by minion.
pub async fn get_fun(
    shared: &Shared,
    sink: &Sink,
    fun: &str,
) -> Result<BTreeMap<String, String>, QueryError> {
    let waiting = waiting_returns(shared, sink).await?;
    let stored = ask!(shared, sink, |instance| instance.get_fun(fun))?;
    let mut latest: BTreeMap<String, (String, String)> =
        stored.into_iter().map(|ret| (ret.minion, (ret.jid, ret.document))).collect();
    for item in waiting {
        if let Ok(Record::Return(ret)) = Record::from_bytes(&item.body)
            && ret.fun == fun
        {
            let minion = ret.resource_id.unwrap_or(ret.minion);
            if latest.get(&minion).is_none_or(|(jid, _)| *jid < ret.jid) {
                latest.insert(minion, (ret.jid, ret.document));
            }
        }
    }
    Ok(latest.into_iter().map(|(minion, (_, document))| (minion, document)).collect())
}

/// `get_minions`: ids of all minions with a return.
pub async fn get_minions(shared: &Shared, sink: &Sink) -> Result<Vec<String>, QueryError> {
    let waiting = waiting_returns(shared, sink).await?;
    let mut minions = ask!(shared, sink, |instance| instance.get_minions())?;
    minions.extend(waiting.into_iter().map(|item| item.minion).filter(|minion| !minion.is_empty()));
    minions.sort();
    minions.dedup();
    Ok(minions)
}

/// `get_endtime`: Salt's text.
pub async fn get_endtime(shared: &Shared, sink: &Sink, jid: &str) -> Result<Option<String>, QueryError> {
    let Some(text) = get_load(shared, sink, jid).await? else { return Ok(None) };
    let load: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    Ok(load.get("EndTime").and_then(serde_json::Value::as_str).map(str::to_owned))
}

/// The same in the background: the outcome is logged.
pub async fn purge_quietly(shared: Arc<Shared>, sink: Arc<Sink>, keep: Duration, archive: bool) {
    match purge(shared, sink.clone(), keep, archive).await {
        Ok(0) | Err(QueryError::NoJobs(_)) => {}
        Ok(removed) => {
            tracing::info!(sink = %sink.label, removed, keep_s = keep.as_secs(), "removed old jobs");
        }
        Err(error) => {
            if let Some(held_back) = sink.throttle.pass("purge") {
                let operation = "purge";
                tracing::warn!(sink = %sink.label, operation, held_back, "cannot remove old jobs: {}", chain(&error));
            }
        }
    }
}

/// Removes what is older than `keep` from the sink's store, in bounded steps, until nothing is left to remove.
pub async fn purge(
    shared: Arc<Shared>,
    sink: Arc<Sink>,
    keep: Duration,
    archive: bool,
) -> Result<u64, QueryError> {
    let Some(_alone) = sink.start_purge() else { return Ok(0) };
    let cutoff_ms =
        crate::spool::now_ms().saturating_sub(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
    let request = jobs::PurgeRequest {
        cutoff_ms,
        cutoff_jid: crate::salt::records::jid_from_ms(cutoff_ms),
        archive,
        limit: 1_000,
    };
    let mut removed = 0;
    loop {
        let step = purge_step(&shared, &sink, &request).await?;
        removed += step.removed;
        if !step.more || step.removed == 0 {
            return Ok(removed);
        }
        // Others want the store too.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn purge_step(
    shared: &Shared,
    sink: &Sink,
    request: &jobs::PurgeRequest,
) -> Result<jobs::Purged, QueryError> {
    ask!(shared, sink, |instance| instance.purge(request))
}

fn is_find_job(document: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(document)
        .is_ok_and(|load| load.get("fun").and_then(serde_json::Value::as_str) == Some(FIND_JOB))
}

/// The load that Salt is shown: what is stored joined with what is on its way, without our own mark.
fn document(stored: Option<&str>, load: Option<&JobLoad>) -> String {
    let merged = match load {
        None => None,
        Some(load) => returner_sdk::merge_load(
            stored,
            &returner_sdk::JobLoad {
                jid: load.jid.clone(),
                kind: match load.kind {
                    LoadKind::Published => returner_sdk::LoadKind::Published,
                    LoadKind::Stub => returner_sdk::LoadKind::Stub,
                    LoadKind::Addition => returner_sdk::LoadKind::Addition,
                },
                document: load.document.clone(),
                minions: load.minions.clone(),
                end_time: load.end_time.clone(),
                arrived_ms: load.arrived_ms,
            },
        ),
    };
    returner_sdk::clean_load(merged.as_deref().or(stored).unwrap_or("{}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_joins_what_is_stored_with_what_is_on_its_way() {
        let load = JobLoad {
            jid: "1".into(),
            kind: LoadKind::Addition,
            document: "{}".into(),
            minions: vec!["m2".into()],
            end_time: Some("2026, Dec 01 03:31:40.000000".into()),
            arrived_ms: 0,
        };
        let text =
            document(Some(r#"{"fun": "test.ping", "Minions": ["m1"], "__stub__": true}"#), Some(&load));
        assert_eq!(
            text,
            r#"{"fun": "test.ping", "Minions": ["m1", "m2"], "EndTime": "2026, Dec 01 03:31:40.000000"}"#
        );
        assert_eq!(document(Some(r#"{"fun": "f"}"#), None), r#"{"fun": "f"}"#);
    }

    #[test]
    fn probes_of_running_jobs_are_recognised() {
        assert!(is_find_job(r#"{"fun": "saltutil.find_job"}"#));
        assert!(!is_find_job(r#"{"fun": "test.ping", "arg": ["saltutil.find_job"]}"#));
    }
}
