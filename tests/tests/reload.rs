//! Plugins and settings change while the daemon runs, and nothing is lost, doubled or stopped by it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

mod support;

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use returnerd_tests::client::Client;
use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use returnerd_tests::proc::free_port;
use returnerd_tests::wait::wait_for_value;
use serde_json::{Value, json};
use support::*;

/// A small plugin is served within a second; a test need not fail where a machine is busy.
const SERVED_WITHIN: Duration = Duration::from_secs(10);

/// A built plugin with a text in it replaced by one of the same length.
fn patched(file: &Path, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len(), "`{from}` and `{to}`");
    let mut bytes = fs::read(file).unwrap();
    let places: Vec<usize> =
        (0..bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from.as_bytes())).collect();
    assert!(!places.is_empty(), "`{from}` is not in `{}`", file.display());
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    bytes
}

/// A plugin with another version in its manifest.
fn version(file: &Path, number: u32) -> Vec<u8> {
    patched(file, "version = \"0.1.0\"", &format!("version = \"0.1.{number}\""))
}

/// Puts bytes into the plugins directory as the plugin of this name, by rename.
fn put(daemon: &Daemon, name: &str, bytes: &[u8]) {
    let file = daemon.root().join("new.wasm");
    fs::write(&file, bytes).unwrap();
    daemon.drop_plugin_file(name, &file);
}

fn put_probe(daemon: &Daemon) {
    daemon.drop_plugin_file("probe", &env::guest("probe"));
}

/// The version of a plugin that serves.
fn serving(status: &Value, name: &str) -> String {
    let plugins = status["plugins"].as_array().unwrap();
    let found = plugins.iter().find(|plugin| plugin["name"] == name);
    found.map_or_else(String::new, |plugin| plugin["version"].as_str().unwrap().to_owned())
}

/// Waits until a return to this plugin is taken, or is not.
fn wait_taken(
    daemon: &Daemon,
    client: &mut Client,
    name: &str,
    taken: bool,
) -> returnerd_tests::client::Answer {
    let mut number = fastrand::u32(1_000_000..2_000_000);
    let what = if taken { "a dropped plugin to be served" } else { "a removed plugin to take nothing more" };
    let context = || daemon.tail();
    wait_for_value(what, SERVED_WITHIN, context, || {
        number += 1;
        Some(client.return_(name, ret(&jid(number), "m1", 1))).filter(|answer| answer.ok == taken)
    })
}

#[test]
fn a_plugin_replaced_again_and_again_under_load_loses_and_doubles_nothing() {
    const CLIENTS: u32 = 3;
    let daemon = quick(&["sqlite3"]).start();
    let file = SqliteFile::of(&daemon);
    let opts = joined(&[file.opts()]);
    let stop = AtomicBool::new(false);
    let counts: Vec<u32> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (mut client, stop) = (daemon.client().with_opts(opts.clone()), &stop);
                scope.spawn(move || {
                    let mut sent = 0;
                    while !stop.load(Ordering::Relaxed) {
                        client.return_("sqlite3", ret(&jid(sent), &format!("m{number}"), sent)).done();
                        client.events("sqlite3", events(&[&format!("e/{number}/{sent}")])).done();
                        sent += 1;
                    }
                    sent
                })
            })
            .collect();
        let plugin = env::plugin("sqlite3");
        for number in [1, 2, 1, 2, 0, 1, 2, 0] {
            put(&daemon, "sqlite3", &version(&plugin, number));
            status_when(&daemon, "the new version to serve", |status| {
                serving(status, "sqlite3") == format!("0.1.{number}")
            });
            let before = sink(&status(&daemon), "sqlite3")["counts"]["stored"].clone();
            status_when(&daemon, "the new version to store", |status| {
                sink(status, "sqlite3")["counts"]["stored"].as_u64() > before.as_u64()
            });
        }
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let status = settled(&daemon);
    let sent: u32 = counts.iter().sum();
    assert!(sent > 100, "{sent} is no load");
    // What is handed over twice counts twice here, even where the store has it once.
    let of_sink = &sink(&status, "sqlite3")["counts"];
    assert_eq!(of_sink["stored"], 2 * sent, "{status:#}");
    assert_eq!((&of_sink["retried"], &of_sink["crashes"]), (&json!(0), &json!(0)), "{status:#}");
    assert_eq!(file.returns().len(), sent as usize);
    assert_eq!(file.sql("SELECT tag FROM salt_events").len(), sent as usize);
    assert_eq!(file.sql("SELECT DISTINCT tag FROM salt_events").len(), sent as usize);
    assert_eq!(dead(&daemon), Vec::<Value>::new());
}

