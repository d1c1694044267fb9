//! The plugin `syslog` through the daemon, against a real rsyslog: what is granted, and that what was accepted arrives.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use returnerd_tests::daemon::Daemon;
use returnerd_tests::rsyslog::{self, Rsyslog};
use serde_json::{Value, json};
use support::*;

fn available() -> bool {
    let there = rsyslog::installed().is_some();
    if !there {
        eprintln!("SKIPPED: `rsyslogd` or its driver `lmnsd_gtls.so` is not installed");
    }
    there
}

fn local(rsyslog: &Rsyslog) -> Value {
    json!({ "syslog": { "socket": rsyslog.socket(), "facility": "LOG_LOCAL1", "options": ["LOG_PID"] } })
}

fn server(rsyslog: &Rsyslog, transport: &str) -> Value {
    let mut opts =
        json!({ "syslog.transport": transport, "syslog.server": "127.0.0.1", "syslog.port": rsyslog.port() });
    if transport == "tls" {
        opts["syslog.port"] = json!(rsyslog.tls_port());
        opts["syslog.ssl_ca"] = json!(rsyslog.ca_file());
    }
    opts
}

fn inspect(daemon: &Daemon) -> String {
    let file = daemon.plugins_dir().join("syslog.wasm");
    daemon.cli(&["plugin", "inspect", file.to_str().unwrap()]).success()
}

#[test]
fn a_socket_that_the_administrator_named_gets_the_returns_also_after_a_restart() {
    if !available() {
        return;
    }
    let mut rsyslog = Rsyslog::start();
    let daemon = quick(&["syslog"]).start();
    let mut client = daemon.client().with_opts(local(&rsyslog)).as_minion("web1");
    let mut count = 0;
    for round in 0..3 {
        for _ in 0..20 {
            count += 1;
            client.return_("syslog", ret(&jid(count), "web1", format!("å {round}"))).done();
        }
        let logged = rsyslog.wait_for(count as usize);
        let last = logged.last().unwrap();
        assert_eq!((last.input.as_str(), last.priority.as_str()), ("imuxsock", "local1.info"));
        assert_eq!(last.program, "salt-minion");
        assert_eq!(last.json()["return"], format!("å {round}"));
        assert_eq!(last.json()["jid"], last.process);
        rsyslog.restart();
    }
    settled(&daemon);
    assert_eq!(rsyslog.logged().len(), count as usize);
    // A return that is longer than any unix datagram.
    client.return_("syslog", ret(&jid(99), "web1", "x".repeat(1 << 20))).done();
    let last = rsyslog.wait_for(count as usize + 1).pop().unwrap();
    assert_eq!(last.json()["return"]["__cut__"], (1 << 20) + 2);
}

#[test]
fn what_comes_while_the_log_is_away_waits_for_it() {
    if !available() {
        return;
    }
    let mut rsyslog = Rsyslog::start();
    let daemon = quick(&["syslog"]).start();
    let tcp = server(&rsyslog, "tcp");
    let local = local(&rsyslog);
    let mut clients = [daemon.client().with_opts(local), daemon.client().with_opts(tcp)];
    clients.iter_mut().for_each(|client| {
        client.return_("syslog", ret(&jid(1), "m1", "before")).done();
    });
    rsyslog.wait_for(2);
    rsyslog.stop();
    for client in &mut clients {
        for number in 2..=20 {
            client.return_("syslog", ret(&jid(number), "m1", "while it is away")).done();
        }
    }
    let status = status_when(&daemon, "both to be tried", |status| {
        let mut sinks = status["sinks"].as_array().unwrap().iter();
        sinks.all(|sink| sink["last_error"].is_string())
    });
    assert!(status.to_string().contains("the socket `"), "{status}");
    rsyslog.restart();
    settled(&daemon);
    let mut found: Vec<(String, String)> = rsyslog
        .wait_for(40)
        .iter()
        .map(|message| (message.input.clone(), message.json()["jid"].as_str().unwrap().to_owned()))
        .collect();
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 40);
}

