//! Writing so that a file, or a directory with all that is in it, appears at once: it is made beside our own files, put on disk there,
//! and then renamed into its place.
//!
//! A rename would also replace a directory that is empty. Salt makes its directories empty and could be about to make a file in what is
//! no more. So a minion's directory is made as Salt makes it, and then replaced by the full one. A job's is only renamed where none is
//! seen; Salt could still make one between the look and the rename, and then does it again. Making it empty would be worse: Salt's
//! cleaner removes what has no file `jid`, with all that was put there meanwhile.
//!
//! Each file is synchronised before it is renamed, as otherwise a crash could leave an empty one, which would stand for the first
//! return. The directories are synchronised at the end of a batch, each once. The file `jid` is not: what it says can be read from the
//! load or a return.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use returner_sdk::{Error, Result};

use crate::tree::{JID, Tree, at, is_missing};

/// How the names of directories begin in which something is made.
pub const NEW: &str = "new-";

/// How long the files of a batch may take.
const LONG: Duration = Duration::from_secs(15);

/// How often something is tried that others undo meanwhile.
pub const ROUNDS: u32 = 5;

/// A place to make things, for one batch.
#[derive(Debug)]
pub struct Stage<'a> {
    tree: &'a Tree,
    place: PathBuf,
    count: Cell<u32>,
    changed: BTreeSet<PathBuf>,
    began: Instant,
}

impl<'a> Stage<'a> {
    /// An empty place.
    pub fn new(tree: &'a Tree) -> Result<Self> {
        tree.renew()?;
        let place = tree.work().join(format!("{NEW}{:016x}", random()));
        fs::create_dir(&place).map_err(at(&place))?;
        Ok(Self { tree, place, count: Cell::new(0), changed: BTreeSet::new(), began: Instant::now() })
    }

    /// Fails when the batch has taken so long that the rest had better come again: on a disk that others keep busy a
    /// synchronisation can take a hundred times as long as usual, and a call that takes too long is cut off.
    pub fn in_time(&self) -> Result<()> {
        if self.began.elapsed() < LONG {
            return Ok(());
        }
        Err(Error::retry(format!("the disk of `{}` is slow", self.tree.root().display())))
    }

    fn next(&self) -> PathBuf {
        self.count.set(self.count.get() + 1);
        self.place.join(self.count.get().to_string())
    }

    /// A new directory.
    pub fn directory(&self) -> Result<PathBuf> {
        let path = self.next();
        fs::create_dir(&path).map_err(at(&path))?;
        Ok(path)
    }

    /// Makes the job's directory if it is missing, with its file `jid`; says whether it was missing.
    pub fn job(&mut self, jid: &str) -> Result<bool> {
        let job = self.tree.job(jid);
        let mark = job.join(JID);
        for _ in 0..ROUNDS {
            if mark.exists() {
                return Ok(false);
            }
            let new = self.directory()?;
            fs::write(new.join(JID), jid).map_err(at(&new))?;
            let shard = job.parent().unwrap_or(self.tree.root());
            if make(shard).map_err(at(shard))? {
                self.changed.insert(self.tree.root().to_owned());
            }
            // Salt makes the directory first and the file in it later, or never.
            let placed = if job.exists() {
                link(&new.join(JID), &mark)
            } else {
                fs::rename(&new, &job).map(|()| true)
            };
            match placed {
                Ok(true) => {
                    self.changed.insert(shard.to_owned());
                    self.changed.insert(job);
                    return Ok(true);
                }
                Ok(false) => {}
                // Somebody made the directory meanwhile, or removed the one around it.
                Err(error) if is_taken(&error) || is_missing(&error) => {}
                Err(error) => return Err(at(&job)(error)),
            }
        }
        Err(Error::retry(format!("`{}`: others keep removing the directory", job.display())))
    }

    /// Puts a file with this content into the job's directory, in place of one of that name.
    pub fn replace(&mut self, jid: &str, name: &str, content: &[u8]) -> Result<()> {
        let file = self.next();
        write(&file, content)?;
        let target = self.tree.job(jid).join(name);
        let mut renamed = fs::rename(&file, &target);
        if renamed.as_ref().is_err_and(is_missing) {
            self.job(jid)?;
            renamed = fs::rename(&file, &target);
        }
        renamed.map_err(at(&target))?;
        self.changed(jid);
        Ok(())
    }

    /// The same, but says no if there is one of that name.
    pub fn add(&mut self, jid: &str, name: &str, content: &[u8]) -> Result<bool> {
        let file = self.next();
        write(&file, content)?;
        let target = self.tree.job(jid).join(name);
        let mut added = link(&file, &target);
        if added.as_ref().is_err_and(is_missing) {
            self.job(jid)?;
            added = link(&file, &target);
        }
        let added = added.map_err(at(&target))?;
        if added {
            self.changed(jid);
        }
        Ok(added)
    }

    /// Notes that the job's directory has new names in it.
    pub fn changed(&mut self, jid: &str) {
        self.changed.insert(self.tree.job(jid));
    }

    /// Sees that all that was renamed is on disk under its name.
    pub fn finish(self) -> Result<()> {
        for path in &self.changed {
            match File::open(path).and_then(|directory| directory.sync_all()) {
                Ok(()) => {}
                // It was removed again, or the file system does not synchronise directories.
                Err(error) if is_missing(&error) => {}
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {}
                Err(error) => return Err(at(path)(error)),
            }
        }
        Ok(())
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // What stays is removed by a later `open`.
        let _ = fs::remove_dir_all(&self.place);
    }
}

/// Writes a file and puts it on disk.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(content)?;
        file.sync_data()
    };
    write().map_err(at(path))
}

/// Makes a directory; says no if there is one.
fn make(path: &Path) -> io::Result<bool> {
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives a file a second name; says no if something has that name.
fn link(file: &Path, target: &Path) -> io::Result<bool> {
    match fs::hard_link(file, target) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(_) if target.exists() => Ok(false),
        // Some file systems have no links.
        Err(_) => fs::rename(file, target).map(|()| true),
    }
}

/// Whether a directory could not be renamed because its new name is that of another that is not empty.
pub fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists)
}

/// A number that nobody else has.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
