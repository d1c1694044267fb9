//! The plugin `local_cache` in the daemon: on a directory that was granted, and not on one that was not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use std::fs;
use std::path::Path;

use returnerd_tests::client::{Answer, Client};
use returnerd_tests::daemon::Daemon;
use returnerd_tests::salt::{SaltLab, SaltVersion};
use serde_json::{Value, json};
use support::*;

/// Asks as a master does whose files lie in `cache`.
fn ask(client: &mut Client, cache: &Path, op: &str, mut keys: Value) -> Answer {
    keys["salt"] = json!({ "cachedir": cache, "hash_type": "sha256", "keep_jobs_seconds": 86_400 });
    let request = client.request(op, "local_cache", keys);
    client.ask(&request)
}

fn hand_over(client: &mut Client, cache: &Path) {
    for number in 1..=3 {
        let jid = jid(number);
        let load = json!({ "jid": jid, "load": published(&jid), "minions": ["m2", "m1"] });
        ask(client, cache, "load", load).done();
        ask(client, cache, "return", json!({ "ret": ret(&jid, "m1", format!("number {number}")) })).done();
    }
}

fn parsed(answer: &Value) -> Value {
    serde_json::from_str(answer.as_str().unwrap()).unwrap()
}

#[test]
fn jobs_lie_in_salts_directory_and_are_found_there() {
    let builder = quick(&["local_cache"]);
    let cache = builder.root().join("salt");
    fs::create_dir_all(cache.join("jobs")).unwrap();
    let allow = format!("dir://{}", cache.join("jobs").display());
    let mut daemon = builder.allow("local_cache", &[&allow]).start();
    hand_over(&mut daemon.client(), &cache);
    let deep = (0..900).fold(json!(1), |inner, _| json!([inner]));
    ask(&mut daemon.client(), &cache, "return", json!({ "ret": ret(&jid(2), "deep", deep) })).done();
    settled(&daemon);
    // What the daemon remembers of its own does not answer for the plugin.
    daemon.restart();
    let mut client = daemon.client();
    let load = parsed(&ask(&mut client, &cache, "get_load", json!({ "jid": jid(2) })).json());
    assert_eq!((&load["user"], &load["Minions"]), (&json!("root"), &json!(["m1", "m2"])));
    let returns = ask(&mut client, &cache, "get_jid", json!({ "jid": jid(2) })).json();
    assert_eq!(parsed(&returns["m1"])["return"], "number 2");
    let listed =
        ask(&mut client, &cache, "get_jids_filter", json!({ "count": 2, "filter_find_job": true })).json();
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    let minions = ask(&mut client, &cache, "get_minions", json!({})).json();
    assert_eq!(minions, json!(["deep", "m1"]));
    let latest = ask(&mut client, &cache, "get_fun", json!({ "fun": "test.echo" })).json();
    assert_eq!(parsed(&latest["m1"])["return"], "number 3");
    // The hash of the jid names the directory, as in Salt.
    assert_eq!(fs::read_dir(cache.join("jobs")).unwrap().count(), 3 + 1);
}

#[test]
fn a_directory_that_salt_only_has_by_default_is_not_given_without_a_line() {
    let builder = quick(&["local_cache"]);
    let cache = builder.root().join("salt");
    let jobs = cache.join("jobs");
    fs::create_dir_all(&jobs).unwrap();
    let mut daemon: Daemon = builder.start();
    let mut client = daemon.client();
    hand_over(&mut client, &cache);
    let line = format!("allow = [\"dir://{}\"]", jobs.display());
    status_when(&daemon, "the refusal to be shown", |status| status.to_string().contains("cannot be used"));
    assert!(daemon.log().contains(&line), "{}", daemon.tail());
    assert_eq!(fs::read_dir(&jobs).unwrap().count(), 0);
    // With the line, what waited is stored too.
    daemon.stop();
    let config = fs::read_to_string(daemon.config()).unwrap();
    fs::write(daemon.config(), format!("{config}\n[plugin.local_cache]\n{line}\n")).unwrap();
    daemon.start();
    settled(&daemon);
    assert_eq!(fs::read_dir(&jobs).unwrap().count(), 3 + 1);
}

