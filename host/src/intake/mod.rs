//! The daemon's listening side: the socket, the inbox, and what is done with a request.
//!
//! Invariants: a hand-over is answered after its items are on disk; a question never makes a hand-over wait; a request that cannot be
//! understood costs only its sender.

mod admin;
pub mod handle;
pub mod inbox;
mod known;
mod places;
pub mod server;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::config::Config;
use crate::dispatch::Dispatch;
use crate::observe::Throttle;
use crate::salt::frame::Seen;
use crate::salt::records::Ids;

/// Different warnings that are kept in mind; jobs could make up any number.
const MAX_WARNED: usize = 1_000;

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// It cannot be bound.
    #[error("cannot listen on `{}`", path.display())]
    Bind {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Another daemon is there.
    #[error("another daemon listens on `{}` already", .0.display())]
    Taken(PathBuf),
    /// The group does not exist.
    #[error("there is no group `{0}`; hint: `intake.group` in returnerd.toml names the group of the socket")]
    Group(String),
    /// The group cannot be set.
    #[error("cannot give `{}` to the group `{group}`", path.display())]
    Chown {
        /// The socket or directory.
        path: PathBuf,
        /// The group.
        group: String,
        /// The reason.
        source: std::io::Error,
    },
}

/// What is done with requests.
pub struct Intake {
    dispatch: Arc<Dispatch>,
    rescan: mpsc::Sender<()>,
    ids: Ids,
    known: known::Known,
    seen: Seen,
    /// Holds back floods of like refusals.
    throttle: Throttle,
    started: Instant,
    /// Warnings about options that were said already, by plugin.
    warned: Mutex<HashSet<String>>,
    /// What was lately said about files of the inbox that wait, so as not to say it again every two seconds.
    inbox_said: Mutex<HashMap<String, Instant>>,
}

impl Intake {
    /// A side for these lanes.
    pub fn new(dispatch: Arc<Dispatch>, rescan: mpsc::Sender<()>, node: u16) -> Self {
        Self {
            dispatch,
            rescan,
            ids: Ids::new(node),
            known: known::Known::default(),
            seen: Seen::default(),
            throttle: Throttle::default(),
            started: Instant::now(),
            warned: Mutex::default(),
            inbox_said: Mutex::default(),
        }
    }

    /// The configuration as last read.
    pub fn config(&self) -> Arc<Config> {
        self.dispatch.shared().config.load_full()
    }

    /// The lanes.
    pub fn dispatch(&self) -> &Arc<Dispatch> {
        &self.dispatch
    }

    /// Says what is odd about a plugin's options, once in the life of the daemon.
    fn warn_once(&self, plugin: &str, warning: &str) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() < MAX_WARNED && warned.insert(format!("{plugin}: {warning}")) {
            tracing::warn!(plugin, "{warning}");
        }
    }

    /// A file of the inbox cannot be taken now; it is tried again.
    fn inbox_waits(&self, path: &Path, why: &str) {
        let mut said = self.inbox_said.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        said.retain(|_, at| now.duration_since(*at) < Duration::from_secs(60));
        if said.insert(why.to_owned(), now).is_none() {
            tracing::warn!(path = %path.display(), "a file of the inbox waits: {why}");
        }
    }
}

/// Gives a file to a group, by the group's name.
pub fn give_to_group(path: &Path, group: &str) -> Result<(), IntakeError> {
    let found = nix::unistd::Group::from_name(group)
        .ok()
        .flatten()
        .ok_or_else(|| IntakeError::Group(group.to_owned()))?;
    nix::unistd::chown(path, None, Some(found.gid)).map_err(|errno| IntakeError::Chown {
        path: path.to_owned(),
        group: group.to_owned(),
        source: errno.into(),
    })
}
