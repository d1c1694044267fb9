//! The kinds of records a lane hands over, and what is remembered of each.

use super::sink::Sink;
use crate::item;
use crate::plugin::bindings::types::{Event, JobLoad, JobReturn, Verdict};
use crate::plugin::instance::{CallError, Instance};

/// How records of a kind are handed over.
pub(super) trait Kind {
    /// As the spool has it.
    type Record: Into<Self::Sent>;
    /// As the interface has it.
    type Sent;
    const OPERATION: &'static str;
    async fn call(instance: &mut Instance, records: &[Self::Sent]) -> Result<Vec<Verdict>, CallError>;
    /// Remembers what was stored.
    fn note(&self, _sink: &Sink, _record: &Self::Sent) {}
    /// Remembers whose returns have to wait.
    fn held(&self, _record: &Self::Sent, _jids: &mut Vec<String>) {}
}

pub(super) struct SaveLoads;
pub(super) struct DeliverReturns;
pub(super) struct DeliverEvents;

impl Kind for SaveLoads {
    type Record = item::JobLoad;
    type Sent = JobLoad;
    const OPERATION: &'static str = "save loads";

    async fn call(instance: &mut Instance, records: &[JobLoad]) -> Result<Vec<Verdict>, CallError> {
        instance.save_loads(records).await
    }

    fn note(&self, sink: &Sink, load: &JobLoad) {
        sink.recent(|recent| recent.load(&load.into()));
    }

    fn held(&self, load: &JobLoad, jids: &mut Vec<String>) {
        jids.push(load.jid.clone());
    }
}

impl Kind for DeliverReturns {
    type Record = item::JobReturn;
    type Sent = JobReturn;
    const OPERATION: &'static str = "deliver returns";

    async fn call(instance: &mut Instance, records: &[JobReturn]) -> Result<Vec<Verdict>, CallError> {
        instance.deliver(records).await
    }

    fn note(&self, sink: &Sink, ret: &JobReturn) {
        sink.recent(|recent| recent.ret(ret));
    }
}

impl Kind for DeliverEvents {
    type Record = item::Event;
    type Sent = Event;
    const OPERATION: &'static str = "deliver events";

    async fn call(instance: &mut Instance, records: &[Event]) -> Result<Vec<Verdict>, CallError> {
        instance.deliver_events(records).await
    }
}
