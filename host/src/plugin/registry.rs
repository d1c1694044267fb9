//! Which plugins there are. Watches the plugins directory; a single task does every load and unload, so two never race.
//!
//! Invariants: a file is judged by its content, not by its times; what is looked up is swapped in one step; a file that cannot be
//! loaded stays visible with its error, and what it would have replaced goes on serving.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use notify::Watcher;
use tokio::sync::{mpsc, watch};

use super::Plugin;
use super::engine::{EngineError, Host};
use super::file::{FileError, PluginFile};
use super::instance::Exports;
use crate::config::Config;

/// A change of the directory is looked at after this much quiet, so that a file is not read while it is copied.
const SETTLE: Duration = Duration::from_millis(150);

/// How long a directory that never gets quiet can put off a look.
const SETTLE_AT_MOST: Duration = Duration::from_millis(600);

/// The directory is looked at this often anyway: not every file system tells of changes.
const RESCAN: Duration = Duration::from_secs(5);

/// Why a plugin is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The directory cannot be read.
    #[error("cannot read the plugins directory `{}`; hint: `returnerd init` makes it", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Others may write to the directory or file.
    #[error("`{}` {how}", path.display())]
    Writable {
        /// The directory or file.
        path: PathBuf,
        /// How they may.
        how: String,
    },
    /// The file is no plugin.
    #[error(transparent)]
    File(#[from] FileError),
    /// It does not compile or link.
    #[error("cannot load `{}`", path.display())]
    Engine {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: EngineError,
    },
    /// Its name is not its manifest's.
    #[error("`{}` says that it is the plugin `{name}`; hint: a plugin's file has its name, so call it `{name}.wasm`", path.display())]
    Name {
        /// The file.
        path: PathBuf,
        /// The name in the manifest.
        name: String,
    },
    /// A name is taken.
    #[error("`{}` claims the name `{name}`, which belongs to `{other}`", path.display())]
    Taken {
        /// The file.
        path: PathBuf,
        /// The name or alias.
        name: String,
        /// The plugin that has it.
        other: String,
    },
    /// The file is not the pinned one.
    #[error("`{}` has the SHA-256 {found}, but `sha256` in `[plugin.{name}]` of returnerd.toml is {pinned}", path.display())]
    Pin {
        /// The file.
        path: PathBuf,
        /// The plugin's name.
        name: String,
        /// What the file has.
        found: String,
        /// What it should have.
        pinned: String,
    },
    /// Every plugin must be pinned, and this one is not.
    #[error("`{}` is not pinned and `require_pin` is set; hint: `sha256 = \"{found}\"` in `[plugin.{name}]` of returnerd.toml would allow it", path.display())]
    Unpinned {
        /// The file.
        path: PathBuf,
        /// The plugin's name.
        name: String,
        /// What the file has.
        found: String,
    },
}

/// A file of the directory, for lists.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The file.
    pub path: PathBuf,
    /// Why it is not loaded, if so.
    pub error: Option<String>,
    /// Whether a plugin of this file is serving (perhaps an earlier version of it).
    pub serving: bool,
}

#[derive(Default)]
struct Known {
    stamp: Option<Stamp>,
    sha256: Option<String>,
    plugin: Option<Arc<Plugin>>,
    error: Option<String>,
}

/// Cheap signs that a file may have changed; its content decides.
#[derive(PartialEq, Eq, Clone, Copy)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The plugins of a directory.
pub struct Registry {
    host: Host,
    config: ArcSwap<Config>,
    names: ArcSwap<HashMap<String, Arc<Plugin>>>,
    files: Mutex<BTreeMap<PathBuf, Known>>,
    directory_error: Mutex<Option<String>>,
    /// The program that compiles apart, and the cache it fills.
    apart: Option<(PathBuf, PathBuf)>,
    generation: AtomicU64,
    changed: watch::Sender<u64>,
}

impl Registry {
    /// A registry that has looked at nothing yet.
    pub fn new(host: Host, config: Arc<Config>) -> Self {
        Self {
            host,
            config: ArcSwap::from(config),
            names: ArcSwap::default(),
            files: Mutex::default(),
            directory_error: Mutex::default(),
            apart: None,
            generation: AtomicU64::new(0),
            changed: watch::channel(0).0,
        }
    }

    /// Compiles in a process of its own: `program` is returnerd, `cache_dir` the engine's cache.
    #[must_use]
    pub fn compiling_apart(mut self, program: PathBuf, cache_dir: PathBuf) -> Self {
        self.apart = Some((program, cache_dir));
        self
    }

    /// The engine the plugins run in.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// A plugin by its name or one of its other names.
    pub fn find(&self, name: &str) -> Option<Arc<Plugin>> {
        self.names.load().get(name).cloned()
    }

