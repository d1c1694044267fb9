//! Write a Salt returner plugin for returnerd.
//!
//! Implement [`Returner`], and [`JobCache`] or [`EventReturner`] where the outside system can do more, describe
//! the plugin in a `manifest.toml`, and name both in [`export!`]. Build with
//! `cargo build --target wasm32-wasip2`: the `.wasm` file is the plugin.
//!
//! Functions are async and run on a current-thread tokio runtime inside the sandbox; ordinary drivers work there,
//! as far as the operator granted them the network. Outside wasm the same code runs natively, for tests.

pub mod bindings;
mod error;
mod export;
#[cfg(feature = "http")]
pub mod http;
pub mod json;
mod load;
mod net;
mod returner;
pub mod rows;
mod session;
pub mod time;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "unix-datagrams")]
pub mod unix;

pub use bindings::jobs::exports::salt::returner::jobs::{
    JidsFilter, PurgeRequest, Purged, StoredLoad, StoredReturn,
};
pub use bindings::lifecycle::exports::salt::returner::lifecycle::Config;
pub use bindings::lifecycle::salt::returner::types::{
    Event, Failure, JobLoad, JobReturn, LoadKind, RetryInfo, Verdict,
};
pub use error::{Error, Result, chain};
pub use load::{clean_load, merge_load, stored_load};
pub use net::resolve;
pub use returner::{Context, EventReturner, JobCache, Returner};
#[cfg(feature = "msgpack")]
pub use returner_msgpack as msgpack;
pub use session::Session;
pub use {serde, serde_json, tokio};

/// What a plugin usually needs.
pub mod prelude {
    pub use crate::{
        Context, Error, Event, EventReturner, JidsFilter, JobCache, JobLoad, JobReturn, LoadKind,
        PurgeRequest, Purged, Result, Returner, StoredLoad, StoredReturn, Verdict,
    };
    pub use serde::Deserialize;
}

/// An option's text, if it says something: Salt's returners take an empty text and `none` for an option that is not set.
pub fn given(option: Option<String>) -> Option<String> {
    option.filter(|text| !text.is_empty() && !text.trim().eq_ignore_ascii_case("none"))
}

/// The verdicts of a batch that was stored as a whole.
pub fn all_stored<T>(records: &[T]) -> Vec<Verdict> {
    records.iter().map(|_| Verdict::Stored).collect()
}
