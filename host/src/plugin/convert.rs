//! From the host's records to those of the interface, where every text moves and nothing is copied, and back for loads.

use super::bindings::types;
use crate::item;

impl From<item::JobReturn> for types::JobReturn {
    fn from(ret: item::JobReturn) -> Self {
        Self {
            jid: ret.jid,
            minion: ret.minion,
            resource_id: ret.resource_id,
            fun: ret.fun,
            fun_args: ret.fun_args,
            value: ret.value,
            document: ret.document,
            success: ret.success,
            retcode: ret.retcode,
            trimmed: ret.trimmed,
            arrived_ms: ret.arrived_ms,
        }
    }
}

impl From<item::JobLoad> for types::JobLoad {
    fn from(load: item::JobLoad) -> Self {
        Self {
            jid: load.jid,
            kind: match load.kind {
                item::LoadKind::Published => types::LoadKind::Published,
                item::LoadKind::Stub => types::LoadKind::Stub,
                item::LoadKind::Addition => types::LoadKind::Addition,
            },
            document: load.document,
            minions: load.minions,
            end_time: load.end_time,
            arrived_ms: load.arrived_ms,
        }
    }
}

impl From<item::Event> for types::Event {
    fn from(event: item::Event) -> Self {
        Self {
            id: event.id,
            tag: event.tag,
            data: event.data,
            master: event.master,
            arrived_ms: event.arrived_ms,
        }
    }
}

/// What is remembered of a load that was handed over.
impl From<&types::JobLoad> for item::JobLoad {
    fn from(load: &types::JobLoad) -> Self {
        Self {
            jid: load.jid.clone(),
            kind: match load.kind {
                types::LoadKind::Published => item::LoadKind::Published,
                types::LoadKind::Stub => item::LoadKind::Stub,
                types::LoadKind::Addition => item::LoadKind::Addition,
            },
            document: load.document.clone(),
            minions: load.minions.clone(),
            end_time: load.end_time.clone(),
            arrived_ms: load.arrived_ms,
        }
    }
}
