//! Salt's msgpack as JSON text: the rules of the contract, which plugins share.

pub use returner_msgpack::*;
