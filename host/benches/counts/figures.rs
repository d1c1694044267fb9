//! What is counted. Each figure does its work a number of times, after everything has been done once.

use returnerd::plugin::engine::{Allocation, Tuning};
use returnerd::plugin::measure::Measured;
use returnerd::salt::frame::{Request, Seen};
use returnerd::salt::records::{Ids, records};
use returnerd::spool::{FrameId, Kind, Limits, NewFrame, NewItem, NewSink, Spool};
use returnerd_tests::client::{encode, from_json};
use returnerd_tests::env;
use serde_json::{Value, json};

/// One figure.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    /// The function that is counted, as callgrind takes it.
    pub(crate) function: &'static str,
    pub(crate) times: u32,
    pub(crate) run: fn(u32),
}

const COUNTED: &str = "*::counted";
/// Its whole name, since closures in it have longer ones.
const TRANSACT: &str = "*Writer*::transact";

pub(crate) const FIGURES: [Figure; 6] = [
    Figure { name: "boundary_batch_1", function: COUNTED, times: 20, run: |times| boundary(1, times) },
    Figure { name: "boundary_batch_100", function: COUNTED, times: 5, run: |times| boundary(100, times) },
    Figure { name: "records_1_kib", function: COUNTED, times: 20, run: |times| to_records(1 << 10, times) },
    Figure {
        name: "records_100_kib",
        function: COUNTED,
        times: 3,
        run: |times| to_records(100 << 10, times),
    },
    Figure { name: "append_1", function: TRANSACT, times: 50, run: |times| append(1, times) },
    Figure { name: "append_100", function: TRANSACT, times: 10, run: |times| append(100, times) },
];

/// Does it; callgrind counts what happens in here.
#[inline(never)]
fn counted(run: &mut dyn FnMut()) {
    run();
    // Keeps the call above from being the last thing, which would make it a jump.
    std::hint::black_box(());
}

/// A batch handed to a plugin that accepts everything, and its verdicts.
fn boundary(batch: usize, times: u32) {
    // The calls run on a stack of their own. Callgrind follows that as long as it lies below this one, so it is this thread that polls.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The pool reserves more addresses than valgrind has; the clock would come more often in slow motion.
    let tuning = Tuning { allocation: Allocation::OnDemand, epoch: false };
    let measured = Measured::new(&env::guest("probe"), tuning, r#"{"mode": "accept", "port": 9}"#).unwrap();
    let mut open = runtime.block_on(measured.open()).unwrap();
    runtime.block_on(open.deliver(batch, 2)).unwrap();
    counted(&mut || {
        runtime.block_on(open.deliver(batch, times)).unwrap();
    });
}

/// A frame with a return read and made a record: msgpack to JSON and all that belongs to it.
fn to_records(size: usize, times: u32) {
    let request = json!({
        "v": 1, "op": "return", "returner": "probe", "id": "lab_master", "role": "master", "at": 1_796_095_899.5,
        "layers": { "opts": { "probe.mode": "accept" }, "grains": {}, "pillar": {} }, "salt": {},
        "ret": {
            "jid": "20261201033139637001", "id": "minion-1.example.com", "fun": "state.apply", "fun_args": [],
            "return": states(size), "success": true, "retcode": 0,
        },
    });
    let mut request = from_json(&request);
    if let rmpv::Value::Map(entries) = &mut request {
        entries.push(("uid".into(), rmpv::Value::Binary(vec![7; 16])));
    }
    let body = encode(&request);
    let (ids, seen) = (Ids::new(1), Seen::default());
    let read = || {
        let request = Request::read(&body, &seen).unwrap();
        records(&request.envelope, request.op, 1_796_095_899_000, &ids).unwrap()
    };
    assert_eq!(read().len(), 1);
    counted(&mut || {
        for _ in 0..times {
            std::hint::black_box(read());
        }
    });
}

/// What a state run returns, of about this many bytes.
fn states(size: usize) -> Value {
    let mut states = serde_json::Map::new();
    for number in 0..size.div_ceil(256) {
        states.insert(
            format!("file_|-motd_{number}_|-/etc/motd.d/{number}_|-managed"),
            json!({
                "changes": { "diff": "--- \n+++ \n@@ -1 +1 @@\n-old \"line\"\n+new line\n" },
                "comment": "File /etc/motd.d updated", "duration": 12.345, "result": true, "__run_num__": number,
            }),
        );
    }
    states.into()
}

/// A frame of returns of 1 KiB appended to the spool, without what the kernel does.
fn append(batch: u64, times: u32) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let limits = Limits { reserve_bytes: 0, ..Limits::default() };
        let (spool, _) = Spool::open(dir.path(), limits).unwrap();
        let new = NewSink {
            plugin: "bench".into(),
            key: "0".into(),
            options: "{}".into(),
            label: None,
            facts: "{}".into(),
        };
        let sink = spool.sink(new).await.unwrap();
        for time in 0..u64::from(times) {
            let items = (0..batch).map(|at| NewItem {
                sink,
                kind: Kind::Return,
                jid: format!("20261201{:012}", time * batch + at),
                minion: "minion-1.example.com".into(),
                arrived_ms: 1_796_095_899_000,
                body: vec![b'x'; 1024],
            });
            let id = FrameId { at_ms: 1_796_095_899_000 + time, uid: [7; 16] };
            spool.append(NewFrame { id: Some(id), items: items.collect() }).await.unwrap();
        }
        spool.close().await;
    });
}
