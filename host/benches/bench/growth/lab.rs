//! What the parts share: the daemon's memory and state, and plugins under other names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use returnerd_tests::client::Client;
use returnerd_tests::daemon::Daemon;
use returnerd_tests::wait::wait_for;
use serde_json::{Value, json};

/// A line of `/proc/PID/status` in MiB: `VmRSS`, or `VmHWM` for the most it ever was.
pub(crate) fn memory_mib(daemon: &Daemon, line: &str) -> f64 {
    let pid = daemon.pid().expect("the daemon runs");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':')).unwrap();
    found.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

/// What the daemon says of itself.
pub(crate) fn status(client: &mut Client) -> Value {
    client.query("admin", "", json!({ "command": "status", "args": {} })).json()
}

/// Records that were stored, over all sinks.
pub(crate) fn stored(client: &mut Client) -> u64 {
    let status = status(client);
    status["sinks"].as_array().unwrap().iter().map(|sink| sink["counts"]["stored"].as_u64().unwrap()).sum()
}

/// Waits until no record is in the spool.
pub(crate) fn wait_until_empty(client: &mut Client, limit: Duration) {
    wait_for("the spool to run empty", limit, || status(client)["spool"]["items"] == 0);
}

/// A copy of a plugin that calls itself `new`: a name of the same length, so that nothing else in the file moves.
pub(crate) fn renamed(plugin: &Path, old: &str, new: &str, into: &Path) -> PathBuf {
    let mut bytes = fs::read(plugin).unwrap();
    replace(&mut bytes, &format!("name = \"{old}\"\n"), &format!("name = \"{new}\"\n"));
    let path = into.join(format!("{new}.wasm"));
    fs::write(&path, bytes).unwrap();
    path
}

/// Replaces a line of the manifest by one of the same length, wherever the file has it.
pub(crate) fn replace(bytes: &mut [u8], old: &str, new: &str) {
    assert_eq!(old.len(), new.len(), "`{new}` is not as long as `{old}`");
    let mut from = 0;
    while let Some(at) = bytes[from..].windows(old.len()).position(|part| part == old.as_bytes()) {
        bytes[from + at..from + at + old.len()].copy_from_slice(new.as_bytes());
        from += at + old.len();
    }
    assert!(from > 0, "the file has no line `{old}`");
}

/// A return with a value of about this many bytes.
pub(crate) fn a_return(number: u64, value: &str) -> Value {
    json!({
        "jid": format!("20261201{number:012}"), "id": "minion-1.example.com", "fun": "test.echo", "fun_args": [],
        "return": value, "success": true, "retcode": 0,
    })
}

/// The names of plugins that serve.
pub(crate) fn serving(client: &mut Client) -> BTreeSet<String> {
    let status = status(client);
    let plugins = status["plugins"].as_array().unwrap();
    plugins.iter().filter_map(|plugin| Some(plugin["name"].as_str()?.to_owned())).collect()
}
