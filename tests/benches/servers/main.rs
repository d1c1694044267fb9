//! The part of `make bench` that needs real servers or a real Salt: figures as lines `name value unit`, each claim a ratio of two
//! things measured in the same run; lines for people begin with `#`.
//!
//! `BENCH_ONLY=ladder` runs one part, `BENCH_ONLY=ladder,coupling` two. A part whose server is not installed says so and is left out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "a measurement ends where a part fails, and counts are far from 2^53"
)]

mod coupling;
mod figures;
mod ladder;
mod salt;

fn main() {
    let wanted = |part: &str| figures::chosen("BENCH_ONLY", part);
    let parts: [(&str, fn()); 3] =
        [("ladder", ladder::run), ("salt", salt::run), ("coupling", coupling::run)];
    if !parts.iter().any(|(name, _)| wanted(name)) {
        return;
    }
    print!("{}", returnerd_tests::machine::describe(&std::env::temp_dir()));
    for (name, part) in parts {
        if wanted(name) {
            let began = std::time::Instant::now();
            part();
            println!("# {name} took {:.0} s", began.elapsed().as_secs_f64());
        }
    }
}
