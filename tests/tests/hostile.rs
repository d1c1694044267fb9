//! The hostile plugins, with load beside them; `make hostile` prints each case.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use returnerd_tests::hostile::hostile;

#[test]
fn hostile_plugins_harm_neither_the_daemon_nor_their_neighbours() {
    let outcome = hostile("", true);
    println!("{outcome}");
    assert!(outcome.is_good(), "{outcome}");
    assert!(outcome.passed >= 30, "{outcome}");
    let (acknowledged, _) = outcome.stored.unwrap();
    assert!(acknowledged > 100, "only {acknowledged} returns were handed over beside the cases");
}
