//! Jobs of every kind, and how each is to be stored, whoever sends the return and whatever stores it.

use returnerd_tests::daemon::Daemon;
use returnerd_tests::salt::SaltLab;
use serde_json::{Value, json};

use super::{Store, batch};

/// Text with characters of one to four bytes, and those that quoting gets wrong.
pub const TEXT: &str = "grüße, 世界 🦀 – \"it's\" \\ %s ' ; -- \t\n∑";

/// Every second state of it fails.
pub const STATE: &str = r#"
says hello:
  test.succeed_with_changes:
    - name: "grüße 🦀"
fails:
  test.fail_without_changes:
    - name: on purpose
"#;

/// A job and what is to be stored of it.
pub struct Job {
    pub call: Value,
    /// As the column `fun` has it.
    pub fun: &'static str,
    pub minions: &'static [&'static str],
    pub success: &'static str,
    pub retcode: Value,
}

/// The jobs, for the minions `m1` and `m2`.
pub fn jobs() -> Vec<Job> {
    let job = |call, fun, minions, success, retcode| Job { call, fun, minions, success, retcode };
    vec![
        job(json!({"job": "test.ping"}), "test.ping", &["m1", "m2"], "1", json!(0)),
        job(
            json!({"job": "cmd.run", "tgt": "m1", "arg": ["echo to stderr >&2; exit 3"]}),
            "cmd.run",
            &["m1"],
            "0",
            json!(3),
        ),
        job(json!({"job": "state.apply", "arg": ["demo"]}), "state.apply", &["m1", "m2"], "0", json!(2)),
        job(json!({"job": "test.echo", "tgt": "m2", "arg": [TEXT]}), "test.echo", &["m2"], "1", json!(0)),
        job(
            json!({"job": "test.ping,test.echo", "tgt": "m1", "arg": [[], ["hello"]]}),
            "test.ping,test.echo",
            &["m1"],
            "1",
            json!({"test.ping": 0, "test.echo": 0}),
        ),
        // One of two that fails makes the whole job fail.
        job(
            json!({"job": "test.ping,cmd.run", "tgt": "m1", "arg": [[], ["exit 4"]]}),
            "test.ping,cmd.run",
            &["m1"],
            "0",
            json!({"test.ping": 0, "cmd.run": 4}),
        ),
        job(json!({"job": "test.nosuch", "tgt": "m2"}), "test.nosuch", &["m2"], "0", json!(1)),
    ]
}

/// Runs all the jobs with Salt's own client and gives what it got of each.
pub fn run(salt: &SaltLab, daemon: &Daemon) -> Vec<Value> {
    let calls: Vec<Value> = jobs().into_iter().map(|job| job.call).collect();
    batch(salt, daemon, &calls)
}

/// Runs all the jobs with Salt's own client and checks that each return is stored once and as it was shown.
/// Gives the jids in the jobs' order.
pub fn run_and_check(salt: &SaltLab, daemon: &Daemon, store: &Store<'_>) -> Vec<String> {
    let jobs = jobs();
    let answers = run(salt, daemon);
    let mut keys = Vec::new();
    for (job, answer) in jobs.iter().zip(&answers) {
        for id in job.minions {
            let jid = answer[*id]["jid"].as_str();
            let jid = jid.unwrap_or_else(|| panic!("`{}` has no answer of {id}: {answer:#}", job.fun));
            keys.push((jid.to_owned(), (*id).to_owned()));
        }
    }
    let rows = store.rows_of(daemon, &keys);
    let mut keys = keys.iter();
    let mut jids = Vec::new();
    for (job, answer) in jobs.iter().zip(&answers) {
        for id in job.minions {
            let key = keys.next().expect("a key was made for each");
            let row = &rows[key];
            let context = || format!("`{}` of {id} in {store}: {row:#?}\n{}", job.fun, daemon.tail());
            assert_eq!(row.fun, job.fun, "{}", context());
            assert_eq!(row.success, job.success, "{}", context());
            assert_eq!(row.value, answer[*id]["ret"], "{}", context());
            assert_eq!(row.rest["retcode"], job.retcode, "{}", context());
            assert_eq!(row.rest["jid"], json!(key.0), "{}", context());
            assert_eq!(row.rest["id"], json!(id), "{}", context());
            assert_eq!(row.rest["user"], "root", "{}", context());
            if *id == job.minions[0] {
                jids.push(key.0.clone());
            }
        }
    }
    jids
}
