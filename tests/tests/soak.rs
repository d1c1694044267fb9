//! A short soak; `make soak` runs a longer one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::time::Duration;

use returnerd_tests::soak::soak;

#[test]
fn nothing_acknowledged_is_lost_or_doubled_by_crashes_of_any_part() {
    let seed = fastrand::u64(..);
    println!("soak: seed {seed}");
    let outcome = soak(Duration::from_secs(20), seed);
    println!("{outcome}");
    assert!(outcome.is_good(), "{outcome} (seed {seed})");
    assert!(outcome.dead > 0, "{outcome}: no return was too large");
}