#[test]
fn a_dropped_plugin_is_served_and_a_removed_one_takes_nothing_while_what_waits_stays() {
    let daemon = quick(&[]).start();
    let port = free_port();
    let mut client =
        client(&daemon, &[json!({"probe.mode": "connect", "probe.host": "127.0.0.1", "probe.port": port})]);
    let answer = client.return_("probe", ret(&jid(1), "m1", 1));
    assert_eq!(answer.code, "unknown_returner", "{answer:?}");
    assert!(answer.error.contains("put `probe.wasm` into"), "{answer:?}");

    put_probe(&daemon);
    wait_taken(&daemon, &mut client, "probe", true);
    for number in 2..10 {
        client.return_("probe", ret(&jid(number), "m1", 1)).done();
    }
    // Nobody listens there, so it waits.
    status_when(&daemon, "the sink to be down", |status| sink(status, "probe")["state"] == "down");

    daemon.remove_plugin("probe");
    let refused = wait_taken(&daemon, &mut client, "probe", false);
    assert_eq!(refused.code, "unknown_returner", "{refused:?}");
    let waits = status_when(&daemon, "the reason why it waits", |status| {
        sink(status, "probe")["last_error"].as_str().is_some_and(|error| error.contains("no plugin `probe`"))
    });
    let depth = sink(&waits, "probe")["waiting"].as_u64().unwrap();
    assert!(depth >= 9, "{waits:#}");
    assert_eq!(waits["plugins"], json!([]));
    assert_eq!(daemon.cli(&["status"]).code, 1, "a lane without its plugin is stuck");

    let _listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    put_probe(&daemon);
    let status = settled(&daemon);
    assert_eq!(sink(&status, "probe")["counts"]["stored"], depth, "{status:#}");
    assert_eq!(dead(&daemon), Vec::<Value>::new());
}

#[test]
fn a_broken_file_displaces_nothing_and_stays_visible_with_its_error() {
    let daemon = quick(&[]).start();
    put_probe(&daemon);
    let mut client = daemon.client();
    wait_taken(&daemon, &mut client, "probe", true);
    let whole = fs::read(env::guest("probe")).unwrap();
    let broken = |status: &Value, name: &str| {
        let files = status["broken"].as_array().unwrap().clone();
        files.into_iter().find(|file| file["path"].as_str().unwrap().ends_with(&format!("/{name}.wasm")))
    };
    for (bytes, word) in [
        (b"not a component".to_vec(), ""),
        (whole[..whole.len() / 2].to_vec(), ""),
        // An empty core module.
        (b"\0asm\x01\0\0\0".to_vec(), "not a component"),
        (patched(&env::guest("probe"), "name = \"probe\"\n", "name = \"prope\"\n"), "`prope`"),
    ] {
        put(&daemon, "probe", &bytes);
        let status = status_when(&daemon, "the broken file to be seen", |status| {
            broken(status, "probe").is_some_and(|file| file["error"].as_str().unwrap().contains(word))
        });
        let file = broken(&status, "probe").unwrap();
        assert_eq!(file["serving"], true, "{file:#}");
        assert!(file["error"].as_str().unwrap().contains("probe.wasm"), "{file:#}");
        assert_eq!(serving(&status, "probe"), "0.1.0");
        client.return_("probe", ret(&jid(1), "m1", 1)).done();
        let listed = daemon.cli(&["plugin", "list", "--json"]);
        assert_eq!(listed.code, 1, "{listed}");
        let listed = listed.json_whatever_the_code();
        assert!(listed[0]["error"].as_str().unwrap().contains(word), "{listed:#}");
        put_probe(&daemon);
        status_when(&daemon, "the whole file to be seen", |status| broken(status, "probe").is_none());
    }

    // One that was never whole serves nothing, and whoever asks for it hears why.
    put(&daemon, "other", b"not a component");
    let status =
        status_when(&daemon, "the broken file to be seen", |status| broken(status, "other").is_some());
    assert_eq!(broken(&status, "other").unwrap()["serving"], false);
    let answer = client.return_("other", ret(&jid(1), "m1", 1));
    assert!(answer.error.contains("its file is there but cannot be loaded"), "{answer:?}");
    // A second file with a name that is taken.
    put(&daemon, "other", &patched(&env::guest("probe"), "name = \"probe\"\n", "name = \"other\"\n"));
    wait_taken(&daemon, &mut client, "other", true);
    assert_eq!(
        status_when(&daemon, "no broken file", |status| status["broken"] == json!([]))["stuck"],
        json!([])
    );
    client.return_("probe", ret(&jid(1), "m1", 1)).done();
    let status = settled(&daemon);
    assert_eq!(sink(&status, "probe")["counts"]["retried"], 0, "{status:#}");
}

