//! Returns that become large: the time until one is on disk, until it is delivered, and the memory that takes.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use returnerd_tests::client::encode;
use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use returnerd_tests::wait::wait_for;
use serde_json::json;

use super::exponent;
use super::lab::{a_return, memory_mib, stored};
use crate::{figure, quantile};

/// Bytes of the return value, and how many of them.
const SIZES: [(usize, u32); 3] = [(1 << 10, 2_000), (100 << 10, 200), (10 << 20, 10)];

pub(crate) fn run() {
    let (mut acks, mut deliveries) = (Vec::new(), Vec::new());
    for (size, count) in SIZES {
        let mut daemon = Daemon::builder().prepare();
        daemon.drop_plugin_file("probe", &env::guest("probe"));
        daemon.start();
        let mut client = daemon.client();
        let mut watcher = daemon.client();
        let value = "x".repeat(size);
        let mut bare_file = File::create(daemon.root().join("bare")).unwrap();
        let (mut times, mut bare) = (Vec::new(), Vec::new());
        let began = Instant::now();
        for number in 0..count {
            let ret = a_return(number.into(), &value);
            let frame = encode(&client.request("return", "probe", json!({ "ret": ret })));
            let sent = Instant::now();
            client.send_frame(&frame).unwrap();
            client.read_answer().unwrap().unwrap().done();
            times.push(sent.elapsed());
        }
        wait_for("the deliveries", Duration::from_secs(60), || stored(&mut watcher) == u64::from(count));
        let each = began.elapsed().as_secs_f64() * 1e3 / f64::from(count);
        // What the disk takes; after the deliveries, so that it disturbs none.
        for _ in 0..count.div_ceil(10) {
            let began = Instant::now();
            bare_file.write_all(value.as_bytes()).unwrap();
            bare_file.sync_data().unwrap();
            bare.push(began.elapsed());
        }
        times.sort();
        bare.sort();
        let name = format!("payload_{}_kib", size >> 10);
        figure(&format!("{name}_ack_p50"), quantile(&times, 0.5), "us");
        figure(&format!("{name}_ack_to_fdatasync"), quantile(&times, 0.5) / quantile(&bare, 0.5), "ratio");
        figure(&format!("{name}_through"), each, "ms_each");
        figure(&format!("{name}_rate"), size as f64 / (1 << 20) as f64 / each * 1e3, "MiB_per_s");
        figure(&format!("{name}_most_memory"), memory_mib(&daemon, "VmHWM"), "MiB");
        figure(&format!("{name}_memory_after"), memory_mib(&daemon, "VmRSS"), "MiB");
        acks.push((size as f64, quantile(&times, 0.5)));
        deliveries.push((size as f64, each));
        drop((client, watcher));
        daemon.stop();
    }
    exponent("payload_ack", &acks);
    exponent("payload_through", &deliveries);
}
