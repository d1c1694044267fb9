//! A Slack that knows one workspace: messages, files in three steps, and webhooks, as strict as the documentation is, and stricter
//! where being lenient would hide a fault. It speaks plain HTTP on loopback.
//!
//! Whatever a client should never do is refused as Slack refuses it and kept as a complaint, which a test asks for at its end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::web::{Reply, Seen, WebServer};

/// The token of the app.
pub const TOKEN: &str = "xoxb-17653672481-abcdefGHIJ";
/// The path of the webhook after `services/`.
pub const WEBHOOK: &str = "T00000000/B00000000/XXXXsecretXXXX";
/// Characters of a text that the Web API takes.
const TEXT_LIMIT: usize = 40_000;
const FORM: &str = "application/x-www-form-urlencoded";

/// A message that was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The channel's name; of a webhook, empty.
    pub channel: String,
    /// The text.
    pub text: String,
    /// All that was sent: the arguments of `chat.postMessage`, or the payload of a webhook.
    pub fields: Value,
}

/// A file that was shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedFile {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub text: String,
    /// The channel's name.
    pub channel: String,
    /// The text of the message whose thread it is in.
    pub thread: String,
}

#[derive(Debug, Default)]
struct Upload {
    name: String,
    length: usize,
    body: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    messages: Vec<Message>,
    files: Vec<SharedFile>,
    uploads: BTreeMap<String, Upload>,
    asked: Vec<(Instant, String)>,
    complaints: Vec<String>,
    next: VecDeque<(String, Reply)>,
    hang: Option<Duration>,
    scopes: BTreeSet<String>,
    as_user: bool,
}

/// The server. It ends when it is dropped.
pub struct FakeSlack {
    server: WebServer,
    state: Arc<Mutex<State>>,
}

impl FakeSlack {
    /// A workspace with the channels `#general`, `#ops` (the app is in both), `#private` (it is not) and `#old` (archived), and an
    /// app of the new kind that may write messages and files.
    pub fn start() -> Self {
        let scopes = ["chat:write", "chat:write.customize", "files:write"].map(str::to_owned).into();
        let state = Arc::new(Mutex::new(State { scopes, ..State::default() }));
        let inner = state.clone();
        let server = WebServer::start(move |seen| answer(&mut lock(&inner), seen));
        Self { server, state }
    }

    /// Its address, for `api_url` and `files_url`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.server.port())
    }

    /// Takes a scope away from the app.
    pub fn without_scope(&self, scope: &str) {
        lock(&self.state).scopes.remove(scope);
    }

    /// Gives the app a scope.
    pub fn with_scope(&self, scope: &str) {
        lock(&self.state).scopes.insert(scope.to_owned());
    }

    /// Makes the app one of the old kind, which knows `as_user`.
    pub fn with_as_user(&self) {
        lock(&self.state).as_user = true;
    }

    /// Answers the next request to this path so, whatever it is. Several are taken in their order.
    pub fn next(&self, path: &str, reply: Reply) {
        lock(&self.state).next.push_back((path.to_owned(), reply));
    }

    /// Answers the next call of a method with `ok: false`.
    pub fn refuse_next(&self, method: &str, error: &str) {
        self.next(&format!("/api/{method}"), reply(&json!({"ok": false, "error": error})));
    }

    /// Answers the next message with status 429.
    pub fn busy_next(&self, path: &str, seconds: u32) {
        let body = json!({"ok": false, "error": "ratelimited"}).to_string().into_bytes();
        self.next(path, Reply { status: 429, body, ..Reply::default() }.header("retry-after", seconds));
    }

    /// Makes it take this long for each answer; none ends that.
    pub fn hang(&self, time: Option<Duration>) {
        lock(&self.state).hang = time;
    }

    /// The messages so far.
    pub fn messages(&self) -> Vec<Message> {
        lock(&self.state).messages.clone()
    }

    /// The files that can be seen.
    pub fn files(&self) -> Vec<SharedFile> {
        lock(&self.state).files.clone()
    }

    /// When it was asked for what path.
    pub fn asked(&self) -> Vec<(Instant, String)> {
        lock(&self.state).asked.clone()
    }

    /// Panics if a client did what it should never do, or sent a message whose blocks of code are not closed.
    pub fn must_be_content(&self) {
        let state = lock(&self.state);
        assert!(state.complaints.is_empty(), "{:#?}", state.complaints);
        for message in &state.messages {
            let texts = texts_of(&message.fields);
            for text in texts {
                assert!(text.matches("```").count() % 2 == 0, "a block of code is not closed: {text}");
            }
        }
    }
}

