//! One plugin with many configurations: each is a sink with a lane and an instance of its own.

use std::time::{Duration, Instant};

use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use returnerd_tests::wait::wait_for_value;
use serde_json::json;

use super::exponent;
use super::lab::{a_return, memory_mib, status, stored};
use crate::figure;

const COUNTS: [u32; 4] = [1, 10, 100, 1_000];

pub(crate) fn run() {
    let (mut times, mut memories) = (Vec::new(), Vec::new());
    for count in COUNTS {
        let mut daemon = Daemon::builder().prepare();
        daemon.drop_plugin_file("probe", &env::guest("probe"));
        daemon.start();
        let before = memory_mib(&daemon, "VmRSS");
        let began = Instant::now();
        for port in 0..count {
            let mut client = daemon.client().with_opts(json!({ "probe.port": port + 1 }));
            client.return_("probe", a_return(port.into(), "x")).done();
        }
        let mut client = daemon.client();
        let context = daemon.tail();
        wait_for_value(
            "a delivery by every sink",
            Duration::from_secs(60),
            || context,
            || (stored(&mut client) == u64::from(count)).then_some(()),
        );
        let took = began.elapsed().as_secs_f64() * 1e3 / f64::from(count);
        let memory = memory_mib(&daemon, "VmRSS");
        let asked = Instant::now();
        assert_eq!(status(&mut client)["sinks"].as_array().unwrap().len(), count as usize);
        figure(&format!("sinks_{count}_first_delivery"), took, "ms_per_sink");
        figure(&format!("sinks_{count}_memory"), memory, "MiB");
        figure(
            &format!("sinks_{count}_memory_each"),
            (memory - before).max(0.0) * 1024.0 / f64::from(count),
            "KiB",
        );
        figure(&format!("sinks_{count}_status"), asked.elapsed().as_secs_f64() * 1e3, "ms");
        drop(client);
        let stopped = Instant::now();
        daemon.stop();
        figure(&format!("sinks_{count}_stop"), stopped.elapsed().as_secs_f64() * 1e3, "ms");
        figure(&format!("sinks_{count}_restart"), daemon.start().as_secs_f64() * 1e3, "ms");
        daemon.stop();
        times.push((f64::from(count), took * f64::from(count)));
        memories.push((f64::from(count), memory));
    }
    exponent("sinks_first_delivery", &times);
    exponent("sinks_memory", &memories);
}
