//! The kinds of records a lane hands over, and what is remembered of each.

use super::sink::Sink;
use crate::item::{Event, JobLoad, JobReturn};
use crate::plugin::bindings::types::Verdict;
use crate::plugin::instance::{CallError, Instance};

/// How records of a kind are handed over.
pub(super) trait Kind {
    type Record: Clone;
    const OPERATION: &'static str;
    async fn call(instance: &mut Instance, records: Vec<Self::Record>) -> Result<Vec<Verdict>, CallError>;
    /// Remembers what was stored.
    fn note(&self, _sink: &Sink, _record: &Self::Record) {}
    /// Remembers whose returns have to wait.
    fn held(&self, _record: &Self::Record, _jids: &mut Vec<String>) {}
}

pub(super) struct SaveLoads;
pub(super) struct DeliverReturns;
pub(super) struct DeliverEvents;

impl Kind for SaveLoads {
    type Record = JobLoad;
    const OPERATION: &'static str = "save loads";

    async fn call(instance: &mut Instance, records: Vec<JobLoad>) -> Result<Vec<Verdict>, CallError> {
        instance.save_loads(records).await
    }

    fn note(&self, sink: &Sink, load: &JobLoad) {
        sink.recent(|recent| recent.load(load));
    }

    fn held(&self, load: &JobLoad, jids: &mut Vec<String>) {
        jids.push(load.jid.clone());
    }
}

impl Kind for DeliverReturns {
    type Record = JobReturn;
    const OPERATION: &'static str = "deliver returns";

    async fn call(instance: &mut Instance, records: Vec<JobReturn>) -> Result<Vec<Verdict>, CallError> {
        instance.deliver(records).await
    }

    fn note(&self, sink: &Sink, ret: &JobReturn) {
        sink.recent(|recent| recent.ret(ret));
    }
}

impl Kind for DeliverEvents {
    type Record = Event;
    const OPERATION: &'static str = "deliver events";

    async fn call(instance: &mut Instance, records: Vec<Event>) -> Result<Vec<Verdict>, CallError> {
        instance.deliver_events(records).await
    }
}
