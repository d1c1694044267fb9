//! The price of the sandbox: a call through the boundary, the epoch, the pool, and an idle instance.

use std::time::{Duration, Instant};

use returnerd::plugin::engine::{Allocation, Tuning};
use returnerd::plugin::measure::Measured;
use returnerd_tests::env;

use crate::figure;

const BATCHES: [(usize, u32); 3] = [(1, 2_000), (100, 200), (1_000, 40)];
const ROUNDS: usize = 7;
const OPENS: usize = 200;
const IDLE: usize = 100;

pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let options = r#"{"mode": "accept", "port": 9}"#;
        let make = |tuning| Measured::new(&env::guest("probe"), tuning, options).unwrap();
        let plain = make(Tuning::default());
        let no_epoch = make(Tuning { epoch: false, ..Tuning::default() });
        let on_demand = make(Tuning { allocation: Allocation::OnDemand, ..Tuning::default() });

        let (mut with, mut without) = (plain.open().await.unwrap(), no_epoch.open().await.unwrap());
        for (batch, calls) in BATCHES {
            let (mut on, mut off) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                on.push(with.deliver(batch, calls).await.unwrap());
                off.push(without.deliver(batch, calls).await.unwrap());
            }
            let (on, off) = (median(on), median(off));
            #[allow(clippy::cast_precision_loss)]
            figure(
                &format!("boundary_batch_{batch}"),
                on.as_secs_f64() * 1e6 / batch as f64,
                "us_per_return",
            );
            figure(&format!("epoch_on_to_off_batch_{batch}"), on.as_secs_f64() / off.as_secs_f64(), "ratio");
        }

        let (mut pooled, mut mapped) = (Vec::new(), Vec::new());
        for _ in 0..OPENS {
            for (measured, times) in [(&plain, &mut pooled), (&on_demand, &mut mapped)] {
                let began = Instant::now();
                drop(measured.open().await.unwrap());
                times.push(began.elapsed());
            }
        }
        let (pooled, mapped) = (median(pooled), median(mapped));
        figure("open_pooled", pooled.as_secs_f64() * 1e6, "us");
        figure("open_pooled_to_on_demand", pooled.as_secs_f64() / mapped.as_secs_f64(), "ratio");

        let before = resident_kib();
        let mut idle = Vec::new();
        for _ in 0..IDLE {
            idle.push(plain.open().await.unwrap());
        }
        #[allow(clippy::cast_precision_loss)]
        figure("idle_instance", resident_kib().saturating_sub(before) as f64 / IDLE as f64, "KiB");
    });
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
