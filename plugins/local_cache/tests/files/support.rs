//! A directory of jobs, the plugin on it, records to store, and Salt's own functions on it.

use std::fs;
use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use returner_local_cache::{Options, Store};
use returner_sdk::prelude::*;
use returner_sdk::time::Date;
use returnerd_tests::env;
use serde_json::{Value, json};

/// The releases of Salt to test with.
pub const RELEASES: [&str; 2] = ["3006.26", "3008.4"];

/// A cache directory as Salt has it, with the directory `jobs` in it.
pub struct Cache {
    dir: tempfile::TempDir,
}

impl Cache {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("jobs")).unwrap();
        Self { dir }
    }

    pub fn jobs(&self) -> PathBuf {
        self.dir.path().join("jobs")
    }

    pub fn options(&self) -> Options {
        serde_json::from_value(json!({ "directory": self.jobs() })).unwrap()
    }

    pub fn open(&self) -> Store {
        run(Store::open(self.options(), &Context::default())).unwrap()
    }

    /// The directory of a job.
    pub fn job(&self, jid: &str) -> PathBuf {
        let digest = returner_local_cache::Hash::Sha256.of(jid);
        self.jobs().join(&digest[..2]).join(&digest[2..])
    }

    /// Calls Salt's own functions: `[name, args, kwargs]` each. Gives their answers, and the warnings and errors that Salt logged.
    pub fn salt(&self, release: &str, calls: Value) -> (Vec<Value>, Vec<Value>) {
        self.salt_with(release, calls, json!({}))
    }

    pub fn salt_with(&self, release: &str, calls: Value, more: Value) -> (Vec<Value>, Vec<Value>) {
        let mut request = json!({ "cachedir": self.dir.path(), "calls": calls });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        answers(start(release, &request))
    }

    pub fn start_salt(&self, release: &str, calls: Value) -> std::process::Child {
        start(release, &json!({ "cachedir": self.dir.path(), "calls": calls }))
    }
}

fn start(release: &str, request: &Value) -> std::process::Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/salt_cache.py");
    let mut child = Command::new(env::salt_bin(release).join("python"))
        .arg("-W")
        .arg("ignore")
        .arg(script)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(request.to_string().as_bytes()).unwrap();
    child
}

pub fn answers(child: std::process::Child) -> (Vec<Value>, Vec<Value>) {
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "Salt's function failed: {errors}");
    let mut said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut list = |key: &str| said[key].take().as_array().cloned().unwrap();
    (list("answers"), list("errors"))
}

/// Waits for the plugin.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = returner_sdk::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

/// A job id of that many milliseconds before now; the number tells them apart.
pub fn jid_of(age: Duration, number: u32) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let date = Date::from_ms((now - age).as_millis().try_into().unwrap()).rfc3339();
    let digits: String = date.chars().filter(char::is_ascii_digit).collect();
    format!("{}{:06}", &digits[..14], number)
}

pub fn jid(number: u32) -> String {
    format!("20261201033139{number:06}")
}

pub fn ret_of(document: &Value) -> JobReturn {
    let text = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
    JobReturn {
        jid: text("jid"),
        minion: text("id"),
        resource_id: None,
        fun: text("fun"),
        fun_args: document["fun_args"].to_string(),
        value: document["return"].to_string(),
        document: document.to_string(),
        success: document["success"].as_bool(),
        retcode: document["retcode"].as_i64(),
        trimmed: false,
        arrived_ms: 0,
    }
}

pub fn ret(jid: &str, minion: &str, value: Value) -> JobReturn {
    ret_of(&json!({
        "jid": jid, "id": minion, "fun": "test.echo", "fun_args": ["x"], "return": value, "retcode": 0, "success": true,
        "user": "root"
    }))
}

pub fn published(jid: &str, fun: &str, minions: &[&str]) -> JobLoad {
    JobLoad {
        jid: jid.into(),
        kind: LoadKind::Published,
        document: json!({
            "cmd": "publish", "tgt": "*", "tgt_type": "glob", "fun": fun, "arg": ["x"], "jid": jid, "user": "ops", "ret": "",
            "kwargs": {"show_jid": false}
        })
        .to_string(),
        minions: minions.iter().map(|minion| (*minion).to_owned()).collect(),
        end_time: None,
        arrived_ms: 0,
    }
}

pub fn stub(jid: &str, fun: &str) -> JobLoad {
    JobLoad {
        kind: LoadKind::Stub,
        document: json!({"fun": fun, "jid": jid, "tgt": "m1", "tgt_type": "glob", "arg": []}).to_string(),
        ..published(jid, fun, &[])
    }
}

pub fn addition(jid: &str, minions: &[&str], end_time: Option<&str>) -> JobLoad {
    JobLoad {
        kind: LoadKind::Addition,
        document: "{}".into(),
        end_time: end_time.map(str::to_owned),
        ..published(jid, "", minions)
    }
}

/// Stores and expects it to be stored.
pub fn deliver(store: &mut Store, returns: Vec<JobReturn>) {
    let verdicts = run(store.deliver(returns)).unwrap();
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Stored), "{verdicts:?}");
}

/// Saves and expects it to be stored.
pub fn save(store: &mut Store, loads: Vec<JobLoad>) {
    let verdicts = run(store.save_loads(loads)).unwrap();
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Stored), "{verdicts:?}");
}

pub fn load(store: &mut Store, jid: &str) -> Option<Value> {
    run(store.get_load(jid.to_owned())).unwrap().map(|load| serde_json::from_str(&load.document).unwrap())
}

/// Documents by minion.
pub fn returns(store: &mut Store, jid: &str) -> serde_json::Map<String, Value> {
    let returns = run(store.get_returns(jid.to_owned())).unwrap();
    returns.into_iter().map(|ret| (ret.minion, serde_json::from_str(&ret.document).unwrap())).collect()
}

pub fn filter(limit: u32, before: Option<&str>, without: &[&str]) -> JidsFilter {
    JidsFilter {
        limit,
        before: before.map(str::to_owned),
        without_funs: without.iter().map(|fun| (*fun).to_owned()).collect(),
    }
}

pub fn jids(store: &mut Store, filter: JidsFilter) -> Vec<String> {
    run(store.get_jids(filter)).unwrap().into_iter().map(|load| load.jid).collect()
}

/// All files below a directory, by their paths in it.
pub fn files(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![directory.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else {
                found.push(path.strip_prefix(directory).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Sets the time of a file.
pub fn set_age(path: &Path, age: Duration) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}
