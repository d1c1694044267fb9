//! Tests of the spool by theme, and what they share.

mod basic;
mod dead_letters;
mod full_disk;
mod group;
mod limits;
mod model;
mod rates;
mod recovery;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::*;

/// Limits for tests: no reserve, quick probes.
fn small() -> Limits {
    Limits { reserve_bytes: 0, probe_every: Duration::from_millis(5), ..Limits::default() }
}

fn open(dir: &Path) -> Spool {
    Spool::open(dir, small()).unwrap().0
}

fn new_sink(plugin: &str) -> NewSink {
    NewSink {
        plugin: plugin.to_owned(),
        key: "k".to_owned(),
        options: r#"{"password":"secret"}"#.to_owned(),
        label: None,
        facts: "{}".to_owned(),
    }
}

fn item(sink: SinkId, jid: &str, body: &[u8]) -> NewItem {
    NewItem {
        sink,
        kind: Kind::Return,
        jid: jid.to_owned(),
        minion: "m1".to_owned(),
        arrived_ms: disk::now_ms(),
        body: body.to_vec(),
    }
}

fn frame(items: Vec<NewItem>) -> NewFrame {
    NewFrame { id: None, items }
}

async fn put(spool: &Spool, sink: SinkId, body: &[u8]) -> u64 {
    spool.append(frame(vec![item(sink, "20260101", body)])).await.unwrap().seqs[0]
}

const ALL: BatchLimits = BatchLimits { max_items: 1_000_000, max_bytes: u64::MAX };

async fn everything(spool: &Spool, sink: SinkId) -> Vec<Item> {
    spool.batch(sink, ALL, u64::MAX >> 1, &HashSet::new()).await.unwrap()
}

fn seqs(items: &[Item]) -> Vec<u64> {
    items.iter().map(|i| i.seq).collect()
}

fn retry(seq: u64, not_before_ms: u64) -> Settlement {
    Settlement::Retry { seq, not_before_ms, error: "connection refused".to_owned() }
}

fn rejected(seq: u64) -> Settlement {
    Settlement::Dead { seq, reason: "no such table".to_owned(), class: DeadClass::Rejected }
}

/// Copies what a process that is killed now would leave.
fn copy_as_killed(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for name in ["spool.db", "spool.db-wal", "spool.rescued", "spool.db.rescue"] {
        if from.join(name).exists() {
            std::fs::copy(from.join(name), to.join(name)).unwrap();
        }
    }
}
