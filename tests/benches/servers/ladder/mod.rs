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

use crate::figures::{Rate, chosen, figure, quantile, row};
use records::Returns;
use rungs::{Engine, Native, Rung};
use system::System;

const BATCHES: [usize; 3] = [1, 100, 1_000];
/// How long each rung works at each size of batch.
const WINDOW: Duration = Duration::from_millis(1_600);
/// How long it works before it is the next one's turn.
const TURN: Duration = Duration::from_millis(200);

pub(crate) fn run() {
    for name in ["mysql", "pgjsonb", "redis", "sqlite3"] {
        if !chosen("BENCH_SYSTEMS", name) {
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
    for batch in BATCHES.into_iter().filter(|batch| chosen("BENCH_BATCHES", &batch.to_string())) {
        let mut rungs: Vec<(&str, Box<dyn Rung>)> =
            vec![("native", Box::new(Native::open(system))), ("engine", Box::new(Engine::open(system)))];
        if let Some(driver) = driver::open(system) {
            rungs.push(("driver", driver));
        }
        system.clear();
        let rates = in_turn(&mut rungs, batch, &mut returns);
        let handed_over: usize = rates.iter().map(|rate| rate.handed_over).sum();
        let names: Vec<&str> = rungs.iter().map(|(rung, _)| *rung).collect();
        drop(rungs);
        assert_eq!(system.count(), handed_over, "all returns of `{name}` are stored");
        let natives = rates[0].by_round();
        let native = quantile(&mut natives.clone(), 0.5);
        let report = |rung: &str, rate: f64, ratio: f64| {
            figure(&format!("ladder_{name}_{rung}_{batch}"), rate, "per_s");
            figure(&format!("ladder_{name}_{rung}_to_native_{batch}"), ratio, "ratio");
            row(&[rung, &batch.to_string(), &format!("{rate:.0}"), &format!("{ratio:.2}")]);
        };
        for (rung, turns) in names.iter().zip(&rates) {
            // Of each round by itself: a disk that is slow for a while is so for both.
            let mut found = turns.by_round();
            let mut ratios: Vec<f64> =
                found.iter().zip(&natives).map(|(rate, native)| rate / native).collect();
            report(rung, quantile(&mut found, 0.5), quantile(&mut ratios, 0.5));
        }
        for (rung, place) in [("daemon_memory", whole::Place::Memory), ("daemon_disk", whole::Place::Disk)] {
            system.clear();
            if let Some(found) = whole::rate(system, place, batch, native, &mut returns) {
                report(rung, found.stored, found.stored / native);
                figure(&format!("ladder_{name}_{rung}_accepted_{batch}"), found.accepted, "per_s");
                for (part, time) in ["daemon", "server", "clients"].iter().zip(found.cpu) {
                    let name = format!("ladder_{name}_{rung}_cpu_{part}_{batch}");
                    figure(&name, time.as_secs_f64() * 1e6, "us_per_return");
                }
            }
        }
    }
}

#[derive(Debug, Default, Clone)]
struct Turns {
    handed_over: usize,
    rounds: Vec<Rate>,
}

impl Turns {
    fn by_round(&self) -> Vec<f64> {
        self.rounds.iter().map(Rate::per_second).collect()
    }
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
            let mut rate = Rate::default();
            while busy < TURN && began.elapsed() < 2 * TURN {
                let took = rung.deliver(returns.next(batch));
                busy += took;
                turns.handed_over += batch;
                rate.add(batch, took);
            }
            if round > 0 {
                turns.rounds.push(rate);
            }
        }
    }
    all
}
