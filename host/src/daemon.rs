//! The daemon as a whole: puts the parts together, handles signals, and stops in order.
//!
//! Order of the stop: no new connections or inbox files; lanes finish their call within a limit; the spool closes cleanly. What was
//! accepted and not delivered stays in the spool.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::config::{Config, DeadOverflow};
use crate::dispatch::{Dispatch, Shared};
use crate::intake::{self, Intake, IntakeError};
use crate::observe::chain;
use crate::plugin::engine::{EngineError, Host};
use crate::plugin::registry::{self, Registry};
use crate::spool::{DeadPolicy, Spool, SpoolError};

/// Why the daemon could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// A directory.
    #[error("cannot use the directory `{}`; hint: `returnerd init` makes the directories", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A directory of secrets or native code that others may write to.
    #[error("the directory `{}` {how}", path.display())]
    Writable {
        /// The directory.
        path: PathBuf,
        /// How they may.
        how: String,
    },
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The spool.
    #[error("cannot open the spool")]
    Spool(#[from] SpoolError),
    /// The socket.
    #[error(transparent)]
    Intake(#[from] IntakeError),
    /// Signals.
    #[error("cannot wait for signals")]
    Signals(#[source] std::io::Error),
}

/// Open files of 100 plugins at their limits, and the connections of Salt.
const OPEN_FILES: u64 = 65_536;

/// The directory of compiled plugins: native code, so nobody else may write to it.
pub fn cache_dir(config: &Config) -> PathBuf {
    config.state_dir.join("cache")
}

/// The directory of the spool.
pub fn spool_dir(config: &Config) -> PathBuf {
    config.state_dir.join("spool")
}

/// Makes a directory that only the daemon's user can enter, or checks that nobody else can write to it.
pub fn private_dir(path: &Path) -> Result<(), DaemonError> {
    let error = |source| DaemonError::Directory { path: path.to_owned(), source };
    if !path.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(error)?;
    }
    match crate::trust::foreign(&std::fs::metadata(path).map_err(error)?) {
        Some(how) => Err(DaemonError::Writable { path: path.to_owned(), how }),
        None => Ok(()),
    }
}

/// Runs until SIGTERM or SIGINT. The lanes run on a runtime of their own.
pub async fn run(config: Config, lanes: Handle) -> Result<(), DaemonError> {
    let started = Instant::now();
    let config = Arc::new(config);
    private_dir(&config.state_dir)?;
    private_dir(&cache_dir(&config))?;
    raise_open_files();
    let mut terminate = signal(SignalKind::terminate()).map_err(DaemonError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(DaemonError::Signals)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(DaemonError::Signals)?;

    let (spool, recovery) = Spool::open(spool_dir(&config), spool_limits(&config))?;
    for line in recovery.lines() {
        tracing::error!("{line}");
    }
    let host = Host::new(Some(&cache_dir(&config)))?;
    let mut registry = Registry::new(host, config.clone());
    if let Ok(program) = std::env::current_exe() {
        registry = registry.compiling_apart(program, cache_dir(&config));
    }
    let registry = Arc::new(registry);
    let first_look = registry.clone();
    if let Err(error) = tokio::task::spawn_blocking(move || first_look.scan()).await {
        tracing::error!(%error, "looking at the plugins directory failed");
    }

    let (stop, stopped) = watch::channel(false);
    let (rescan, rescans) = mpsc::channel(1);
    let watcher = tokio::spawn(registry::watch(registry.clone(), rescans, stopped.clone()));
    let shared = Arc::new(Shared {
        config: ArcSwap::from(config.clone()),
        registry: registry.clone(),
        spool: spool.clone(),
    });
    let dispatch = Dispatch::start(shared.clone(), stopped.clone(), lanes);
    let intake = Arc::new(Intake::new(dispatch.clone(), rescan.clone(), node(&config)?));
    let listener = intake::server::bind(&config)?;
    let server = tokio::spawn(intake::server::serve(listener, intake.clone(), stopped.clone()));
    let inbox = tokio::spawn(intake::inbox::watch(intake.clone(), stopped.clone()));
    tracing::info!(
        socket = %config.socket.display(),
        plugins = registry.plugins().len(),
        ready_after_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "ready"
    );

    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => reload(&shared, &rescan).await,
        }
    }
    tracing::info!("stopping");
    let _ = stop.send(true);
    let limit = shared.config.load().delivery.stop_within;
    let _ =
        tokio::time::timeout(Duration::from_secs(5), async { tokio::join!(server, inbox, watcher) }).await;
    dispatch.finish(limit).await;
    spool.close().await;
    let _ = std::fs::remove_file(&config.socket);
    tracing::info!("stopped");
    Ok(())
}

/// Raises the limit of open files as far as it may be raised: the usual soft limit of 1,024 is for programs that use `select`, and one
/// plugin's files and sockets must not be all that the daemon can have.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let wanted = hard.min(OPEN_FILES);
        if wanted > soft { setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Rereads `returnerd.toml`. A file with a fault changes nothing.
async fn reload(shared: &Shared, rescan: &mpsc::Sender<()>) {
    let before = shared.config.load_full();
    match Config::load(&before.path) {
        Ok(config) => {
            for (key, old, new) in [
                ("state_dir", &before.state_dir, &config.state_dir),
                ("socket", &before.socket, &config.socket),
                ("plugins_dir", &before.plugins_dir, &config.plugins_dir),
                ("inbox", &before.inbox, &config.inbox),
            ] {
                if old != new {
                    tracing::warn!("`{key}` changed; hint: it takes effect when the daemon is started anew");
                }
            }
            let config = Arc::new(config);
            // In this order: the next look loads every plugin anew, and what then opens must find the new settings.
            shared.config.store(config.clone());
            shared.registry.reconfigure(config);
            let _ = rescan.send(()).await;
            tracing::info!("configuration reread");
        }
        Err(error) => tracing::error!("the configuration is kept as it was: {}", chain(&error)),
    }
}

/// The number of this daemon in the ids of events: 10 bits, drawn once and then kept.
fn node(config: &Config) -> Result<u16, DaemonError> {
    let path = config.state_dir.join("node");
    let known = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    match known {
        Some(node) if node < 1 << 10 => Ok(node),
        _ => {
            let node = fastrand::u16(..1 << 10);
            std::fs::write(&path, format!("{node}\n"))
                .map_err(|source| DaemonError::Directory { path, source })?;
            Ok(node)
        }
    }
}

fn spool_limits(config: &Config) -> crate::spool::Limits {
    crate::spool::Limits {
        max_bytes: config.spool.max_size,
        max_dead_bytes: config.spool.max_dead_size,
        dead_policy: match config.spool.dead_overflow {
            DeadOverflow::Export => DeadPolicy::Export(config.state_dir.join("dead")),
            DeadOverflow::Refuse => DeadPolicy::Refuse,
        },
        ..crate::spool::Limits::default()
    }
}
