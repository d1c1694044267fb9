//! `master_job_cache`: Salt's readers give the same answers through our plugins as through Salt's own `local_cache`.
//!
//! The same jobs run one after another against a master with Salt's `local_cache` and with each of our job caches; then the
//! same questions are asked. Job ids and times are replaced by names, everything else must be equal but for what
//! stands in `DIFFERENCES`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod salt_support;

use std::collections::BTreeMap;

use returnerd_tests::daemon::Daemon;
use returnerd_tests::mariadb::MariaDb;
use returnerd_tests::postgresql::PostgreSql;
use returnerd_tests::redis::Redis;
use returnerd_tests::salt::{SaltLab, SaltVersion};
use returnerd_tests::salt_config::MASTER_ID;
use salt_support::jobs::{STATE, TEXT, run, run_and_check};
use salt_support::{Store, batch, daemon_beside, drained, merged, mysql_options, sqlite_file};
use serde_json::{Value, json};

/// Where answers differ: the end of the place with `*` for any one step, what `local_cache` says and what we say
/// (`*` for anything, `-` for nothing), and why that is right.
const DIFFERENCES: [(&str, &str, &str, &str); 5] = [
    ("Result/*/*", "-", "*", "`local_cache` keeps three keys of a return, we keep the whole record"),
    ("jobs.list_jobs*/*/Minions", "-", "*", "our list of jobs also tells the minions of each"),
    (
        "jobs.list_jobs_filter*/*/EndTime",
        "-",
        "*",
        "our list tells when a job ended whichever way it is asked for",
    ),
    ("Arguments", "[]", "*", "`local_cache` forgets a runner's arguments"),
    (
        "Target-type",
        "\"list\"",
        "\"glob\"",
        "a runner has no target type, and `list` is Salt's guess; its target is one id",
    ),
];

/// What one job cache answers to all questions, by question, with names in place of job ids.
type Answers = BTreeMap<String, Value>;

/// Runs the jobs on a master that has just started with an empty job cache, and asks about them.
fn answers(salt: &SaltLab, daemon: &Daemon, store: Option<&Store<'_>>) -> Answers {
    // The command itself prints what the minions answered.
    let printed = salt.salt_json(&["*", "test.echo", TEXT]);
    assert_eq!(printed, json!({"m1": TEXT, "m2": TEXT}), "{}\n{}", salt.tails(), daemon.tail());
    if let Some(store) = store {
        run_and_check(salt, daemon, store);
    } else {
        run(salt, daemon);
    }
    assert_eq!(salt.salt_call_json("m2", &["test.arg", "called", "c=3"])["args"], json!(["called"]));
    let more = batch(
        salt,
        daemon,
        &[
            json!({"job": "test.arg", "tgt": "m1", "arg": ["a", {"__kwarg__": true, "b": 2}],
                "kwarg": {"metadata": {"ticket": "T 1"}}}),
            json!({"job": "state.sls", "tgt": "m1", "arg": ["demo"]}),
            json!({"job": "test.version", "tgt": ["m1", "m2"], "tgt_type": "list"}),
            json!({"job": "test.echo", "tgt": ["m1", "m9"], "tgt_type": "list", "arg": ["one is away"], "stored": 1}),
            json!({"run": "test.arg", "arg": ["x"], "kwarg": {"y": 1}}),
            json!({"run": "jobs.list_jobs"}),
        ],
    );
    let names = names(more.last().expect("each call has a result"));
    let mut calls = vec![
        json!({"run": "jobs.list_jobs"}),
        json!({"run": "jobs.list_jobs", "kwarg": {"search_function": "test.*"}}),
        json!({"run": "jobs.list_jobs", "kwarg": {"search_metadata": {"ticket": "T 1"}}}),
        json!({"run": "jobs.list_jobs", "kwarg": {"search_target": "m2"}}),
        json!({"run": "jobs.list_jobs_filter", "arg": [5]}),
        json!({"run": "jobs.list_jobs_filter", "arg": [100]}),
        json!({"run": "jobs.last_run", "kwarg": {"function": "state.sls"}}),
        json!({"run": "jobs.last_run", "kwarg": {"target": "m2"}}),
        json!({"run": "jobs.last_run", "kwarg": {"function": "no.such"}}),
        json!({"run": "jobs.lookup_jid", "arg": ["20010101000000000000"]}),
        json!({"run": "jobs.list_job", "arg": ["20010101000000000000"]}),
        json!({"run": "jobs.print_job", "arg": ["20010101000000000000"]}),
    ];
    for jid in names.keys().filter(|jid| !names[*jid].starts_with("runner.jobs.")) {
        calls.push(json!({"run": "jobs.print_job", "arg": [jid]}));
        calls.push(json!({"run": "jobs.lookup_jid", "arg": [jid], "kwarg": {"missing": true}}));
    }
    for (fun, runner) in [
        ("state.apply 1", "jobs.lookup_jid"),
        ("state.apply 1", "jobs.list_job"),
        ("test.ping 1", "jobs.exit_success"),
        ("test.nosuch 1", "jobs.exit_success"),
    ] {
        let (jid, _) = names.iter().find(|(_, name)| *name == fun).expect("the job was run");
        calls.push(json!({"run": runner, "arg": [jid]}));
    }
    let results = batch(salt, daemon, &calls);
    let named = |value: &Value| normal(value, &names);
    calls.iter().zip(&results).map(|(call, result)| (named(call).to_string(), named(result))).collect()
}

