//! returnerd: keeps Salt returns safe and hands them to sandboxed returner plugins.
//!
//! Data flows one way: `intake` → `spool` → `dispatch` → sink (a `plugin` with its options). `salt` knows what Salt says,
//! `policy` what a plugin may reach, `observe` what the operator sees, `cli` what the operator says.

pub mod cli;
pub mod config;
pub mod daemon;
pub mod dispatch;
pub mod intake;
pub mod item;
pub mod observe;
pub mod plugin;
pub mod policy;
pub mod salt;
pub mod spool;
mod trust;