#[test]
fn a_directory_that_is_written_for_the_plugin_is_given() {
    let builder = quick(&["local_cache"]);
    let jobs = builder.root().join("jobs");
    fs::create_dir_all(&jobs).unwrap();
    let daemon = builder.start();
    let mut client = daemon.client().with_opts(json!({ "local_cache.directory": jobs }));
    hand_over(&mut client, Path::new("/nowhere"));
    settled(&daemon);
    assert_eq!(fs::read_dir(&jobs).unwrap().count(), 3 + 1);
}

/// Salt's own functions, without our shim, on the directory `jobs` beside this input.
const SALTS_OWN: &str = "
import json, sys
import salt.returners.local_cache as cache
asked = json.loads(sys.argv[2])
cache.__opts__ = {'cachedir': asked['cachedir'], 'hash_type': 'sha256', 'keep_jobs_seconds': 86400}
cache.clean_old_jobs()
print(json.dumps([cache.get_load(asked['jid']), cache.get_jid(asked['jid']), cache.get_jids()], default=str))
";

fn salts_default_job_cache(version: SaltVersion) {
    let builder = SaltLab::builder(version).minions(&["m1", "m2"]);
    let config_dir = builder.config_dir();
    let daemon = quick(&["local_cache"]).tables(&format!("[salt]\nconfig_dir = {config_dir:?}\n")).start();
    let jobs = daemon.root().join("jobs");
    fs::create_dir(&jobs).unwrap();
    // `master_job_cache` is not set: `local_cache` is what Salt uses then, and the shim stands before Salt's own.
    // Its shim is installed only where it is named.
    let shims = builder.returners_dir();
    assert!(!daemon.cli(&["salt", "install", "--dir", &shims.to_string_lossy()]).stdout.contains("wrote"));
    daemon.cli(&["salt", "install", "--dir", &shims.to_string_lossy(), "local_cache"]).success();
    let salt = builder.master(json!({ "local_cache.directory": jobs })).start();
    assert_eq!(salt.salt_json(&["*", "test.ping"]), json!({"m1": true, "m2": true}), "{}", daemon.tail());
    let jid = salt.publish(&["*", "test.echo", "grüße 🦀"]);
    let expected = json!({"m1": "grüße 🦀", "m2": "grüße 🦀"});
    assert_eq!(salt.lookup_jid_of(&jid, &["m1", "m2"]), expected);
    settled(&daemon);
    let listed = salt.salt_run_json(&["jobs.list_jobs"]);
    assert_eq!(listed[&jid]["Function"], "test.echo", "{listed:#}");
    settled(&daemon);

    let input = json!({ "cachedir": daemon.root(), "jid": jid }).to_string();
    let output = salt.python(SALTS_OWN, &input);
    let last = output.stdout.lines().last().unwrap_or_default().to_owned();
    let [load, returns, all]: [Value; 3] =
        serde_json::from_str(&last).unwrap_or_else(|error| panic!("{error}: {output}"));
    assert_eq!((&load["fun"], &load["Minions"]), (&json!("test.echo"), &json!(["m1", "m2"])));
    assert_eq!((&returns["m1"]["return"], &returns["m2"]["retcode"]), (&json!("grüße 🦀"), &json!(0)));
    // The list runs as a job of its own, which ends after it.
    let count = |jobs: &Value| jobs.as_object().unwrap().len();
    assert!(count(&all) >= count(&listed), "{all:#}\n{listed:#}");
}

#[test]
fn it_is_salts_default_job_cache_and_salts_own_reads_it_3006() {
    salts_default_job_cache(SaltVersion::V3006);
}

#[test]
fn it_is_salts_default_job_cache_and_salts_own_reads_it_3008() {
    salts_default_job_cache(SaltVersion::V3008);
}