/// All texts within a value.
fn texts_of(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(texts_of).collect(),
        Value::Object(map) => map.values().flat_map(texts_of).collect(),
        _ => Vec::new(),
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reply(value: &Value) -> Reply {
    Reply { body: value.to_string().into_bytes(), ..Reply::default() }
        .header("content-type", "application/json; charset=utf-8")
}

fn plain(status: u16, text: &str) -> Reply {
    Reply { status, body: text.as_bytes().to_vec(), ..Reply::default() }
}

fn refused(error: &str) -> Reply {
    reply(&json!({"ok": false, "error": error}))
}

fn answer(state: &mut State, seen: &Seen) -> Reply {
    let path = seen.target.split('?').next().unwrap_or_default().to_owned();
    state.asked.push((Instant::now(), path.clone()));
    let mut reply = match state.next.iter().position(|(wanted, _)| path.starts_with(wanted)) {
        Some(at) => state.next.remove(at).expect("it was found there").1,
        None => route(state, seen, &path),
    };
    if let Some(time) = state.hang {
        reply.after = time;
    }
    reply
}

fn route(state: &mut State, seen: &Seen, path: &str) -> Reply {
    if seen.method != "POST" {
        state.complaints.push(format!("{} {path}", seen.method));
        return plain(405, "");
    }
    if seen.target.contains('?') {
        state.complaints.push(format!("a query in {}", seen.target));
    }
    if let Some(method) = path.strip_prefix("/api/") {
        return api(state, seen, method);
    }
    if seen.header("authorization").is_some() {
        state.complaints.push(format!("the token was sent to {path}"));
    }
    if let Some(id) = path.strip_prefix("/upload/v1/") {
        return take_file(state, seen, id);
    }
    match path.strip_prefix("/services/") {
        Some(hook) => webhook(state, seen, hook),
        None => plain(404, "no such page"),
    }
}

fn api(state: &mut State, seen: &Seen, method: &str) -> Reply {
    let content_type = seen.header("content-type").unwrap_or_default();
    if content_type.split(';').next() != Some(FORM) {
        state.complaints.push(format!("content type `{content_type}`"));
        return refused("invalid_post_type");
    }
    let Some(fields) = form(&seen.text()) else {
        state.complaints.push(format!("no proper form: {}", seen.text()));
        return refused("invalid_form_data");
    };
    if fields.contains_key("token") || seen.text().contains(TOKEN) {
        state.complaints.push("the token is in the body".to_owned());
        return refused("not_authed");
    }
    match seen.header("authorization") {
        None => return refused("not_authed"),
        Some(value) if value != format!("Bearer {TOKEN}") => return refused("invalid_auth"),
        Some(_) => {}
    }
    match method {
        "chat.postMessage" => post_message(state, fields),
        "files.getUploadURLExternal" => upload_url(state, seen, &fields),
        "files.completeUploadExternal" => complete_upload(state, &fields),
        _ => refused("unknown_method"),
    }
}

/// Refuses where the app lacks a scope.
fn lacks(state: &State, scope: &str) -> Option<Reply> {
    let lacks = !state.scopes.contains(scope);
    lacks.then(|| reply(&json!({"ok": false, "error": "missing_scope", "needed": scope, "provided": ""})))
}

/// The name of a channel, by name or id, or why nothing can be posted there.
fn channel(text: &str) -> Result<(&'static str, &'static str), &'static str> {
    const ALL: [(&str, &str); 4] =
        [("general", "C0000GENERAL"), ("ops", "C0000OPS"), ("private", "C0000PRIVATE"), ("old", "C0000OLD")];
    let name = text.strip_prefix('#').unwrap_or(text);
    let found = ALL.into_iter().find(|(own, id)| *own == name || *id == text).ok_or("channel_not_found")?;
    match found.0 {
        "private" => Err("not_in_channel"),
        "old" => Err("is_archived"),
        _ => Ok(found),
    }
}

