//! Our plugins make of the same records what Salt's own returners make, or better by a listed reason; see `tests/compat`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use returnerd_tests::compat;

fn is_nowhere_worse(name: &str) {
    let output = compat::compare(name);
    assert!(output.code == 0 && output.stdout.contains(" 0 worse"), "{output}");
}

#[test]
fn mysql_is_nowhere_worse_than_salts() {
    is_nowhere_worse("mysql");
}

#[test]
fn pgjsonb_is_nowhere_worse_than_salts() {
    is_nowhere_worse("pgjsonb");
}

#[test]
fn postgres_is_nowhere_worse_than_salts() {
    is_nowhere_worse("postgres");
}

#[test]
fn redis_is_nowhere_worse_than_salts() {
    is_nowhere_worse("redis");
}

#[test]
fn sqlite3_is_nowhere_worse_than_salts() {
    is_nowhere_worse("sqlite3");
}

#[test]
fn local_cache_is_nowhere_worse_than_salts() {
    is_nowhere_worse("local_cache");
}
