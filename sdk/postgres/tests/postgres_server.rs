//! What the plugins for PostgreSQL do, run natively against a real server: both flavours, on tables of their own and on
//! those that Salt's documentation has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "postgres_server/concurrency.rs"]
mod concurrency;
#[path = "postgres_server/connection.rs"]
mod connection;
#[path = "postgres_server/purge.rs"]
mod purge;
#[path = "postgres_server/queries.rs"]
mod queries;
#[path = "postgres_server/returns.rs"]
mod returns;
#[path = "postgres_server/support.rs"]
mod support;
#[path = "postgres_server/throughput.rs"]
mod throughput;
#[path = "postgres_server/tls.rs"]
mod tls;
#[path = "postgres_server/values.rs"]
mod values;
