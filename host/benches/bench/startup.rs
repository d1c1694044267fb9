//! `BENCH_ONLY=startup`: from a plugin's file to its service, for a small guest and for a large one.
//!
//! *cold* has nothing compiled, *warm* has the compiled code in its cache, *reload* is another version put in place of one that
//! serves. Each time begins with the rename that puts the file in place and ends with the first return that was stored.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use returnerd_tests::client::Client;
use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;
use returnerd_tests::mariadb::{MariaDb, installed};
use serde_json::{Value, json};

use crate::figure;
use crate::growth::lab::{a_return, memory_mib, replace, stored};

const ROUNDS: u32 = 3;
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn run(only: Option<&str>) {
    if only.is_some_and(|only| only != "startup") {
        return;
    }
    one("probe", &env::guest("probe"), &json!({}));
    if installed().is_none() {
        eprintln!("SKIPPED: `mariadbd` is not installed");
        return;
    }
    let server = MariaDb::start(&[]);
    let opts = json!({ "mysql.host": "127.0.0.1", "mysql.port": server.port() });
    one("mysql", &env::plugin("mysql"), &opts);
}

fn one(name: &str, file: &Path, opts: &Value) {
    let versions = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    figure(&format!("startup_{name}_size"), fs::metadata(file).unwrap().len() as f64 / 1024.0, "KiB");
    let mut sums: [Vec<(f64, f64)>; 3] = Default::default();
    let mut memory = 0.0;
    for round in 0..ROUNDS {
        let version = |number: u32| {
            let mut bytes = fs::read(file).unwrap();
            let old = "version = \"0.1.0\"\n";
            replace(&mut bytes, old, &format!("version = \"{number}.{round}.0\"\n"));
            let path = versions.path().join(format!("{number}-{round}.wasm"));
            fs::write(&path, bytes).unwrap();
            path
        };
        let (first, second) = (version(1), version(2));
        let mut daemon = Daemon::builder().prepare();
        own_cache(&daemon);
        daemon.start();
        let mut lane = Lane { client: daemon.client().with_opts(opts.clone()), name, sent: 0 };
        let mut drop_and_wait = |daemon: &Daemon, file: &PathBuf, version: u32| {
            let began = Instant::now();
            daemon.drop_plugin_file(name, file);
            let serves = lane.until_served(&format!("{version}.{round}.0"), began);
            let delivered = lane.until_delivered(began);
            (serves, delivered)
        };
        let cold = drop_and_wait(&daemon, &first, 1);
        daemon.remove_plugin(name);
        sleep(Duration::from_secs(1));
        let warm = drop_and_wait(&daemon, &first, 1);
        let reload = drop_and_wait(&daemon, &second, 2);
        for (sum, point) in sums.iter_mut().zip([cold, warm, reload]) {
            sum.push(point);
        }
        memory = memory_mib(&daemon, "VmRSS");
        drop(lane);
        daemon.stop();
    }
    for (what, mut points) in ["cold", "warm", "reload"].into_iter().zip(sums) {
        points.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (serves, delivered) = points[points.len() / 2];
        figure(&format!("startup_{name}_{what}_serves"), serves, "ms");
        figure(&format!("startup_{name}_{what}_delivered"), delivered, "ms");
    }
    figure(&format!("startup_{name}_memory"), memory, "MiB");
}

/// A cache that nothing else fills.
fn own_cache(daemon: &Daemon) {
    let cache = daemon.root().join("state/cache");
    fs::remove_file(&cache).unwrap();
}

struct Lane<'a> {
    client: Client,
    name: &'a str,
    sent: u64,
}

impl Lane<'_> {
    /// Milliseconds until this version is what serves.
    fn until_served(&mut self, version: &str, began: Instant) -> f64 {
        loop {
            let status = crate::growth::lab::status(&mut self.client);
            let serving = status["plugins"].as_array().unwrap();
            if serving.iter().any(|plugin| plugin["name"] == self.name && plugin["version"] == version) {
                return began.elapsed().as_secs_f64() * 1e3;
            }
            assert!(began.elapsed() < LIMIT, "`{}` does not serve: {status}", self.name);
            sleep(Duration::from_millis(2));
        }
    }

    /// Milliseconds until a return that is sent now is stored.
    fn until_delivered(&mut self, began: Instant) -> f64 {
        self.client.return_(self.name, a_return(self.sent, "x")).done();
        self.sent += 1;
        while stored(&mut self.client) < self.sent {
            assert!(began.elapsed() < LIMIT, "`{}` delivers nothing", self.name);
            sleep(Duration::from_millis(2));
        }
        began.elapsed().as_secs_f64() * 1e3
    }
}
