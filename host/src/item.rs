//! The host's own records: what the spool keeps and what plugins are given.
//!
//! They have the fields of `wit/0.1.0/types.wit`, under the same names. A record is stored as one version byte
//! and then a msgpack map, so that a later version can read what an earlier one left in the spool. The value of a return, which
//! stands within its document, is stored as its place there: most of a return would otherwise be written twice.

use std::borrow::Cow;

use memchr::memmem;
use serde::{Deserialize, Serialize};

/// The version that `Record::to_bytes` writes. Version 1 always had the value itself.
const VERSION: u8 = 2;

/// Before the value in a document.
const KEY: &[u8] = b"\"return\"";

/// Values up to this many bytes are stored as they are: their place would take about as much.
const SHORT: usize = 32;

/// One minion's answer to one job. The key is (`jid`, `minion`, `resource_id`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobReturn {
    /// The job id, never `req`.
    pub jid: String,
    /// The id of the minion, or of the master for a runner.
    pub minion: String,
    /// The resource that answered, where Salt 3008 sends one.
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
    pub success: Option<bool>,
    /// The return code where Salt sent one; of several the first that is not zero.
    pub retcode: Option<i64>,
    /// Whether Salt replaced a part of `value` by the text `VALUE_TRIMMED`.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
        "the stored record has format {found}, this program reads formats up to {VERSION}; hint: use the newer `returnerd`"
    )]
    Version {
        /// The version byte found.
        found: u8,
    },
    /// The bytes after the version byte are damaged.
    #[error("the stored record cannot be read")]
    Decode(#[source] rmp_serde::decode::Error),
    /// The value's place is not within the document.
    #[error("the stored return says that its value is where its document has none")]
    Place,
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
        let room = match self {
            Record::Return(ret) => ret.document.len() + 512,
            Record::Load(load) => load.document.len() + 512,
            Record::Event(event) => event.data.len() + 256,
        };
        let mut out = Vec::with_capacity(room);
        out.push(VERSION);
        rmp_serde::encode::write_named(&mut out, &Stored::from(self)).map_err(ItemError::Encode)?;
        Ok(out)
    }

    /// The reverse of `to_bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Record, ItemError> {
        match bytes.split_first() {
            None => Err(ItemError::Empty),
            Some((1..=VERSION, rest)) => {
                rmp_serde::from_slice::<Stored<'_>>(rest).map_err(ItemError::Decode)?.try_into()
            }
            Some((&found, _)) => Err(ItemError::Version { found }),
        }
    }
}

/// A record as the spool has it: a map with one entry, named for the kind.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stored<'a> {
    Return(StoredReturn<'a>),
    Load(Cow<'a, JobLoad>),
    Event(Cow<'a, Event>),
}

/// A return as the spool has it. Of `value` and `value_at` one stands there.
#[derive(Serialize, Deserialize)]
struct StoredReturn<'a> {
    jid: Cow<'a, str>,
    minion: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resource_id: Option<Cow<'a, str>>,
    fun: Cow<'a, str>,
    fun_args: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
    /// Where the value begins in the document, and how many bytes it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value_at: Option<(usize, usize)>,
    document: Cow<'a, str>,
    #[serde(default)]
    success: Option<bool>,
    #[serde(default)]
    retcode: Option<i64>,
    #[serde(default)]
    trimmed: bool,
    arrived_ms: u64,
}

impl<'a> From<&'a Record> for Stored<'a> {
    fn from(record: &'a Record) -> Self {
        let ret = match record {
            Record::Return(ret) => ret,
            Record::Load(load) => return Stored::Load(Cow::Borrowed(load)),
            Record::Event(event) => return Stored::Event(Cow::Borrowed(event)),
        };
        let at = (ret.value.len() > SHORT).then(|| place(&ret.document, &ret.value)).flatten();
        Stored::Return(StoredReturn {
            jid: ret.jid.as_str().into(),
            minion: ret.minion.as_str().into(),
            resource_id: ret.resource_id.as_deref().map(Into::into),
            fun: ret.fun.as_str().into(),
            fun_args: ret.fun_args.as_str().into(),
            value: at.is_none().then(|| ret.value.as_str().into()),
            value_at: at.map(|at| (at, ret.value.len())),
            document: ret.document.as_str().into(),
            success: ret.success,
            retcode: ret.retcode,
            trimmed: ret.trimmed,
            arrived_ms: ret.arrived_ms,
        })
    }
}

