//! A raw client of the daemon's socket (`host/src/salt/protocol.md`), without the shim.
//!
//! It can send what a shim never would: cut, oversized and foreign frames.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rmpv::Value as Msgpack;
use serde_json::{Value, json};

/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The daemon's answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Whether it was done.
    pub ok: bool,
    /// The result; nil without one.
    pub result: Msgpack,
    /// The code of an error; empty without one.
    pub code: String,
    /// The text of an error; empty without one.
    pub error: String,
}

impl Answer {
    /// The result of a request that must have been done.
    pub fn done(self) -> Msgpack {
        assert!(self.ok, "the daemon refused: {} ({})", self.error, self.code);
        self.result
    }

    /// The result as JSON, where it is made of values that JSON has.
    pub fn json(self) -> Value {
        to_json(&self.done())
    }

    fn from_msgpack(value: &Msgpack) -> Self {
        let field =
            |name: &str| value.as_map()?.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, v)| v);
        let text = |name| field(name).and_then(Msgpack::as_str).unwrap_or_default().to_owned();
        Self {
            ok: field("ok").and_then(Msgpack::as_bool).expect("an answer has `ok`"),
            result: field("result").cloned().unwrap_or(Msgpack::Nil),
            code: text("code"),
            error: text("error"),
        }
    }
}

/// One connection. It speaks for a master `lab_master` and sends no options unless told to.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    layers: Value,
    role: String,
    id: String,
}

impl Client {
    /// Connects.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        Ok(Self {
            stream,
            layers: json!({"opts": {}, "grains": {}, "pillar": {}}),
            role: "master".to_owned(),
            id: "lab_master".to_owned(),
        })
    }

    /// Sends these entries of the master's or minion's configuration with every request.
    pub fn with_opts(mut self, opts: Value) -> Self {
        self.layers["opts"] = opts;
        self
    }

    /// Speaks for a minion.
    pub fn as_minion(mut self, id: &str) -> Self {
        (self.role, self.id) = ("minion".to_owned(), id.to_owned());
        self
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends one frame with this payload.
    pub fn send_frame(&mut self, payload: &[u8]) -> io::Result<()> {
        self.send_bytes(&frame(payload))
    }

    /// Says that nothing more will come.
    pub fn finish(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads one answer; none if the daemon has closed the connection.
    pub fn read_answer(&mut self) -> io::Result<Option<Answer>> {
        let mut length = [0; 4];
        match self.stream.read_exact(&mut length) {
            Ok(()) => {}
            Err(error)
                if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes(length)).expect("32 bits fit")];
        self.stream.read_exact(&mut payload)?;
        let value = rmpv::decode::read_value(&mut payload.as_slice()).map_err(io::Error::other)?;
        Ok(Some(Answer::from_msgpack(&value)))
    }

    /// Sends any value as a request and reads the answer.
    pub fn ask(&mut self, request: &Msgpack) -> Answer {
        self.send_frame(&encode(request)).expect("the daemon takes the request");
        self.read_answer().expect("the answer is readable").expect("the daemon answers")
    }

    /// A whole request: the common keys and these. A new `uid` is made for each.
    pub fn request(&self, op: &str, returner: &str, keys: Value) -> Msgpack {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_secs_f64();
        let mut request = json!({
            "v": 1, "op": op, "returner": returner, "id": self.id, "role": self.role, "at": at,
            "layers": self.layers, "salt": {},
        });
        if let (Value::Object(request), Value::Object(keys)) = (&mut request, keys) {
            request.extend(keys);
        }
        let mut request = from_json(&request);
        if let Msgpack::Map(entries) = &mut request {
            let uid = fastrand::u128(..).to_be_bytes().to_vec();
            entries.push((Msgpack::from("uid"), Msgpack::Binary(uid)));
        }
        request
    }

    /// Hands over a return.
    pub fn return_(&mut self, returner: &str, ret: Value) -> Answer {
        let request = self.request("return", returner, json!({"ret": ret}));
        self.ask(&request)
    }

    /// Hands over a load with its minions.
    pub fn load(&mut self, returner: &str, jid: &str, load: Value, minions: &[&str]) -> Answer {
        let request = self.request("load", returner, json!({"jid": jid, "load": load, "minions": minions}));
        self.ask(&request)
    }

    /// Hands over events, a list of `{tag, data}`.
    pub fn events(&mut self, returner: &str, events: Value) -> Answer {
        let request = self.request("events", returner, json!({"events": events}));
        self.ask(&request)
    }

    /// Asks a question, such as `get_jid` with `{"jid": …}`.
    pub fn query(&mut self, op: &str, returner: &str, keys: Value) -> Answer {
        let request = self.request(op, returner, keys);
        self.ask(&request)
    }
}