/// Names for job ids: the function and its number.
fn names(jobs: &Value) -> BTreeMap<String, String> {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    let jobs: BTreeMap<_, _> = jobs.as_object().expect("jobs are listed by jid").iter().collect();
    let mut name = |job: &Value| {
        let fun = match &job["Function"] {
            Value::String(fun) => fun.clone(),
            several => several.to_string(),
        };
        let number = count.entry(fun.clone()).or_default();
        *number += 1;
        format!("{fun} {number}")
    };
    jobs.into_iter().map(|(jid, job)| (jid.clone(), name(job))).collect()
}

/// A value with names for job ids, and without times and process ids.
fn normal(value: &Value, names: &BTreeMap<String, String>) -> Value {
    const TIMES: [&str; 8] =
        ["StartTime", "EndTime", "_stamp", "duration", "start_time", "ts", "__pub_pid", "__pub_jid"];
    let name = |text: &str| match names.get(text) {
        Some(name) => name.clone(),
        // The question itself is a job, which has no name yet.
        None if text.len() == 20 && text.starts_with("202") => "later".to_owned(),
        None => text.to_owned(),
    };
    match value {
        Value::Object(entries) => entries
            .iter()
            .map(|(key, value)| {
                let value =
                    if TIMES.contains(&key.as_str()) { "a time".into() } else { normal(value, names) };
                (name(key), value)
            })
            .collect(),
        Value::Array(items) => items.iter().map(|item| normal(item, names)).collect(),
        Value::String(text) => name(text).into(),
        other => other.clone(),
    }
}

/// A place where two answers differ.
struct Difference {
    place: Vec<String>,
    theirs: Option<Value>,
    ours: Option<Value>,
}

fn differences(place: &[String], theirs: &Value, ours: &Value, found: &mut Vec<Difference>) {
    let below = |step: &str| [place, &[step.to_owned()]].concat();
    match (theirs, ours) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differences(&below(key), a, b, found),
                    (a, b) => {
                        found.push(Difference { place: below(key), theirs: a.cloned(), ours: b.cloned() });
                    }
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&below(&index.to_string()), a, b, found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => {
            found.push(Difference { place: place.to_vec(), theirs: Some(a.clone()), ours: Some(b.clone()) })
        }
    }
}

impl Difference {
    fn is_justified(&self) -> bool {
        DIFFERENCES.iter().any(|(end, theirs, ours, _)| {
            let steps: Vec<&str> = end.split('/').collect();
            let place = self.place.get(self.place.len().saturating_sub(steps.len())..).unwrap_or_default();
            let step_fits = |(step, is): (&&str, &String)| match step.strip_suffix('*') {
                // The first step of a place is the question.
                Some(question) if !question.is_empty() => is.starts_with(&format!("{{\"run\":\"{question}")),
                Some(_) => true,
                None => step == is,
            };
            let value_fits = |pattern: &str, is: &Option<Value>| match pattern {
                "*" => is.is_some(),
                "-" => is.is_none(),
                text => *is == serde_json::from_str(text).ok(),
            };
            steps.len() == place.len()
                && steps.iter().zip(place).all(step_fits)
                && value_fits(theirs, &self.theirs)
                && value_fits(ours, &self.ours)
        })
    }
}

