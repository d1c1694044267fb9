//! Many clients at once share what the daemon has: one lane, one connection to the outside system.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use returnerd_tests::proxy::Proxy;
use serde_json::Value;
use support::*;

const CLIENTS: u32 = 200;

#[test]
fn two_hundred_processes_at_once_are_all_served_over_one_connection_to_the_database() {
    let database = Database::new();
    let proxy = Proxy::start(database.server.port());
    let daemon = quick(&["mysql"]).start();
    let opts = mysql_opts(proxy.port(), &database.name);

    let mut children: Vec<Child> = (0..CLIENTS)
        .map(|number| {
            Command::new(env!("CARGO_BIN_EXE_one-return"))
                .arg(daemon.socket())
                .args(["mysql", &opts.to_string()])
                .arg(ret(&jid(number), "m1", number).to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut outputs: Vec<_> =
        children.iter_mut().map(|child| BufReader::new(child.stdout.take().unwrap()).lines()).collect();
    for lines in &mut outputs {
        assert_eq!(lines.next().unwrap().unwrap(), "connected");
    }
    for child in &mut children {
        child.stdin.take().unwrap().write_all(b"now\n").unwrap();
    }
    for (number, lines) in outputs.iter_mut().enumerate() {
        let said = lines.next().and_then(Result::ok);
        assert_eq!(said.as_deref(), Some("acknowledged"), "client {number}\n{}", daemon.tail());
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }

    let status = settled(&daemon);
    let expected: Vec<String> = (0..CLIENTS).map(|number| format!("{} m1", jid(number))).collect();
    assert_eq!(database.returns(), expected);
    assert_eq!(status["sinks"].as_array().map(Vec::len), Some(1), "{status:#}");
    assert_eq!(proxy.accepted(), 1, "connections that were made to the database");
    let open =
        database.server.root("SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'salt'");
    assert_eq!(open, "1\n");
    assert_eq!(dead(&daemon), Vec::<Value>::new());
}
