//! A sink that cannot keep up: it costs disk, not memory, and nobody else waits for it. Its answers come for all that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use returnerd_tests::proc::free_port;
use returnerd_tests::wait::wait_for;
use serde_json::{Value, json};

/// As many as 500 a second are in 30 s.
const RETURNS: usize = 15_000;
const CLIENTS: usize = 16;
const SIZE: usize = 8 << 10;
/// The batches under way, what is remembered of recent jobs (16 MiB for a store), and the pages of SQLite; all returns are 120 MiB.
const GROWTH_KIB: u64 = 64 << 10;

fn status(daemon: &Daemon) -> Value {
    serde_json::from_str(&daemon.cli(&["status", "--json"]).stdout).unwrap()
}

fn sink<'a>(status: &'a Value, label: &str) -> &'a Value {
    status["sinks"].as_array().unwrap().iter().find(|sink| sink["sink"] == label).expect("the sink is listed")
}

fn ret(number: usize, value: &str) -> Value {
    json!({
        "jid": format!("202612010331{number:08}"), "id": "m1", "fun": "test.echo", "fun_args": [], "return": value,
        "success": true, "retcode": 0,
    })
}

#[test]
fn a_slow_sink_costs_no_memory_and_holds_up_no_other() {
    let mut daemon = Daemon::builder().prepare();
    daemon.drop_plugin_file("probe", &env::guest("probe"));
    daemon.start();
    let slow = json!({ "probe.mode": "slow" });
    let value = "x".repeat(SIZE);
    // Opens both sinks, so that what an instance takes is not counted.
    daemon.client().with_opts(slow.clone()).return_("probe", ret(0, &value)).done();
    daemon.client().return_("probe", ret(0, "quick")).done();
    wait_for("both sinks to deliver", Duration::from_secs(30), || {
        let status = status(&daemon);
        ["probe", "probe#2"].iter().all(|label| sink(&status, label)["counts"]["stored"] == 1)
    });
    let before = status(&daemon)["resident_kib"].as_u64().unwrap();

    let mut slowest = Duration::ZERO;
    thread::scope(|scope| {
        let producers: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (daemon, slow, value) = (&daemon, &slow, &value);
                scope.spawn(move || {
                    let mut connection = daemon.client().with_opts(slow.clone());
                    for number in (client..RETURNS).step_by(CLIENTS) {
                        connection.return_("probe", ret(number + 1, value)).done();
                    }
                })
            })
            .collect();
        let mut quick = daemon.client();
        let mut number = 0;
        while producers.iter().any(|producer| !producer.is_finished()) {
            number += 1;
            let began = Instant::now();
            quick.return_("probe", ret(number, "quick")).done();
            wait_for("the other sink to deliver", Duration::from_secs(10), || {
                sink(&status(&daemon), "probe#2")["waiting"] == 0
            });
            slowest = slowest.max(began.elapsed());
        }
    });
    let after = status(&daemon);
    println!(
        "{} KiB before, {} after, {} wait; the other sink's slowest delivery took {slowest:?}",
        before,
        after["resident_kib"],
        sink(&after, "probe")["waiting"]
    );
    let waiting = sink(&after, "probe")["waiting"].as_u64().unwrap();
    assert!(waiting > 1_000, "the sink kept up, so that nothing is shown\n{after:#}");
    let grown = after["resident_kib"].as_u64().unwrap().saturating_sub(before);
    assert!(grown < GROWTH_KIB, "memory grew by {grown} KiB\n{}", daemon.tail());
    assert!(slowest < Duration::from_secs(2), "the other sink waited for {slowest:?}");
}

/// While one batch is delivered the next is read and the last one settled; none of that may give a record twice, or to no one.
#[test]
fn a_backlog_of_several_batches_is_handed_over_in_full_batches_each_record_once() {
    const BACKLOG: usize = 4_500;
    let mut daemon = Daemon::builder().tables("[delivery]\nfirst_retry = \"100ms\"").prepare();
    daemon.drop_plugin_file("probe", &env::guest("probe"));
    daemon.start();
    let port = free_port();
    let opts = json!({ "probe.mode": "connect", "probe.host": "127.0.0.1", "probe.port": port });
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (daemon, opts) = (&daemon, &opts);
            scope.spawn(move || {
                let mut connection = daemon.client().with_opts(opts.clone());
                for number in (client..BACKLOG).step_by(CLIENTS) {
                    connection.return_("probe", ret(number, "x")).done();
                }
            });
        }
    });
    assert_eq!(sink(&status(&daemon), "probe")["waiting"], BACKLOG, "{}", daemon.tail());
    let _listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    wait_for("the backlog to be delivered", Duration::from_secs(60), || {
        sink(&status(&daemon), "probe")["waiting"] == 0
    });
    let status = status(&daemon);
    let counts = &sink(&status, "probe")["counts"];
    assert_eq!(counts["stored"], BACKLOG, "{status:#}");
    let batches = counts["batches"].as_u64().unwrap();
    assert!((5..=7).contains(&batches), "{batches} batches\n{status:#}");
}

#[test]
fn a_long_list_of_a_slow_store_is_asked_for_in_pages_that_come_in_time() {
    let mut daemon = Daemon::builder().prepare();
    daemon.drop_plugin_file("hostile", &env::guest("hostile"));
    daemon.start();
    // At a millisecond each they take longer than one answer may.
    let keys = json!({ "count": 4_500, "filter_find_job": true });
    let slow = json!({ "hostile.mode": "slowlist" });
    let listed = daemon.client().with_opts(slow).query("get_jids_filter", "hostile", keys).json();
    assert_eq!(listed.as_array().unwrap().len(), 4_500);
}