/// A frame with this payload: its length in four bytes, then itself.
pub fn frame(payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a payload is under 4 GiB");
    [&length.to_be_bytes(), payload].concat()
}

/// A value as msgpack.
pub fn encode(value: &Msgpack) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).expect("writing to memory works");
    bytes
}

/// JSON as msgpack.
pub fn from_json(value: &Value) -> Msgpack {
    match value {
        Value::Null => Msgpack::Nil,
        Value::Bool(flag) => Msgpack::from(*flag),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Msgpack::from(int),
            (None, Some(int)) => Msgpack::from(int),
            (None, None) => Msgpack::from(number.as_f64().expect("a JSON number is an integer or a float")),
        },
        Value::String(text) => Msgpack::from(text.as_str()),
        Value::Array(items) => Msgpack::Array(items.iter().map(from_json).collect()),
        Value::Object(entries) => Msgpack::Map(
            entries.iter().map(|(key, value)| (Msgpack::from(key.as_str()), from_json(value))).collect(),
        ),
    }
}

/// msgpack as JSON, for values that JSON has; others panic.
pub fn to_json(value: &Msgpack) -> Value {
    match value {
        Msgpack::Nil => Value::Null,
        Msgpack::Boolean(flag) => json!(flag),
        Msgpack::Integer(int) => int.as_i64().map_or_else(|| json!(int.as_u64()), |int| json!(int)),
        Msgpack::F32(float) => json!(float),
        Msgpack::F64(float) => json!(float),
        Msgpack::String(text) => json!(text.as_str().expect("the text is UTF-8")),
        Msgpack::Array(items) => items.iter().map(to_json).collect(),
        Msgpack::Map(entries) => entries
            .iter()
            .map(|(key, value)| (key.as_str().expect("keys are text").to_owned(), to_json(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => panic!("JSON has no `{other}`"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_request_goes_out_as_one_frame_and_its_answer_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut length = [0; 4];
            stream.read_exact(&mut length).unwrap();
            let mut payload = vec![0; u32::from_be_bytes(length) as usize];
            stream.read_exact(&mut payload).unwrap();
            let answer =
                from_json(&json!({"v": 1, "ok": false, "code": "full", "error": "the spool is full"}));
            stream.write_all(&frame(&encode(&answer))).unwrap();
            rmpv::decode::read_value(&mut payload.as_slice()).unwrap()
        });
        let mut client = Client::connect(&socket).unwrap().with_opts(json!({"mysql.port": 3307}));
        let answer = client.return_("mysql", json!({"jid": "1", "id": "m1", "return": [true, -1, 1.5, "å"]}));
        assert_eq!((answer.ok, answer.code.as_str()), (false, "full"));
        let Msgpack::Map(mut request) = server.join().unwrap() else { panic!("a request is a map") };
        let uid = request.pop().unwrap().1;
        assert_eq!(uid.as_slice().unwrap().len(), 16);
        let request = to_json(&Msgpack::Map(request));
        assert_eq!(request["layers"]["opts"]["mysql.port"], 3307);
        assert_eq!(request["ret"]["return"], json!([true, -1, 1.5, "å"]));
        assert_eq!(client.read_answer().unwrap(), None);
    }
}
