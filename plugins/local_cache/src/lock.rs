//! A lock among our own writers on one directory, in this process or another. Salt does not know it.

use std::path::Path;
use std::time::{Duration, Instant};

use returner_sdk::{Error, Result, tokio};

use crate::tree::Tree;

/// How long to wait for another writer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long to wait before asking again.
const PAUSE: Duration = Duration::from_millis(5);

/// The lock; dropping it releases it.
#[derive(Debug)]
pub struct Lock {
    _held: system::Held,
}

impl Lock {
    /// Takes the lock as soon as nobody else has it.
    pub async fn take(tree: &Tree) -> Result<Self> {
        let path = tree.work().join("lock");
        let deadline = Instant::now() + PATIENCE;
        let mut renewed = false;
        loop {
            match system::try_take(&path) {
                Ok(Some(held)) => return Ok(Self { _held: held }),
                Ok(None) if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
                Ok(None) => {
                    return Err(Error::retry(format!(
                        "another writer has held `{}` for {PATIENCE:?}",
                        path.display()
                    )));
                }
                // Salt's cleaner may have removed the directory.
                Err(_) if !renewed && !path.exists() => {
                    renewed = true;
                    tree.renew()?;
                }
                Err(why) => return Err(Error::retry(format!("cannot lock `{}`: {why}", path.display()))),
            }
        }
    }
}

fn make(path: &Path) -> Result<(), String> {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.map(|_| ()).map_err(|error| error.to_string())
}

#[cfg(target_family = "wasm")]
mod system {
    use std::path::Path;

    use returner_sdk::bindings::file_locks::{Error, File, Mode};

    pub type Held = File;

    /// None if somebody else holds it.
    pub fn try_take(path: &Path) -> Result<Option<Held>, String> {
        super::make(path)?;
        let file = File::open(&path.to_string_lossy()).map_err(|error| format!("{error:?}"))?;
        match file.lock(0, 1, Mode::Exclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Error::Busy) => Ok(None),
            Err(error) => Err(format!("{error:?}")),
        }
    }
}

#[cfg(not(target_family = "wasm"))]
mod system {
    use std::fs::{File, TryLockError};
    use std::path::Path;

    pub type Held = File;

    /// None if somebody else holds it.
    pub fn try_take(path: &Path) -> Result<Option<Held>, String> {
        super::make(path)?;
        let file = File::open(path).map_err(|error| error.to_string())?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error.to_string()),
        }
    }
}