    /// All plugins that serve, by name.
    pub fn plugins(&self) -> Vec<Arc<Plugin>> {
        let mut plugins: Vec<_> =
            self.names.load().iter().filter(|(n, p)| *n == p.name()).map(|(_, p)| p.clone()).collect();
        plugins.sort_by(|a, b| a.name().cmp(b.name()));
        plugins
    }

    /// All names that can be asked for.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.names.load().keys().cloned().collect();
        names.sort();
        names
    }

    /// All files of the directory and what became of them.
    pub fn files(&self) -> Vec<Listed> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files
            .iter()
            .map(|(path, known)| Listed {
                path: path.clone(),
                error: known.error.clone(),
                serving: known.plugin.is_some(),
            })
            .collect()
    }

    /// Why the directory as a whole is not used, if so.
    pub fn directory_error(&self) -> Option<String> {
        self.directory_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells of every change of what serves.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Takes a new configuration; pins and settings count from the next look on.
    pub fn reconfigure(&self, config: Arc<Config>) {
        self.config.store(config);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for known in files.values_mut() {
            known.stamp = None;
            known.sha256 = None;
        }
    }

    /// Looks at the directory once and loads and unloads what changed. Only the watching task calls it after start.
    pub fn scan(&self) {
        let config = self.config.load_full();
        let found = match list(&config.plugins_dir) {
            Ok(found) => found,
            Err(error) => {
                let text = crate::observe::chain(&error);
                let mut slot = self.directory_error.lock().unwrap_or_else(PoisonError::into_inner);
                if slot.as_ref() != Some(&text) {
                    tracing::error!("{text}");
                    *slot = Some(text);
                }
                return;
            }
        };
        *self.directory_error.lock().unwrap_or_else(PoisonError::into_inner) = None;

        let mut changed = false;
        let gone: Vec<PathBuf> = {
            let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            files.keys().filter(|path| !found.contains_key(*path)).cloned().collect()
        };
        for path in gone {
            let known = self.files.lock().unwrap_or_else(PoisonError::into_inner).remove(&path);
            if let Some(plugin) = known.and_then(|known| known.plugin) {
                tracing::info!(plugin = plugin.name(), "plugin unloaded, its file is gone");
                changed = true;
                self.publish();
            }
        }
        for (path, stamp) in found {
            let (old_stamp, old_sha) = {
                let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                files.get(&path).map_or((None, None), |known| (known.stamp, known.sha256.clone()))
            };
            if old_stamp == Some(stamp) {
                continue;
            }
            changed |= self.load(&config, &path, stamp, old_sha.as_deref());
        }
        if changed {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Loads one file; tells whether what serves has changed.
    fn load(&self, config: &Config, path: &Path, stamp: Stamp, old_sha: Option<&str>) -> bool {
        let result = self.try_load(config, path, old_sha);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let known = files.entry(path.to_owned()).or_default();
        known.stamp = Some(stamp);
        match result {
            Ok(None) => false,
            Ok(Some(plugin)) => {
                tracing::info!(
                    plugin = plugin.name(),
                    version = plugin.manifest.version,
                    interfaces = plugin.interfaces.names().join(","),
                    "plugin loaded"
                );
                known.sha256 = Some(plugin.sha256.clone());
                known.plugin = Some(Arc::new(plugin));
                known.error = None;
                drop(files);
                self.publish();
                true
            }
            Err(error) => {
                let text = crate::observe::chain(&error);
                if known.plugin.is_some() {
                    tracing::error!("{text}; the version before goes on serving");
                } else {
                    tracing::error!("{text}");
                }
                known.sha256 = None;
                known.error = Some(text);
                false
            }
        }
    }

    fn try_load(
        &self,
        config: &Config,
        path: &Path,
        old_sha: Option<&str>,
    ) -> Result<Option<Plugin>, LoadError> {
        refuse_writable(path)?;
        let file = PluginFile::read(path)?;
        if old_sha == Some(&file.sha256) {
            return Ok(None);
        }
        check_identity(config, &file)?;
        let owned = self.names.load();
        for name in std::iter::once(&file.manifest.name).chain(&file.manifest.aliases) {
            if let Some(other) = owned.get(name)
                && other.path != path
            {
                return Err(LoadError::Taken {
                    path: path.to_owned(),
                    name: name.clone(),
                    other: other.path.display().to_string(),
                });
            }
        }
        let engine = |source| LoadError::Engine { path: path.to_owned(), source };
        if let Some((program, cache_dir)) = &self.apart
            && let Err(error) = super::precompile::in_child(program, cache_dir, &file)
        {
            tracing::debug!(path = %path.display(), "{}", crate::observe::chain(&error));
        }
        let pre = self.host.compile(&file).map_err(engine)?;
        let exports = Exports::new(pre, file.interfaces).map_err(|e| engine(EngineError::Link(e)))?;
        Ok(Some(Plugin {
            manifest: file.manifest,
            interfaces: file.interfaces,
            sha256: file.sha256,
            path: file.path,
            loaded_at: SystemTime::now(),
            generation: self.generation.fetch_add(1, Ordering::Relaxed) + 1,
            exports: Arc::new(exports),
        }))
    }

    /// Makes the look-up table anew from what the files gave.
    fn publish(&self) {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = HashMap::new();
        for plugin in files.values().filter_map(|known| known.plugin.as_ref()) {
            for alias in &plugin.manifest.aliases {
                names.entry(alias.clone()).or_insert_with(|| plugin.clone());
            }
        }
        for plugin in files.values().filter_map(|known| known.plugin.as_ref()) {
            names.insert(plugin.name().to_owned(), plugin.clone());
        }
        self.names.store(Arc::new(names));
    }
}

/// Watches the directory until `stop` closes. A message on `rescan` asks for a look now.
pub async fn watch(registry: Arc<Registry>, mut rescan: mpsc::Receiver<()>, mut stop: watch::Receiver<bool>) {
    let (wake, mut woken) = mpsc::channel::<()>(1);
    let directory = registry.config.load().plugins_dir.clone();
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading a file is an event too and must not cause another look.
        if !matches!(
            event,
            Ok(notify::Event {
                kind: notify::EventKind::Access(
                    notify::event::AccessKind::Open(_)
                        | notify::event::AccessKind::Close(notify::event::AccessMode::Read)
                ),
                ..
            })
        ) {
            let _ = wake.try_send(());
        }
    });
    let mut watcher = watcher
        .inspect_err(|error| tracing::warn!(%error, "cannot watch for plugins; looking every few seconds"))
        .ok();
    let mut watching = false;
    loop {
        if let (false, Some(watcher)) = (watching, watcher.as_mut()) {
            watching = watcher.watch(&directory, notify::RecursiveMode::NonRecursive).is_ok();
        }
        tokio::select! {
            _ = stop.changed() => return,
            _ = tokio::time::sleep(RESCAN) => {}
            request = rescan.recv() => if request.is_none() { return },
            event = woken.recv() => {
                if event.is_none() { return }
                let deadline = tokio::time::Instant::now() + SETTLE_AT_MOST;
                while tokio::time::timeout(SETTLE, woken.recv()).await.is_ok() {
                    if tokio::time::Instant::now() >= deadline { break }
                }
            }
        }
        let registry = registry.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || registry.scan()).await {
            tracing::error!(%error, "looking at the plugins directory failed");
        }
    }
}

