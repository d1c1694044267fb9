//! One request: who is meant, with which options, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use rmpv::Value;

use super::Intake;
use crate::dispatch::Shared;
use crate::dispatch::query::{self, QueryError};
use crate::dispatch::sink::Sink;
use crate::item::{LoadKind, Record};
use crate::observe::chain;
use crate::plugin::Plugin;
use crate::plugin::manifest::nearest;
use crate::salt::frame::{Answer, Code, Envelope, Op, Request};
use crate::salt::options::{self, Asked, OptionsError};
use crate::salt::records::{self, RecordError};
use crate::spool::now_ms;
use crate::spool::{FrameId, Kind, NewFrame, NewItem, SpoolError};

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandleError {
    #[error("there is no returner plugin `{name}`{nearest}; hint: {hint}")]
    UnknownReturner { name: String, nearest: String, hint: String },
    #[error("the options of `{0}` cannot be used")]
    Options(String, #[source] Box<OptionsError>),
    #[error("the record cannot be taken")]
    Record(#[from] RecordError),
    #[error("the record cannot be kept")]
    Item(#[from] crate::item::ItemError),
    #[error("`{plugin}` {what}")]
    Unsupported { plugin: String, what: &'static str },
    #[error(transparent)]
    Query(Box<QueryError>),
    #[error(transparent)]
    Spool(#[from] SpoolError),
    #[error("{0}")]
    Admin(String),
}

impl From<QueryError> for HandleError {
    fn from(error: QueryError) -> Self {
        Self::Query(Box::new(error))
    }
}

impl HandleError {
    fn code(&self) -> Code {
        match self {
            Self::UnknownReturner { .. } => Code::UnknownReturner,
            Self::Options(..) => Code::Options,
            Self::Record(_) | Self::Item(_) | Self::Admin(_) => Code::BadRequest,
            Self::Unsupported { .. } => Code::Unsupported,
            Self::Query(error) if matches!(**error, QueryError::NoJobs(_)) => Code::Unsupported,
            Self::Query(_) => Code::Unavailable,
            Self::Spool(SpoolError::Full { .. }) => Code::Full,
            Self::Spool(SpoolError::TooLarge { .. }) => Code::BadRequest,
            Self::Spool(_) => Code::Unavailable,
        }
    }
}

impl Intake {
    /// The answer to a frame's body, and whether the connection is good for another.
    pub async fn answer(&self, body: &[u8], peer: (u32, i32)) -> (Vec<u8>, bool) {
        let request = match Request::read(body, &self.seen) {
            Ok(request) => request,
            Err(error) => {
                let error = chain(&error);
                if let Some(held_back) = self.throttle.pass("bad request") {
                    tracing::warn!(uid = peer.0, pid = peer.1, held_back, "bad request: {error}");
                }
                return (Answer::Failed { code: Code::BadRequest, error }.to_body(), false);
            }
        };
        let operation = request.op.name();
        let returner = request.envelope.returner.clone();
        let jid = request.op.jid().unwrap_or("-").to_owned();
        let answer = match self.handle(request).await {
            Ok(result) => Answer::Done(result),
            Err(error) => {
                let code = error.code();
                let error = chain(&error);
                let kind = format!("{returner} {operation} {}", code.as_str());
                if let Some(held_back) = self.throttle.pass(&kind) {
                    let (uid, pid) = peer;
                    let code = code.as_str();
                    tracing::warn!(uid, pid, returner, operation, jid, code, held_back, "refused: {error}");
                }
                Answer::Failed { code, error }
            }
        };
        (answer.to_body(), true)
    }

    async fn handle(&self, request: Request) -> Result<Value, HandleError> {
        let Request { envelope, op } = request;
        if let Op::Admin { command, args } = op {
            return self.admin(&command, &args).await;
        }
        if let (Op::Ping, true) = (&op, envelope.returner.is_empty()) {
            return Ok(self.pong(&[]));
        }
        let plugin = self.plugin(&envelope.returner)?;
        if let Op::Ping = op {
            return Ok(self.pong(&plugin.interfaces.names()));
        }
        self.refuse_unsupported(&plugin, &op, &envelope)?;
        let sink = self.sink(&plugin, &envelope).await?;
        if op.hands_over() {
            self.take(&plugin, &sink, &envelope, op).await
        } else {
            self.question(&sink, &envelope, op).await
        }
    }

    fn pong(&self, interfaces: &[&str]) -> Value {
        let interfaces = interfaces.iter().map(|name| Value::from(*name)).collect();
        Value::Map(vec![
            (Value::from("version"), Value::from(env!("CARGO_PKG_VERSION"))),
            (Value::from("protocol"), Value::from(crate::salt::frame::VERSION)),
            (Value::from("interfaces"), Value::Array(interfaces)),
        ])
    }

    /// The plugin of a name; otherwise an error with the nearest names.
    pub(super) fn plugin(&self, name: &str) -> Result<Arc<Plugin>, HandleError> {
        let registry = &self.dispatch().shared().registry;
        if let Some(plugin) = registry.find(name) {
            return Ok(plugin);
        }
        let names = registry.names();
        let nearest = nearest(name, names.iter().map(String::as_str))
            .map_or_else(String::new, |near| format!(", the nearest is `{near}`"));
        let broken = registry
            .files()
            .into_iter()
            .find(|file| file.path.file_stem().is_some_and(|stem| stem == name) && file.error.is_some());
        let hint = match broken.and_then(|file| file.error) {
            Some(error) => format!("its file is there but cannot be loaded: {error}"),
            None => format!("put `{name}.wasm` into `{}`", self.config().plugins_dir.display()),
        };
        Err(HandleError::UnknownReturner { name: name.to_owned(), nearest, hint })
    }

    fn refuse_unsupported(&self, plugin: &Plugin, op: &Op, envelope: &Envelope) -> Result<(), HandleError> {
        let what = match op {
            Op::Return { .. } if !plugin.interfaces.returns => "takes no returns",
            Op::Events { .. } if !plugin.interfaces.events => {
                "takes no events, so it cannot be named in `event_return`"
            }
            Op::GetLoad { .. }
            | Op::GetJid { .. }
            | Op::GetJids
            | Op::GetJidsFilter { .. }
            | Op::GetFun { .. }
            | Op::GetMinions
            | Op::GetEndTime { .. }
                if !plugin.interfaces.jobs =>
            {
                return Err(QueryError::NoJobs(envelope.returner.clone()).into());
            }
            _ => return Ok(()),
        };
        Err(HandleError::Unsupported { plugin: plugin.name().to_owned(), what })
    }

    async fn sink(&self, plugin: &Arc<Plugin>, envelope: &Envelope) -> Result<Arc<Sink>, HandleError> {
        let config = self.config();
        if let Some(sink) = self.known.find(plugin, &config, envelope) {
            return Ok(sink);
        }
        let settings = config.plugin(plugin.name());
        let fallback = crate::config::json_options(&settings.options);
        let asked = Asked { fallback: Some(&fallback), ..Asked::from(envelope) };
        let resolved = options::resolve(&plugin.manifest, &asked)
            .map_err(|error| HandleError::Options(plugin.name().to_owned(), Box::new(error)))?;
        for warning in &resolved.warnings {
            self.warn_once(plugin.name(), warning);
        }
        let sink = self.dispatch().sink(plugin, &resolved, &envelope.id, envelope.role.as_str()).await?;
        self.known.keep(plugin, &config, envelope, &sink);
        Ok(sink)
    }

    /// Takes a hand-over: answered once everything of it is on disk.
    async fn take(
        &self,
        plugin: &Plugin,
        sink: &Arc<Sink>,
        envelope: &Envelope,
        op: Op,
    ) -> Result<Value, HandleError> {
        let now = now_ms();
        let events = matches!(op, Op::Events { .. });
        let mut records = records::records(envelope, op, now, &self.ids)?;
        if !plugin.interfaces.jobs {
            // A notifier has no place for loads. Salt calls `save_load` of an `ext_job_cache` all the same.
            records.retain(|record| !matches!(record, Record::Load(_)));
        }
        // Salt saves a load for every return it gets; where the job is known that says nothing new.
        records.retain(|record| match record {
            Record::Load(load) if load.kind == LoadKind::Stub => {
                !sink.recent(|recent| recent.has_load(&load.jid))
            }
            _ => true,
        });
        let items = records
            .iter()
            .map(|record| {
                Ok(NewItem {
                    sink: sink.id,
                    kind: match record {
                        Record::Return(_) => Kind::Return,
                        Record::Load(_) => Kind::Load,
                        Record::Event(_) => Kind::Event,
                    },
                    jid: record.jid().unwrap_or_default().to_owned(),
                    minion: record.minion().unwrap_or_default().to_owned(),
                    arrived_ms: now,
                    body: record.to_bytes()?,
                })
            })
            .collect::<Result<Vec<_>, HandleError>>()?;
        let mut seqs = Vec::new();
        if !items.is_empty() {
            // Returns and loads have keys of their own; only events would be stored twice.
            let id = events.then_some(FrameId { at_ms: (envelope.at * 1e3) as u64, uid: envelope.uid });
            let appended = self.dispatch().shared().spool.append(NewFrame { id, items }).await?;
            seqs = appended.seqs;
            for record in &records {
                if let Record::Load(load) = record {
                    sink.recent(|recent| recent.load(load));
                }
            }
            sink.wake.notify_one();
        }
        let seqs = seqs.into_iter().map(Value::from).collect();
        Ok(Value::Map(vec![
            (Value::from("sink"), Value::from(sink.label.as_str())),
            (Value::from("seqs"), Value::Array(seqs)),
        ]))
    }

    async fn question(&self, sink: &Arc<Sink>, envelope: &Envelope, op: Op) -> Result<Value, HandleError> {
        if let Op::CleanOldJobs = op {
            self.clean(sink, envelope);
            return Ok(Value::Nil);
        }
        let (shared, sink) = (self.dispatch().shared().clone(), sink.clone());
        Ok(self.dispatch().answer(async move { answer(&shared, &sink, op).await }).await?)
    }

    /// Starts cleaning in the background; Salt asks every minute and must not wait.
    fn clean(&self, sink: &Arc<Sink>, envelope: &Envelope) {
        // What the operator wrote for the plugin goes before what Salt says.
        if self.config().plugin(&sink.plugin).keep.is_some() {
            return;
        }
        let Some(keep) = keep_jobs(&envelope.salt) else { return };
        let archive = envelope.salt.get("archive_jobs").and_then(serde_json::Value::as_bool).unwrap_or(false);
        self.dispatch().purge(sink.clone(), keep, archive);
    }
}

/// What Salt gets for a question.
async fn answer(shared: &Shared, sink: &Sink, op: Op) -> Result<Value, QueryError> {
    let texts = |map: std::collections::BTreeMap<String, String>| {
        Value::Map(map.into_iter().map(|(key, text)| (Value::from(key), Value::from(text))).collect())
    };
    let optional = |text: Option<String>| text.map_or(Value::Nil, Value::from);
    Ok(match op {
        Op::GetLoad { jid } => optional(query::get_load(shared, sink, &jid).await?),
        Op::GetJid { jid } => texts(query::get_jid(shared, sink, &jid).await?),
        Op::GetJids => {
            let jobs = query::list(shared, sink, None, false).await?;
            Value::Map(jobs.into_iter().map(|(jid, load)| (Value::from(jid), Value::from(load))).collect())
        }
        Op::GetJidsFilter { count, filter_find_job } => {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let jobs = query::list(shared, sink, Some(count), filter_find_job).await?;
            let pairs = jobs.into_iter().rev().map(|(jid, load)| Value::Array(vec![jid.into(), load.into()]));
            Value::Array(pairs.collect())
        }
        Op::GetFun { fun } => texts(query::get_fun(shared, sink, &fun).await?),
        Op::GetMinions => {
            Value::Array(query::get_minions(shared, sink).await?.into_iter().map(Value::from).collect())
        }
        Op::GetEndTime { jid } => optional(query::get_endtime(shared, sink, &jid).await?),
        _ => Value::Nil,
    })
}

/// How long Salt keeps jobs; none for ever.
fn keep_jobs(salt: &serde_json::Map<String, serde_json::Value>) -> Option<Duration> {
    let seconds = options::own::find(salt, "keep_jobs_seconds").and_then(|(_, value)| value.as_f64());
    let seconds = seconds.unwrap_or(86_400.0);
    (seconds > 0.0 && seconds.is_finite()).then(|| Duration::from_secs_f64(seconds.min(1e11)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(text: &str) -> Option<u64> {
        let map = serde_json::from_str(text).unwrap();
        keep_jobs(&map).map(|keep| keep.as_secs())
    }

    #[test]
    fn the_keep_time_is_in_seconds_and_zero_keeps_for_ever() {
        assert_eq!(keep(r#"{"keep_jobs_seconds": 3600}"#), Some(3_600));
        assert_eq!(keep(r#"{"keep_jobs": 1}"#), Some(3_600));
        assert_eq!(keep(r#"{"keep_jobs_seconds": 60, "keep_jobs": 1}"#), Some(60));
        assert_eq!(keep(r#"{"keep_jobs_seconds": 0}"#), None);
        assert_eq!(keep("{}"), Some(86_400));
    }
}
