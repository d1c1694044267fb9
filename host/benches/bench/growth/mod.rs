//! The cost of growth: what time and memory do as plugins, sinks, the backlog, stored jobs and payloads become more.
//!
//! `BENCH_ONLY=growth` runs all of it, `growth-plugins`, `growth-sinks`, `growth-backlog`, `growth-jobs` or `growth-payload` one
//! part. Each series ends with its exponent: 1 is growth in proportion, 0 is none. Memory is the daemon's resident set.

mod backlog;
mod jobs;
pub(crate) mod lab;
mod payload;
mod plugins;
mod sinks;

use crate::figure;

const PARTS: [(&str, fn()); 5] = [
    ("growth-plugins", plugins::run),
    ("growth-sinks", sinks::run),
    ("growth-backlog", backlog::run),
    ("growth-jobs", jobs::run),
    ("growth-payload", payload::run),
];

pub(crate) fn run(only: Option<&str>) {
    for (part, run) in PARTS {
        if only.is_none_or(|only| only == part || only == "growth") {
            run();
        }
    }
}

/// The exponent between the first and the last point: how `y` grows with `x`, with 1 for growth in proportion.
fn exponent(name: &str, points: &[(f64, f64)]) {
    if let (Some(first), Some(last)) = (points.first(), points.last())
        && first.1 > 0.0
        && last.1 > 0.0
    {
        figure(&format!("{name}_exponent"), (last.1 / first.1).ln() / (last.0 / first.0).ln(), "power");
    }
}

/// A figure with a goal; a line that says so where it is missed.
fn goal(name: &str, value: f64, unit: &str, most: f64) {
    figure(name, value, unit);
    if value > most {
        println!("# {name} misses its goal of {most} {unit}");
    }
}
