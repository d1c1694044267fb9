//! Records as the host gives them to plugins, for tests that call a plugin without a daemon.

use std::future::Future;

use returner_sdk::{Event, JidsFilter, JobLoad, JobReturn, LoadKind, Verdict, tokio};
use serde_json::Value;

/// When the records arrive unless a test says otherwise: 2026-12-01 03:31:39 UTC.
pub const ARRIVED: u64 = 1_796_095_899_000;

/// Runs a test's async part.
pub fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A return with this value (JSON).
pub fn ret(jid: &str, minion: &str, fun: &str, value: &str) -> JobReturn {
    JobReturn {
        jid: jid.into(),
        minion: minion.into(),
        resource_id: None,
        fun: fun.into(),
        fun_args: "[]".into(),
        value: value.into(),
        document: format!(
            r#"{{"jid": "{jid}", "id": "{minion}", "fun": "{fun}", "return": {value}, "retcode": 0, "success": true}}"#
        ),
        success: Some(true),
        retcode: Some(0),
        trimmed: false,
        arrived_ms: ARRIVED,
    }
}

/// A load as Salt publishes it.
pub fn load(jid: &str, fun: &str) -> JobLoad {
    JobLoad {
        jid: jid.into(),
        kind: LoadKind::Published,
        document: format!(r#"{{"fun": "{fun}", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "ops"}}"#),
        minions: Vec::new(),
        end_time: None,
        arrived_ms: ARRIVED,
    }
}

/// An event of the master `master1` with this data (JSON).
pub fn event(id: u64, tag: &str, data: &str) -> Event {
    Event { id, tag: tag.into(), data: data.into(), master: "master1".into(), arrived_ms: ARRIVED }
}

/// The newest jobs, whatever their function.
pub fn filter(limit: u32) -> JidsFilter {
    JidsFilter { limit, before: None, without_funs: Vec::new() }
}

/// A document of any depth.
pub fn json(text: &str) -> Value {
    returner_sdk::json::parse(text).unwrap_or_else(|| panic!("no JSON: {text}"))
}

/// Whether all records are stored.
pub fn stored(verdicts: &[Verdict]) -> bool {
    verdicts.iter().all(|verdict| *verdict == Verdict::Stored)
}
