//! `make hostile`: see `returnerd_tests::hostile`. `HOSTILE_LOAD=1` adds producers to a store, `HOSTILE_ONLY=text` picks cases.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "it ends with a message if a part fails"
)]

use std::process::ExitCode;

use returnerd_tests::hostile::hostile;

fn main() -> ExitCode {
    let only = std::env::var("HOSTILE_ONLY").unwrap_or_default();
    let load = std::env::var("HOSTILE_LOAD").is_ok_and(|text| !text.is_empty() && text != "0");
    let outcome = hostile(&only, load);
    println!("{outcome}");
    if outcome.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
