//! What is said of a return or an event, as attachments: the layout of Salt's own returner.
//!
//! Invariants: what does not fit is cut with a note that says so; every text is escaped; a record of any shape makes a message.

use returner_sdk::serde_json::{Map, Value, json};
use returner_sdk::{Event, JobReturn, json as json_text};
use returner_sdk_notify::slack::{block, escaped, size};
use returner_sdk_notify::states::{State, StateRun};
use returner_sdk_notify::text::{self, cut, expand};
use returner_sdk_notify::{FIND_JOB, python, yaml};

use crate::options::Settings;

/// Characters of a text, as Slack counts them at the worst.
const MOST_TEXT: usize = 3_000;
/// Characters of a title; a return that is longer, or has several lines, stands below it.
const MOST_TITLE: usize = 150;
/// States that are named of each kind.
const MOST_TASKS: usize = 30;

const GOOD: &str = "good";
const WARNING: &str = "warning";
const DANGER: &str = "danger";
const NEUTRAL: &str = "#272727";

/// A job's result, from wherever it came.
struct Report {
    id: String,
    fun: String,
    args: Value,
    jid: String,
    success: Option<bool>,
    value: Value,
    /// Where titles find their keys.
    document: Value,
}

/// The payload for a return; none for Salt's own probes.
pub(crate) fn of_return(ret: &JobReturn, settings: &Settings) -> Option<Value> {
    if ret.fun == FIND_JOB {
        return None;
    }
    let mut document = text::parsed(&ret.document);
    let id = ret.stored_id().to_owned();
    if let Some(document) = document.as_object_mut() {
        document.insert("id".into(), id.clone().into());
    }
    let report = Report {
        id,
        fun: ret.fun.clone(),
        args: text::parsed(&ret.fun_args),
        jid: ret.jid.clone(),
        success: ret.success,
        value: text::parsed(&ret.value),
        document,
    };
    Some(report.payload(settings))
}

/// The payload for an event; none for what Salt's returner keeps to itself too: its probes and its authentications.
pub(crate) fn of_event(event: &Event, settings: &Settings) -> Option<Value> {
    let data = text::parsed(&event.data);
    let is_probe = data.get("fun").and_then(Value::as_str) == Some(FIND_JOB);
    if is_probe || event.tag == "salt/auth" || event.tag.starts_with("salt/auth/") {
        return None;
    }
    Some(match Report::of_event(&event.tag, &data) {
        Some(report) => report.payload(settings),
        None => {
            let title = cut_title(&event.tag);
            let shown = shown(&data, "the whole event is on the bus only");
            payload(settings, &event.master, &title, vec![attachment(NEUTRAL, &title, Some(shown))])
        }
    })
}

impl Report {
    /// A job's result, if the event brings one: `salt/job/JID/ret/MINION`.
    fn of_event(tag: &str, data: &Value) -> Option<Self> {
        let parts: Vec<&str> = tag.splitn(5, '/').collect();
        let ["salt", "job", jid, "ret", minion] = parts[..] else { return None };
        let value = data.get("return")?.clone();
        let text = |key: &str, or: &str| match data.get(key) {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => or.to_owned(),
            Some(other) => python::repr(other),
        };
        let success =
            match (data.get("success").and_then(Value::as_bool), data.get("retcode").and_then(Value::as_i64))
            {
                (Some(false), _) => Some(false),
                (_, Some(code)) => Some(code == 0),
                (said, None) => said,
            };
        let failed = StateRun::of(&value).is_some_and(|run| run.counts().failed > 0);
        Some(Self {
            id: text("id", minion),
            fun: text("fun", "?"),
            args: data.get("fun_args").cloned().unwrap_or_else(|| json!([])),
            jid: text("jid", jid),
            success: if failed { Some(false) } else { success },
            value,
            document: data.clone(),
        })
    }

    fn payload(&self, settings: &Settings) -> Value {
        let (title, said) = match self.success {
            Some(true) => (settings.success_title.as_str(), "True"),
            Some(false) => (settings.failure_title.as_str(), "False"),
            None => ("{id} | Returned", "unknown"),
        };
        let title = cut_title(&expand(title, &self.document));
        let run = StateRun::of(&self.value);
        let mut text = format!("Function: {}\n", self.fun);
        if self.args.as_array().is_some_and(|args| !args.is_empty()) {
            let args = python::repr(&self.args);
            let short = cut(&args, MOST_TEXT / 3, size);
            let note = if short.len() < args.len() { "… (cut)" } else { "" };
            text.push_str(&format!("Function Args: {short}{note}\n"));
        }
        text.push_str(&format!("JID: {}\n", self.jid));
        if let Some(run) = &run {
            let counts = run.counts();
            text.push_str(&format!("Total: {}\nDuration: {:.2} secs", counts.total, counts.seconds));
        }
        let head = attachment(
            NEUTRAL,
            &format!("Success: {said}"),
            Some(escaped(cut(&text, MOST_TEXT, size)).into()),
        );
        let mut attachments = vec![head];
        match &run {
            Some(run) => attachments.extend(states(run, settings.show_tasks)),
            None => attachments.push(self.result()),
        }
        payload(settings, &self.id, &title, attachments)
    }

