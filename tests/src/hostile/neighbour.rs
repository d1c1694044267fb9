//! The well-behaved sink: a return at a time, each timed from its acknowledgement to its delivery.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Client, from_json};
use crate::daemon::Daemon;

/// Between two returns.
const PAUSE: Duration = Duration::from_millis(25);

/// A delivery that takes longer counts as "does not go on".
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    delivered: AtomicU64,
    slowest: Mutex<Duration>,
}

/// See the module.
pub struct Neighbour {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Starts to hand returns to the plugin `probe`.
    pub fn start(daemon: &Daemon) -> Self {
        let shared = Arc::new(Shared::default());
        let client = daemon.client();
        let thread = thread::spawn({
            let shared = shared.clone();
            move || run(client, &shared)
        });
        let neighbour = Self { shared, thread: Some(thread) };
        // Its instance is made and opened before anything hostile happens.
        neighbour.must_go_on(0).unwrap();
        neighbour
    }

    /// Returns delivered up to now.
    pub fn delivered(&self) -> u64 {
        self.shared.delivered.load(Ordering::Relaxed)
    }

    /// Waits for a delivery beyond `before` of a return that was handed over afterwards.
    pub fn must_go_on(&self, before: u64) -> Result<(), String> {
        let began = Instant::now();
        // One may have been under way.
        while self.delivered() < before + 2 {
            if began.elapsed() > LIMIT {
                return Err(format!("the neighbour delivered nothing for {LIMIT:?}"));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Ends and gives the time of the slowest delivery.
    pub fn finish(&mut self) -> Duration {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the neighbour's returns are taken");
        }
        *self.shared.slowest.lock().unwrap()
    }
}

fn run(mut client: Client, shared: &Shared) {
    for number in 0_u64.. {
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let jid = format!("20261203{number:012}");
        let ret = json!({ "jid": jid, "id": "m1", "fun": "test.ping", "return": true, "retcode": 0 });
        let taken = client.return_("probe", ret).json();
        let began = Instant::now();
        let ask = json!({ "v": 1, "op": "admin", "command": "verdict", "args": { "seqs": taken["seqs"] } });
        while client.ask(&from_json(&ask)).json()[0]["state"] != "stored" {
            assert!(began.elapsed() < 6 * LIMIT, "the neighbour delivers no more");
            sleep(Duration::from_millis(2));
        }
        let mut slowest = shared.slowest.lock().unwrap();
        *slowest = slowest.max(began.elapsed());
        drop(slowest);
        shared.delivered.fetch_add(1, Ordering::Relaxed);
        sleep(PAUSE);
    }
}
