//! The plugins `pgjsonb` and `postgres` in their sandbox: what one daemon stores another reads from the server, in plain
//! text and over TLS.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use returnerd_tests::certificates::Authority;
use returnerd_tests::client::to_json;
use returnerd_tests::daemon::Daemon;
use returnerd_tests::postgresql::{self, PostgreSql};
use serde_json::{Value, json};
use support::*;

const PLUGINS: [&str; 2] = ["pgjsonb", "postgres"];

fn available() -> bool {
    let there = postgresql::installed().is_some();
    if !there {
        eprintln!("SKIPPED: PostgreSQL is not installed");
    }
    there
}

/// What Salt's configuration would say: a database for each plugin, and these options for both.
fn opts(server: &PostgreSql, common: &Value) -> Value {
    let mut opts = json!({});
    for plugin in PLUGINS {
        let mut set = |name: &str, value: Value| opts[format!("returner.{plugin}.{name}")] = value;
        set("host", "127.0.0.1".into());
        set("port", server.port().into());
        set("db", database(plugin).into());
        for (name, value) in common.as_object().unwrap() {
            set(name, value.clone());
        }
    }
    opts
}

/// The database of a plugin.
fn database(plugin: &str) -> String {
    format!("jobs_{plugin}")
}

fn databases(server: &PostgreSql) {
    for plugin in PLUGINS {
        server.database(&database(plugin));
    }
}

fn parsed(text: &Value) -> Value {
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}

fn store(daemon: &Daemon, opts: &Value) {
    let mut client = daemon.client().with_opts(opts.clone());
    for plugin in PLUGINS {
        client.load(plugin, &jid(1), published(&jid(1)), &["m1", "m2"]).done();
        client.return_(plugin, ret(&jid(1), "m1", "grüße 🦀 nul \0")).done();
        client.return_(plugin, ret(&jid(1), "m1", "again")).done();
        client.return_(plugin, ret(&jid(2), "m2", Value::Null)).done();
        client.events(plugin, events(&["a/1", "a/2"])).done();
    }
    settled(daemon);
    assert_eq!(dead(daemon), Vec::<Value>::new());
}

fn read(daemon: &Daemon, opts: &Value, server: &PostgreSql) {
    let mut client = daemon.client().with_opts(opts.clone());
    for plugin in PLUGINS {
        let mut ask = |op: &str, keys: Value| to_json(&client.query(op, plugin, keys).done());
        let load = parsed(&ask("get_load", json!({"jid": jid(1)})));
        assert_eq!((&load["tgt"], &load["user"]), (&json!("*"), &json!("root")), "{load}");
        assert_eq!(load["Minions"], json!(["m1", "m2"]), "{load}");
        let returns = ask("get_jid", json!({"jid": jid(1)}));
        assert_eq!(parsed(&returns["m1"])["return"], "grüße 🦀 nul \\u0000", "{returns}");
        assert!(ask("get_jids", json!({})).get(jid(1)).is_some());
        let latest = ask("get_fun", json!({"fun": "test.echo"}));
        assert_eq!(parsed(&latest["m2"])["jid"], jid(2), "{latest}");
        assert_eq!(ask("get_minions", json!({})), json!(["m1", "m2"]));
        assert_eq!(ask("get_load", json!({"jid": jid(99)})), Value::Null);
        assert_eq!(
            server.sql(&database(plugin), "SELECT tag, master_id FROM salt_events ORDER BY id"),
            "a/1|lab_master\na/2|lab_master\n"
        );
        assert_eq!(server.sql(&database(plugin), "SELECT count(*) FROM salt_returns"), "2\n");
    }
    let kinds = PLUGINS
        .map(|plugin| server.sql(&database(plugin), "SELECT pg_typeof(full_ret) FROM salt_returns LIMIT 1"));
    assert_eq!(kinds, ["jsonb\n", "text\n"]);
}

#[test]
fn another_daemon_reads_what_one_stored() {
    if !available() {
        return;
    }
    let mut server = PostgreSql::start(&[]);
    databases(&server);
    let opts = opts(&server, &json!({}));
    let daemon = quick(&PLUGINS).start();
    store(&daemon, &opts);
    read(&quick(&PLUGINS).start(), &opts, &server);

    // A server that goes away and comes back loses nothing and doubles nothing.
    server.kill();
    let mut client = client(&daemon, std::slice::from_ref(&opts));
    for plugin in PLUGINS {
        client.return_(plugin, ret(&jid(3), "m3", "while it was away")).done();
    }
    status_when(&daemon, "both sinks to be down", |status| {
        PLUGINS.iter().all(|plugin| sink(status, plugin)["state"] == "down")
    });
    server.restart();
    settled(&daemon);
    for plugin in PLUGINS {
        assert_eq!(server.sql(&database(plugin), "SELECT count(*) FROM salt_returns"), "3\n");
    }
}

#[test]
fn the_same_holds_over_tls_with_the_server_verified() {
    if !available() {
        return;
    }
    let authority = Authority::new();
    let server = PostgreSql::start_with_tls(&authority, &["127.0.0.1"]);
    databases(&server);
    let daemon = quick(&PLUGINS).prepare();
    let ca = daemon.root().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let mut daemon = daemon;
    daemon.start();
    let verified = opts(&server, &json!({ "sslrootcert": ca }));
    store(&daemon, &verified);
    let sessions =
        "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'salt'";
    assert_eq!(server.sql("postgres", sessions), "t\n");
    read(&daemon, &verified, &server);

    let other = daemon.root().join("other.pem");
    std::fs::write(&other, Authority::new().pem()).unwrap();
    let stranger = opts(&server, &json!({ "sslrootcert": other }));
    let mut client = client(&daemon, &[stranger]);
    client.return_("pgjsonb", ret(&jid(7), "m1", "to a stranger")).done();
    status_when(&daemon, "the reason of the refusal", |status| {
        status.to_string().contains("invalid peer certificate")
    });
    assert_eq!(
        server.sql(
            &database("pgjsonb"),
            &format!("SELECT count(*) FROM salt_returns WHERE jid = '{}'", jid(7))
        ),
        "0\n"
    );
}
