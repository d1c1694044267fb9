//! What the end-to-end tests are made of: a real Salt, a real daemon, a raw client of its socket.
//!
//! Everything started here listens on loopback with ports of its own, lives in a scratch directory, and ends with the
//! value that stands for it, also when the test fails or its process is killed. Nothing is skipped quietly: what is
//! missing panics with the command that brings it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "support for tests")]

pub mod certificates;
pub mod client;
pub mod compat;
pub mod conformance;
pub mod daemon;
pub mod env;
pub mod hostile;
pub mod machine;
pub mod mariadb;
pub mod options_table;
pub mod plugin_records;
pub mod postgresql;
pub mod proc;
pub mod proxy;
pub mod records;
pub mod redis;
pub mod rsyslog;
pub mod salt;
pub mod salt_config;
pub mod slack;
pub mod soak;
pub mod wait;
pub mod web;
