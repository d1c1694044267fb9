//! `make bench`: figures as lines `name value unit`, each claim a ratio of two things measured in the same run.
//!
//! The daemon is the release build, run as a process of its own; what stands behind it is a plugin that accepts everything, so
//! that the figures are the daemon's. `BENCH_ONLY=ack` runs one part.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement ends where a part fails"
)]

mod ack;
mod boundary;
mod drain;
mod growth;
mod spool;
mod startup;

use std::time::Duration;

fn main() {
    let only = std::env::var("BENCH_ONLY").ok().filter(|part| !part.is_empty());
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only == part);
    machine();
    if wanted("ack") {
        ack::run();
    }
    if wanted("spool") {
        spool::run();
    }
    if wanted("drain") {
        drain::run();
    }
    if wanted("boundary") {
        boundary::run();
    }
    growth::run(only.as_deref());
    startup::run(only.as_deref());
}

/// What it ran on: figures of different machines do not compare.
fn machine() {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("")
        .trim_start_matches(['\t', ':', ' ']);
    println!("# {cores} cores, {model}");
}

/// One figure.
fn figure(name: &str, value: f64, unit: &str) {
    println!("{name} {value:.3} {unit}");
}

/// The value below which `part` of the sorted times lie, in microseconds.
fn quantile(sorted: &[Duration], part: f64) -> f64 {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}
