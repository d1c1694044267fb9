//! `make soak`: see `returnerd_tests::soak`. `SOAK_SECONDS` sets how long (300), `SOAK_SEED` repeats the moments of an earlier run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "it ends with a message if a part fails"
)]

use std::process::ExitCode;
use std::time::Duration;

use returnerd_tests::soak::soak;

fn main() -> ExitCode {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("SOAK_SECONDS").unwrap_or(300);
    let seed = number("SOAK_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("soak: {seconds} s, seed {seed}");
    let outcome = soak(Duration::from_secs(seconds), seed);
    println!("{outcome}");
    if outcome.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
