//! A backlog that a store was away for: the daemon's start with it, its memory, and how fast it drains afterwards.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use returnerd::item::{JobReturn, Record};
use returnerd::spool::{Kind, Limits, NewFrame, NewItem, SinkId, Spool, now_ms};
use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use serde_json::json;

use super::lab::{a_return, memory_mib, wait_until_empty};
use super::{exponent, goal};
use crate::figure;

const COUNTS: [u32; 3] = [10_000, 100_000, 1_000_000];
/// The goals for the largest.
const MOST_START_MS: f64 = 2_000.0;
const MOST_MIB: f64 = 200.0;
const FRAME: u32 = 1_000;

pub(crate) fn run() {
    let (mut starts, mut memories, mut drains) = (Vec::new(), Vec::new(), Vec::new());
    for count in COUNTS {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut daemon = Daemon::builder().tables("[delivery]\nlongest_retry = \"200ms\"\n").prepare();
        daemon.drop_plugin_file("probe", &env::guest("probe"));
        daemon.start();
        // Makes the sink; nothing listens on its port yet.
        let opts = json!({ "probe.mode": "connect", "probe.host": "127.0.0.1", "probe.port": port });
        daemon.client().with_opts(opts).return_("probe", a_return(0, "x")).done();
        daemon.stop();
        fill(&daemon, count);

        let start = daemon.start().as_secs_f64() * 1e3;
        let memory = memory_mib(&daemon, "VmRSS");
        if count == 1_000_000 {
            goal("backlog_1000000_start", start, "ms", MOST_START_MS);
            goal("backlog_1000000_memory", memory, "MiB", MOST_MIB);
        } else {
            figure(&format!("backlog_{count}_start"), start, "ms");
            figure(&format!("backlog_{count}_memory"), memory, "MiB");
        }
        let mut client = daemon.client();
        let _listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let began = Instant::now();
        wait_until_empty(&mut client, Duration::from_secs(240));
        let rate = f64::from(count) / began.elapsed().as_secs_f64();
        figure(&format!("backlog_{count}_drained"), rate, "per_s");
        figure(&format!("backlog_{count}_most_memory"), memory_mib(&daemon, "VmHWM"), "MiB");
        drop(client);
        daemon.stop();
        starts.push((f64::from(count), start));
        memories.push((f64::from(count), memory));
        drains.push((f64::from(count), f64::from(count) / rate));
    }
    exponent("backlog_start", &starts);
    exponent("backlog_memory", &memories);
    exponent("backlog_drain_time", &drains);
}

/// Puts returns straight into the daemon's spool, for the sink that is there.
fn fill(daemon: &Daemon, count: u32) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (spool, _) = Spool::open(daemon.root().join("state/spool"), Limits::default()).unwrap();
        let sink = spool.sinks().first().expect("the return made a sink").id;
        let began = Instant::now();
        for frame in 0..count / FRAME {
            let items = (0..FRAME).map(|at| item(sink, frame * FRAME + at)).collect();
            spool.append(NewFrame { id: None, items }).await.unwrap();
        }
        figure(&format!("backlog_{count}_filled"), f64::from(count) / began.elapsed().as_secs_f64(), "per_s");
        spool.close().await;
    });
}

/// A return of about half a KiB, ten minions to a job.
fn item(sink: SinkId, number: u32) -> NewItem {
    let (jid, minion) = (format!("20261201{:012}", number / 10), format!("minion-{}", number % 10));
    let value = format!("\"{}\"", "x".repeat(100));
    let ret = JobReturn {
        document: format!(
            "{{\"jid\": \"{jid}\", \"id\": \"{minion}\", \"fun\": \"test.echo\", \"return\": {value}}}"
        ),
        jid: jid.clone(),
        minion: minion.clone(),
        resource_id: None,
        fun: "test.echo".into(),
        fun_args: "[]".into(),
        value,
        success: Some(true),
        retcode: Some(0),
        trimmed: false,
        arrived_ms: now_ms(),
    };
    let arrived_ms = ret.arrived_ms;
    NewItem {
        sink,
        kind: Kind::Return,
        jid,
        minion,
        arrived_ms,
        body: Record::Return(ret).to_bytes().unwrap(),
    }
}
