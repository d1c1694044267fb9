//! How long one client waits until its return is on disk, beside a bare write and fdatasync of as many bytes.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use returnerd_tests::client::encode;
use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use serde_json::json;

use crate::{figure, quantile};

const ROUNDS: usize = 20;
const PER_ROUND: usize = 100;
/// Bytes of the return value.
const SIZE: usize = 1024;

pub(crate) fn run() {
    let mut daemon = Daemon::builder().prepare();
    daemon.drop_plugin_file("probe", &env::guest("probe"));
    daemon.start();
    let mut client = daemon.client();
    let mut bare_file = File::create(daemon.root().join("bare")).unwrap();
    let value = "x".repeat(SIZE);
    let (mut acks, mut bare) = (Vec::new(), Vec::new());
    // In turn, so that what the disk does meanwhile hits both.
    for round in 0..=ROUNDS {
        for at in 0..PER_ROUND {
            let ret = json!({
                "jid": format!("202612010331{:02}{at:06}", round + 10), "id": "m1", "fun": "test.echo", "fun_args": [],
                "return": value, "success": true, "retcode": 0,
            });
            let frame = encode(&client.request("return", "probe", json!({ "ret": ret })));
            let began = Instant::now();
            client.send_frame(&frame).unwrap();
            client.read_answer().unwrap().unwrap().done();
            let ack = began.elapsed();
            let began = Instant::now();
            bare_file.write_all(&frame).unwrap();
            bare_file.sync_data().unwrap();
            let sync = began.elapsed();
            // The first round warms up.
            if round > 0 {
                acks.push(ack);
                bare.push(sync);
            }
        }
    }
    daemon.stop();
    report("ack", &mut acks);
    report("fdatasync", &mut bare);
    figure("ack_to_fdatasync_p50", quantile(&acks, 0.5) / quantile(&bare, 0.5), "ratio");
    figure("ack_to_fdatasync_p99", quantile(&acks, 0.99) / quantile(&bare, 0.99), "ratio");
}

fn report(name: &str, times: &mut [Duration]) {
    times.sort();
    figure(&format!("{name}_p50"), quantile(times, 0.5), "us");
    figure(&format!("{name}_p99"), quantile(times, 0.99), "us");
}
