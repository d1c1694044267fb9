//! The protocol of `protocol.md`: requests, answers, and the frames they travel in. Both ends are here: the daemon
//! reads requests and writes answers, the command line does the reverse.
//!
//! Reading is strict: whatever is missing, of the wrong type or left over is an error that names it. Keys that are
//! not known are passed over, so that a newer shim can add some.

use std::sync::Arc;

use rmpv::Value;
use serde_json::Map;

use super::json::{self, JsonError};
use super::options::Layers;

mod answer;
mod fields;
mod seen;
mod stream;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Code};
use fields::Fields;
pub use fields::kind;
pub use seen::Seen;
pub use stream::{MAX_FRAME, body_of_file, read_frame, with_length, write_frame};

/// The version of the protocol.
pub const VERSION: u64 = 1;

/// Why bytes are no frame, no request or no answer.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Not msgpack, too deep, or followed by something.
    #[error("the frame cannot be read as msgpack")]
    Msgpack(#[source] JsonError),
    /// msgpack, but not a map.
    #[error("the frame holds {found}, not a map")]
    NotAMap {
        /// What it is instead.
        found: &'static str,
    },
    /// Another version of the protocol.
    #[error(
        "the frame has protocol version {found}, this program speaks {VERSION}; hint: run `returnerd salt install` and restart Salt"
    )]
    Version {
        /// The version of the frame.
        found: String,
    },
    /// A key is not there.
    #[error("the frame lacks `{key}`")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A key has a value of another type.
    #[error("`{key}` of the frame is {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A value of a key has no JSON.
    #[error("`{key}` of the frame cannot be read")]
    Unreadable {
        /// The key.
        key: &'static str,
        /// Why.
        #[source]
        source: JsonError,
    },
    /// `op` is none that is known.
    #[error("the frame asks for the unknown operation `{op}`")]
    UnknownOp {
        /// What it says.
        op: String,
    },
    /// Longer than allowed.
    #[error(
        "the frame has {length} bytes, allowed are {limit}; hint: raise the limit for frames in `returnerd.toml`"
    )]
    TooLong {
        /// Its length.
        length: u64,
        /// The limit.
        limit: usize,
    },
    /// The other side went away in the middle.
    #[error("the frame ends after {got} of {expected} bytes")]
    Cut {
        /// Bytes that came, the length prefix included.
        got: usize,
        /// Bytes that should have come.
        expected: usize,
    },
    /// A file with more than one frame.
    #[error("{extra} bytes follow the frame")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// The socket failed.
    #[error("the connection failed")]
    Io(#[from] std::io::Error),
}

impl FrameError {
    /// Whether the bytes are at fault, rather than the connection.
    pub fn is_bad_request(&self) -> bool {
        !matches!(self, FrameError::Io(_) | FrameError::Cut { .. })
    }
}

/// What Salt is beside us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// A master, or a command on it.
    #[default]
    Master,
    /// A minion.
    Minion,
}

impl Role {
    /// `master` or `minion`.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Master => "master",
            Role::Minion => "minion",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What every request carries, whatever it asks for.
#[derive(Clone, Default, PartialEq)]
pub struct Envelope {
    /// The name by which Salt called; empty for `admin`.
    pub returner: String,
    /// The same for a repetition of the same request.
    pub uid: [u8; 16],
    /// The id of the minion or master.
    pub id: String,
    /// What that is.
    pub role: Role,
    /// When the shim was called, in seconds since 1970 (UTC).
    pub at: f64,
    /// The sources of options.
    pub layers: Arc<Layers>,
    /// The profile named with the job.
    pub ret_config: Option<String>,
    /// The overrides given with the job.
    pub ret_kwargs: Option<Map<String, serde_json::Value>>,
    /// `keep_jobs_seconds` and the like, as far as Salt has them set.
    pub salt: Arc<Map<String, serde_json::Value>>,
}

impl Envelope {
    /// An envelope for a request of our own, with a fresh `uid` and the present time.
    pub fn new(returner: &str, id: &str, role: Role) -> Envelope {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Envelope {
            returner: returner.to_owned(),
            uid: fastrand::u128(..).to_be_bytes(),
            id: id.to_owned(),
            role,
            at: now.as_secs_f64(),
            ..Envelope::default()
        }
    }
}

/// Without options, since these may be secret.
impl std::fmt::Debug for Envelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Envelope")
            .field("returner", &self.returner)
            .field("id", &self.id)
            .field("role", &self.role)
            .field("at", &self.at)
            .field("ret_config", &self.ret_config)
            .finish_non_exhaustive()
    }
}

