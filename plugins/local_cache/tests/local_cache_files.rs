//! The job cache on disk: by itself, with Salt's own functions of two releases on the same directory, and with other writers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

#[path = "support/mod.rs"]
mod support;

#[path = "cases/basic.rs"]
mod basic;
#[path = "cases/purge.rs"]
mod purge;
#[path = "cases/salt.rs"]
mod salt;
#[path = "cases/writers.rs"]
mod writers;
#[path = "cases/many.rs"]
mod many;
