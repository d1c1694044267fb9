//! The host's own records: what the spool keeps and what plugins are given.
//!
//! They have the fields of `wit/0.1.0/types.wit`, under the same names. A record is stored as one version byte
//! and then a msgpack map, so that a later version can read what an earlier one left in the spool.

use serde::{Deserialize, Serialize};

/// The version that `Record::to_bytes` writes.
const VERSION: u8 = 1;

/// One minion's answer to one job. The key is (`jid`, `minion`, `resource_id`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReturn {
    /// The job id, never `req`.
    pub jid: String,
    /// The id of the minion, or of the master for a runner.
    pub minion: String,
    /// The resource that answered, where Salt 3008 sends one.
    #[serde(default)]
    pub resource_id: Option<String>,
    /// The function; of several their names joined by commas; empty if Salt sent none.
    pub fun: String,
    /// The arguments as a JSON array.
    pub fun_args: String,
    /// What the function returned, as JSON; the value of `return` in `document`.
    pub value: String,
    /// The whole record as a JSON object; always with `jid`, `id`, `fun` and `return`.
    pub document: String,
    /// The real outcome, where it is known.
    #[serde(default)]
    pub success: Option<bool>,
    /// The return code where Salt sent one; of several the first that is not zero.
    #[serde(default)]
    pub retcode: Option<i64>,
    /// Whether Salt replaced a part of `value` by the text `VALUE_TRIMMED`.
    #[serde(default)]
    pub trimmed: bool,
    /// When the host took the record, in milliseconds since 1970 (UTC).
    pub arrived_ms: u64,
}

/// What a `JobLoad` is made of, and so how it meets what is already stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadKind {
    /// The load that Salt published. It replaces a stub and is itself never replaced.
    Published,
    /// Made from a return, since no load of the job is known. It replaces nothing.
    Stub,
    /// Only adds `minions` or `end_time`. If nothing is stored it acts as a stub.
    Addition,
}

/// A job as it was published, or something added to it later. The key is `jid`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLoad {
    /// The job id.
    pub jid: String,
    /// How it meets what is already stored.
    pub kind: LoadKind,
    /// The load as a JSON object, without secrets.
    pub document: String,
    /// Ids of the minions that are expected to answer; empty if unknown.
    #[serde(default)]
    pub minions: Vec<String>,
    /// When the job ended, as Salt's text, if this says so.
    #[serde(default)]
    pub end_time: Option<String>,
    /// When the host took the record, in milliseconds since 1970 (UTC).
    pub arrived_ms: u64,
}

/// One event of Salt's bus. The key is `id`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Unique over all daemons, below 2^63, growing with time.
    pub id: u64,
    /// The event's tag.
    pub tag: String,
    /// The event's data as a JSON object.
    pub data: String,
    /// The id of the master that the event was seen on.
    pub master: String,
    /// When the host took the record, in milliseconds since 1970 (UTC).
    pub arrived_ms: u64,
}

/// One record of any kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// A return.
    Return(JobReturn),
    /// A load.
    Load(JobLoad),
    /// An event.
    Event(Event),
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A return.
    Return,
    /// A load.
    Load,
    /// An event.
    Event,
}

