//! The lab itself: a real Salt of either release works with Salt's own job cache, so that a failure of another test is
//! not the lab's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use returnerd_tests::salt::{SaltLab, SaltVersion};
use serde_json::{Value, json};

const STATE: &str = r#"
says hello:
  test.succeed_with_changes:
    - name: "grüße 🦀"
fails:
  test.fail_without_changes:
    - name: on purpose
"#;

fn jid_of<'a>(jobs: &'a Value, fun: &str) -> &'a str {
    let jobs = jobs.as_object().expect("`jobs.list_jobs` gives an object by jid");
    let mut found = jobs.iter().filter(|(_, job)| job["Function"] == fun).map(|(jid, _)| jid.as_str());
    let jid = found.next().unwrap_or_else(|| panic!("no job `{fun}` is listed: {jobs:#?}"));
    assert_eq!(found.next(), None, "`{fun}` ran once");
    jid
}

fn a_lab_runs_jobs_and_reads_them_back(version: SaltVersion) {
    let lab = SaltLab::builder(version).minions(&["m1", "m2"]).file("demo.sls", STATE).start();

    // The lab's own start leaves no job behind.
    let before = lab.salt_run_json(&["jobs.list_jobs"]);
    let before = before.as_object().unwrap();
    assert!(
        before.values().all(|job| job["Function"].as_str().unwrap().starts_with("runner.")),
        "{before:#?}"
    );

    assert_eq!(lab.salt_json(&["*", "test.ping"]), json!({"m1": true, "m2": true}));
    assert_eq!(lab.salt_json(&["m1", "test.echo", "grüße 🦀"]), json!({"m1": "grüße 🦀"}));

    let failed = lab.salt(&["m1", "cmd.run", "exit 3"]);
    assert_ne!(failed.code, 0, "{failed}");

    let states = lab.salt_json(&["m1", "state.apply", "demo"]);
    let results: Vec<&Value> =
        states["m1"].as_object().unwrap().values().map(|state| &state["result"]).collect();
    assert_eq!(results, [&json!(true), &json!(false)], "{states:#}");

    let jobs = lab.salt_run_json(&["jobs.list_jobs"]);
    let ping = lab.lookup_jid_of(jid_of(&jobs, "test.ping"), &["m1", "m2"]);
    assert_eq!(ping, json!({"m1": true, "m2": true}));
    let echo = lab.lookup_jid_of(jid_of(&jobs, "test.echo"), &["m1"]);
    assert_eq!(echo, json!({"m1": "grüße 🦀"}));
    lab.lookup_jid_of(jid_of(&jobs, "cmd.run"), &["m1"]);
    let looked_up = lab.lookup_jid_of(jid_of(&jobs, "state.apply"), &["m1"]);
    assert_eq!(looked_up["m1"].as_object().unwrap().len(), 2, "{looked_up:#}");

    let jid = lab.publish(&["m2", "test.ping"]);
    assert_eq!(lab.lookup_jid_of(&jid, &["m2"]), json!({"m2": true}));

    assert_eq!(lab.salt_call_json("m2", &["grains.get", "id"]), json!("m2"));
    assert_eq!(lab.salt_call_json("m2", &["test.version"]), json!(version.number()));
    lab.stop();
}

#[test]
fn salt_3008_runs_jobs_and_reads_them_back() {
    a_lab_runs_jobs_and_reads_them_back(SaltVersion::V3008);
}

#[test]
fn salt_3006_runs_jobs_and_reads_them_back() {
    a_lab_runs_jobs_and_reads_them_back(SaltVersion::V3006);
}
