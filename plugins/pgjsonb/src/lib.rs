//! The returner `pgjsonb`: returns, loads and events in PostgreSQL as `jsonb`, which SQL can look into.
//!
//! All of it is in `returner-sdk-postgres`; this names the type of documents and the manifest.

use returner_sdk_postgres::{Jsonb, Store};

/// An open store.
pub type Db = Store<Jsonb>;

returner_sdk::export!(Db: returns, jobs, events, "manifest.toml");
