//! The job cache on disk: by itself, with Salt's own functions of two releases on the same directory, and with other writers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

#[path = "files/basic.rs"]
mod basic;
#[path = "files/many.rs"]
mod many;
#[path = "files/purge.rs"]
mod purge;
#[path = "files/salt.rs"]
mod salt;
#[path = "files/support.rs"]
mod support;
#[path = "files/writers.rs"]
mod writers;
