//! What Salt says: the protocol with the shim, msgpack as JSON, returns and loads from every source made alike, options in Salt's order,
//! Salt's own configuration files, and the shim itself.
//!
#![doc = include_str!("protocol.md")]

pub mod config_files;
pub mod frame;
pub mod json;
pub mod options;
pub mod records;
pub mod shim;