/// One event as the shim sends it.
#[derive(Clone, Debug, PartialEq)]
pub struct SentEvent {
    /// Its tag.
    pub tag: String,
    /// Its data, of any shape.
    pub data: Value,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Take a return.
    Return {
        /// The return as Salt has it.
        ret: Value,
    },
    /// Take a load.
    Load {
        /// The job id.
        jid: String,
        /// The load, or a return in place of it.
        load: Value,
        /// The expected minions, of any shape.
        minions: Value,
    },
    /// Take the minions that are expected to answer.
    Minions {
        /// The job id.
        jid: String,
        /// Their ids, of any shape.
        minions: Value,
        /// The syndic that says so.
        syndic_id: Option<String>,
    },
    /// Take the end time of a job.
    EndTime {
        /// The job id.
        jid: String,
        /// The time as Salt writes it.
        endtime: String,
    },
    /// Take events.
    Events {
        /// The events, perhaps none.
        events: Vec<SentEvent>,
    },
    /// The load of a job.
    GetLoad {
        /// The job id.
        jid: String,
    },
    /// The returns of a job.
    GetJid {
        /// The job id.
        jid: String,
    },
    /// All jobs.
    GetJids,
    /// The newest jobs.
    GetJidsFilter {
        /// How many.
        count: u64,
        /// Whether to leave out `saltutil.find_job`.
        filter_find_job: bool,
    },
    /// Each minion's latest return of a function.
    GetFun {
        /// The function.
        fun: String,
    },
    /// All minions.
    GetMinions,
    /// The end time of a job.
    GetEndTime {
        /// The job id.
        jid: String,
    },
    /// Remove what is old.
    CleanOldJobs,
    /// Is anybody there, and what can the returner do.
    Ping,
    /// A command of our own command line.
    Admin {
        /// Which.
        command: String,
        /// Its arguments, a map.
        args: Value,
    },
}

impl Op {
    /// The name in the protocol.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Return { .. } => "return",
            Op::Load { .. } => "load",
            Op::Minions { .. } => "minions",
            Op::EndTime { .. } => "endtime",
            Op::Events { .. } => "events",
            Op::GetLoad { .. } => "get_load",
            Op::GetJid { .. } => "get_jid",
            Op::GetJids => "get_jids",
            Op::GetJidsFilter { .. } => "get_jids_filter",
            Op::GetFun { .. } => "get_fun",
            Op::GetMinions => "get_minions",
            Op::GetEndTime { .. } => "get_endtime",
            Op::CleanOldJobs => "clean_old_jobs",
            Op::Ping => "ping",
            Op::Admin { .. } => "admin",
        }
    }

    /// The job it is about, where it is about one.
    pub fn jid(&self) -> Option<&str> {
        match self {
            Op::Return { ret } => {
                let map = ret.as_map()?;
                map.iter().find(|(key, _)| key.as_str() == Some("jid")).and_then(|(_, jid)| jid.as_str())
            }
            Op::Load { jid, .. }
            | Op::Minions { jid, .. }
            | Op::EndTime { jid, .. }
            | Op::GetLoad { jid }
            | Op::GetJid { jid }
            | Op::GetEndTime { jid } => Some(jid),
            _ => None,
        }
    }

    /// Whether it hands something over, so that it is answered once that is on disk.
    pub fn hands_over(&self) -> bool {
        matches!(
            self,
            Op::Return { .. } | Op::Load { .. } | Op::Minions { .. } | Op::EndTime { .. } | Op::Events { .. }
        )
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Who asks, and with which options.
    pub envelope: Envelope,
    /// What for.
    pub op: Op,
}

impl Request {
    /// Reads the body of a frame.
    pub fn from_body(body: &[u8]) -> Result<Request, FrameError> {
        Self::read(body, &Seen::default())
    }

