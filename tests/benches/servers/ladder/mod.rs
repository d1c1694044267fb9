//! The ladder: the same returns into the same server, over one connection, from a native program up to the whole daemon.
//!
//! The rungs of one system take turns of a fraction of a second, so that what disk and processor do meanwhile hits all of them. The
//! daemon's rungs come after, each with as many clients at once as a batch has returns: a lane makes its own batches of what waits.

mod driver;
mod records;
mod rungs;
mod system;
mod whole;

use std::time::{Duration, Instant};

use crate::figures::{Rate, figure, row};
use records::Returns;
use rungs::{Engine, Native, Rung};
use system::System;

const BATCHES: [usize; 3] = [1, 100, 1_000];
/// How long each rung works at each size of batch.
const WINDOW: Duration = Duration::from_millis(1_600);
/// How long it works before it is the next one's turn.
const TURN: Duration = Duration::from_millis(200);

pub(crate) fn run() {
    let only = std::env::var("BENCH_SYSTEMS").unwrap_or_default();
    for name in ["mysql", "pgjsonb", "redis", "sqlite3"] {
        if !only.is_empty() && !only.split(',').any(|only| only == name) {
            continue;
        }
        match System::start(name) {
            Some(system) => one(&system),
            None => println!("# SKIPPED: ladder of `{name}`: its server is not installed"),
        }
    }
}

fn one(system: &System) {
    let name = system.name();
    row(&[&format!("{name}, returns a second"), "batch", "rows/s", "of native"]);
    let mut returns = Returns::default();
    for batch in BATCHES {
        let mut rungs: Vec<(&str, Box<dyn Rung>)> =
            vec![("native", Box::new(Native::open(system))), ("engine", Box::new(Engine::open(system)))];
        if let Some(driver) = driver::open(system) {
            rungs.push(("driver", driver));
        }
        system.clear();
        let rates = in_turn(&mut rungs, batch, &mut returns);
        let handed_over: usize = rates.iter().map(|rate| rate.handed_over).sum();
        drop(rungs);
        assert_eq!(system.count(), handed_over, "all returns of `{name}` are stored");
        let native = rates[0].timed.per_second();
        let report = |rung: &str, rate: f64| {
            figure(&format!("ladder_{name}_{rung}_{batch}"), rate, "per_s");
            figure(&format!("ladder_{name}_{rung}_to_native_{batch}"), rate / native, "ratio");
            row(&[rung, &batch.to_string(), &format!("{rate:.0}"), &format!("{:.2}", rate / native)]);
        };
        report("native", native);
        report("engine", rates[1].timed.per_second());
        if let Some(driver) = rates.get(2) {
            report("driver", driver.timed.per_second());
        }
        for (rung, place) in [("daemon_memory", whole::Place::Memory), ("daemon_disk", whole::Place::Disk)] {
            system.clear();
            if let Some(found) = whole::rate(system, place, batch, native, &mut returns) {
                report(rung, found.stored);
                figure(&format!("ladder_{name}_{rung}_accepted_{batch}"), found.accepted, "per_s");
            }
        }
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Turns {
    handed_over: usize,
    timed: Rate,
}

fn in_turn(rungs: &mut [(&str, Box<dyn Rung>)], batch: usize, returns: &mut Returns) -> Vec<Turns> {
    let mut all = vec![Turns::default(); rungs.len()];
    // The first round warms up.
    let rounds = WINDOW.as_millis() / TURN.as_millis();
    for round in 0..=rounds {
        for ((_, rung), turns) in rungs.iter_mut().zip(&mut all) {
            let began = Instant::now();
            // Making the records is no part of the work.
            let mut busy = Duration::ZERO;
            while busy < TURN && began.elapsed() < 2 * TURN {
                let took = rung.deliver(returns.next(batch));
                busy += took;
                turns.handed_over += batch;
                if round > 0 {
                    turns.timed.add(batch, took);
                }
            }
        }
    }
    all
}
