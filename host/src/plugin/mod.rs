//! Plugins: the engine they run in, their files and manifests, the registry that loads and unloads them, and their instances.
//!
//! Invariants: a plugin is one `.wasm` component named after its manifest; one task does every load and unload; a broken file never
//! displaces a working plugin; instances hold on to the generation they were made from until they are closed.

pub(crate) mod bindings;
mod convert;
pub mod engine;
pub mod file;
pub mod instance;
pub mod limits;
pub mod manifest;
pub mod measure;
pub mod pool;
pub mod precompile;
pub mod reason;
pub mod registry;
mod state;
pub mod stdio;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use self::file::Interfaces;
use self::instance::Exports;
use self::manifest::Manifest;

/// A plugin that is loaded: one generation of it.
pub struct Plugin {
    /// What it says of itself.
    pub manifest: Manifest,
    /// What it can do.
    pub interfaces: Interfaces,
    /// The file's SHA-256 in hex.
    pub sha256: String,
    /// The file it was read from.
    pub path: PathBuf,
    /// When it was loaded.
    pub loaded_at: SystemTime,
    /// Counts the loads of the process; a sink opens new instances when it changes.
    pub generation: u64,
    pub(crate) exports: Arc<Exports>,
}

impl Plugin {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.manifest.name
    }
}
