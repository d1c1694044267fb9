//! The plugin's own code, run natively against a real rsyslog.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "syslog_server/connection.rs"]
mod connection;
#[path = "syslog_server/messages.rs"]
mod messages;
#[path = "syslog_server/support.rs"]
mod support;