    /// What a function without states returned.
    fn result(&self) -> Value {
        let color = match self.success {
            Some(true) => GOOD,
            Some(false) => DANGER,
            None => NEUTRAL,
        };
        let short = match &self.value {
            Value::String(text) => Some(text.clone()),
            Value::Object(_) => None,
            other => Some(python::repr(other)),
        };
        match short.filter(|text| size(text) <= MOST_TITLE && !text.contains(['\n', '\r', '`'])) {
            Some(text) => attachment(color, &format!("Return: {text}"), None),
            None => {
                let place = format!("`salt-run jobs.lookup_jid {}` may show all", self.jid);
                attachment(color, "Return", Some(shown(&self.value, &place)))
            }
        }
    }
}

/// The three counts of a state run.
fn states(run: &StateRun<'_>, show_tasks: bool) -> [Value; 3] {
    let counts = run.counts();
    let task = |state: &State<'_>| {
        let text = format!("{}.sls | {}", state.sls.unwrap_or("None"), state.id);
        json!({ "value": escaped(cut(&text, MOST_TITLE, size)), "short": false })
    };
    let with_tasks = |mut part: Value, wanted: &dyn Fn(&State<'_>) -> bool| {
        let tasks: Vec<&State<'_>> = run.states.iter().filter(|state| wanted(state)).collect();
        if show_tasks && !tasks.is_empty() {
            let mut fields: Vec<Value> = tasks.iter().take(MOST_TASKS).map(|state| task(state)).collect();
            if tasks.len() > MOST_TASKS {
                let more = format!("and {} more", tasks.len() - MOST_TASKS);
                fields.push(json!({ "value": more, "short": false }));
            }
            part["fields"] = fields.into();
        }
        part
    };
    [
        attachment(GOOD, &format!("Unchanged: {}", counts.unchanged), None),
        with_tasks(attachment(WARNING, &format!("Changed: {}", counts.changed), None), &|state| {
            state.changed && !state.failed()
        }),
        with_tasks(attachment(DANGER, &format!("Failed: {}", counts.failed), None), &|state| state.failed()),
    ]
}

/// A value as a block of code: maps as YAML, as Salt's returner has them, texts as they are, anything else as Python shows it.
fn shown(value: &Value, place: &str) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Object(_) => yaml(value),
        other => python::pretty(other),
    };
    let short = cut(&text, MOST_TEXT, size);
    let left = text[short.len()..].chars().count();
    let note = if left > 0 { format!("\n[{left} characters are left out; {place}]") } else { String::new() };
    // An empty block would show its fences.
    if text.trim().is_empty() {
        json_text::quoted(&text).into()
    } else {
        block(&format!("{short}{note}")).into()
    }
}

fn cut_title(title: &str) -> String {
    let short = cut(title, MOST_TITLE, size);
    if short.len() < title.len() { format!("{short}…") } else { title.to_owned() }
}

/// One part of a message. The title is escaped here, the text before.
fn attachment(color: &str, title: &str, text: Option<Value>) -> Value {
    let mut part = json!({ "color": color, "title": escaped(title) });
    if let Some(text) = text {
        part["text"] = text;
        part["mrkdwn_in"] = json!(["text"]);
    }
    part
}

/// A message of its parts; the first names the minion.
fn payload(settings: &Settings, author: &str, title: &str, mut attachments: Vec<Value>) -> Value {
    if let Some(first) = attachments.first_mut() {
        let mut head = Map::new();
        head.insert("fallback".into(), escaped(title).into());
        head.insert("author_name".into(), escaped(&cut_title(author)).into());
        if let Some(icon) = &settings.author_icon {
            head.insert("author_icon".into(), icon.clone().into());
        }
        head.extend(first.as_object_mut().map(std::mem::take).unwrap_or_default());
        *first = Value::Object(head);
    }
    json!({ "attachments": attachments })
}
