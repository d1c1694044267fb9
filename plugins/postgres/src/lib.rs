//! The returner `postgres`: returns, loads and events in PostgreSQL as text, exactly as Salt sent them.
//!
//! All of it is in `returner-sdk-postgres`; this names the type of documents and the manifest.

use returner_sdk_postgres::{Store, Text};

/// An open store.
pub type Db = Store<Text>;

returner_sdk::export!(Db: returns, jobs, events, "manifest.toml");
