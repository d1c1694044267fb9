//! What a sink has lately accepted or delivered, so that a caller reads what it wrote and a fresh job costs no question.
//!
//! Invariants: bounded by jobs and bytes, the oldest job goes first; only what is on disk or delivered is noted; a published load is
//! never replaced by less.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::item::{JobLoad, LoadKind};
use crate::plugin::bindings::types::JobReturn;

/// Jobs kept.
const MAX_JOBS: usize = 10_000;
/// Bytes of documents kept.
const MAX_BYTES: usize = 16 << 20;
/// A larger document is not kept; the outside system has it.
const MAX_DOCUMENT: usize = 256 << 10;

/// A job as lately seen.
#[derive(Debug, Clone, Default)]
pub struct Job {
    /// The load, if one was seen.
    pub load: Option<JobLoad>,
    /// Whole returns by minion.
    pub returns: BTreeMap<String, Arc<str>>,
    /// Whether every return that was seen is in `returns`.
    pub complete: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Recent {
    jobs: HashMap<String, Job>,
    order: VecDeque<String>,
    bytes: usize,
}

/// Joins two loads of one job: the published one stands, minions are united, the latest end time stands.
pub fn join_loads(a: JobLoad, b: JobLoad) -> JobLoad {
    let rank = |kind| match kind {
        LoadKind::Published => 2,
        LoadKind::Stub => 1,
        LoadKind::Addition => 0,
    };
    let (mut kept, other) = if rank(b.kind) > rank(a.kind) { (b, a) } else { (a, b) };
    kept.minions.extend(other.minions);
    kept.minions.sort();
    kept.minions.dedup();
    kept.end_time = kept.end_time.max(other.end_time);
    kept
}

impl Recent {
    /// Notes a load.
    pub fn load(&mut self, load: &JobLoad) {
        if load.document.len() > MAX_DOCUMENT {
            return;
        }
        let job = self.job(&load.jid);
        let (before, joined) = match job.load.take() {
            Some(known) => (known.document.len(), join_loads(known, load.clone())),
            None => (0, load.clone()),
        };
        let after = joined.document.len();
        job.load = Some(joined);
        self.grow(after, before);
    }

    /// Notes a return as it was handed over; the first of a minion stands.
    pub fn ret(&mut self, ret: &JobReturn) {
        let minion = ret.resource_id.as_ref().unwrap_or(&ret.minion);
        let job = self.job(&ret.jid);
        if ret.document.len() > MAX_DOCUMENT {
            job.complete = false;
        } else if !job.returns.contains_key(minion) {
            job.returns.insert(minion.clone(), ret.document.as_str().into());
            self.grow(ret.document.len(), 0);
        }
    }

    /// A job, if it is still known.
    pub fn get(&self, jid: &str) -> Option<&Job> {
        self.jobs.get(jid)
    }

    /// Whether a load of the job was seen that a stub cannot add to.
    pub fn has_load(&self, jid: &str) -> bool {
        self.jobs
            .get(jid)
            .is_some_and(|job| job.load.as_ref().is_some_and(|load| load.kind != LoadKind::Addition))
    }

    fn job(&mut self, jid: &str) -> &mut Job {
        if !self.jobs.contains_key(jid) {
            self.order.push_back(jid.to_owned());
            self.jobs.insert(jid.to_owned(), Job { complete: true, ..Job::default() });
        }
        self.jobs.entry(jid.to_owned()).or_default()
    }

    fn grow(&mut self, added: usize, removed: usize) {
        self.bytes = (self.bytes + added).saturating_sub(removed);
        while self.order.len() > MAX_JOBS || (self.bytes > MAX_BYTES && self.order.len() > 1) {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(job) = self.jobs.remove(&oldest) {
                let load = job.load.map_or(0, |load| load.document.len());
                let returns: usize = job.returns.values().map(|document| document.len()).sum();
                self.bytes = self.bytes.saturating_sub(load + returns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(jid: &str, kind: LoadKind, document: &str) -> JobLoad {
        JobLoad {
            jid: jid.into(),
            kind,
            document: document.into(),
            minions: vec![],
            end_time: None,
            arrived_ms: 0,
        }
    }

    #[test]
    fn a_published_load_stands_whatever_comes_later() {
        let mut recent = Recent::default();
        recent.load(&load("1", LoadKind::Stub, "stub"));
        recent.load(&load("1", LoadKind::Published, "real"));
        recent.load(&load("1", LoadKind::Stub, "stub"));
        assert_eq!(recent.get("1").unwrap().load.as_ref().unwrap().document, "real");
    }

    #[test]
    fn memory_is_bounded() {
        let mut recent = Recent::default();
        let big = "x".repeat(MAX_DOCUMENT);
        for jid in 0..1_000 {
            recent.load(&load(&jid.to_string(), LoadKind::Published, &big));
        }
        assert!(recent.bytes <= MAX_BYTES);
        assert!(recent.get("0").is_none() && recent.get("999").is_some());
        for jid in 0..2 * MAX_JOBS {
            recent.load(&load(&jid.to_string(), LoadKind::Published, "x"));
        }
        assert!(recent.jobs.len() <= MAX_JOBS && recent.order.len() <= MAX_JOBS);
    }
}
