//! What one batch of a lane consists of, and how the verdicts on it become settlements.
//!
//! Invariants: every item of the batch gets exactly one settlement or stays untouched in the lane; loads of one job are joined, so a jid
//! comes once per call; where a plugin stores loads, a return whose job has no known load is preceded by a stub.

use std::collections::{HashMap, HashSet};

use super::recent::join_loads;
use crate::item::{Event, JobLoad, JobReturn, Record};
use crate::salt::records::stub_load;
use crate::spool::Item;

/// A record with the items it came from: none for a stub the host made, several for joined loads.
#[derive(Debug, Clone)]
pub struct Entry<R> {
    /// Positions in the batch's items.
    pub items: Vec<usize>,
    /// The record.
    pub record: R,
}

/// A batch, sorted by kind.
#[derive(Debug, Default)]
pub struct Batch {
    /// The items as leased, without their bodies.
    pub items: Vec<Item>,
    /// Loads, by job.
    pub loads: Vec<Entry<JobLoad>>,
    /// Returns.
    pub returns: Vec<Entry<JobReturn>>,
    /// Events.
    pub events: Vec<Entry<Event>>,
    /// Items that cannot be read, each with the reason.
    pub unreadable: Vec<(usize, String)>,
}

impl Batch {
    /// Sorts items.
    pub fn new(items: Vec<Item>) -> Self {
        let mut batch = Self::default();
        let mut by_jid: HashMap<String, usize> = HashMap::new();
        for (at, item) in items.iter().enumerate() {
            match Record::from_bytes(&item.body) {
                Ok(Record::Load(load)) => match by_jid.get(&load.jid) {
                    Some(&slot) => {
                        let entry: &mut Entry<JobLoad> = &mut batch.loads[slot];
                        entry.record = join_loads(entry.record.clone(), load);
                        entry.items.push(at);
                    }
                    None => {
                        by_jid.insert(load.jid.clone(), batch.loads.len());
                        batch.loads.push(Entry { items: vec![at], record: load });
                    }
                },
                Ok(Record::Return(ret)) => batch.returns.push(Entry { items: vec![at], record: ret }),
                Ok(Record::Event(event)) => batch.events.push(Entry { items: vec![at], record: event }),
                Err(error) => batch.unreadable.push((at, crate::observe::chain(&error))),
            }
        }
        batch.items = items;
        for item in &mut batch.items {
            // The record is there; its bytes are not wanted again.
            item.body = Vec::new();
        }
        batch
    }

    /// Adds a stub for each job of which neither a load is in the batch nor is one known to be stored, which `has_load` tells.
    pub fn add_stubs(&mut self, has_load: impl Fn(&str) -> bool) {
        let mut seen: HashSet<&str> = self.loads.iter().map(|entry| entry.record.jid.as_str()).collect();
        let mut missing = Vec::new();
        for entry in &self.returns {
            if seen.insert(&entry.record.jid) && !has_load(&entry.record.jid) {
                missing.push(stub_load(&entry.record));
            }
        }
        self.loads.extend(missing.into_iter().map(|record| Entry { items: Vec::new(), record }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::LoadKind;

    fn load(kind: LoadKind, minions: &[&str]) -> Record {
        Record::Load(JobLoad {
            jid: "1".into(),
            kind,
            document: format!("{{\"kind\": \"{kind:?}\"}}"),
            minions: minions.iter().map(|m| (*m).to_owned()).collect(),
            end_time: None,
            arrived_ms: 0,
        })
    }

    fn ret(jid: &str) -> Record {
        Record::Return(JobReturn {
            jid: jid.into(),
            minion: "m1".into(),
            resource_id: None,
            fun: "test.ping".into(),
            fun_args: "[]".into(),
            value: "true".into(),
            document: "{}".into(),
            success: None,
            retcode: None,
            trimmed: false,
            arrived_ms: 0,
        })
    }

    fn item(body: Vec<u8>) -> Item {
        Item {
            seq: 1,
            sink: crate::spool::SinkId(1),
            kind: crate::spool::Kind::Return,
            jid: String::new(),
            minion: String::new(),
            arrived_ms: 0,
            since_ms: 0,
            attempts: 0,
            not_before_ms: 0,
            error: None,
            body,
        }
    }

    fn items(records: &[Record]) -> Vec<Item> {
        records.iter().map(|record| item(record.to_bytes().unwrap())).collect()
    }

    #[test]
    fn loads_of_one_job_are_joined() {
        let records = [
            load(LoadKind::Stub, &["m1"]),
            load(LoadKind::Published, &["m2"]),
            load(LoadKind::Addition, &["m3"]),
        ];
        let batch = Batch::new(items(&records));
        assert_eq!(batch.loads.len(), 1);
        assert_eq!(batch.loads[0].items, [0, 1, 2]);
        assert_eq!(batch.loads[0].record.kind, LoadKind::Published);
        assert_eq!(batch.loads[0].record.minions, ["m1", "m2", "m3"]);
    }

    #[test]
    fn a_return_without_a_load_is_preceded_by_one_stub() {
        let mut batch = Batch::new(items(&[ret("7"), ret("8"), ret("7"), ret("8")]));
        assert!(batch.loads.is_empty());
        batch.add_stubs(|jid| jid == "8");
        assert_eq!(batch.loads.len(), 1);
        assert_eq!((batch.loads[0].record.jid.as_str(), batch.loads[0].record.kind), ("7", LoadKind::Stub));
        assert!(batch.loads[0].items.is_empty());
    }

    #[test]
    fn an_unreadable_item_does_not_spoil_the_batch() {
        let mut all = items(&[ret("7")]);
        all.push(item(vec![99, 1, 2]));
        let batch = Batch::new(all);
        assert_eq!((batch.returns.len(), batch.unreadable.len()), (1, 1));
    }
}