    /// Reads the body of a frame whose options may have been seen before.
    pub fn read(body: &[u8], seen: &Seen) -> Result<Request, FrameError> {
        let mut fields = Fields::read(body)?;
        let name = fields.text("op")?;
        let op = match name.as_str() {
            "return" => Op::Return { ret: fields.value("ret")? },
            "load" => Op::Load {
                jid: fields.jid()?,
                load: fields.value("load")?,
                minions: fields.take("minions")?.unwrap_or(Value::Nil),
            },
            "minions" => Op::Minions {
                jid: fields.jid()?,
                minions: fields.value("minions")?,
                syndic_id: fields.optional_text("syndic_id")?,
            },
            "endtime" => Op::EndTime { jid: fields.jid()?, endtime: fields.text("endtime")? },
            "events" => Op::Events { events: fields.events()? },
            "get_load" => Op::GetLoad { jid: fields.jid()? },
            "get_jid" => Op::GetJid { jid: fields.jid()? },
            "get_jids" => Op::GetJids,
            "get_jids_filter" => {
                Op::GetJidsFilter { count: fields.count()?, filter_find_job: fields.flag("filter_find_job")? }
            }
            "get_fun" => Op::GetFun { fun: fields.text("fun")? },
            "get_minions" => Op::GetMinions,
            "get_endtime" => Op::GetEndTime { jid: fields.jid()? },
            "clean_old_jobs" => Op::CleanOldJobs,
            "ping" => Op::Ping,
            "admin" => Op::Admin { command: fields.text("command")?, args: fields.map("args")? },
            _ => return Err(FrameError::UnknownOp { op: name.chars().take(64).collect() }),
        };
        // Our own command line speaks for no returner.
        let envelope =
            if matches!(op, Op::Admin { .. }) { Envelope::default() } else { fields.envelope(seen)? };
        Ok(Request { envelope, op })
    }

    /// The body of a frame.
    pub fn to_body(&self) -> Vec<u8> {
        let mut map = vec![pair("v", VERSION), pair("op", self.op.name())];
        let fields = match self.op.clone() {
            Op::Return { ret } => vec![pair("ret", ret)],
            Op::Load { jid, load, minions } => {
                vec![pair("jid", jid), pair("load", load), pair("minions", minions)]
            }
            Op::Minions { jid, minions, syndic_id } => vec![
                pair("jid", jid),
                pair("minions", minions),
                pair("syndic_id", syndic_id.map_or(Value::Nil, Value::from)),
            ],
            Op::EndTime { jid, endtime } => vec![pair("jid", jid), pair("endtime", endtime)],
            Op::Events { events } => {
                let events =
                    events.into_iter().map(|e| Value::Map(vec![pair("tag", e.tag), pair("data", e.data)]));
                vec![pair("events", Value::Array(events.collect()))]
            }
            Op::GetLoad { jid } | Op::GetJid { jid } | Op::GetEndTime { jid } => vec![pair("jid", jid)],
            Op::GetJidsFilter { count, filter_find_job } => {
                vec![pair("count", count), pair("filter_find_job", filter_find_job)]
            }
            Op::GetFun { fun } => vec![pair("fun", fun)],
            Op::Admin { command, args } => vec![pair("command", command), pair("args", args)],
            Op::GetJids | Op::GetMinions | Op::CleanOldJobs | Op::Ping => Vec::new(),
        };
        if !matches!(self.op, Op::Admin { .. }) {
            map.extend(self.envelope.to_fields());
        }
        map.extend(fields);
        json::encode(&Value::Map(map))
    }
}

impl Envelope {
    fn to_fields(&self) -> Vec<(Value, Value)> {
        let tree = |map: &Map<_, _>| json::from_tree(serde_json::Value::Object(map.clone()));
        let mut layers = vec![
            pair("opts", tree(&self.layers.opts)),
            pair("grains", tree(&self.layers.grains)),
            pair("pillar", tree(&self.layers.pillar)),
        ];
        layers.extend(self.layers.master.as_ref().map(|master| pair("master", tree(master))));
        let mut fields = vec![
            pair("returner", self.returner.as_str()),
            pair("uid", Value::Binary(self.uid.to_vec())),
            pair("id", self.id.as_str()),
            pair("role", self.role.as_str()),
            pair("at", self.at),
            pair("layers", Value::Map(layers)),
        ];
        fields.extend(self.ret_config.as_deref().map(|name| pair("ret_config", name)));
        fields.extend(self.ret_kwargs.as_ref().map(|map| pair("ret_kwargs", tree(map))));
        fields.push(pair("salt", tree(&self.salt)));
        fields
    }
}

fn pair(key: &str, value: impl Into<Value>) -> (Value, Value) {
    (Value::from(key), value.into())
}
