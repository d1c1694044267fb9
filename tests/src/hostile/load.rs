//! The load beside the hostile cases: producers that hand returns to the plugin `sqlite3` as fast as they are taken.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::json;

use super::lab::Lab;
use crate::env;
use crate::proc::run;
use crate::salt::SaltVersion;
use crate::wait::wait_for;

const PRODUCERS: usize = 3;

/// See the module.
pub struct Load {
    stop: Arc<AtomicBool>,
    producers: Vec<JoinHandle<Vec<String>>>,
    database: PathBuf,
}

impl Load {
    /// Starts the producers.
    pub fn start(lab: &Lab) -> Self {
        let directory = lab.daemon.root().join("store");
        std::fs::create_dir(&directory).unwrap();
        let database = directory.join("jobs.sqlite");
        let stop = Arc::new(AtomicBool::new(false));
        let producers = (0..PRODUCERS)
            .map(|producer| {
                let mut client = lab.daemon.client().with_opts(json!({ "sqlite3.database": database }));
                let stop = stop.clone();
                thread::spawn(move || {
                    let mut acknowledged = Vec::new();
                    for number in 0_u64.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let jid = format!("2026120{}{number:012}", 4 + producer);
                        let ret = json!({
                            "jid": jid, "id": "m1", "fun": "test.echo", "return": "x".repeat(500), "retcode": 0
                        });
                        if client.return_("sqlite3", ret).ok {
                            acknowledged.push(jid);
                        }
                        // Many, but not so many that the suite measures the disk.
                        thread::sleep(Duration::from_millis(2));
                    }
                    acknowledged
                })
            })
            .collect();
        Self { stop, producers, database }
    }

    /// Stops the producers, waits until the lane is empty, and gives how many were acknowledged and how many are stored.
    pub fn finish(self, lab: &Lab) -> (usize, usize) {
        self.stop.store(true, Ordering::Relaxed);
        let acknowledged: Vec<String> = self
            .producers
            .into_iter()
            .flat_map(|producer| producer.join().expect("returns are taken"))
            .collect();
        wait_for("the store's lane to run empty", Duration::from_secs(60), || {
            let status = lab.status();
            let mut sinks = status["sinks"].as_array().into_iter().flatten();
            sinks.any(|sink| sink["plugin"] == "sqlite3" && sink["waiting"] == 0)
        });
        let mut command = Command::new(env::salt_bin(SaltVersion::V3008.number()).join("python"));
        command
            .arg("-c")
            .arg(
                "import sqlite3, sys\n\
                 for (jid,) in sqlite3.connect(sys.argv[1], timeout=30).execute('SELECT jid FROM salt_returns'): print(jid)",
            )
            .arg(&self.database);
        let rows = run(&mut command, Duration::from_secs(60)).success();
        let rows: HashSet<&str> = rows.lines().collect();
        let found = acknowledged.iter().filter(|jid| rows.contains(jid.as_str())).count();
        (acknowledged.len(), found)
    }
}
