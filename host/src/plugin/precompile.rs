//! Compiling a plugin in a process of its own, which fills the compile cache and ends.
//!
//! Compiling a large component takes a hundred megabytes for seconds, of which the allocator would give little back to the
//! system: the daemon would stay that large. What is compiled is read from the cache by the daemon as usual. Where the child fails
//! the daemon compiles by itself, and so tells why.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::engine::{EngineError, Host};
use super::file::{FileError, PluginFile};

/// The hidden command of the child, with the cache directory after it.
pub const COMMAND: [&str; 2] = ["plugin", "precompile"];

/// A compilation that takes longer is given up; the largest plugin known takes a tenth of it on one slow core.
const WITHIN: Duration = Duration::from_secs(300);

/// Marks what was compiled, by the file's hash, so that a child is started once for each.
fn marker(cache_dir: &Path, file: &PluginFile) -> PathBuf {
    cache_dir.join(format!("{}-{}.compiled", file.sha256, env!("CARGO_PKG_VERSION")))
}

/// Why the child did not do it.
#[derive(Debug, thiserror::Error)]
pub enum PrecompileError {
    /// A file or the child itself.
    #[error("cannot compile in a process of its own")]
    Io(#[from] std::io::Error),
    /// It took too long.
    #[error("compiling took longer than {WITHIN:?}")]
    Timeout,
    /// It said why on its stderr.
    #[error("the compiling process failed: {0}")]
    Failed(std::process::ExitStatus),
    /// The child's side: the bytes are no plugin.
    #[error(transparent)]
    File(#[from] FileError),
    /// The child's side: it does not compile.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Has `program`, which is returnerd, compile a plugin into the cache, unless that was done before. Blocks.
///
/// # Errors
/// If it does not succeed; the caller can still compile by itself.
pub fn in_child(program: &Path, cache_dir: &Path, file: &PluginFile) -> Result<(), PrecompileError> {
    let marker = marker(cache_dir, file);
    if marker.exists() {
        return Ok(());
    }
    let mut child = Command::new(program)
        .args(COMMAND)
        .arg(cache_dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that died early closes the pipe; its status says more.
        let _ = stdin.write_all(&file.bytes);
    }
    let until = Instant::now() + WITHIN;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() >= until => {
                child.kill()?;
                child.wait()?;
                return Err(PrecompileError::Timeout);
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    if !status.success() {
        return Err(PrecompileError::Failed(status));
    }
    std::fs::write(marker, "")?;
    Ok(())
}

/// The child's side: compiles what comes on stdin.
///
/// # Errors
/// If it is no plugin or does not compile.
pub fn child(cache_dir: &Path) -> Result<(), PrecompileError> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes)?;
    let file = PluginFile::from_bytes(Path::new("-"), bytes)?;
    Host::new(Some(cache_dir))?.compile(&file)?;
    Ok(())
}
