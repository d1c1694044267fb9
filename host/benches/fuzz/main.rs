//! `make fuzz`: mutates a corpus against what reads foreign bytes, for a bounded time, on a stable compiler.
//!
//! There is no coverage to steer by; an input whose outcome (the error's text without its numbers) was not seen before joins the
//! corpus in memory instead. A panic, a broken promise or an input that takes long ends the run with the input in a file; such a
//! find then becomes a unit test beside the code. `FUZZ_SECONDS` sets how long, `FUZZ_SEED` repeats a run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a find is a panic")]

mod mutate;
mod targets;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mutate::Mutator;

/// An input that takes longer is a find: the largest is 64 KiB, and the build is not optimised.
const SLOW: Duration = Duration::from_secs(5);

/// Inputs that are kept of one target.
const MOST_KEPT: usize = 2_000;

fn main() -> ExitCode {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("FUZZ_SECONDS").unwrap_or(60);
    let seed = number("FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("fuzz: {seconds} s, seed {seed}");
    let share = Duration::from_secs(seconds) / targets::ALL.len() as u32;
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus");
    let mut finds = 0;
    for (name, target) in targets::ALL {
        match fuzz(&corpus.join(name), *target, share, seed) {
            Ok((runs, outcomes)) => {
                println!("{name:<10} {runs:>9} inputs, {outcomes:>4} different outcomes, no find")
            }
            Err((input, why)) => {
                finds += 1;
                let path = std::env::temp_dir().join(format!("returnerd-fuzz-{name}-{seed}"));
                std::fs::write(&path, &input).expect("the find can be kept");
                println!("{name:<10} FOUND in {} bytes, kept in `{}`: {why}", input.len(), path.display());
            }
        }
    }
    println!("fuzz: {finds} finds");
    if finds == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

type Find = (Vec<u8>, String);

/// Gives the inputs tried and the outcomes seen.
fn fuzz(corpus: &Path, target: targets::Target, share: Duration, seed: u64) -> Result<(u64, usize), Find> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(corpus).expect("the corpus is there").map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut kept: Vec<Vec<u8>> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(!kept.is_empty(), "`{}` has no files", corpus.display());
    let mut outcomes = HashSet::new();
    let mut mutator = Mutator::new(seed);
    for input in kept.clone() {
        outcomes.insert(run(target, &input)?);
    }
    let began = Instant::now();
    let mut runs = 0;
    while began.elapsed() < share {
        let input = mutator.mutated(&kept);
        let outcome = run(target, &input)?;
        runs += 1;
        if kept.len() < MOST_KEPT && outcomes.insert(outcome) {
            kept.push(input);
        }
    }
    Ok((runs, outcomes.len()))
}

fn run(target: targets::Target, input: &[u8]) -> Result<String, Find> {
    let began = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| target(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        (input.to_vec(), text.unwrap_or_else(|| "it panicked".into()))
    })?;
    let took = began.elapsed();
    if took > SLOW {
        return Err((input.to_vec(), format!("it took {took:?}")));
    }
    Ok(outcome.chars().filter(|c| !c.is_ascii_digit()).take(120).collect())
}
