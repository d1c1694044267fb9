//! Removing old jobs, a bounded number of records at a time.
//!
//! A job is as old as its jid says, or its file `jid` where the jid holds no time. It goes when all its returns are old too, each by the
//! time its file was written. Its directory is first moved away and looked at once more, so that a return which came meanwhile is
//! moved back instead of being removed. What vanishes while this goes on is passed over.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use returner_sdk::time::jid_ms;
use returner_sdk::{PurgeRequest, Purged, Result};

use crate::index::Index;
use crate::stage::{NEW, is_taken, random};
use crate::tree::{self, JID, RETURN, Tree, at, is_missing, modified_ms};

/// How the names of directories begin that are being removed.
const OLD: &str = "old-";

/// How long the list of jobs may take to be brought up to date.
const REFRESH_WITHIN: Duration = Duration::from_secs(20);
/// What others were making this long ago they do not go on with.
const LEFT_AFTER_MS: u64 = 3_600_000;

/// Removes old jobs.
pub async fn purge(tree: &Tree, index: &mut Index, request: &PurgeRequest) -> Result<Purged> {
    index.refresh(tree, REFRESH_WITHIN).await?;
    let mut purge =
        Purge { tree, cutoff: request.cutoff_ms, left: u64::from(request.limit.max(1)), removed: 0 };
    let mut more = false;
    for jid in index.oldest() {
        let job = tree.job(&jid);
        if !purge.is_old(&job, &jid)? {
            continue;
        }
        let Some(returns) = purge.old_returns(&job)? else { continue };
        let records = returns.len() as u64 + 1;
        if records > purge.left {
            more = true;
            if purge.removed == 0 {
                purge.some_returns(&job, &returns)?;
            }
            break;
        }
        if purge.job(&job)? {
            purge.removed += records;
            purge.left -= records;
            index.forget(tree, &jid);
        }
    }
    let strange: Vec<PathBuf> = index.strange().map(Path::to_owned).collect();
    for job in strange.iter().filter(|_| !more) {
        // Salt removes a directory without a jid at once.
        if modified_ms(job)?.is_some_and(|time| time < purge.cutoff) && purge.old_returns(job)?.is_some() {
            purge.job(job)?;
        }
    }
    index.save(tree).await?;
    Ok(Purged { removed: purge.removed, more })
}

struct Purge<'a> {
    tree: &'a Tree,
    cutoff: u64,
    left: u64,
    removed: u64,
}

impl Purge<'_> {
    fn is_old(&self, job: &Path, jid: &str) -> Result<bool> {
        let time = match jid_ms(jid) {
            Some(time) => Some(time),
            None => modified_ms(&job.join(JID))?,
        };
        Ok(time.is_some_and(|time| time < self.cutoff))
    }

    /// The directories of the returns; none if one of them is not old, or nothing is there.
    fn old_returns(&self, job: &Path) -> Result<Option<Vec<PathBuf>>> {
        let Some(names) = tree::names(job)? else { return Ok(None) };
        let mut returns = Vec::new();
        for name in names.iter().filter(|name| !name.starts_with('.') && *name != JID) {
            let directory = job.join(name);
            match modified_ms(&directory.join(RETURN))? {
                Some(time) if time < self.cutoff => returns.push(directory),
                Some(_) => return Ok(None),
                None => {}
            }
        }
        Ok(Some(returns))
    }

    /// Removes a job with all that is in it; says whether it is gone.
    fn job(&self, job: &Path) -> Result<bool> {
        let aside = self.tree.work().join(format!("{OLD}{:016x}", random()));
        match fs::rename(job, &aside) {
            Ok(()) => {}
            Err(error) if is_missing(&error) => return Ok(false),
            Err(error) => return Err(at(job)(error)),
        }
        if self.old_returns(&aside)?.is_none() {
            put_back(&aside, job)?;
            return Ok(false);
        }
        match fs::remove_dir_all(&aside) {
            Ok(()) => Ok(true),
            Err(error) if is_missing(&error) => Ok(true),
            Err(error) if is_taken(&error) => {
                put_back(&aside, job)?;
                Ok(false)
            }
            Err(error) => Err(at(&aside)(error)),
        }
    }

    /// Removes a part of the returns of a job that has more than may go at once.
    fn some_returns(&mut self, job: &Path, returns: &[PathBuf]) -> Result<()> {
        for directory in returns {
            if self.left == 0 {
                break;
            }
            match fs::remove_dir_all(directory) {
                Ok(()) => {
                    self.removed += 1;
                    self.left -= 1;
                }
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(at(job)(error)),
            }
        }
        Ok(())
    }
}

/// Moves a job back, into what others have made in its place meanwhile.
fn put_back(aside: &Path, job: &Path) -> Result<()> {
    match fs::rename(aside, job) {
        Ok(()) => return Ok(()),
        Err(error) if is_taken(&error) => {}
        Err(error) => return Err(at(job)(error)),
    }
    for name in tree::names(aside)?.unwrap_or_default() {
        let target = job.join(&name);
        if !target.exists() {
            fs::rename(aside.join(&name), &target).map_err(at(&target))?;
        }
    }
    fs::remove_dir_all(aside).map_err(at(aside))
}

/// Sees to what an interrupted call left: a job that was moved away goes back, to be judged again; what nobody makes any more is
/// removed.
pub fn finish(tree: &Tree) -> Result<()> {
    let work = tree.work();
    let now = tree::since_1970(std::time::SystemTime::now()).as_millis();
    for name in tree::names(&work)?.unwrap_or_default() {
        let path = work.join(&name);
        let age = now.saturating_sub(u128::from(modified_ms(&path)?.unwrap_or_default()));
        if age < u128::from(LEFT_AFTER_MS) || !path.is_dir() {
            continue;
        }
        if name.starts_with(NEW) {
            // Another instance may do the same.
            let _ = fs::remove_dir_all(&path);
        } else if name.starts_with(OLD) {
            let jid = fs::read_to_string(path.join(JID)).unwrap_or_default();
            if tree::jid_name(&jid).is_ok() {
                let job = tree.job(&jid);
                let _ = fs::create_dir_all(job.parent().unwrap_or(tree.root()));
                let _ = put_back(&path, &job);
            } else {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
    Ok(())
}
