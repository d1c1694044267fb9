//! Where a job lies, and what may stand there.
//!
//! The directory of a job is the hash of its jid, cut after two digits: `<directory>/e7/b0c4…`. Our own files lie in
//! `<directory>/.returnerd/work`: Salt's readers and its cleaner take that for the directory of one more job, without a load, and leave
//! it alone as long as its file `jid` is young. If the cleaner does remove it, only an index is lost that can be built anew.
//!
//! Invariant: no name that came with a record becomes a path unless `minion_name` or `jid_name` let it pass.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use returner_sdk::{Error, Result};
use serde::Deserialize;
use sha2::Digest;

/// The job's id as text.
pub const JID: &str = "jid";
/// An empty file: the job's returns are not to be kept.
pub const NOCACHE: &str = "nocache";
/// When the job ended, as text.
pub const ENDTIME: &str = "endtime";
/// The load.
pub const LOAD: &str = ".load.p";
/// The expected minions.
pub const MINIONS: &str = ".minions.p";
/// A minion's return, in the directory of its name.
pub const RETURN: &str = "return.p";
/// The outputter of a minion's return.
pub const OUT: &str = "out.p";

/// What our own files lie in, as seen from the directory of the jobs.
const WORK: &str = ".returnerd/work";

/// The file `jid` of our own directory is renewed when it is older.
const RENEW_AFTER: Duration = Duration::from_secs(300);

/// The hash that names the directories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Hash {
    Md5,
    Sha1,
    Sha224,
    #[default]
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// The digest in hex.
    pub fn of(self, text: &str) -> String {
        fn hex<D: Digest>(text: &str) -> String {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            let digest = D::digest(text.as_bytes());
            let digits = digest.iter().flat_map(|byte| [byte >> 4, byte & 15]);
            digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
        }
        match self {
            Self::Md5 => hex::<md5::Md5>(text),
            Self::Sha1 => hex::<sha1::Sha1>(text),
            Self::Sha224 => hex::<sha2::Sha224>(text),
            Self::Sha256 => hex::<sha2::Sha256>(text),
            Self::Sha384 => hex::<sha2::Sha384>(text),
            Self::Sha512 => hex::<sha2::Sha512>(text),
        }
    }
}

/// The directory of the jobs.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    hash: Hash,
    renewed: Cell<Option<Instant>>,
}

impl Tree {
    /// Looks whether the directory is there.
    pub fn open(directory: &str, hash: Hash) -> Result<Self> {
        let root = PathBuf::from(directory);
        if !root.is_absolute() {
            return Err(Error::fatal(format!(
                "the option `local_cache.directory` is `{directory}`; hint: it must be an absolute path"
            )));
        }
        let tree = Self { root, hash, renewed: Cell::new(None) };
        let there = fs::read_dir(&tree.root).map(|_| ());
        there.map_err(|error| {
            Error::retry(format!(
                "the directory `{directory}` of the jobs cannot be used: {error}; hint: it must exist, belong to the daemon's user, and \
                 be granted by the option `local_cache.directory` or by `allow = [\"dir://{directory}\"]` in `[plugin.local_cache]`"
            ))
        })?;
        tree.renew()?;
        Ok(tree)
    }

    /// The directory of the jobs.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The hash that names the directories.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The directory of a job.
    pub fn job(&self, jid: &str) -> PathBuf {
        let digest = self.hash.of(jid);
        let (shard, rest) = digest.split_at(2);
        self.root.join(shard).join(rest)
    }

    /// The directory of our own files.
    pub fn work(&self) -> PathBuf {
        self.root.join(WORK)
    }

    /// Makes the directory of our own files if it is missing, and keeps it from looking old.
    pub fn renew(&self) -> Result<()> {
        let work = self.work();
        let fresh = self.renewed.get().is_some_and(|at| at.elapsed() < RENEW_AFTER);
        if fresh && work.join(JID).exists() {
            return Ok(());
        }
        let renew = || {
            fs::create_dir_all(&work)?;
            fs::write(work.join(JID), "no job: files of returnerd that can be built anew\n")
        };
        // Salt's cleaner removes a directory that has no such file yet.
        renew().or_else(|_| renew()).map_err(at(&work))?;
        self.renewed.set(Some(Instant::now()));
        Ok(())
    }
}

/// Why a minion's id cannot be the name of a directory here.
pub fn minion_name(id: &str) -> Result<()> {
    let why = if id.is_empty() || id == "." || id == ".." || id.contains(['/', '\0']) {
        "it is no file name"
    } else if id.len() > 255 {
        "it is longer than 255 bytes"
    } else if id.starts_with('.') {
        "Salt passes over names that begin with a dot"
    } else if [JID, NOCACHE, ENDTIME].contains(&id) {
        "the job has a file of that name"
    } else {
        return Ok(());
    };
    Err(Error::reject(format!("the id `{}` cannot be stored: {why}", id.escape_debug())))
}

/// Why a text cannot be a job's id here.
pub fn jid_name(jid: &str) -> Result<()> {
    if !jid.is_empty() && jid.len() <= 1_024 && !jid.contains(char::is_control) {
        return Ok(());
    }
    Err(Error::reject(format!(
        "the jid `{}` cannot be stored: it is not a short text in one line",
        jid.escape_debug()
    )))
}

/// An error of a file: what could be mended there is tried again.
pub fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |error| Error::retry(format!("`{path}`: {error}"))
}

/// The same where a missing file is no error.
pub fn optional<T>(path: &Path, result: io::Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

/// Whether an error says that there is no such file.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The names in a directory; none if it is missing. What is no Unicode is none of ours.
pub fn names(path: &Path) -> Result<Option<Vec<String>>> {
    let Some(entries) = optional(path, fs::read_dir(path))? else { return Ok(None) };
    let mut names = Vec::new();
    for entry in entries {
        let Some(entry) = optional(path, entry)? else { return Ok(None) };
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(Some(names))
}

/// When a file was last written, in milliseconds since 1970; none if it is missing.
pub fn modified_ms(path: &Path) -> Result<Option<u64>> {
    let Some(metadata) = optional(path, fs::metadata(path))? else { return Ok(None) };
    let time = metadata.modified().map_err(at(path))?;
    Ok(Some(since_1970(time).as_millis().try_into().unwrap_or(u64::MAX)))
}

/// The time since 1970.
pub fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_lies_where_salt_looks_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_str().unwrap();
        let job = |hash| {
            let tree = Tree::open(root, hash).unwrap();
            tree.job("20260110080000000001").strip_prefix(root).unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(&job(Hash::Sha256)[..3], "e7/");
        assert_eq!(job(Hash::Sha256).len(), 65);
        assert_eq!(job(Hash::Md5).len(), 33);
    }

    #[test]
    fn names_that_are_no_file_names_are_refused() {
        for id in ["", ".", "..", "a/b", "/", "a\0", ".load.p", ".hidden", "jid", "nocache", "endtime"] {
            assert!(matches!(minion_name(id), Err(Error::Reject(_))), "{id:?}");
        }
        assert!(matches!(minion_name(&"x".repeat(256)), Err(Error::Reject(_))));
        for id in ["m1", "web1.example.com", "a b", "ä", "..a", "return.p"] {
            assert_eq!(minion_name(id).is_ok(), !id.starts_with('.'), "{id:?}");
        }
        for jid in ["", "a\nb", "a\tb"] {
            assert!(matches!(jid_name(jid), Err(Error::Reject(_))), "{jid:?}");
        }
        assert!(jid_name("20260110080000000001_77").is_ok());
    }
}
