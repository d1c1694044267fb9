//! Returns that the minions send themselves: `ext_job_cache`, `--return` with `--return_config`, `salt-call --return`,
//! and a schedule. MariaDB holds the tables of Salt's documentation, except in the second sink, where none are yet.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod salt_support;

use returnerd_tests::mariadb::{self, MariaDb};
use returnerd_tests::salt::{SaltLab, SaltVersion};
use salt_support::jobs::{STATE, TEXT, run_and_check};
use salt_support::{Store, daemon_beside, drained, merged, mysql_options, sqlite_file};
use serde_json::{Value, json};

fn what_minions_send_is_stored(version: SaltVersion) {
    let server = MariaDb::start(&[]);
    server.sql("salt", mariadb::DOCUMENTED_TABLES);
    server.database("other");
    let builder = SaltLab::builder(version).minions(&["m1", "m2"]).file("demo.sls", STATE);
    let daemon = daemon_beside(&builder, &["mysql", "sqlite3"]);
    let file = sqlite_file(&daemon);
    let options = merged([
        mysql_options("mysql", &server, "salt"),
        json!({"sqlite3.database": file, "sqlite3.timeout": 5}),
    ]);
    let schedule = json!({"function": "test.echo", "args": ["scheduled"], "seconds": 7200, "run_on_start": true,
        "returner": "mysql", "return_config": "alternative"});
    let mut salt = builder
        .master(merged([options.clone(), json!({"ext_job_cache": "mysql"})]))
        .minion(merged([
            options,
            mysql_options("alternative.mysql", &server, "other"),
            json!({"schedule": {"a job": schedule}}),
        ]))
        .shims_of(&daemon)
        .start();
    let main = Store::MySql(&server, "salt");
    let other = Store::MySql(&server, "other");
    // Rows of Salt's own probes would be counted otherwise.
    let count = |store: &Store<'_>| {
        store
            .rows()
            .iter()
            .filter(|row| row.fun != "saltutil.find_job" && row.rest["schedule"].is_null())
            .count()
    };

    // `ext_job_cache: mysql`.
    let jids = run_and_check(&salt, &daemon, &main);
    let loads = main.select(&["jid", "load"], "jids ORDER BY jid");
    let load = loads.iter().find(|row| row[0] == jids[3]).map(|row| &row[1]);
    let load: Value = serde_json::from_str(load.expect("the master saved the load")).unwrap();
    assert_eq!(load["arg"], json!([TEXT]), "{load:#}\n{}", daemon.tail());
    assert_eq!(load["fun"], "test.echo", "{load:#}\n{}", daemon.tail());
    assert_eq!(salt.salt_run_json(&["jobs.lookup_jid", &jids[3]]), json!({"m2": TEXT}), "{}", daemon.tail());

    // `salt-call` claims success whatever happened; the row says what did.
    let before = count(&main);
    assert_eq!(
        salt.salt_call_json("m1", &["cmd.run", "exit 5", "--return", "mysql"]),
        "",
        "{}",
        salt.tails()
    );
    let rows: Vec<_> = main.rows_of_fun(&daemon, "cmd.run", 2);
    let row = rows.iter().find(|row| !jids.contains(&row.jid)).unwrap();
    assert_eq!((row.id.as_str(), row.success.as_str()), ("m1", "0"), "{row:#?}\n{}", daemon.tail());
    assert_eq!(row.rest["retcode"], 5, "{row:#?}\n{}", daemon.tail());
    assert_eq!(row.rest["fun_args"], json!(["exit 5"]), "{row:#?}\n{}", daemon.tail());
    assert_eq!(count(&main), before + 1, "{}", daemon.tail());

    // The schedule's jobs went into the second sink, one of each minion.
    let scheduled = other.rows_of_fun(&daemon, "test.echo", 2);
    for row in &scheduled {
        assert_eq!(row.value, "scheduled", "{row:#?}\n{}", daemon.tail());
        assert_eq!((&row.rest["schedule"], row.success.as_str()), (&json!("a job"), "1"), "{row:#?}");
    }

    // `ext_job_cache: sqlite3`.
    let in_main = count(&main);
    salt.reconfigure_master(json!({"ext_job_cache": "sqlite3"}));
    let small = Store::Sqlite(&salt, file);
    let jids = run_and_check(&salt, &daemon, &small);
    let looked_up = salt.salt_run_json(&["jobs.lookup_jid", &jids[3]]);
    assert_eq!(looked_up, json!({"m2": TEXT}), "{}", daemon.tail());

    // Two returners, one of them with a profile: both get the return, and the sink without the profile does not.
    let arguments =
        ["m1", "test.echo", "to the other", "--return", "mysql", "--return_config", "alternative"];
    assert_eq!(salt.salt_json(&arguments), json!({"m1": "to the other"}), "{}", daemon.tail());
    let rows = other.rows_of_fun(&daemon, "test.echo", 3);
    let row = rows.iter().find(|row| row.value == "to the other").unwrap();
    assert_eq!(row.rest["ret_config"], "alternative", "{row:#?}\n{}", daemon.tail());
    small.rows_of(&daemon, &[(row.jid.clone(), "m1".to_owned())]);

    drained(&daemon);
    assert_eq!(count(&main), in_main, "the first database got nothing more\n{}", daemon.tail());
    assert_eq!(count(&small), 10, "nine returns of the jobs and one of `--return`\n{}", daemon.tail());
    assert_eq!(count(&other), 1, "one return beside the schedule's\n{}", daemon.tail());
}

#[test]
fn what_minions_of_salt_3008_send_is_stored() {
    what_minions_send_is_stored(SaltVersion::V3008);
}

#[test]
fn what_minions_of_salt_3006_send_is_stored() {
    what_minions_send_is_stored(SaltVersion::V3006);
}