/// Rereads the configuration and waits until the daemon says so.
fn reread(daemon: &Daemon, text: &str, says: &str) {
    fs::write(daemon.config(), text).unwrap();
    let before = daemon.log().matches(says).count();
    daemon.signal(Signal::SIGHUP);
    wait_for_value(
        says,
        SERVED_WITHIN,
        || daemon.tail(),
        || (daemon.log().matches(says).count() > before).then_some(()),
    );
}

#[test]
fn a_grant_given_or_taken_away_counts_after_sighup_also_for_what_is_open() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let daemon = quick(&[]).start();
    // A host that nobody wrote is only granted by a line.
    let bytes = patched(&env::guest("probe"), "doc = \"Whom to connect to\"", "default = \"127.0.0.1\"     ");
    put(&daemon, "probe", &bytes);
    let mut client = client(&daemon, &[json!({"probe.mode": "connect", "probe.port": port})]);
    wait_taken(&daemon, &mut client, "probe", true);
    let line = format!("allow = [\"tcp://127.0.0.1:{port}\"]");
    let refused = status_when(&daemon, "the refusal", |status| {
        sink(status, "probe")["refusals"].as_u64().is_some_and(|count| count > 0)
    });
    assert!(sink(&refused, "probe")["refused"].as_str().unwrap().contains(&line), "{refused:#}");
    assert!(daemon.log().contains(&line), "{}", daemon.tail());

    let without = fs::read_to_string(daemon.config()).unwrap();
    let with = format!("{without}\n[plugin.probe]\n{line}\n");
    reread(&daemon, &with, "configuration reread");
    settled(&daemon);
    let (mut open, _) = listener.accept().unwrap();

    // Taken away again: the open connection ends, and no new one is made.
    let generation = |status: &Value| status["plugins"][0]["generation"].as_u64();
    let before = generation(&status(&daemon));
    reread(&daemon, &without, "configuration reread");
    status_when(&daemon, "the plugin to be renewed", |status| generation(status) > before);
    client.return_("probe", ret(&jid(2), "m1", 1)).done();
    status_when(&daemon, "the refusal", |status| {
        sink(status, "probe")["waiting"] == 1 && sink(status, "probe")["state"] != "ready"
    });
    open.set_read_timeout(Some(LIMIT)).unwrap();
    assert!(matches!(open.read(&mut [0; 1]), Ok(0) | Err(_)), "the connection is closed");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "no new connection was made");

    reread(&daemon, &with, "configuration reread");
    settled(&daemon);
}

#[test]
fn an_option_in_returnerd_toml_counts_after_sighup_for_a_client_that_sends_what_it_always_sent() {
    let daemon = quick(&[]).start();
    put_probe(&daemon);
    let mut client = client(&daemon, &[]);
    wait_taken(&daemon, &mut client, "probe", true);
    assert_eq!(sinks(&settled(&daemon)), ["probe"]);

    let text = fs::read_to_string(daemon.config()).unwrap();
    let text = format!("{text}\n[plugin.probe.options]\nport = 10\n");
    reread(&daemon, &text, "configuration reread");
    client.return_("probe", ret(&jid(2), "m1", 1)).done();
    // The port is of no use to this mode, but other options are another sink.
    let status = settled(&daemon);
    assert_eq!(sinks(&status), ["probe", "probe#2"]);
    assert_eq!(sink(&status, "probe#2")["counts"]["stored"], 1, "{status:#}");
    client.return_("probe", ret(&jid(3), "m1", 1)).done();
    assert_eq!(sinks(&settled(&daemon)), ["probe", "probe#2"]);
}

/// The sinks' names.
fn sinks(status: &Value) -> Vec<&str> {
    status["sinks"].as_array().unwrap().iter().map(|sink| sink["sink"].as_str().unwrap()).collect()
}

#[test]
fn a_faulty_configuration_at_sighup_leaves_the_old_one_in_force() {
    let daemon = quick(&["sqlite3"]).start();
    let file = SqliteFile::of(&daemon);
    let mut client = client(&daemon, &[file.opts()]);
    let good = fs::read_to_string(daemon.config()).unwrap();
    for (bad, word) in [
        ("this is = = no toml".to_owned(), "not valid"),
        (format!("{good}\n[plugin.sqlite3]\nalow = []\n"), "`alow`"),
        (good.replace("state_dir = \"", "state_dir = \"relative"), "absolute"),
    ] {
        reread(&daemon, &bad, "the configuration is kept as it was");
        let log = daemon.log();
        // An error in the TOML is shown with its place, over several lines.
        let said = &log[log.rfind("kept as it was").unwrap()..];
        assert!(said.contains(word), "{said}");
        client.return_("sqlite3", ret(&jid(1), "m1", 1)).done();
    }
    reread(&daemon, &good.replace("\"300ms\"", "\"299ms\""), "configuration reread");
    settled(&daemon);
    assert_eq!(file.returns().len(), 1);
}
