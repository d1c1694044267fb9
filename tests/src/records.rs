//! Records as Salt sends them, and waiting until the daemon has delivered them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::wait::wait_for_value;

/// How long anything may take that is only waited for.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A valid job id with this number.
pub fn jid(number: u32) -> String {
    format!("20261201{:012}", u64::from(number) * 1_000)
}

/// A return of `test.echo` as a minion sends it.
pub fn ret(jid: &str, minion: &str, value: impl Into<Value>) -> Value {
    json!({
        "jid": jid, "id": minion, "fun": "test.echo", "fun_args": ["a"], "return": value.into(),
        "success": true, "retcode": 0,
    })
}

/// A load as a master publishes it.
pub fn published(jid: &str) -> Value {
    json!({
        "cmd": "publish", "jid": jid, "fun": "test.echo", "arg": ["a"], "tgt": "*", "tgt_type": "glob",
        "ret": "", "user": "root",
    })
}

/// A return as Salt's master gives it to `save_load` for a job it does not know.
pub fn return_as_load(jid: &str, minion: &str) -> Value {
    let mut load = ret(jid, minion, "as a load");
    load["cmd"] = json!("_return");
    load
}

/// What `status` says, whether something is stuck or not.
pub fn status(daemon: &Daemon) -> Value {
    daemon.cli(&["status", "--json"]).json_whatever_the_code()
}

/// The sink of this label in a status.
pub fn sink<'a>(status: &'a Value, label: &str) -> &'a Value {
    status["sinks"].as_array().unwrap().iter().find(|sink| sink["sink"] == label).unwrap_or(&Value::Null)
}

/// Waits until nothing is on its way any more; gives the status then.
pub fn settled(daemon: &Daemon) -> Value {
    status_when(daemon, "the lanes to run empty", |status| status["spool"]["items"] == 0)
}

/// Waits until the status is as wanted.
pub fn status_when(daemon: &Daemon, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    wait_for_value(
        what,
        LIMIT,
        || format!("{:#}\n{}", status(daemon), daemon.tail()),
        || Some(status(daemon)).filter(&wanted),
    )
}
