//! The plugin's own code, run natively against a real Redis.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "server/connection.rs"]
mod connection;
#[path = "server/purge.rs"]
mod purge;
#[path = "server/queries.rs"]
mod queries;
#[path = "server/returns.rs"]
mod returns;
#[path = "server/support.rs"]
mod support;
#[path = "server/throughput.rs"]
mod throughput;