#[test]
fn the_default_socket_is_refused_without_a_line_and_the_line_is_named() {
    let daemon = quick(&["syslog"]).start();
    let line = "`allow = [\"unix:///dev/log\"]` in `[plugin.syslog]` of returnerd.toml";
    daemon.client().return_("syslog", ret(&jid(1), "m1", "x")).done();
    let status = status_when(&daemon, "the refusal", |status| {
        sink(status, "syslog")["last_error"].as_str().is_some_and(|error| error.contains("is not granted"))
    });
    let refused = sink(&status, "syslog")["refused"].as_str().unwrap().to_owned();
    assert!(refused.contains("`unix:///dev/log`") && refused.contains(line), "{refused}");
    let wished = format!(
        "the plugin wishes to reach `unix:///dev/log`, which is not granted; hint: {line} would allow it"
    );
    assert!(daemon.log().contains(&wished), "{}", daemon.tail());
    let text = inspect(&daemon);
    assert!(text.contains(&format!("unix:///dev/log: not granted; hint: {line}")), "{text}");
    assert!(text.contains("salt:returner/unix-datagrams"), "{text}");
}

#[test]
fn the_line_of_returnerd_toml_grants_the_default_socket() {
    let daemon = quick(&["syslog"]).allow("syslog", &["unix:///dev/log"]).start();
    let text = inspect(&daemon);
    assert!(text.contains("unix:///dev/log: granted by `allow`"), "{text}");
    if std::path::Path::new("/dev/log").exists() {
        // Nothing is written to the log of the machine that runs the tests.
        return;
    }
    daemon.client().return_("syslog", ret(&jid(1), "m1", "x")).done();
    let status =
        status_when(&daemon, "the attempt", |status| sink(status, "syslog")["last_error"].is_string());
    let error = sink(&status, "syslog")["last_error"].as_str().unwrap().to_owned();
    assert!(error.contains("the socket `/dev/log` is not there"), "{error}");
}

#[test]
fn a_server_that_the_administrator_named_gets_the_returns_by_every_transport() {
    if !available() {
        return;
    }
    let rsyslog = Rsyslog::start();
    let daemon = quick(&["syslog"]).start();
    for (number, transport) in [(1, "udp"), (2, "tcp"), (3, "tls")] {
        let mut client = daemon.client().with_opts(server(&rsyslog, transport));
        client.return_("syslog", ret(&jid(number), "m1", "å")).done();
        let last = rsyslog.wait_for(number as usize).pop().unwrap();
        assert_eq!((last.version.as_str(), last.kind.as_str()), ("1", "test.echo"), "{last:?}");
        assert_eq!((last.hostname.as_str(), last.program.as_str()), ("lab_master", "salt-master"));
        assert_eq!(last.json()["return"], "å");
    }
    let status = settled(&daemon);
    // The default socket is no wish where a server is meant.
    assert!(status["sinks"].as_array().unwrap().iter().all(|sink| sink["refused"].is_null()), "{status}");
    assert!(!daemon.log().contains("wishes to reach"), "{}", daemon.tail());
}

#[test]
fn a_burst_arrives_whole_and_in_order() {
    if !available() {
        return;
    }
    let rsyslog = Rsyslog::start();
    let daemon = quick(&["syslog"]).start();
    let mut clients = [local(&rsyslog), server(&rsyslog, "tcp")].map(|opts| daemon.client().with_opts(opts));
    for number in 0..1_000 {
        for client in &mut clients {
            client.return_("syslog", ret(&jid(number), "m1", number)).done();
        }
    }
    let logged = rsyslog.wait_for(2_000);
    for input in ["imuxsock", "imtcp"] {
        let numbers = logged.iter().filter(|message| message.input == input);
        let numbers: Vec<Value> = numbers.map(|message| message.json()["return"].clone()).collect();
        assert_eq!(numbers, (0..1_000).map(Value::from).collect::<Vec<_>>(), "{input}");
    }
}

#[test]
fn options_that_can_never_work_are_named() {
    let daemon = quick(&["syslog"]).start();
    let cases = [
        (json!({ "syslog.level": "LOG_LOUD" }), "`LOG_WARNING`"),
        (json!({ "syslog.options": ["LOG_FAST"] }), "`LOG_PERROR`"),
        (json!({ "syslog.server": "loghost" }), "`transport`"),
    ];
    for (opts, words) in cases {
        daemon.client().with_opts(opts.clone()).return_("syslog", ret(&jid(1), "m1", "x")).done();
        status_when(&daemon, words, |status| {
            let mut sinks = status["sinks"].as_array().unwrap().iter();
            sinks.any(|sink| sink["last_error"].as_str().is_some_and(|error| error.contains(words)))
        });
    }
}
