//! How fast a backlog drains into a plugin that accepts everything, beside how fast it was accepted.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use returnerd_tests::wait::wait_for;
use serde_json::{Value, json};

use crate::figure;

const CLIENTS: usize = 32;
const PER_CLIENT: usize = 2_000;

pub(crate) fn run() {
    // Bound and not listened on, so that nobody else takes it and connections are refused.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut daemon = Daemon::builder().tables("[delivery]\nlongest_retry = \"200ms\"\n").prepare();
    daemon.drop_plugin_file("probe", &env::guest("probe"));
    daemon.start();
    let opts = json!({ "probe.mode": "connect", "probe.host": "127.0.0.1", "probe.port": port });
    let value = "x".repeat(1024);
    let began = Instant::now();
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (daemon, opts, value) = (&daemon, &opts, &value);
            scope.spawn(move || {
                let mut client = daemon.client().with_opts(opts.clone());
                for at in 0..PER_CLIENT {
                    let ret = json!({
                        "jid": format!("2026120103{:04}{at:06}", number), "id": "m1", "fun": "test.echo", "fun_args": [],
                        "return": value, "success": true, "retcode": 0,
                    });
                    client.return_("probe", ret).done();
                }
            });
        }
    });
    let count = CLIENTS * PER_CLIENT;
    #[allow(clippy::cast_precision_loss)]
    let rate = |began: Instant| count as f64 / began.elapsed().as_secs_f64();
    let accepted = rate(began);
    let _listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let began = Instant::now();
    wait_for("the lane to run empty", Duration::from_secs(120), || waiting(&daemon) == 0);
    let drained = rate(began);
    figure("accepted_32_clients", accepted, "per_s");
    figure("drained", drained, "per_s");
    figure("drained_to_accepted", drained / accepted, "ratio");
    daemon.stop();
}

fn waiting(daemon: &Daemon) -> u64 {
    let status: Value = serde_json::from_str(&daemon.cli(&["status", "--json"]).stdout).unwrap();
    status["spool"]["items"].as_u64().unwrap()
}
