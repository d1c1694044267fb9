//! Reading a `.wasm` file without running it: what it is, what it says of itself, what it exports and imports.
//!
//! Invariants: a file is read once, and everything (hash, manifest, compilation) is of those bytes; native code (`.cwasm`,
//! whatever its name) is never accepted.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use wasmparser::{Encoding, Parser, Payload, Validator, WasmFeatures};

use super::limits::MAX_FILE;
use super::manifest::{Manifest, ManifestError};

/// The custom section that holds the manifest.
pub const MANIFEST_SECTION: &str = "returner-manifest";

/// The package and version of the interfaces that this host speaks.
pub const PACKAGE: &str = "salt:returner";
/// See [`PACKAGE`].
pub const PACKAGE_VERSION: &str = "0.1.0";

/// Why a file is no plugin.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It could not be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// It is not a regular file, or too large.
    #[error("`{}` {why}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It is no valid WebAssembly.
    #[error("`{}` is not valid WebAssembly; hint: copy it again, it may be cut short", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: wasmparser::BinaryReaderError,
    },
    /// Its manifest is missing or wrong.
    #[error("the manifest in `{}` cannot be used", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: ManifestError,
    },
}

/// What a plugin can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// Takes returns.
    pub returns: bool,
    /// Stores loads and answers questions.
    pub jobs: bool,
    /// Takes events.
    pub events: bool,
}

impl Interfaces {
    /// Their names, as the protocol and the shim use them.
    pub fn names(self) -> Vec<&'static str> {
        [(self.returns, "returns"), (self.jobs, "jobs"), (self.events, "events")]
            .into_iter()
            .filter_map(|(has, name)| has.then_some(name))
            .collect()
    }
}

/// A plugin file as read.
pub struct PluginFile {
    /// Where it was.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// SHA-256 of the bytes, in hex.
    pub sha256: String,
    /// What it says of itself.
    pub manifest: Manifest,
    /// What it exports of our package.
    pub interfaces: Interfaces,
    /// All it imports, by name.
    pub imports: BTreeSet<String>,
}

impl PluginFile {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        Self::from_bytes(path, read_bounded(path)?)
    }

    /// Checks bytes; `path` is for messages.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Self, FileError> {
        let unfit = |why: &str| FileError::Unfit { path: path.to_owned(), why: why.to_owned() };
        let invalid = |source| FileError::Invalid { path: path.to_owned(), source };
        if wasmtime::Engine::detect_precompiled(&bytes).is_some() || bytes.starts_with(b"\x7fELF") {
            return Err(unfit(
                "is native code; hint: only WebAssembly components are loaded, never precompiled files",
            ));
        }
        if !bytes.starts_with(b"\0asm") {
            return Err(unfit("is not a WebAssembly file"));
        }
        let mut manifests = Vec::new();
        let mut exports = BTreeSet::new();
        let mut imports = BTreeSet::new();
        let mut depth = 0_usize;
        for payload in Parser::new(0).parse_all(&bytes) {
            match payload.map_err(invalid)? {
                Payload::Version { encoding: Encoding::Module, .. } if depth == 0 => {
                    return Err(unfit(
                        "is a core module, not a component; hint: build it with `--target wasm32-wasip2`",
                    ));
                }
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::CustomSection(section) if section.name() == MANIFEST_SECTION => {
                    manifests.push(section.data());
                }
                Payload::ComponentExportSection(reader) if depth == 0 => {
                    for export in reader {
                        exports.insert(export.map_err(invalid)?.name.name.to_owned());
                    }
                }
                Payload::ComponentImportSection(reader) if depth == 0 => {
                    for import in reader {
                        imports.insert(import.map_err(invalid)?.name.name.to_owned());
                    }
                }
                _ => {}
            }
        }
        Validator::new_with_features(WasmFeatures::default()).validate_all(&bytes).map_err(invalid)?;

        let data = match manifests[..] {
            [data] => data,
            [] => return Err(unfit("has no manifest; hint: name one in `returner_sdk::export!`")),
            _ => return Err(unfit("has two manifests")),
        };
        let text = std::str::from_utf8(data).map_err(|_| unfit("has a manifest that is not UTF-8"))?;
        let manifest =
            Manifest::parse(text).map_err(|source| FileError::Manifest { path: path.to_owned(), source })?;

        let has = |name: &str| exports.contains(&format!("{PACKAGE}/{name}@{PACKAGE_VERSION}"));
        let interfaces = Interfaces { returns: has("returns"), jobs: has("jobs"), events: has("events") };
        if let Some(other) = exports
            .iter()
            .find(|e| e.starts_with(&format!("{PACKAGE}/")) && !e.ends_with(&format!("@{PACKAGE_VERSION}")))
        {
            return Err(unfit(&format!(
                "exports `{other}`, but this returnerd speaks {PACKAGE}@{PACKAGE_VERSION}; hint: use a plugin built for it"
            )));
        }
        if !has("lifecycle") || interfaces == Interfaces::default() {
            return Err(unfit(&format!(
                "is a component but no returner: it must export `{PACKAGE}/lifecycle@{PACKAGE_VERSION}` and one of `returns`, `jobs`, `events`"
            )));
        }
        if interfaces.jobs && !interfaces.returns {
            return Err(unfit("exports `jobs` without `returns`; a job cache has to take returns"));
        }
        let sha256 = hex(&Sha256::digest(&bytes));
        Ok(Self { path: path.to_owned(), sha256, manifest, interfaces, imports, bytes })
    }
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, FileError> {
    let error = |source| FileError::Read { path: path.to_owned(), source };
    // A pipe must not make this wait for somebody to write into it.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)
        .map_err(error)?;
    let metadata = file.metadata().map_err(error)?;
    let unfit = |why: String| Err(FileError::Unfit { path: path.to_owned(), why });
    if !metadata.is_file() {
        return unfit("is not a regular file".into());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len().min(MAX_FILE)).unwrap_or(0));
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(error)?;
    if bytes.len() as u64 > MAX_FILE {
        return unfit(format!("is larger than {MAX_FILE} bytes"));
    }
    Ok(bytes)
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(bytes: &[u8]) -> String {
        match PluginFile::from_bytes(Path::new("/p/x.wasm"), bytes.to_vec()) {
            Ok(_) => panic!("it was taken"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_is_no_component_is_refused_with_the_reason() {
        assert!(refused(b"hello").contains("not a WebAssembly file"));
        assert!(refused(b"\x7fELF\x02\x01\x01").contains("native code"));
        assert!(refused(&wat::parse_str("(module)").unwrap()).contains("core module"));
        assert!(refused(&wat::parse_str("(component)").unwrap()).contains("no manifest"));
        let component = wat::parse_str("(component (core module (func (export \"x\"))))").unwrap();
        assert!(refused(&component[..component.len() - 3]).contains("not valid"));
    }

    #[test]
    fn a_component_that_exports_nothing_of_ours_is_no_returner() {
        let manifest = "name = \\\"t\\\"\\nversion = \\\"1.0.0\\\"\\nsummary = \\\"t\\\"\\n";
        let text = format!("(component (@custom \"returner-manifest\" \"{manifest}\"))");
        assert!(refused(&wat::parse_str(&text).unwrap()).contains("no returner"));
    }
}