impl Kind {
    /// `return`, `load` or `event`.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Return => "return",
            Kind::Load => "load",
            Kind::Event => "event",
        }
    }

    /// The reverse of `as_str`.
    pub fn from_text(text: &str) -> Option<Kind> {
        [Kind::Return, Kind::Load, Kind::Event].into_iter().find(|kind| kind.as_str() == text)
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why stored bytes are no record, or a record could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ItemError {
    /// There are no bytes.
    #[error("the stored record is empty")]
    Empty,
    /// Another version of the host wrote it.
    #[error(
        "the stored record has format {found}, this program reads format {VERSION}; hint: use the newer `returnerd`"
    )]
    Version {
        /// The version byte found.
        found: u8,
    },
    /// The bytes after the version byte are damaged.
    #[error("the stored record cannot be read")]
    Decode(#[source] rmp_serde::decode::Error),
    /// It could not be written.
    #[error("the record cannot be written as msgpack")]
    Encode(#[source] rmp_serde::encode::Error),
}

impl Record {
    /// Which kind it is.
    pub fn kind(&self) -> Kind {
        match self {
            Record::Return(_) => Kind::Return,
            Record::Load(_) => Kind::Load,
            Record::Event(_) => Kind::Event,
        }
    }

    /// The job id; events have none.
    pub fn jid(&self) -> Option<&str> {
        match self {
            Record::Return(ret) => Some(&ret.jid),
            Record::Load(load) => Some(&load.jid),
            Record::Event(_) => None,
        }
    }

    /// The minion that answered; only returns have one.
    pub fn minion(&self) -> Option<&str> {
        match self {
            Record::Return(ret) => Some(&ret.minion),
            Record::Load(_) | Record::Event(_) => None,
        }
    }

    /// When the host took the record, in milliseconds since 1970 (UTC).
    pub fn arrived_ms(&self) -> u64 {
        match self {
            Record::Return(ret) => ret.arrived_ms,
            Record::Load(load) => load.arrived_ms,
            Record::Event(event) => event.arrived_ms,
        }
    }

    /// The bytes that the spool stores.
    pub fn to_bytes(&self) -> Result<Vec<u8>, ItemError> {
        let mut out = vec![VERSION];
        rmp_serde::encode::write_named(&mut out, self).map_err(ItemError::Encode)?;
        Ok(out)
    }

    /// The reverse of `to_bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Record, ItemError> {
        match bytes.split_first() {
            None => Err(ItemError::Empty),
            Some((&VERSION, rest)) => rmp_serde::from_slice(rest).map_err(ItemError::Decode),
            Some((&found, _)) => Err(ItemError::Version { found }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Record> {
        vec![
            Record::Return(JobReturn {
                jid: "20261201033051370966".into(),
                minion: "m1".into(),
                resource_id: Some("r".into()),
                fun: "test.ping".into(),
                fun_args: "[]".into(),
                value: "true".into(),
                document: "{}".into(),
                success: Some(true),
                retcode: Some(-3),
                trimmed: false,
                arrived_ms: u64::MAX,
            }),
            Record::Load(JobLoad {
                jid: "j".into(),
                kind: LoadKind::Addition,
                document: "{}".into(),
                minions: vec!["größer".into()],
                end_time: None,
                arrived_ms: 1,
            }),
            Record::Event(Event {
                id: 7,
                tag: "t".into(),
                data: "{}".into(),
                master: "m".into(),
                arrived_ms: 0,
            }),
        ]
    }

    #[test]
    fn every_kind_reads_back_as_it_was() {
        for record in samples() {
            let bytes = record.to_bytes().unwrap();
            assert_eq!(bytes[0], VERSION);
            assert_eq!(Record::from_bytes(&bytes).unwrap(), record);
            assert_eq!(Kind::from_text(record.kind().as_str()), Some(record.kind()));
        }
    }

    #[test]
    fn keys_are_those_of_the_kind() {
        let [ret, load, event] = <[Record; 3]>::try_from(samples()).unwrap();
        assert_eq!((ret.jid(), ret.minion()), (Some("20261201033051370966"), Some("m1")));
        assert_eq!((load.jid(), load.minion()), (Some("j"), None));
        assert_eq!((event.jid(), event.minion()), (None, None));
    }

    #[test]
    fn damaged_and_foreign_bytes_are_errors() {
        assert!(matches!(Record::from_bytes(&[]), Err(ItemError::Empty)));
        assert!(matches!(Record::from_bytes(&[9, 0x80]), Err(ItemError::Version { found: 9 })));
        let bytes = samples()[0].to_bytes().unwrap();
        for end in 1..bytes.len() {
            assert!(matches!(Record::from_bytes(&bytes[..end]), Err(ItemError::Decode(_))), "cut at {end}");
        }
    }
}