fn must_agree(local: &Answers, ours: &Answers, what: &str, daemon: &Daemon) {
    let mut found = Vec::new();
    differences(&[], &json!(local), &json!(ours), &mut found);
    let text = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), Value::to_string);
    let lines: Vec<String> = found
        .iter()
        .filter(|difference| !difference.is_justified())
        .map(|Difference { place, theirs, ours }| {
            format!("{}: {}, not {}", place.join("/"), text(ours), text(theirs))
        })
        .collect();
    assert!(
        lines.is_empty(),
        "{what} answers otherwise than `local_cache`:\n{}\n{}",
        lines.join("\n"),
        daemon.tail()
    );
}

fn answers_are_those_of_local_cache(version: SaltVersion) {
    let (mysql, postgresql, redis) = (MariaDb::start(&[]), PostgreSql::start(&[]), Redis::start(&[]));
    postgresql.database("jobs");
    let builder = SaltLab::builder(version).minions(&["m1", "m2"]).file("demo.sls", STATE);
    let daemon = daemon_beside(&builder, &["mysql", "sqlite3", "pgjsonb", "redis", "local_cache"]);
    let file = sqlite_file(&daemon);
    let directory = daemon.root().join("data/jobs");
    std::fs::create_dir(&directory).unwrap();
    let mut salt = builder
        .master(merged([
            mysql_options("mysql", &mysql, "salt"),
            json!({"sqlite3.database": file, "sqlite3.timeout": 5}),
            json!({"returner.pgjsonb.host": "127.0.0.1", "returner.pgjsonb.port": postgresql.port(), "returner.pgjsonb.db": "jobs"}),
            json!({"redis.host": "127.0.0.1", "redis.port": redis.port()}),
            json!({"local_cache.directory": directory}),
        ]))
        .shims_of(&daemon)
        .start();
    // Salt's own, since its shim is installed only if it is named.
    let local = answers(&salt, &daemon, None);

    use_job_cache(&mut salt, json!({"master_job_cache": "sqlite3"}));
    let store = Store::Sqlite(&salt, file.clone());
    let ours = answers(&salt, &daemon, Some(&store));
    outcomes_are_real(&store, &daemon);
    must_agree(&local, &ours, "`sqlite3`", &daemon);

    use_job_cache(&mut salt, json!({"master_job_cache": "mysql"}));
    let store = Store::MySql(&mysql, "salt");
    let ours = answers(&salt, &daemon, Some(&store));
    outcomes_are_real(&store, &daemon);
    must_agree(&local, &ours, "`mysql`", &daemon);

    let shims = salt.returners_dir().display().to_string();
    daemon.cli(&["salt", "install", "--dir", &shims, "local_cache"]).success();
    for name in ["pgjsonb", "redis", "local_cache"] {
        use_job_cache(&mut salt, json!({"master_job_cache": name}));
        let ours = answers(&salt, &daemon, None);
        must_agree(&local, &ours, &format!("`{name}`"), &daemon);
    }
    drained(&daemon);
    assert_ne!(postgresql.sql("jobs", "SELECT count(*) FROM salt_returns").trim(), "0");
    assert!(redis.cli(&["KEYS", "ret:*"]).lines().count() > 1);
    assert!(std::fs::read_dir(&directory).unwrap().count() > 1);
}

/// Starts the master with another job cache, and the minions so that they know its key.
fn use_job_cache(salt: &mut SaltLab, options: Value) {
    salt.reconfigure_master(options);
    salt.restart_minions();
}

/// What comes by other ways than a published job: runners and `salt-call`.
fn outcomes_are_real(store: &Store<'_>, daemon: &Daemon) {
    drained(daemon);
    let rows = store.rows_of_fun(daemon, "runner.test.arg", 1);
    assert_eq!((rows[0].id.as_str(), rows[0].success.as_str()), (MASTER_ID, "1"), "{rows:#?}");
    let called = |row: &&salt_support::Row| row.fun == "test.arg" && row.id == "m2";
    let rows = store.rows();
    let rows: Vec<_> = rows.iter().filter(called).collect();
    assert_eq!(rows.len(), 1, "{rows:#?}\n{}", daemon.tail());
    assert_eq!(rows[0].value["args"], json!(["called"]), "{rows:#?}\n{}", daemon.tail());
}

#[test]
fn answers_with_salt_3008_are_those_of_local_cache() {
    answers_are_those_of_local_cache(SaltVersion::V3008);
}

#[test]
fn answers_with_salt_3006_are_those_of_local_cache() {
    answers_are_those_of_local_cache(SaltVersion::V3006);
}
