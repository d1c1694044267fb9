//! What a state run did: its states in their order, which changed something and which failed, and how long they took.
//!
//! Nothing here fails: a state with odd fields is read as far as it goes, and what is no state run is none.

use returner_sdk::serde_json::{Map, Value};

/// One state of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct State<'a> {
    /// The key in the return: `pkg_|-nginx_|-nginx_|-installed`.
    pub key: &'a str,
    /// The state's id in its file, or the key where that has not the usual four parts.
    pub id: &'a str,
    /// The file of states, such as `web.nginx`, where Salt says it.
    pub sls: Option<&'a str>,
    /// How it ended; none where it would have changed something in a test run.
    pub result: Option<bool>,
    /// Whether it changed something.
    pub changed: bool,
    /// How long it took, in milliseconds.
    pub duration: f64,
    number: f64,
}

impl State<'_> {
    /// Whether it failed. A state of a test run that would change something has not.
    pub fn failed(&self) -> bool {
        self.result == Some(false)
    }
}

/// A state run.
#[derive(Debug, Clone, PartialEq)]
pub struct StateRun<'a> {
    /// The states in the order in which they ran.
    pub states: Vec<State<'a>>,
    map: &'a Map<String, Value>,
}

/// How many states did what.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counts {
    /// All.
    pub total: usize,
    /// Those that changed something, without those that failed.
    pub changed: usize,
    /// Those that failed.
    pub failed: usize,
    /// The others.
    pub unchanged: usize,
    /// What all took, in seconds.
    pub seconds: f64,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { total, changed, failed, unchanged, seconds } = self;
        write!(
            f,
            "{total} states: {failed} failed, {changed} changed, {unchanged} unchanged, in {seconds:.2} s"
        )
    }
}

impl<'a> StateRun<'a> {
    /// Reads the value of a return; none if it is no state run. The run of an orchestration lies within what its runner returns.
    pub fn of(value: &'a Value) -> Option<Self> {
        let map = value.as_object().filter(|map| !map.is_empty())?;
        if map.contains_key("outputter")
            && let Some(data) = map.get("data").and_then(Value::as_object).filter(|data| data.len() == 1)
        {
            return data.values().next().and_then(Self::of);
        }
        let mut states = map.iter().map(|(key, state)| read(key, state)).collect::<Option<Vec<_>>>()?;
        states.sort_by(|a, b| a.number.total_cmp(&b.number));
        Some(Self { states, map })
    }

    /// The counts.
    pub fn counts(&self) -> Counts {
        let count = |wanted: &dyn Fn(&State<'_>) -> bool| self.states.iter().filter(|s| wanted(s)).count();
        let (failed, changed) = (count(&|s| s.failed()), count(&|s| s.changed && !s.failed()));
        let total = self.states.len();
        let seconds = self.states.iter().map(|state| state.duration).sum::<f64>() / 1_000.0;
        Counts { total, changed, failed, unchanged: total - failed - changed, seconds }
    }

    /// The run with only those states, in their order; none if there are none.
    pub fn only(&self, wanted: impl Fn(&State<'_>) -> bool) -> Option<Value> {
        let kept: Map<String, Value> = self
            .states
            .iter()
            .filter(|state| wanted(state))
            .filter_map(|state| Some((state.key.to_owned(), self.map.get(state.key)?.clone())))
            .collect();
        (!kept.is_empty()).then_some(Value::Object(kept))
    }
}

fn read<'a>(key: &'a str, value: &'a Value) -> Option<State<'a>> {
    let state = value.as_object()?;
    let parts: Vec<&str> = key.split("_|-").collect();
    let id = state.get("__id__").and_then(Value::as_str);
    // A map of maps that have a `result` may be anything; a key of Salt's or an id makes it a state.
    if !state.contains_key("result") || (parts.len() < 4 && id.is_none()) {
        return None;
    }
    let number = |key: &str| match state.get(key)? {
        Value::Number(number) => number.as_f64(),
        // Older releases wrote `12.5 ms`.
        Value::String(text) => text.split_whitespace().next()?.parse().ok(),
        _ => None,
    };
    let changes = state.get("changes");
    Some(State {
        key,
        id: id.unwrap_or_else(|| if parts.len() >= 4 { parts[1] } else { key }),
        sls: state.get("__sls__").and_then(Value::as_str),
        result: match state.get("result") {
            Some(Value::Null) | None => None,
            Some(Value::Bool(result)) => Some(*result),
            Some(_) => Some(false),
        },
        changed: match changes {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Object(map)) => !map.is_empty(),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::String(text)) => !text.is_empty(),
            Some(_) => true,
        },
        duration: number("duration").filter(|ms| ms.is_finite()).unwrap_or(0.0),
        number: number("__run_num__").unwrap_or(f64::MAX),
    })
}

#[cfg(test)]
mod tests {
    use returner_sdk::serde_json::json;

    use super::*;

    fn run() -> Value {
        json!({
            "file_|-b_|-/b_|-managed": {"result": false, "changes": {"diff": "x"}, "__run_num__": 1, "duration": "2.5 ms"},
            "pkg_|-a_|-a_|-installed": {"result": true, "changes": {}, "__run_num__": 0, "duration": 1000, "__sls__": "web"},
            "cmd_|-c_|-c_|-run": {"result": null, "changes": {}, "__run_num__": 3},
            "service_|-d_|-x_|-y_|-running": {"result": true, "changes": {"d": true}, "__run_num__": 2, "__id__": "d"},
        })
    }

    #[test]
    fn a_state_run_is_read_in_the_order_it_ran() {
        let value = run();
        let run = StateRun::of(&value).unwrap();
        let ids: Vec<&str> = run.states.iter().map(|state| state.id).collect();
        assert_eq!(ids, ["a", "b", "d", "c"]);
        assert_eq!((run.states[0].sls, run.states[3].result), (Some("web"), None));
        let counts = run.counts();
        assert_eq!((counts.total, counts.failed, counts.changed, counts.unchanged), (4, 1, 1, 2));
        assert_eq!(counts.to_string(), "4 states: 1 failed, 1 changed, 2 unchanged, in 1.00 s");
    }

    #[test]
    fn some_states_can_be_taken_out() {
        let value = run();
        let run = StateRun::of(&value).unwrap();
        let failed = run.only(|state| state.failed()).unwrap();
        assert_eq!(failed.as_object().unwrap().keys().collect::<Vec<_>>(), ["file_|-b_|-/b_|-managed"]);
        assert_eq!(run.only(|_| false), None);
    }

    #[test]
    fn the_states_of_an_orchestration_are_found() {
        let value = json!({"outputter": "highstate", "retcode": 1, "data": {"salt_master": run()}});
        assert_eq!(StateRun::of(&value).unwrap().counts().total, 4);
    }

    #[test]
    fn other_returns_are_no_state_runs() {
        for value in [
            json!(true),
            json!({}),
            json!(["no matching sls"]),
            json!({"eth0": {"result": true}}),
            json!({"a_|-b_|-c_|-d": 1}),
            json!({"a_|-b_|-c_|-d": {"comment": "no result"}}),
        ] {
            assert_eq!(StateRun::of(&value), None, "{value}");
        }
    }
}
