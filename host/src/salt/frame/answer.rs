//! What the daemon answers.

use rmpv::Value;

use super::super::json;
use super::fields::Fields;
use super::{FrameError, VERSION, pair};

/// Why a request was not done; the shim tells Salt, or keeps the frame in the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The frame is at fault.
    BadRequest,
    /// No plugin has that name.
    UnknownReturner,
    /// The options of the returner are at fault.
    Options,
    /// The plugin cannot do this.
    Unsupported,
    /// The spool is full: later.
    Full,
    /// The daemon or the outside system cannot answer now: later.
    Unavailable,
    /// A fault of ours.
    Internal,
}

impl Code {
    pub(super) const ALL: [(Code, &'static str); 7] = [
        (Code::BadRequest, "bad_request"),
        (Code::UnknownReturner, "unknown_returner"),
        (Code::Options, "options"),
        (Code::Unsupported, "unsupported"),
        (Code::Full, "full"),
        (Code::Unavailable, "unavailable"),
        (Code::Internal, "internal"),
    ];

    /// The name in the protocol.
    pub fn as_str(self) -> &'static str {
        Code::ALL.iter().find(|(code, _)| *code == self).map_or("internal", |(_, name)| name)
    }

    /// The reverse of `as_str`; a code that is not known is `Internal`.
    pub fn from_text(text: &str) -> Code {
        Code::ALL.iter().find(|(_, name)| *name == text).map_or(Code::Internal, |(code, _)| *code)
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Done, with the result.
    Done(Value),
    /// Not done.
    Failed {
        /// The kind of reason.
        code: Code,
        /// The reason, its causes, and a hint.
        error: String,
    },
}

impl Answer {
    /// Reads the body of a frame.
    pub fn from_body(body: &[u8]) -> Result<Answer, FrameError> {
        let mut fields = Fields::read(body)?;
        if fields.flag("ok")? {
            return Ok(Answer::Done(fields.take("result")?.unwrap_or(Value::Nil)));
        }
        Ok(Answer::Failed { code: Code::from_text(&fields.text("code")?), error: fields.text("error")? })
    }

    /// The body of a frame.
    pub fn to_body(&self) -> Vec<u8> {
        let mut map = vec![pair("v", VERSION)];
        match self {
            Answer::Done(result) => map.extend([pair("ok", true), pair("result", result.clone())]),
            Answer::Failed { code, error } => {
                map.extend([pair("ok", false), pair("error", error.as_str()), pair("code", code.as_str())])
            }
        }
        json::encode(&Value::Map(map))
    }
}