fn post_message(state: &mut State, fields: BTreeMap<String, String>) -> Reply {
    const KNOWN: [&str; 6] = ["channel", "text", "username", "as_user", "unfurl_links", "unfurl_media"];
    if let Some(unknown) = fields.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        state.complaints.push(format!("unknown argument `{unknown}`"));
    }
    if let Some(refusal) = lacks(state, "chat:write") {
        return refusal;
    }
    let (name, id) = match channel(fields.get("channel").map(String::as_str).unwrap_or_default()) {
        Ok(found) => found,
        Err(error) => return refused(error),
    };
    if fields.contains_key("as_user") && !state.as_user {
        return refused("as_user_not_supported");
    }
    if fields.contains_key("username")
        && let Some(refusal) = lacks(state, "chat:write.customize")
    {
        return refusal;
    }
    let text = fields.get("text").cloned().unwrap_or_default();
    if text.is_empty() {
        return refused("no_text");
    }
    if text.encode_utf16().count() > TEXT_LIMIT {
        return refused("msg_too_long");
    }
    if let Some(bad) = unescaped(&text) {
        state.complaints.push(format!("not escaped: {bad}"));
    }
    let ts = format!("1796095899.{:06}", state.messages.len());
    state.messages.push(Message { channel: name.to_owned(), text, fields: json!(fields) });
    reply(&json!({"ok": true, "channel": id, "ts": ts, "message": {"type": "message", "ts": ts}}))
}

/// A control character of Slack's that is not escaped.
fn unescaped(text: &str) -> Option<&str> {
    let is_entity = |rest: &str| ["&amp;", "&lt;", "&gt;"].iter().any(|entity| rest.starts_with(entity));
    text.char_indices()
        .map(|(at, _)| &text[at..])
        .find(|rest| rest.starts_with(['<', '>']) || (rest.starts_with('&') && !is_entity(rest)))
}

fn upload_url(state: &mut State, seen: &Seen, fields: &BTreeMap<String, String>) -> Reply {
    if let Some(refusal) = lacks(state, "files:write") {
        return refusal;
    }
    let length =
        fields.get("length").and_then(|text| text.parse::<usize>().ok()).filter(|length| *length > 0);
    let (Some(name), Some(length)) = (fields.get("filename"), length) else {
        return refused("invalid_arguments");
    };
    let id = format!("F{:08}", state.uploads.len());
    state.uploads.insert(id.clone(), Upload { name: name.clone(), length, body: None });
    let host = seen.header("host").unwrap_or_default();
    reply(&json!({"ok": true, "upload_url": format!("http://{host}/upload/v1/{id}"), "file_id": id}))
}

fn take_file(state: &mut State, seen: &Seen, id: &str) -> Reply {
    let Some(upload) = state.uploads.get_mut(id) else { return plain(404, "no such upload") };
    if seen.body.len() != upload.length {
        state.complaints.push(format!(
            "a file of {} bytes was announced as {}",
            seen.body.len(),
            upload.length
        ));
        return plain(400, "wrong length");
    }
    upload.body = Some(seen.body.clone());
    plain(200, &format!("OK - {}", seen.body.len()))
}

