//! Many plugins that do nothing: the daemon's start and its memory.

use std::fs;

use returnerd_tests::daemon::Daemon;
use returnerd_tests::env;

use super::lab::{memory_mib, renamed, serving};
use super::{exponent, goal};
use crate::figure;

const COUNTS: [u32; 4] = [0, 1, 10, 50];
/// The goal for 50 plugins.
const MOST_MIB: f64 = 300.0;

pub(crate) fn run() {
    let copies = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let probe = env::guest("probe");
    let (mut starts, mut memories) = (Vec::new(), Vec::new());
    for count in COUNTS {
        let mut daemon = Daemon::builder().prepare();
        for number in 0..count {
            let name = format!("p{number:04}");
            daemon.drop_plugin_file(&name, &renamed(&probe, "probe", &name, copies.path()));
        }
        // The first start compiles; what is measured is one with a warm cache.
        daemon.start();
        daemon.stop();
        let took = daemon.start().as_secs_f64() * 1e3;
        assert_eq!(serving(&mut daemon.client()).len(), count as usize);
        let memory = memory_mib(&daemon, "VmRSS");
        figure(&format!("plugins_{count}_start"), took, "ms");
        if count == 50 {
            goal("plugins_50_memory", memory, "MiB", MOST_MIB);
        } else {
            figure(&format!("plugins_{count}_memory"), memory, "MiB");
        }
        daemon.stop();
        if count > 0 {
            starts.push((f64::from(count), took));
            memories.push((f64::from(count), memory));
        }
    }
    exponent("plugins_start", &starts);
    exponent("plugins_memory", &memories);
    real();
}

/// The plugins as they are, side by side.
fn real() {
    let mut daemon = Daemon::builder().prepare();
    let mut count = 0;
    for entry in fs::read_dir(env::plugins_dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "wasm") {
            let name = path.file_stem().unwrap().to_str().unwrap();
            daemon.drop_plugin_file(name, &path);
            count += 1;
        }
    }
    daemon.start();
    daemon.stop();
    let took = daemon.start().as_secs_f64() * 1e3;
    figure("plugins_real", f64::from(count), "plugins");
    figure("plugins_real_start", took, "ms");
    figure("plugins_real_memory", memory_mib(&daemon, "VmRSS"), "MiB");
    daemon.stop();
}
