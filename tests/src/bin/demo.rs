//! `make demo`: a real Salt's returns go through the daemon into SQLite and are read back.
//!
//! Everything runs in scratch directories on loopback and is gone at the end. It fails unless every return that the
//! minions sent is in the database and comes back through Salt.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "it ends with a message if a part fails"
)]

use std::process::{Command, ExitCode};
use std::time::Duration;

use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use returnerd_tests::proc::run;
use returnerd_tests::salt::{SaltLab, SaltVersion};
use returnerd_tests::wait::wait_for_value;
use serde_json::{Value, json};

const STATE: &str = r#"
a file:
  file.managed:
    - name: {{ grains['demo_dir'] }}/hello-{{ grains['id'] }}
    - contents: "grüße 🦀"
a failure:
  test.fail_without_changes:
    - name: on purpose
"#;

/// The jobs: what they show, and the arguments of `salt`. Each function comes once, so that it names its job.
const JOBS: [(&str, &[&str]); 4] = [
    ("a plain one", &["*", "test.ping"]),
    ("a failing one", &["m1", "cmd.run", "echo to stderr >&2; exit 3"]),
    ("a state run", &["*", "state.apply", "demo"]),
    ("text of any language", &["m2", "test.echo", "grüße, 世界 🦀"]),
];

/// One job of the demo and what its minions answered.
struct Job {
    jid: String,
    minions: Vec<String>,
}

fn main() -> ExitCode {
    let version = SaltVersion::V3008;
    step(&format!("starting returnerd and Salt {}", version.number()));
    let salt = SaltLab::builder(version).minions(&["m1", "m2"]).file("demo.sls", STATE);
    let mut daemon = Daemon::builder()
        .plugins(&["sqlite3"])
        .tables(&format!("[salt]\nconfig_dir = {:?}\n", salt.config_dir()))
        .start();
    let data = daemon.root().join("data");
    std::fs::create_dir(&data).unwrap();
    let database = data.join("jobs.sqlite");
    let salt = salt
        .master(json!({"master_job_cache": "sqlite3", "sqlite3.database": database, "sqlite3.timeout": 5}))
        .minion(json!({"grains": {"demo_dir": data}}))
        .shims_of(&daemon)
        .start();

    let mut answered = Vec::new();
    for (title, args) in JOBS {
        step(&format!("{title}: salt {}", args.join(" ")));
        let answers = salt.salt_json(args);
        show(&answers);
        answered.push((args[1], answers));
    }

    step("salt-run jobs.list_jobs");
    let listed = salt.salt_run_json(&["jobs.list_jobs"]);
    let listed = listed.as_object().expect("`jobs.list_jobs` gives an object by jid");
    for (jid, job) in listed {
        println!("  {jid}  {:<24} {}", text(&job["Function"]), job["Arguments"]);
    }
    let job = |(fun, answers): (&str, Value)| Job {
        jid: match listed.iter().find(|(_, job)| job["Function"] == fun) {
            Some((jid, _)) => jid.clone(),
            None => panic!("`jobs.list_jobs` does not list `{fun}`\n{}", daemon.tail()),
        },
        minions: answers.as_object().expect("answers are by minion").keys().cloned().collect(),
    };
    let jobs: Vec<Job> = answered.into_iter().map(job).collect();
    let sent: usize = jobs.iter().map(|job| job.minions.len()).sum();

    let mut read_back = 0;
    for job in &jobs {
        step(&format!("salt-run jobs.lookup_jid {}", job.jid));
        let minions: Vec<&str> = job.minions.iter().map(String::as_str).collect();
        let answer = salt.lookup_jid_of(&job.jid, &minions);
        show(&answer);
        read_back += minions.iter().filter(|id| answer.get(**id).is_some()).count();
    }

    step("returnerd jobs list --returner sqlite3");
    let listed = daemon.cli(&["jobs", "list", "--returner", "sqlite3", "--json"]).success();
    println!("{}", daemon.cli(&["jobs", "list", "--returner", "sqlite3"]).success().trim_end());
    let unlisted: Vec<&str> =
        jobs.iter().map(|job| job.jid.as_str()).filter(|jid| !listed.contains(jid)).collect();

    step("returnerd status");
    println!("{}", daemon.cli(&["status"]).success().trim_end());

    // Salt reads what is still on its way too; the database alone tells what has arrived.
    let stored = wait_for_value(
        "the returns to be in the database",
        Duration::from_secs(60),
        || daemon.tail(),
        || Some(rows(&database, &jobs)).filter(|stored| *stored >= sent),
    );

    step("stopping");
    salt.stop();
    daemon.stop();
    println!("demo: {sent} returns sent, {stored} stored, {read_back} read back through Salt");
    if !unlisted.is_empty() {
        eprintln!("demo: `returnerd jobs list` does not show {unlisted:?}");
    }
    if sent == stored && sent == read_back && unlisted.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn step(text: &str) {
    println!("\n== {text}");
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Prints each minion's answer; of a state run, one line for each state.
fn show(answers: &Value) {
    for (minion, answer) in answers.as_object().into_iter().flatten() {
        let states =
            answer.as_object().into_iter().flatten().filter(|(_, state)| state.get("result").is_some());
        let lines: Vec<String> = states
            .map(|(name, state)| {
                let name = name.split("_|-").nth(1).unwrap_or(name);
                format!("  {minion}: {name}: {} ({})", state["result"], text(&state["comment"]))
            })
            .collect();
        if lines.is_empty() {
            println!("  {minion}: {answer}");
        } else {
            println!("{}", lines.join("\n"));
        }
    }
}

/// How many returns of these jobs are in the database, read without the daemon and its plugin.
fn rows(database: &std::path::Path, jobs: &[Job]) -> usize {
    const SCRIPT: &str = "import sqlite3, sys\n\
        rows = sqlite3.connect(sys.argv[1], timeout=10).execute('SELECT jid FROM salt_returns')\n\
        print(sum(jid in sys.argv[2:] for (jid,) in rows))";
    let python = env::salt_bin(SaltVersion::V3008.number()).join("python");
    let mut command = Command::new(python);
    command.arg("-c").arg(SCRIPT).arg(database).args(jobs.iter().map(|job| &job.jid));
    run(&mut command, Duration::from_secs(30)).success().trim().parse().expect("the script prints a number")
}
