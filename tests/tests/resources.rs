//! What the daemon costs while nothing happens, and how long its start takes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use std::fs;

use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use support::*;

/// The most that an idle daemon with two plugins may have in memory.
const RESIDENT_LIMIT: u64 = 100_000_000;
/// The longest start, where the plugins were compiled before.
const READY_LIMIT_MS: u64 = 1_000;

/// A value of `/proc/PID/status`, in bytes.
fn memory(daemon: &Daemon, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", daemon.pid().unwrap())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// What the last start of the daemon says that it took.
fn ready_after_ms(daemon: &Daemon) -> u64 {
    let log = daemon.log();
    let (_, rest) = log.rsplit_once("ready_after_ms=").expect("the daemon says when it is ready");
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn an_idle_daemon_with_both_plugins_warm_is_small_and_starts_within_a_second() {
    let database = Database::new();
    let mut daemon = quick(&["mysql", "sqlite3"]).start();
    let opts = joined(&[database.opts(), SqliteFile::of(&daemon).opts()]);
    // The first start may have compiled the plugins; what counts is the next.
    daemon.restart();
    let ready = ready_after_ms(&daemon);
    println!("ready after {ready} ms");
    assert!(ready < READY_LIMIT_MS, "the start took {ready} ms");

    let mut client = daemon.client().with_opts(opts);
    for number in 0..50 {
        for store in ["mysql", "sqlite3"] {
            client.load(store, &jid(number), published(&jid(number)), &["m1"]).done();
            client.return_(store, ret(&jid(number), "m1", number)).done();
            client.events(store, events(&["a/1"])).done();
            client.query("get_jid", store, serde_json::json!({ "jid": jid(number) })).done();
        }
    }
    settled(&daemon);
    let parts = ["VmRSS", "RssAnon", "RssFile", "RssShmem"].map(|key| (key, memory(&daemon, key) / 1_000));
    println!("resident in kB: {parts:?}");
    let resident = memory(&daemon, "VmRSS");
    assert!(resident < RESIDENT_LIMIT, "{resident} bytes are resident: {parts:?}");
}

#[test]
fn hundreds_of_sinks_deliver_at_once_and_none_is_taken_for_a_crashed_plugin() {
    // More than the engine once had places for instances.
    const SINKS: u16 = 300;
    let mut daemon = Daemon::builder().prepare();
    daemon.drop_plugin_file("probe", &env::guest("probe"));
    daemon.start();
    for port in 1..=SINKS {
        let mut client = daemon.client().with_opts(serde_json::json!({ "probe.port": port }));
        client.return_("probe", ret(&jid(port.into()), "m1", "x")).done();
    }
    let status = settled(&daemon);
    let sinks = status["sinks"].as_array().unwrap();
    assert_eq!(sinks.len(), usize::from(SINKS));
    for sink in sinks {
        assert_eq!((&sink["counts"]["stored"], &sink["strikes"]), (&1.into(), &0.into()), "{sink:#}");
    }
}