impl TryFrom<Stored<'_>> for Record {
    type Error = ItemError;

    fn try_from(stored: Stored<'_>) -> Result<Record, ItemError> {
        let ret = match stored {
            Stored::Return(ret) => ret,
            Stored::Load(load) => return Ok(Record::Load(load.into_owned())),
            Stored::Event(event) => return Ok(Record::Event(event.into_owned())),
        };
        let value = match (ret.value, ret.value_at) {
            (Some(value), None) => value.into_owned(),
            (None, Some((at, bytes))) => at
                .checked_add(bytes)
                .and_then(|end| ret.document.get(at..end))
                .ok_or(ItemError::Place)?
                .to_owned(),
            _ => return Err(ItemError::Place),
        };
        Ok(Record::Return(JobReturn {
            jid: ret.jid.into_owned(),
            minion: ret.minion.into_owned(),
            resource_id: ret.resource_id.map(Cow::into_owned),
            fun: ret.fun.into_owned(),
            fun_args: ret.fun_args.into_owned(),
            value,
            document: ret.document.into_owned(),
            success: ret.success,
            retcode: ret.retcode,
            trimmed: ret.trimmed,
            arrived_ms: ret.arrived_ms,
        }))
    }
}

/// Where a document has a value behind a key `return`, at whatever depth: the same text there is the same value.
fn place(document: &str, value: &str) -> Option<usize> {
    memmem::find_iter(document.as_bytes(), KEY).find_map(|key| {
        let rest = document.get(key + KEY.len()..)?;
        let found = rest.trim_start_matches([':', ' ']);
        found.starts_with(value).then(|| document.len() - found.len())
    })
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

    fn with_value(value: &str, document: &str) -> Record {
        let Record::Return(ret) = samples().remove(0) else { panic!("the first is a return") };
        Record::Return(JobReturn { value: value.into(), document: document.into(), ..ret })
    }

    #[test]
    fn a_value_within_its_document_is_stored_once() {
        let value = format!("\"{}\"", "größe ".repeat(500));
        let record = with_value(&value, &format!("{{\"id\": \"ä\", \"return\": {value}}}"));
        let bytes = record.to_bytes().unwrap();
        assert!(bytes.len() < value.len() + 300, "{} bytes", bytes.len());
        assert_eq!(Record::from_bytes(&bytes).unwrap(), record);
        let elsewhere = with_value(&value, "{\"return\": 1}");
        assert_eq!(Record::from_bytes(&elsewhere.to_bytes().unwrap()).unwrap(), elsewhere);
    }

    #[test]
    fn records_of_the_first_version_are_read() {
        let Record::Return(ret) = samples().remove(0) else { panic!("the first is a return") };
        #[derive(Serialize)]
        struct First<'a> {
            jid: &'a str,
            minion: &'a str,
            resource_id: Option<&'a str>,
            fun: &'a str,
            fun_args: &'a str,
            value: &'a str,
            document: &'a str,
            success: Option<bool>,
            retcode: Option<i64>,
            trimmed: bool,
            arrived_ms: u64,
        }
        let first = First {
            jid: &ret.jid,
            minion: &ret.minion,
            resource_id: ret.resource_id.as_deref(),
            fun: &ret.fun,
            fun_args: &ret.fun_args,
            value: &ret.value,
            document: &ret.document,
            success: ret.success,
            retcode: ret.retcode,
            trimmed: ret.trimmed,
            arrived_ms: ret.arrived_ms,
        };
        let mut bytes = vec![1];
        rmp_serde::encode::write_named(&mut bytes, &std::collections::BTreeMap::from([("return", first)]))
            .unwrap();
        assert_eq!(Record::from_bytes(&bytes).unwrap(), Record::Return(ret));
    }

    #[test]
    fn a_place_outside_of_the_document_is_an_error() {
        let value = "x".repeat(100);
        let bytes = with_value(&value, &format!("\"return\":{value}")).to_bytes().unwrap();
        let key = bytes.windows(8).position(|part| part == b"value_at").unwrap() + 8;
        // A list of two: where it begins, and how long it is.
        assert_eq!(bytes[key..key + 3], [0x92, 9, 100]);
        let mut broken = bytes;
        broken[key + 1] = 10;
        assert!(matches!(Record::from_bytes(&broken), Err(ItemError::Place)));
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
