//! What was acknowledged arrives, once, whatever repeats it, comes in the wrong order, or is away for a while.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use returnerd_tests::client::to_json;
use returnerd_tests::daemon::Daemon;
use returnerd_tests::mariadb::MariaDb;
use returnerd_tests::proc::free_port;
use serde_json::{Value, json};
use support::*;

const STORES: [&str; 2] = ["mysql", "sqlite3"];

/// A daemon with both stores, empty, and their options.
fn both() -> (Daemon, Database, SqliteFile, Value) {
    let daemon = quick(&STORES).start();
    let (database, file) = (Database::new(), SqliteFile::of(&daemon));
    let opts = joined(&[database.opts(), file.opts()]);
    (daemon, database, file, opts)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn the_same_return_twice_gives_one_row_of_the_first() {
    let (daemon, database, file, opts) = both();
    let mut client = daemon.client().with_opts(opts);
    for store in STORES {
        let frame = client.request("return", store, json!({ "ret": ret(&jid(1), "m1", "first") }));
        client.ask(&frame).done();
        client.ask(&frame).done();
        client.return_(store, ret(&jid(1), "m1", "in the same batch")).done();
        client.return_(store, ret(&jid(1), "m2", "another minion")).done();
    }
    settled(&daemon);
    for store in STORES {
        client.return_(store, ret(&jid(1), "m1", "after it was stored")).done();
    }
    settled(&daemon);
    let expected = [format!("{} m1", jid(1)), format!("{} m2", jid(1))];
    assert_eq!(database.returns(), expected);
    assert_eq!(file.returns(), expected);
    for store in STORES {
        let returns = client.query("get_jid", store, json!({ "jid": jid(1) })).json();
        assert_eq!(parsed(returns["m1"].as_str().unwrap())["return"], "first");
    }
}

#[test]
fn two_masters_that_both_store_a_job_give_one_row() {
    let database = Database::new();
    let daemons = [quick(&["mysql"]).start(), quick(&["mysql"]).start()];
    for daemon in &daemons {
        let mut client = client(daemon, &[database.opts()]);
        client.load("mysql", &jid(1), published(&jid(1)), &["m1", "m2"]).done();
        for minion in ["m1", "m2"] {
            client.return_("mysql", ret(&jid(1), minion, "same")).done();
        }
    }
    daemons.iter().for_each(|daemon| {
        settled(daemon);
    });
    assert_eq!(database.returns(), [format!("{} m1", jid(1)), format!("{} m2", jid(1))]);
    assert_eq!(lines(&database.sql("SELECT jid FROM jids")), [jid(1)]);
}

#[test]
fn a_published_load_replaces_what_returns_said_and_is_never_replaced_by_less() {
    let (daemon, database, file, opts) = both();
    let mut client = daemon.client().with_opts(opts);
    let loads = || {
        let query = "SELECT `load` FROM jids";
        let all = [lines(&database.sql(query)), file.sql(query)];
        assert!(all.iter().all(|rows| rows.len() == 1), "one load each: {all:?}");
        all.map(|rows| parsed(&rows[0]))
    };
    // A return before its load, as Salt's master hands it over: as the load of a job it does not know, then as a return.
    for store in STORES {
        client.query("load", store, json!({"jid": jid(1), "load": return_as_load(&jid(1), "m1")})).done();
        client.return_(store, ret(&jid(1), "m1", "early")).done();
    }
    settled(&daemon);
    for load in loads() {
        assert_eq!((&load["fun"], &load["tgt"]), (&json!("test.echo"), &json!("m1")), "{load}");
    }
    for store in STORES {
        client.load(store, &jid(1), published(&jid(1)), &["m1", "m2"]).done();
    }
    settled(&daemon);
    let after = loads();
    for load in &after {
        assert_eq!((&load["tgt"], &load["user"]), (&json!("*"), &json!("root")), "{load}");
        assert_eq!(load["Minions"], json!(["m1", "m2"]), "{load}");
    }
    for store in STORES {
        client.query("load", store, json!({"jid": jid(1), "load": return_as_load(&jid(1), "m2")})).done();
    }
    settled(&daemon);
    assert_eq!(loads(), after);
    assert_eq!(database.returns(), [format!("{} m1", jid(1))]);
    assert_eq!(file.returns(), [format!("{} m1", jid(1))]);
    for store in STORES {
        let load = client.query("get_load", store, json!({ "jid": jid(1) })).done();
        assert_eq!(parsed(load.as_str().unwrap())["tgt"], "*");
    }
}

#[test]
fn a_repeated_frame_of_events_gives_them_once_also_after_a_crash() {
    let (mut daemon, database, file, opts) = both();
    let mut client = daemon.client().with_opts(opts.clone());
    let frames =
        STORES.map(|store| client.request("events", store, json!({ "events": events(&["a/1", "a/2"]) })));
    for frame in frames.iter().chain(&frames) {
        client.ask(frame).done();
    }
    settled(&daemon);
    for frame in &frames {
        client.ask(frame).done();
    }
    daemon.kill();
    daemon.start();
    let mut client = daemon.client().with_opts(opts);
    for frame in &frames {
        client.ask(frame).done();
    }
    // The same text in a frame of its own is another event.
    for store in STORES {
        client.events(store, events(&["a/1"])).done();
        client.events(store, json!([])).done();
    }
    settled(&daemon);
    let query = "SELECT tag FROM salt_events ORDER BY 1";
    assert_eq!(lines(&database.sql(query)), ["a/1", "a/1", "a/2"]);
    assert_eq!(file.sql(query), ["a/1", "a/1", "a/2"]);
}

#[test]
fn with_the_database_away_returns_are_taken_and_known_jobs_answered_and_all_is_stored_once_it_is_back() {
    let mut server = MariaDb::start(&[]);
    let daemon = quick(&["mysql"]).start();
    let mut client = client(&daemon, &[mysql_opts(server.port(), "salt")]);
    client.load("mysql", &jid(0), published(&jid(0)), &["m1"]).done();
    client.return_("mysql", ret(&jid(0), "m1", "before")).done();
    settled(&daemon);

    server.kill();
    for number in 1..=20 {
        client.load("mysql", &jid(number), published(&jid(number)), &["m1"]).done();
        client.return_("mysql", ret(&jid(number), "m1", number)).done();
    }
    let down = status_when(&daemon, "the sink to be down", |status| sink(status, "mysql")["state"] == "down");
    assert_eq!(sink(&down, "mysql")["waiting"], 40, "{down:#}");
    // One stored before, and one that waits.
    for known in [jid(0), jid(20)] {
        let load = client.query("get_load", "mysql", json!({ "jid": known })).done();
        assert_eq!(parsed(load.as_str().unwrap())["jid"], known);
    }
    let waiting = client.query("get_jid", "mysql", json!({ "jid": jid(20) })).json();
    assert_eq!(parsed(waiting["m1"].as_str().unwrap())["return"], 20);
    for (op, keys) in [
        ("get_load", json!({"jid": jid(99)})),
        ("get_jid", json!({"jid": jid(99)})),
        ("get_jids", json!({})),
        ("get_fun", json!({"fun": "test.echo"})),
        ("get_minions", json!({})),
    ] {
        let answer = client.query(op, "mysql", keys);
        assert!(!answer.ok, "`{op}` must not be answered with nothing: {answer:?}");
        assert_eq!(answer.code, "unavailable", "{answer:?}");
        assert!(answer.error.contains("`mysql`"), "{answer:?}");
    }

    server.restart();
    settled(&daemon);
    let returns = lines(&server.sql("salt", "SELECT jid FROM salt_returns ORDER BY 1"));
    let expected: Vec<String> = (0..=20).map(jid).collect();
    assert_eq!(returns, expected);
    assert_eq!(lines(&server.sql("salt", "SELECT jid FROM jids ORDER BY 1")), expected);
    assert_eq!(dead(&daemon), Vec::<Value>::new());
    // What failed a moment ago is asked again as soon as the sink works.
    status_when(&daemon, "the sink to be up", |status| sink(status, "mysql")["state"] == "ready");
    assert_eq!(client.query("get_load", "mysql", json!({ "jid": jid(99) })).json(), Value::Null);

    // One that accepts connections and answers nothing is no different.
    server.freeze(true);
    client.return_("mysql", ret(&jid(30), "m1", "frozen")).done();
    server.freeze(false);
    settled(&daemon);
    assert_eq!(server.sql("salt", &format!("SELECT id FROM salt_returns WHERE jid = {}", jid(30))), "m1\n");
}

#[test]
fn what_waits_when_the_daemon_is_killed_is_stored_by_the_next() {
    let mut server = MariaDb::start(&[]);
    let mut daemon = quick(&STORES).start();
    let file = SqliteFile::of(&daemon);
    let mut client = client(&daemon, &[mysql_opts(server.port(), "salt"), file.opts()]);
    server.kill();
    for number in 0..50 {
        for store in STORES {
            client.return_(store, ret(&jid(number), "m1", number)).done();
        }
    }
    daemon.kill();
    server.restart();
    daemon.start();
    // Nobody speaks to it: what it needs to go on, it has kept.
    settled(&daemon);
    let expected: Vec<String> = (0..50).map(|number| format!("{} m1", jid(number))).collect();
    assert_eq!(file.returns(), expected);
    let query = "SELECT CONCAT(jid, ' ', id) FROM salt_returns ORDER BY 1";
    assert_eq!(lines(&server.sql("salt", query)), expected);
}

#[test]
fn one_return_that_cannot_be_stored_dies_alone_and_can_be_looked_after() {
    let server = MariaDb::start(&["--max-allowed-packet=1M"]);
    let daemon = quick(&["mysql"]).start();
    let mut client = client(&daemon, &[mysql_opts(server.port(), "salt")]);
    for number in 0..10 {
        client.return_("mysql", ret(&jid(number), "m1", number)).done();
    }
    for number in [10, 11] {
        client.return_("mysql", ret(&jid(number), "big", "x".repeat(2 << 20))).done();
    }
    for number in 12..20 {
        client.return_("mysql", ret(&jid(number), "m1", number)).done();
    }
    let status = settled(&daemon);
    let stored = || {
        let text = server.sql("salt", "SELECT id FROM salt_returns");
        (text.matches("m1").count(), text.matches("big").count())
    };
    assert_eq!(stored(), (18, 0));
    assert_eq!(sink(&status, "mysql")["counts"]["rejected"], 2, "{status:#}");

    let letters = dead(&daemon);
    let jids: Vec<&Value> = letters.iter().map(|letter| &letter["jid"]).collect();
    assert_eq!(jids, [&json!(jid(10)), &json!(jid(11))], "{letters:#?}");
    let first = &letters[0];
    assert_eq!((&first["sink"], &first["minion"]), (&json!("mysql"), &json!("big")));
    assert_eq!(first["class"], "rejected");
    assert!(first["reason"].as_str().unwrap().contains("max_allowed_packet"), "{first:#}");
    let id = first["id"].to_string();

    let table = daemon.cli(&["dead", "list", "--reason", "max_allowed_packet"]).success();
    assert_eq!(table.lines().count(), 3, "{table}");
    let none = daemon.cli(&["dead", "list", "--json", "--reason", "no such reason"]).json();
    assert_eq!(none, json!([]));
    assert_eq!(daemon.cli(&["dead", "list", "--json", "--older-than", "3600"]).json(), json!([]));
    assert_eq!(daemon.cli(&["dead", "list", "--json", "--sink", "sqlite3"]).json(), json!([]));

    let shown = daemon.cli(&["dead", "show", &id]).json();
    assert!(shown.to_string().contains(&"x".repeat(2 << 20)), "the record is shown whole");
    let missing = daemon.cli(&["dead", "show", "999999"]);
    assert_eq!(missing.code, 1, "{missing}");

    let export = daemon.root().join("letters.jsonl");
    daemon.cli(&["dead", "export", export.to_str().unwrap()]).success();
    let exported = std::fs::read_to_string(&export).unwrap();
    let exported: Vec<Value> = exported.lines().map(parsed).collect();
    assert_eq!(exported.len(), 2);
    assert_eq!(exported[1]["jid"], json!(jid(11)));
    assert_eq!(daemon.cli(&["dead", "export", export.to_str().unwrap()]).code, 1, "it overwrites nothing");

    // Tried again, it dies again as long as the cause is there.
    daemon.cli(&["dead", "retry", "--id", &id]).success();
    settled(&daemon);
    assert_eq!(dead(&daemon).len(), 2);
    let unsaid = daemon.cli(&["dead", "drop"]);
    assert_eq!((unsaid.code, dead(&daemon).len()), (1, 2), "{unsaid}");
    daemon.cli(&["dead", "drop", "--id", &letters[1]["id"].to_string()]).success();

    server.root("SET GLOBAL max_allowed_packet = 16777216");
    daemon.cli(&["plugin", "restart", "mysql"]).success();
    daemon.cli(&["dead", "retry", "--sink", "mysql"]).success();
    settled(&daemon);
    assert_eq!(dead(&daemon), Vec::<Value>::new());
    assert_eq!(stored(), (18, 1));
}

#[test]
fn a_sink_that_is_down_holds_up_no_other_and_gives_it_nothing_twice() {
    let daemon = quick(&STORES).start();
    let file = SqliteFile::of(&daemon);
    let port = free_port();
    let mut client = client(&daemon, &[mysql_opts(port, "salt"), file.opts()]);
    for number in 0..20 {
        for store in STORES {
            client.load(store, &jid(number), published(&jid(number)), &["m1"]).done();
            client.return_(store, ret(&jid(number), "m1", number)).done();
            client.events(store, events(&[&format!("e/{number}")])).done();
        }
    }
    let status = status_when(&daemon, "the sink that is up to run empty", |status| {
        sink(status, "sqlite3")["waiting"] == 0 && sink(status, "mysql")["state"] == "down"
    });
    assert_eq!(sink(&status, "mysql")["waiting"], 60, "{status:#}");
    assert!(sink(&status, "mysql")["last_error"].as_str().unwrap().contains("127.0.0.1"), "{status:#}");
    assert_eq!(file.returns().len(), 20);
    assert_eq!(file.sql("SELECT tag FROM salt_events").len(), 20);
    assert_eq!(file.sql("SELECT jid FROM jids").len(), 20);
}

#[test]
fn a_caller_reads_what_it_wrote_before_and_after_it_is_stored() {
    let (daemon, database, file, opts) = both();
    let mut client = daemon.client().with_opts(opts);
    for store in STORES {
        client.load(store, &jid(1), published(&jid(1)), &["m1"]).done();
        client.query("minions", store, json!({"jid": jid(1), "minions": ["m2"], "syndic_id": "s1"})).done();
        client.return_(store, ret(&jid(1), "m1", "grüße 🦀")).done();
        client.return_(store, ret(&jid(2), "m3", Value::Null)).done();
        let endtime = "2026, Dec 01 03:31:40.000000";
        client.query("endtime", store, json!({"jid": jid(1), "endtime": endtime})).done();
        let early = client.query("get_load", store, json!({ "jid": jid(2) })).done();
        assert_eq!(
            parsed(early.as_str().unwrap())["tgt"],
            "m3",
            "a return before its load makes the job known"
        );
    }
    let answers = |client: &mut returnerd_tests::client::Client, store: &str| -> Vec<Value> {
        [
            ("get_load", json!({"jid": jid(1)})),
            ("get_jid", json!({"jid": jid(1)})),
            ("get_jids", json!({})),
            ("get_jids_filter", json!({"count": 10, "filter_find_job": true})),
            ("get_fun", json!({"fun": "test.echo"})),
            ("get_minions", json!({})),
            ("get_endtime", json!({"jid": jid(1)})),
        ]
        .into_iter()
        .map(|(op, keys)| documents(to_json(&client.query(op, store, keys).done())))
        .collect()
    };
    let before: Vec<Vec<Value>> = STORES.iter().map(|store| answers(&mut client, store)).collect();
    let waiting = status(&daemon)["spool"]["items"].as_u64().unwrap();
    settled(&daemon);
    let after: Vec<Vec<Value>> = STORES.iter().map(|store| answers(&mut client, store)).collect();
    for answers in before.iter().chain(&after) {
        let [load, jid_of, jids, filtered, fun, minions, endtime] = answers.as_slice() else {
            unreachable!()
        };
        assert_eq!((&load["Minions"], &load["user"]), (&json!(["m1", "m2"]), &json!("root")));
        assert_eq!(jid_of["m1"]["return"], "grüße 🦀");
        assert_eq!(jid_of.as_object().unwrap().len(), 1, "{jid_of}");
        assert!(jids.get(jid(1)).is_some(), "{jids}");
        assert!(filtered.as_array().unwrap().iter().any(|pair| pair[0] == jid(1)), "{filtered}");
        assert_eq!(fun["m3"]["jid"], jid(2));
        assert_eq!(minions, &json!(["m1", "m3"]));
        assert_eq!(endtime, "2026, Dec 01 03:31:40.000000");
    }
    assert_eq!(before, after, "with {waiting} records waiting before");
    // A job nobody knows is no error while the store answers.
    for store in STORES {
        assert_eq!(client.query("get_load", store, json!({ "jid": jid(99) })).json(), Value::Null);
        assert_eq!(client.query("get_jid", store, json!({ "jid": jid(99) })).json(), json!({}));
    }
    assert_eq!((database.returns().len(), file.returns().len()), (2, 2));
}

/// An answer with the JSON texts in it parsed: the order of their keys says nothing.
fn documents(answer: Value) -> Value {
    match answer {
        Value::String(text) if text.starts_with('{') => parsed(&text),
        Value::Array(list) => list.into_iter().map(documents).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, documents(value))).collect(),
        other => other,
    }
}
