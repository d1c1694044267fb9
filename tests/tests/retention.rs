//! Old jobs are removed where the operator says so, also for a minion, for which Salt never asks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod support;

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use returnerd_tests::wait::{wait_for, wait_for_value};
use support::{SqliteFile, quick, ret, settled};

const OLD: &str = "20200101000000000000";
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn keep_removes_old_jobs_of_a_minion_and_zero_keeps_them_for_ever() {
    let daemon = quick(&["sqlite3"]).start();
    let file = SqliteFile::of(&daemon);
    let mut client = daemon.client().as_minion("m1").with_opts(file.opts());
    client.return_("sqlite3", ret(OLD, "m1", true)).done();
    // A time that no clock of a machine reaches: what is not old stays.
    client.return_("sqlite3", ret("20990101000000000000", "m1", true)).done();
    settled(&daemon);
    let stored = Instant::now();
    let config = fs::read_to_string(daemon.config()).unwrap();
    let reread = |keep: &str| {
        fs::write(daemon.config(), format!("{config}\n[plugin.sqlite3]\nkeep = \"{keep}\"\n")).unwrap();
        let before = daemon.log().matches("configuration reread").count();
        daemon.signal(Signal::SIGHUP);
        wait_for_value(
            "the reread",
            Duration::from_secs(20),
            || daemon.tail(),
            || (daemon.log().matches("configuration reread").count() > before).then_some(()),
        );
    };
    reread("0s");
    // Asked for by Salt, but the operator's word goes first.
    client.query("clean_old_jobs", "sqlite3", serde_json::json!({})).done();
    assert_eq!(file.sql("SELECT count(*) FROM salt_returns"), ["2"]);
    // The age of a return counts from its arrival.
    wait_for("the return to be older than a second", LIMIT, || stored.elapsed() > Duration::from_secs(3));
    reread("1s");
    wait_for_value(
        "the old job to go",
        Duration::from_secs(30),
        || daemon.tail(),
        || (file.sql("SELECT jid FROM salt_returns") == ["20990101000000000000"]).then_some(()),
    );
}