/// Checks a file's name and pin, which need no engine.
pub fn check_identity(config: &Config, file: &PluginFile) -> Result<(), LoadError> {
    let name = &file.manifest.name;
    let path = file.path.clone();
    if file.path.file_stem().and_then(|stem| stem.to_str()) != Some(name) {
        return Err(LoadError::Name { path, name: name.clone() });
    }
    match config.plugin(name).sha256 {
        Some(pinned) if !pinned.eq_ignore_ascii_case(&file.sha256) => {
            Err(LoadError::Pin { path, name: name.clone(), found: file.sha256.clone(), pinned })
        }
        None if config.require_pin => {
            Err(LoadError::Unpinned { path, name: name.clone(), found: file.sha256.clone() })
        }
        _ => Ok(()),
    }
}

/// The plugin files of a directory that only its owner can write to.
fn list(directory: &Path) -> Result<BTreeMap<PathBuf, Stamp>, LoadError> {
    let error = |source| LoadError::Directory { path: directory.to_owned(), source };
    refuse_writable(directory)?;
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).map_err(error)? {
        let path = entry.map_err(error)?.path();
        let hidden = path.file_name().and_then(|name| name.to_str()).is_none_or(|name| name.starts_with('.'));
        if hidden || path.extension().is_none_or(|extension| extension != "wasm") {
            continue;
        }
        // A file that vanishes meanwhile is simply not there.
        if let Ok(metadata) = std::fs::metadata(&path) {
            let stamp = Stamp {
                inode: metadata.ino(),
                size: metadata.size(),
                modified: (metadata.mtime(), metadata.mtime_nsec()),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            };
            found.insert(path, stamp);
        }
    }
    Ok(found)
}

fn refuse_writable(path: &Path) -> Result<(), LoadError> {
    let metadata =
        std::fs::metadata(path).map_err(|source| LoadError::Directory { path: path.to_owned(), source })?;
    match crate::trust::foreign(&metadata) {
        Some(how) => Err(LoadError::Writable { path: path.to_owned(), how }),
        None => Ok(()),
    }
}