fn complete_upload(state: &mut State, fields: &BTreeMap<String, String>) -> Reply {
    if let Some(refusal) = lacks(state, "files:write") {
        return refusal;
    }
    let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    let Ok(Value::Array(files)) = serde_json::from_str::<Value>(field("files")) else {
        return refused("invalid_arguments");
    };
    let id = field("channel_id");
    if !id.starts_with('C') {
        state.complaints.push(format!("`channel_id` must be an id, not `{id}`"));
        return refused("invalid_channel");
    }
    let Ok((channel, _)) = channel(id) else { return refused("channel_not_found") };
    let number = field("thread_ts").rsplit('.').next().and_then(|text| text.parse::<usize>().ok());
    let Some(message) = number.and_then(|number| state.messages.get(number)) else {
        return refused("thread_not_found");
    };
    for file in &files {
        let id = file["id"].as_str().unwrap_or_default();
        let Some(Upload { name, body: Some(body), .. }) = state.uploads.get(id) else {
            return refused("file_not_found");
        };
        let text = String::from_utf8_lossy(body).into_owned();
        let (name, channel, thread) = (name.clone(), channel.to_owned(), message.text.clone());
        state.files.push(SharedFile { name, text, channel, thread });
    }
    reply(&json!({"ok": true, "files": files}))
}

fn webhook(state: &mut State, seen: &Seen, hook: &str) -> Reply {
    if hook != WEBHOOK {
        return plain(404, "no_service");
    }
    let content_type = seen.header("content-type").unwrap_or_default();
    if content_type.split(';').next() != Some(FORM) {
        state.complaints.push(format!("content type `{content_type}`"));
        return plain(400, "invalid_payload");
    }
    let payload = form(&seen.text()).and_then(|mut fields| fields.remove("payload"));
    let payload = payload.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let Some(payload) = payload.filter(Value::is_object) else { return plain(400, "invalid_payload") };
    let attachments = payload["attachments"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = payload["text"].as_str().unwrap_or_default();
    if attachments.is_empty() && text.is_empty() {
        return plain(400, "no_text");
    }
    if attachments.len() > 100 {
        return plain(400, "too_many_attachments");
    }
    for attachment in attachments {
        // The limits are not documented for each field; these are what Slack's own advice keeps to.
        for (field, most) in [("text", 8_000), ("title", 500), ("author_name", 256), ("fallback", 500)] {
            let value = attachment[field].as_str().unwrap_or_default();
            if value.encode_utf16().count() > most {
                state.complaints.push(format!("`{field}` of an attachment is too long"));
            }
        }
        for field in ["text", "title"] {
            if let Some(bad) = unescaped(attachment[field].as_str().unwrap_or_default()) {
                state.complaints.push(format!("not escaped: {bad}"));
            }
        }
    }
    let text = text.to_owned();
    state.messages.push(Message { channel: String::new(), text, fields: payload });
    plain(200, "ok")
}

/// The fields of a form; none if it is not encoded as it must be.
fn form(body: &str) -> Option<BTreeMap<String, String>> {
    let mut fields = BTreeMap::new();
    for pair in body.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=')?;
        if fields.insert(decoded(key)?, decoded(value)?).is_some() {
            return None;
        }
    }
    Some(fields)
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let hex = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?
            }
            byte if byte.is_ascii_alphanumeric() || b"*-._".contains(&byte) => byte,
            _ => return None,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_must_be_encoded() {
        let fields = form("text=a+b%26%C3%BC&empty=").unwrap();
        assert_eq!((fields["text"].as_str(), fields["empty"].as_str()), ("a b&ü", ""));
        for bad in ["payload={\"a\"}", "a=%zz", "a=%ff", "nothing", "a=1&a=2"] {
            assert_eq!(form(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_not_escaped_is_found() {
        assert_eq!(unescaped("a &amp; b &lt; c"), None);
        assert_eq!(unescaped("a & b"), Some("& b"));
        assert_eq!(unescaped("x <!here"), Some("<!here"));
    }
}
