//! Taking a frame's map apart, with an error that names the key for whatever is not as it should be.

use rmpv::Value;
use serde_json::Map;

use super::super::json::{self, Part};
use super::super::options::Layers;
use super::seen::Seen;
use super::{Envelope, FrameError, Role, SentEvent, VERSION};

/// The entries of a frame, or of a map in it.
pub(super) struct Fields<'a>(Vec<(Value, Part<'a>)>);

/// What need not be read where it has been seen before.
const OFTEN_THE_SAME: [&str; 2] = ["layers", "salt"];

impl<'a> Fields<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<Self, FrameError> {
        let Some(entries) = json::decode_parts(body, &OFTEN_THE_SAME).map_err(FrameError::Msgpack)? else {
            let value = json::decode(body).map_err(FrameError::Msgpack)?;
            return Err(FrameError::NotAMap { found: kind(&value) });
        };
        let mut fields = Fields(entries);
        match fields.value("v")? {
            found if found.as_u64() == Some(VERSION) => Ok(fields),
            Value::Integer(found) => Err(FrameError::Version { found: found.to_string() }),
            found => Err(FrameError::WrongType { key: "v", expected: "an integer", found: kind(&found) }),
        }
    }

    fn of(entries: Vec<(Value, Value)>) -> Self {
        Fields(entries.into_iter().map(|(key, value)| (key, Part::Read(value))).collect())
    }

    /// The place of a key. Of equal keys the last counts, as in Python.
    fn find(&mut self, key: &str) -> Option<&mut Part<'a>> {
        let found = self.0.iter_mut().rfind(|(name, _)| name.as_slice() == Some(key.as_bytes()));
        found.map(|(_, part)| part)
    }

    pub(super) fn take(&mut self, key: &str) -> Result<Option<Value>, FrameError> {
        let Some(part) = self.find(key) else { return Ok(None) };
        match std::mem::replace(part, Part::Read(Value::Nil)) {
            Part::Raw(bytes) => json::decode(bytes).map(Some).map_err(FrameError::Msgpack),
            Part::Read(value) => Ok(Some(value)),
        }
    }

    /// The bytes of a value that has not been read; the same as none for one that has.
    fn bytes(&mut self, key: &str) -> &'a [u8] {
        match self.find(key) {
            Some(Part::Raw(bytes)) => bytes,
            _ => &[],
        }
    }

    pub(super) fn value(&mut self, key: &'static str) -> Result<Value, FrameError> {
        self.take(key)?.ok_or(FrameError::Missing { key })
    }

    pub(super) fn text(&mut self, key: &'static str) -> Result<String, FrameError> {
        as_text(key, &self.value(key)?)
    }

    pub(super) fn optional_text(&mut self, key: &'static str) -> Result<Option<String>, FrameError> {
        match self.take(key)? {
            None | Some(Value::Nil) => Ok(None),
            Some(value) => as_text(key, &value).map(Some),
        }
    }

    /// A jid typed on Salt's command line has become a number on the way.
    pub(super) fn jid(&mut self) -> Result<String, FrameError> {
        match self.value("jid")? {
            Value::Integer(number) => Ok(number.to_string()),
            value => as_text("jid", &value),
        }
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Result<bool, FrameError> {
        let value = self.value(key)?;
        let wrong = FrameError::WrongType { key, expected: "a boolean", found: kind(&value) };
        value.as_bool().ok_or(wrong)
    }

    pub(super) fn count(&mut self) -> Result<u64, FrameError> {
        let value = self.value("count")?;
        let wrong = FrameError::WrongType { key: "count", expected: "a whole number", found: kind(&value) };
        value.as_u64().or_else(|| json::text(&value)?.parse().ok()).ok_or(wrong)
    }

    pub(super) fn map(&mut self, key: &'static str) -> Result<Value, FrameError> {
        let value = self.value(key)?;
        let wrong = FrameError::WrongType { key, expected: "a map", found: kind(&value) };
        if value.is_map() { Ok(value) } else { Err(wrong) }
    }

    fn tree(&mut self, key: &'static str) -> Result<Map<String, serde_json::Value>, FrameError> {
        let value = self.map(key)?;
        tree_of(key, &value)
    }

    fn optional_tree(
        &mut self,
        key: &'static str,
    ) -> Result<Option<Map<String, serde_json::Value>>, FrameError> {
        match self.take(key)? {
            None | Some(Value::Nil) => Ok(None),
            Some(value) if value.is_map() => tree_of(key, &value).map(Some),
            Some(other) => Err(FrameError::WrongType { key, expected: "a map", found: kind(&other) }),
        }
    }

    pub(super) fn events(&mut self) -> Result<Vec<SentEvent>, FrameError> {
        let list = match self.value("events")? {
            Value::Array(list) => list,
            other => {
                return Err(FrameError::WrongType { key: "events", expected: "a list", found: kind(&other) });
            }
        };
        let event = |value| match value {
            Value::Map(entries) => {
                let mut fields = Fields::of(entries);
                Ok(SentEvent { tag: fields.text("tag")?, data: fields.value("data")? })
            }
            other => {
                Err(FrameError::WrongType { key: "events", expected: "a list of maps", found: kind(&other) })
            }
        };
        list.into_iter().map(event).collect()
    }

    pub(super) fn envelope(&mut self, seen: &Seen) -> Result<Envelope, FrameError> {
        let uid = match self.value("uid")? {
            Value::Binary(bytes) => <[u8; 16]>::try_from(bytes).ok(),
            _ => None,
        };
        let role = match self.text("role")?.as_str() {
            "master" => Some(Role::Master),
            "minion" => Some(Role::Minion),
            _ => None,
        };
        let at = self.value("at")?;
        let layers = seen.layers.get(self.bytes("layers"), || match self.map("layers")? {
            Value::Map(entries) => Fields::of(entries).layers(),
            _ => Ok(Layers::default()),
        })?;
        let salt = seen.salt.get(self.bytes("salt"), || self.tree("salt"))?;
        Ok(Envelope {
            returner: self.text("returner")?,
            uid: uid.ok_or(FrameError::WrongType {
                key: "uid",
                expected: "16 bytes of binary",
                found: "something else",
            })?,
            id: self.text("id")?,
            role: role.ok_or(FrameError::WrongType {
                key: "role",
                expected: "`master` or `minion`",
                found: "other text",
            })?,
            at: at.as_f64().filter(|at| at.is_finite() && *at >= 0.0).ok_or(FrameError::WrongType {
                key: "at",
                expected: "seconds since 1970",
                found: kind(&at),
            })?,
            layers,
            ret_config: self.optional_text("ret_config")?,
            ret_kwargs: self.optional_tree("ret_kwargs")?,
            salt,
        })
    }

    fn layers(&mut self) -> Result<Layers, FrameError> {
        Ok(Layers {
            opts: self.optional_tree("opts")?.unwrap_or_default(),
            grains: self.optional_tree("grains")?.unwrap_or_default(),
            pillar: self.optional_tree("pillar")?.unwrap_or_default(),
            master: self.optional_tree("master")?,
        })
    }
}

fn tree_of(key: &'static str, value: &Value) -> Result<Map<String, serde_json::Value>, FrameError> {
    match json::to_tree(value).map_err(|source| FrameError::Unreadable { key, source })? {
        serde_json::Value::Object(map) => Ok(map),
        _ => Err(FrameError::WrongType { key, expected: "a map", found: kind(value) }),
    }
}

fn as_text(key: &'static str, value: &Value) -> Result<String, FrameError> {
    json::text(value).map(Into::into).ok_or(FrameError::WrongType {
        key,
        expected: "text",
        found: kind(value),
    })
}

/// What a value is, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Boolean(_) => "a boolean",
        Value::Integer(_) => "an integer",
        Value::F32(_) | Value::F64(_) => "a float",
        Value::String(_) => "text",
        Value::Binary(_) => "binary",
        Value::Array(_) => "a list",
        Value::Map(_) => "a map",
        Value::Ext(..) => "an extension",
    }
}
