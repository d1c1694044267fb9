//! From a request to the host's records. Salt hands over the same thing in many shapes, by source; here they become
//! alike, so that nothing behind this needs to know where a return came from.
//!
//! A document keeps Salt's keys, values and order. What is changed: `ret_kwargs` is left out; a jid `req` is replaced
//! by a fresh one; the `ret` of `module.run` is called `return`; what a runner or salt-ssh says only inside of its
//! `return` (`fun`, `user`, `fun_args`, `success`, `retcode`) is repeated outside; `fun` and `return` are added if
//! they are missing.

use rmpv::Value;

use super::frame::{Envelope, Op, SentEvent, kind};
use super::json::{self, JsonError};
use crate::item::{Event, JobLoad, JobReturn, LoadKind, Record};

mod ids;
mod outcome;
#[cfg(test)]
mod tests;

pub use ids::{EventIds, FreshJids, Ids, jid_from_ms, looks_like_jid, ms_from_jid};
use outcome::outcome;

/// Why what Salt handed over makes no record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A return or load that is not a map.
    #[error("the {what} is {found}, not a map")]
    NotAMap {
        /// `return` or `load`.
        what: &'static str,
        /// What it is instead.
        found: &'static str,
    },
    /// A return cannot be stored without `id` and `jid`.
    #[error("the {what} has no usable `{key}`")]
    Missing {
        /// `return` or `load`.
        what: &'static str,
        /// The key.
        key: &'static str,
    },
    /// It has no JSON.
    #[error("the {what} cannot be written as JSON")]
    Json {
        /// `return`, `load` or `event`.
        what: &'static str,
        /// Why.
        #[source]
        source: JsonError,
    },
}

type Entries = Vec<(Value, Value)>;

/// The records of a request that hands something over; none for a question.
///
/// `arrived_ms` is when the host took it. A repetition of the request (same `uid`) gives the same records while the
/// process runs, but for the ids of events.
pub fn records(envelope: &Envelope, op: Op, arrived_ms: u64, ids: &Ids) -> Result<Vec<Record>, RecordError> {
    let source = Source { envelope, arrived_ms, ids };
    let one = |record| Ok(vec![record]);
    match op {
        Op::Return { ret } => one(Record::Return(source.job_return(ret)?)),
        Op::Load { jid, load, minions } => one(Record::Load(source.load(jid, load, &minions)?)),
        Op::Minions { jid, minions, .. } => one(Record::Load(source.addition(jid, names(&minions), None)?)),
        Op::EndTime { jid, endtime } => one(Record::Load(source.addition(jid, Vec::new(), Some(endtime))?)),
        Op::Events { events } => {
            events.into_iter().map(|event| source.event(event).map(Record::Event)).collect()
        }
        Op::GetLoad { .. }
        | Op::GetJid { .. }
        | Op::GetJids
        | Op::GetJidsFilter { .. }
        | Op::GetFun { .. }
        | Op::GetMinions
        | Op::GetEndTime { .. }
        | Op::CleanOldJobs
        | Op::Ping
        | Op::Admin { .. } => Ok(Vec::new()),
    }
}

/// A load made from a return, for a job whose load nobody has seen.
pub fn stub_load(ret: &JobReturn) -> JobLoad {
    #[derive(Default, serde::Deserialize)]
    struct Parts {
        fun: Option<serde_json::Value>,
        user: Option<serde_json::Value>,
    }
    let parts: Parts = serde_json::from_str(&ret.document).unwrap_or_default();
    let text = |value: serde_json::Value| json::tree_to_text(value).unwrap_or_else(|_| "null".into());
    let fun = text(parts.fun.unwrap_or_else(|| ret.fun.clone().into()));
    let user = parts.user.map(|user| format!(", \"user\": {}", text(user))).unwrap_or_default();
    let document = format!(
        r#"{{"jid": {}, "fun": {fun}, "arg": {}, "tgt": {}, "tgt_type": "glob"{user}}}"#,
        text(ret.jid.clone().into()),
        ret.fun_args,
        text(ret.minion.clone().into()),
    );
    JobLoad {
        jid: ret.jid.clone(),
        kind: LoadKind::Stub,
        document,
        minions: Vec::new(),
        end_time: None,
        arrived_ms: ret.arrived_ms,
    }
}

struct Source<'a> {
    envelope: &'a Envelope,
    arrived_ms: u64,
    ids: &'a Ids,
}

