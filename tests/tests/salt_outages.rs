//! Salt goes on while the database or the daemon is away, and nothing is lost; events; old jobs go.
//!
//! The master has `master_job_cache: mysql` and sends its events to both plugins.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod salt_support;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use returnerd_tests::daemon::Daemon;
use returnerd_tests::mariadb::MariaDb;
use returnerd_tests::salt::{SaltLab, SaltVersion};
use returnerd_tests::salt_config::MASTER_ID;
use returnerd_tests::wait::wait_for_value;
use salt_support::{Store, daemon_beside, drained, merged, mysql_options, sqlite_file};
use serde_json::{Value, json};

/// Runs `salt '*' test.ping`, which must show both minions, and says how long it took.
fn ping(salt: &SaltLab, daemon: &Daemon, when: &str) -> Duration {
    let output = salt.salt(&["*", "test.ping"]);
    let answers: Value = serde_json::Deserializer::from_str(&output.stdout)
        .into_iter::<Value>()
        .filter_map(Result::ok)
        .flat_map(|answer| answer.as_object().cloned().unwrap_or_default())
        .collect();
    let context = || format!("{when}: {output}\n{}\n{}", salt.tails(), daemon.tail());
    assert_eq!(answers, json!({"m1": true, "m2": true}), "{}", context());
    output.took
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// How many files wait in the inbox.
fn inbox(daemon: &Daemon) -> usize {
    fs::read_dir(daemon.inbox()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file()).count()
}

/// Waits until `count` jobs of `test.ping` are stored with the returns of both minions and a load, none twice.
fn pings_are_stored(store: &Store<'_>, daemon: &Daemon, count: usize, when: &str) {
    println!("{when}: {count} jobs");
    let rows = store.rows_of_fun(daemon, "test.ping", 2 * count);
    let mut ids: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in &rows {
        assert_eq!((&row.value, row.success.as_str()), (&json!(true), "1"), "{when}: {row:#?}");
        ids.entry(&row.jid).or_default().push(&row.id);
    }
    assert!(ids.values().all(|ids| ids == &["m1", "m2"]), "{when}: {ids:?}\n{}", daemon.tail());
    drained(daemon);
    let loads = store.select(&["jid", "load"], "jids");
    for jid in ids.keys() {
        let load = loads.iter().find(|row| row[0] == *jid).map(|row| row[1].as_str());
        let load: Value = serde_json::from_str(load.unwrap_or("null")).unwrap();
        let target = (&load["fun"], &load["tgt"]);
        assert_eq!(target, (&json!("test.ping"), &json!("*")), "{when}: {load:#}\n{}", daemon.tail());
    }
}

/// The events are there, each once and from this master.
fn events_are_stored(store: &Store<'_>, salt: &SaltLab, daemon: &Daemon) {
    let tag = "lab/an event/grüße";
    let sent = salt.salt_json(&["m1", "event.send", tag, "{\"text\": \"🦀\"}"]);
    assert_eq!(sent, json!({"m1": true}), "{}", salt.tails());
    let rows = wait_for_value(
        &format!("the event of the minion, and its job's, in {store}"),
        Duration::from_secs(60),
        || daemon.tail(),
        || {
            let rows = store.select(&["tag", "data", "master_id"], "salt_events ORDER BY id");
            let there = |wanted: &str| rows.iter().any(|row| row[0] == wanted);
            let job = rows.iter().find(|row| row[0].ends_with("/new") && row[1].contains("event.send"))?;
            let ret = job[0].replace("/new", "/ret/m1");
            (there(tag) && there(&ret)).then_some(rows)
        },
    );
    assert!(rows.iter().all(|row| row[2] == MASTER_ID), "{rows:#?}");
    let of_minion: Vec<_> = rows.iter().filter(|row| row[0] == tag).collect();
    assert_eq!(of_minion.len(), 1, "{of_minion:#?}\n{}", daemon.tail());
    let data: Value = serde_json::from_str(&of_minion[0][1]).unwrap();
    assert_eq!((&data["id"], &data["data"]["text"]), (&json!("m1"), &json!("🦀")), "{data:#}");

    // A job's events come once: the tag names the job and the minion.
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows.iter().filter(|row| row[0].starts_with("salt/job/")) {
        *count.entry(&row[0]).or_default() += 1;
    }
    let pings = rows.iter().filter(|row| row[0].ends_with("/new") && row[1].contains("test.ping"));
    for row in pings {
        for id in ["m1", "m2"] {
            let tag = row[0].replace("/new", &format!("/ret/{id}"));
            assert_eq!(count.get(tag.as_str()), Some(&1), "`{tag}` in {store}\n{}", daemon.tail());
        }
    }
    assert!(count.values().all(|count| *count == 1), "{store}: {count:#?}\n{}", daemon.tail());
}

fn salt_goes_on_and_nothing_is_lost(version: SaltVersion) {
    let mut server = MariaDb::start(&[]);
    let builder = SaltLab::builder(version).minions(&["m1", "m2"]);
    let mut daemon = daemon_beside(&builder, &["mysql", "sqlite3"]);
    let file = sqlite_file(&daemon);
    let options = merged([
        mysql_options("mysql", &server, "salt"),
        json!({"sqlite3.database": file, "sqlite3.timeout": 5}),
    ]);
    let mut salt = builder
        .master(merged([
            options.clone(),
            json!({"master_job_cache": "mysql", "event_return": ["mysql", "sqlite3"]}),
        ]))
        .minion(options)
        .shims_of(&daemon)
        .start();

    // All is there.
    let with_all = median((0..3).map(|_| ping(&salt, &daemon, "all is there")).collect());
    pings_are_stored(&Store::MySql(&server, "salt"), &daemon, 3, "all is there");

    // The minion and the master hand over the same return: one row.
    assert_eq!(salt.salt_json(&["m1", "test.true", "--return", "mysql"]), json!({"m1": true}));
    drained(&daemon);
    Store::MySql(&server, "salt").rows_of_fun(&daemon, "test.true", 1);

    events_are_stored(&Store::MySql(&server, "salt"), &salt, &daemon);
    events_are_stored_in_the_other(&Store::Sqlite(&salt, file), &daemon);

    // The database is away.
    server.stop();
    let without = median((0..3).map(|_| ping(&salt, &daemon, "MariaDB is away")).collect());
    println!("`salt '*' test.ping`: {with_all:?} with MariaDB, {without:?} without");
    assert!(
        without <= 2 * with_all + Duration::from_secs(1),
        "{without:?} without MariaDB, {with_all:?} with it\n{}",
        daemon.tail()
    );
    server.restart();
    pings_are_stored(&Store::MySql(&server, "salt"), &daemon, 6, "MariaDB is back");

    // The daemon is away.
    daemon.stop();
    ping(&salt, &daemon, "the daemon is away");
    // Salt stores a return only after it has shown it: the load, and of each minion a return and what stands for a load.
    wait_for_value("frames in the inbox", Duration::from_secs(30), String::new, || {
        let kept = salt.master_log().matches("is kept in the inbox").count();
        (kept >= 5 && inbox(&daemon) >= 5).then_some(())
    });
    let rows = Store::MySql(&server, "salt").rows();
    assert_eq!(rows.iter().filter(|row| row.fun == "test.ping").count(), 12, "nothing is stored meanwhile");
    daemon.start();
    pings_are_stored(&Store::MySql(&server, "salt"), &daemon, 7, "the daemon is back");
    wait_for_value(
        "an empty inbox",
        Duration::from_secs(30),
        || daemon.tail(),
        || (inbox(&daemon) == 0).then_some(()),
    );

    // The master starts again, first with the same options, and knows its jobs; then old ones go.
    salt.reconfigure_master(json!({"keep_jobs_seconds": 86_400}));
    ping(&salt, &daemon, "the master is back");
    let store = Store::MySql(&server, "salt");
    pings_are_stored(&store, &daemon, 8, "the master is back");
    let jid = store.rows_of_fun(&daemon, "test.ping", 16)[0].jid.clone();
    assert_eq!(salt.lookup_jid_of(&jid, &["m1", "m2"]), json!({"m1": true, "m2": true}), "{}", daemon.tail());

    salt.reconfigure_master(json!({"keep_jobs_seconds": 1}));
    wait_for_value(
        "old jobs to be removed",
        Duration::from_secs(60),
        || daemon.tail(),
        || {
            let returns = store.rows().into_iter().filter(|row| row.fun == "test.ping").count();
            let loads = store.select(&["jid", "jid"], "jids").into_iter().filter(|row| row[0] <= jid).count();
            (returns == 0 && loads == 0).then_some(())
        },
    );
}

/// The second sink of the events got the same job events as the first.
fn events_are_stored_in_the_other(store: &Store<'_>, daemon: &Daemon) {
    drained(daemon);
    let rows = store.select(&["tag", "master_id"], "salt_events");
    let returns: Vec<&str> =
        rows.iter().map(|row| row[0].as_str()).filter(|tag| tag.contains("/ret/")).collect();
    let distinct: std::collections::BTreeSet<&str> = returns.iter().copied().collect();
    assert!(returns.len() >= 8, "{store}: {returns:?}\n{}", daemon.tail());
    assert_eq!(returns.len(), distinct.len(), "{store}: {returns:?}\n{}", daemon.tail());
    assert!(rows.iter().all(|row| row[1] == MASTER_ID), "{store}: {rows:?}");
}

#[test]
fn salt_3008_goes_on_and_nothing_is_lost() {
    salt_goes_on_and_nothing_is_lost(SaltVersion::V3008);
}

#[test]
fn salt_3006_goes_on_and_nothing_is_lost() {
    salt_goes_on_and_nothing_is_lost(SaltVersion::V3006);
}
