//! The plugin `redis` in the daemon: under both of its names, with the keep time that Salt sends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use returnerd_tests::client::from_json;
use returnerd_tests::redis::{self, Redis};
use serde_json::{Value, json};
use support::*;

fn parsed(text: &Value) -> Value {
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}

fn installed() -> bool {
    let there = redis::installed().is_some();
    if !there {
        eprintln!("SKIPPED: `redis-server` is not installed");
    }
    there
}

#[test]
fn what_is_sent_under_either_name_comes_back_under_both() {
    if !installed() {
        return;
    }
    let server = Redis::start_with_password("secret");
    let daemon = quick(&["redis"]).start();
    let opts =
        json!({"redis.host": "127.0.0.1", "redis.port": server.port(), "redis": {"password": "secret"}});
    let mut client = client(&daemon, &[opts]);
    let names = ["redis", "redis_return"];
    for (number, name) in (1..).zip(names) {
        client.load(name, &jid(number), published(&jid(number)), &["m1"]).done();
        client.return_(name, ret(&jid(number), "m1", "grüße 🦀")).done();
    }
    settled(&daemon);
    assert_eq!(server.cli(&["HLEN", &format!("ret:{}", jid(1))]), "1");
    assert_eq!(server.cli(&["GET", "m1:test.echo"]), jid(2));
    // What the daemon remembers of late jobs is gone after this: the answers come from the server.
    let mut daemon = daemon;
    daemon.restart();
    let mut client = daemon.client().with_opts(
        json!({"redis.host": "127.0.0.1", "redis.port": server.port(), "redis": {"password": "secret"}}),
    );
    for name in names {
        for number in [1, 2] {
            let load = parsed(&client.query("get_load", name, json!({"jid": jid(number)})).json());
            assert_eq!((&load["user"], &load["Minions"]), (&json!("root"), &json!(["m1"])));
            let returns = client.query("get_jid", name, json!({"jid": jid(number)})).json();
            assert_eq!(parsed(&returns["m1"])["return"], "grüße 🦀");
        }
        let jobs = client.query("get_jids", name, json!({})).json();
        assert_eq!(jobs.as_object().unwrap().len(), 2, "{jobs}");
        assert_eq!(client.query("get_minions", name, json!({})).json(), json!(["m1"]));
        let last = client.query("get_fun", name, json!({"fun": "test.echo"})).json();
        assert_eq!(parsed(&last["m1"])["jid"], jid(2));
    }
    assert_eq!(status(&daemon)["sinks"].as_array().unwrap().len(), 1, "both names are one sink");
}

#[test]
fn salts_keep_time_is_the_time_to_live_unless_the_option_says_otherwise() {
    if !installed() {
        return;
    }
    let server = Redis::start(&[]);
    let daemon = quick(&["redis"]).start();
    let opts = json!({"redis.host": "127.0.0.1", "redis.port": server.port()});
    let own = joined(&[opts.clone(), json!({"redis.keep_jobs_seconds": 70_000})]);
    for (number, opts, salt) in [
        (1, &opts, json!({"keep_jobs_seconds": 5_000})),
        (2, &opts, json!({"keep_jobs": 2})),
        (3, &opts, json!({})),
        (4, &own, json!({"keep_jobs_seconds": 5_000})),
    ] {
        let mut client = client(&daemon, std::slice::from_ref(opts));
        let mut request = client.request("return", "redis", json!({"ret": ret(&jid(number), "m1", "x")}));
        if let rmpv::Value::Map(entries) = &mut request {
            entries.retain(|(key, _)| key.as_str() != Some("salt"));
            entries.push(("salt".into(), from_json(&salt)));
        }
        client.ask(&request).done();
    }
    settled(&daemon);
    for (number, wanted) in [(1, 5_000), (2, 7_200), (3, 86_400), (4, 70_000)] {
        let ttl: i64 = server.cli(&["TTL", &format!("ret:{}", jid(number))]).parse().unwrap();
        assert!((wanted - 60..=wanted).contains(&ttl), "{ttl} is not near {wanted}");
    }
}

#[test]
fn ten_mebibytes_go_through_tls_and_come_back() {
    if !installed() {
        return;
    }
    let server = Redis::start_with_tls(&["127.0.0.1"], "yes");
    let (port, authority) = server.tls();
    let client_files = authority.sign(&["salt"]);
    let builder = quick(&["redis"]);
    let file = |name: &str, text: &str| {
        let path = builder.root().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let opts = json!({
        "redis.host": "127.0.0.1", "redis.port": port,
        "redis.ssl_ca_certs": file("ca.pem", authority.pem()),
        "redis.ssl_certfile": file("client.pem", &client_files.cert),
        "redis.ssl_keyfile": file("client.key", &client_files.key),
    });
    let mut daemon = builder.start();
    let text = "🚀".repeat(10 << 18);
    client(&daemon, std::slice::from_ref(&opts)).return_("redis", ret(&jid(1), "m1", text.clone())).done();
    settled(&daemon);
    daemon.restart();
    let returns = client(&daemon, &[opts]).query("get_jid", "redis", json!({"jid": jid(1)})).json();
    assert!(parsed(&returns["m1"])["return"] == text, "it came back changed");
}

#[test]
fn a_wrong_password_holds_the_records_until_it_is_mended() {
    if !installed() {
        return;
    }
    let server = Redis::start_with_password("right");
    let daemon = quick(&["redis"]).start();
    let opts = |password: &str| json!({"redis.host": "127.0.0.1", "redis.port": server.port(), "redis.password": password});
    client(&daemon, &[opts("mistyped")]).return_("redis", ret(&jid(1), "m1", "x")).done();
    let status = status_when(&daemon, "the refusal", |status| {
        sink(status, "redis")["last_error"].as_str().is_some_and(|why| why.contains("WRONGPASS"))
    });
    assert_eq!(sink(&status, "redis")["waiting"], 1, "{status:#}");
    server.cli(&["CONFIG", "SET", "requirepass", "mistyped"]);
    settled(&daemon);
    assert_eq!(dead(&daemon), Vec::<Value>::new());
    assert!(!daemon.log().contains("mistyped"), "the log tells the password");
}
