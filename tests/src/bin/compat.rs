//! `make compat`: compares plugins with Salt's own returners; arguments are the names of returners, none for all.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "it ends with a message if a part fails"
)]

use returnerd_tests::compat::{NAMES, compare};

fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let mut worse = false;
    let mut lines = Vec::new();
    for name in NAMES {
        if given.is_empty() || given.iter().any(|other| other == name) {
            let output = compare(name);
            eprint!("{}", output.stderr);
            worse |= output.code != 0;
            lines.push(output.stdout);
        }
    }
    print!("{}", lines.concat());
    std::process::exit(i32::from(worse));
}