impl Source<'_> {
    fn job_return(&self, ret: Value) -> Result<JobReturn, RecordError> {
        let what = "return";
        let mut entries = as_map(what, ret)?;
        remove(&mut entries, "ret_kwargs");
        let minion = get(&entries, "id").and_then(id_text).ok_or(RecordError::Missing { what, key: "id" })?;
        let sent_jid =
            get(&entries, "jid").and_then(id_text).ok_or(RecordError::Missing { what, key: "jid" })?;
        if get(&entries, "return").is_none() {
            rename(&mut entries, "ret", "return");
        }
        lift(&mut entries, &sent_jid);
        let jid = self.real_jid(sent_jid);
        if get(&entries, "jid").and_then(Value::as_str) != Some(&jid) {
            set(&mut entries, "jid", Value::from(jid.as_str()));
        }
        let fun = fun_text(get(&entries, "fun"));
        if get(&entries, "fun").is_none() {
            set(&mut entries, "fun", Value::from(fun.as_str()));
        }
        if get(&entries, "return").is_none() {
            set(&mut entries, "return", Value::Nil);
        }

        let fun_args =
            json::to_json(&arguments(&entries)).map_err(|source| RecordError::Json { what, source })?;
        let value = get(&entries, "return").unwrap_or(&Value::Nil);
        let (success, retcode) = outcome(&fun, get(&entries, "success"), get(&entries, "retcode"), value);
        let trimmed = json::is_trimmed(value);
        let resource_id = get(&entries, "resource_id").and_then(id_text);
        let (document, part) = json::to_json_with_part(&Value::Map(entries), "return")
            .map_err(|source| RecordError::Json { what, source })?;
        let value = part.and_then(|part| document.get(part)).unwrap_or("null").to_owned();
        Ok(JobReturn {
            jid,
            minion,
            resource_id,
            fun,
            fun_args,
            value,
            document,
            success,
            retcode,
            trimmed,
            arrived_ms: self.arrived_ms,
        })
    }

    fn load(&self, jid: String, load: Value, minions: &Value) -> Result<JobLoad, RecordError> {
        let what = "load";
        let mut entries = as_map(what, load)?;
        if jid.is_empty() {
            return Err(RecordError::Missing { what, key: "jid" });
        }
        let jid = self.real_jid(jid);
        let cmd = get(&entries, "cmd").and_then(Value::as_str);
        let is_return = get(&entries, "return").is_some();
        let has_target = get(&entries, "tgt").is_some() && !is_return;
        let published =
            cmd == Some("publish") || (cmd != Some("_return") && (minions.is_array() || has_target));
        let expected = if minions.is_array() { Some(minions) } else { get(&entries, "minions") };
        let mut expected = expected.map(names).unwrap_or_default();
        if is_return && !published {
            // Only a job that a minion ran by itself (`salt-call`) has a target beside its return: that minion.
            if let (Some(_), Some(id)) = (get(&entries, "tgt_type"), get(&entries, "id").and_then(id_text)) {
                expected.push(id);
            }
            entries = self.stub(entries, &jid);
        } else {
            scrub(&mut entries);
            let named = get(&entries, "jid").and_then(Value::as_str);
            if named.is_none_or(ids::is_placeholder) {
                set(&mut entries, "jid", Value::from(jid.as_str()));
            }
        }
        let document =
            json::to_json(&Value::Map(entries)).map_err(|source| RecordError::Json { what, source })?;
        Ok(JobLoad {
            jid,
            kind: if published { LoadKind::Published } else { LoadKind::Stub },
            document,
            minions: expected,
            end_time: None,
            arrived_ms: self.arrived_ms,
        })
    }

    /// The load that a return given as load stands for.
    fn stub(&self, mut entries: Entries, jid: &str) -> Entries {
        lift(&mut entries, jid);
        let arguments = arguments(&entries);
        let mut take = |key: &str| remove(&mut entries, key);
        let fun = take("fun").unwrap_or_else(|| Value::from(""));
        let id = take("id").unwrap_or_else(|| Value::from(self.envelope.id.as_str()));
        let mut stub = vec![
            (Value::from("jid"), Value::from(jid)),
            (Value::from("fun"), fun),
            (Value::from("arg"), arguments),
            (Value::from("tgt"), id),
            (Value::from("tgt_type"), Value::from("glob")),
        ];
        stub.extend(take("user").map(|user| (Value::from("user"), user)));
        stub
    }

    fn addition(
        &self,
        jid: String,
        minions: Vec<String>,
        end_time: Option<String>,
    ) -> Result<JobLoad, RecordError> {
        if jid.is_empty() || ids::is_placeholder(&jid) {
            return Err(RecordError::Missing { what: "load", key: "jid" });
        }
        let document = Value::Map(vec![(Value::from("jid"), Value::from(jid.as_str()))]);
        let document =
            json::to_json(&document).map_err(|source| RecordError::Json { what: "load", source })?;
        Ok(JobLoad {
            jid,
            kind: LoadKind::Addition,
            document,
            minions,
            end_time,
            arrived_ms: self.arrived_ms,
        })
    }

    fn event(&self, event: SentEvent) -> Result<Event, RecordError> {
        let mut data = match event.data {
            Value::Map(entries) => entries,
            other => vec![(Value::from("data"), other)],
        };
        // A refused publish is reported with the whole load in it.
        if event.tag.starts_with("salt/job/") && event.tag.ends_with("/error") {
            scrub(&mut data);
        }
        let data =
            json::to_json(&Value::Map(data)).map_err(|source| RecordError::Json { what: "event", source })?;
        let master = self.envelope.id.clone();
        Ok(Event { id: self.ids.events.next(), tag: event.tag, data, master, arrived_ms: self.arrived_ms })
    }

    fn real_jid(&self, jid: String) -> String {
        if ids::is_placeholder(&jid) { self.ids.jids.fresh(self.envelope.uid, self.envelope.at) } else { jid }
    }
}

