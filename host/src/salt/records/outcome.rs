//! Whether a job went well. Salt says so in several ways that contradict each other: `salt-call` always claims
//! success, and a state run may be a success whose states failed. The worst that is said counts.

use rmpv::Value;

use super::super::json;
use super::get;

/// Functions that answer with a list of texts when they could not run at all.
const STATE_RUNS: [&str; 9] = [
    "state.apply",
    "state.high",
    "state.highstate",
    "state.low",
    "state.single",
    "state.sls",
    "state.sls_id",
    "state.template",
    "state.template_str",
];

/// The outcome, where it is known, and the return code, of several the first that is not zero.
pub(super) fn outcome(
    fun: &str,
    success: Option<&Value>,
    retcode: Option<&Value>,
    value: &Value,
) -> (Option<bool>, Option<i64>) {
    let said = success.and_then(all_true);
    let code = retcode.and_then(first_code);
    let states = states(fun, value);
    let good = if said == Some(false) || code.is_some_and(|code| code != 0) || states == Some(false) {
        Some(false)
    } else {
        said.or(code.map(|_| true)).or(states)
    };
    (good, code)
}

/// The items of the map or list that a job of several functions has in place of a single value.
fn parts(value: &Value) -> Option<Vec<&Value>> {
    match value {
        Value::Map(entries) => Some(entries.iter().map(|(_, value)| value).collect()),
        Value::Array(items) => Some(items.iter().collect()),
        _ => None,
    }
}

fn all_true(value: &Value) -> Option<bool> {
    let truth = |value: &Value| value.as_bool().or_else(|| value.as_i64().map(|number| number != 0));
    let Some(parts) = parts(value) else { return truth(value) };
    let known: Vec<bool> = parts.into_iter().filter_map(truth).collect();
    if known.is_empty() { None } else { Some(known.iter().all(|good| *good)) }
}

fn first_code(value: &Value) -> Option<i64> {
    let Some(parts) = parts(value) else { return code(value) };
    let codes: Vec<i64> = parts.into_iter().filter_map(code).collect();
    codes.iter().copied().find(|code| *code != 0).or(codes.first().copied())
}

fn code(value: &Value) -> Option<i64> {
    match value {
        Value::Boolean(flag) => Some((*flag).into()),
        Value::Integer(number) => Some(number.as_i64().unwrap_or(i64::MAX)),
        Value::String(text) => text.as_str()?.trim().parse().ok(),
        _ => None,
    }
}

/// False if a state failed or none could be run, true if states ran and none failed, none if it is no state run.
fn states(fun: &str, value: &Value) -> Option<bool> {
    if STATE_RUNS.contains(&fun)
        && let Value::Array(messages) = value
        && !messages.is_empty()
        && messages.iter().all(Value::is_str)
    {
        return Some(false);
    }
    let mut seen = None;
    // A run itself, the runs of a job of several functions, a runner's answer, an orchestration's runs by master.
    let mut level = vec![value];
    for _ in 0..4 {
        let mut below = Vec::new();
        for value in level {
            match chunks(value) {
                Some(false) => return Some(false),
                Some(true) => seen = Some(true),
                None => below.extend(wrapped(fun, value)),
            }
        }
        level = below;
    }
    seen
}

fn wrapped<'a>(fun: &str, value: &'a Value) -> Vec<&'a Value> {
    match value {
        _ if fun.contains(',') => parts(value).unwrap_or_default(),
        Value::Map(entries) => {
            let data = get(entries, "data").filter(|_| get(entries, "outputter").is_some());
            let runs = data.and_then(parts).unwrap_or_default();
            let inner = get(entries, "return").filter(|_| get(entries, "fun").is_some());
            runs.into_iter().chain(inner).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether all of a map of state chunks went well. In a test run `result` is nil, which is no failure.
fn chunks(value: &Value) -> Option<bool> {
    let mut seen = None;
    for (key, chunk) in value.as_map()? {
        let is_state = json::text(key).is_some_and(|key| key.contains("_|-"));
        let result = chunk.as_map().filter(|_| is_state).and_then(|chunk| get(chunk, "result"));
        match result {
            Some(Value::Boolean(false)) => return Some(false),
            Some(_) => seen = Some(true),
            None => {}
        }
    }
    seen
}