/// Repeats outside what a runner or salt-ssh says only inside of `return`.
fn lift(entries: &mut Entries, jid: &str) {
    let Some(Value::Map(inner)) = get(entries, "return") else { return };
    let keys: &[&str] = if is_runner(entries, inner, jid) {
        &["fun", "user", "fun_args", "success", "retcode"]
    } else if is_ssh(entries, inner) {
        &["fun_args", "success", "retcode"]
    } else {
        return;
    };
    let missing = keys.iter().filter(|key| get(entries, key).is_none());
    let lifted: Entries =
        missing.filter_map(|key| get(inner, key).map(|value| (Value::from(*key), value.clone()))).collect();
    entries.extend(lifted);
}

/// `{id, tgt, jid, return: {fun, jid, user, fun_args, return, success}}`, perhaps with `fun` and `user` outside.
fn is_runner(outer: &Entries, inner: &Entries, jid: &str) -> bool {
    let fun = get(inner, "fun").and_then(Value::as_str);
    let outer_fun = get(outer, "fun").and_then(Value::as_str);
    fun.is_some()
        && (outer_fun.is_none() || outer_fun == fun)
        && get(outer, "fun_args").is_none()
        && get(inner, "return").is_some()
        && get(inner, "jid").and_then(id_text).as_deref() == Some(jid)
}

/// Exactly `{jid, id, return, fun}`, with what the remote side printed inside.
fn is_ssh(outer: &Entries, inner: &Entries) -> bool {
    let only = ["jid", "id", "return", "fun"];
    outer.iter().all(|(key, _)| only.iter().any(|name| is_key(key, name)))
        && get(inner, "retcode").is_some()
        && (get(inner, "return").is_some() || get(inner, "stderr").is_some())
}

/// The arguments as an array.
fn arguments(entries: &Entries) -> Value {
    match get(entries, "fun_args").or_else(|| get(entries, "arg")) {
        None | Some(Value::Nil) => Value::Array(Vec::new()),
        Some(Value::Array(items)) => Value::Array(items.clone()),
        Some(other) => Value::Array(vec![other.clone()]),
    }
}

fn fun_text(fun: Option<&Value>) -> String {
    match fun {
        Some(Value::Array(names)) => names.iter().filter_map(json::text).collect::<Vec<_>>().join(","),
        Some(fun) => json::text(fun).unwrap_or_default().into_owned(),
        None => String::new(),
    }
}

/// Removes what Salt leaves in a load and nobody else may see. The shim has done so already; this is the second lock.
fn scrub(entries: &mut Entries) {
    const SECRET: [&str; 6] = ["key", "token", "eauth", "username", "password", "ret_kwargs"];
    let secret = |key: &Value| SECRET.iter().any(|name| is_key(key, name));
    entries.retain(|(key, _)| !secret(key));
    for (key, value) in entries {
        if let Value::Map(inner) = value
            && (is_key(key, "kwargs") || is_key(key, "load"))
        {
            scrub(inner);
        }
    }
}

fn as_map(what: &'static str, value: Value) -> Result<Entries, RecordError> {
    match value {
        Value::Map(entries) => Ok(entries),
        other => Err(RecordError::NotAMap { what, found: kind(&other) }),
    }
}

/// The texts of a list; nothing of anything else.
fn names(list: &Value) -> Vec<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(json::text).map(Into::into).collect()
}

/// Text, or a number as text; none if empty.
fn id_text(value: &Value) -> Option<String> {
    match value {
        Value::Integer(number) => Some(number.to_string()),
        other => json::text(other).filter(|text| !text.is_empty()).map(Into::into),
    }
}

fn is_key(key: &Value, name: &str) -> bool {
    match key {
        Value::String(text) => text.as_bytes() == name.as_bytes(),
        Value::Binary(bytes) => bytes == name.as_bytes(),
        _ => false,
    }
}

// Of equal keys the last counts, as in Python and in `json`.
fn position(entries: &[(Value, Value)], name: &str) -> Option<usize> {
    entries.iter().rposition(|(key, _)| is_key(key, name))
}

fn get<'a>(entries: &'a [(Value, Value)], name: &str) -> Option<&'a Value> {
    entries.get(position(entries, name)?).map(|(_, value)| value)
}

fn set(entries: &mut Entries, name: &str, value: Value) {
    match position(entries, name).and_then(|at| entries.get_mut(at)) {
        Some(entry) => entry.1 = value,
        None => entries.push((Value::from(name), value)),
    }
}

fn rename(entries: &mut Entries, from: &str, to: &str) {
    if let Some(entry) = position(entries, from).and_then(|at| entries.get_mut(at)) {
        entry.0 = Value::from(to);
    }
}

fn remove(entries: &mut Entries, name: &str) -> Option<Value> {
    let at = position(entries, name)?;
    let (_, value) = entries.remove(at);
    entries.retain(|(key, _)| !is_key(key, name));
    Some(value)
}
