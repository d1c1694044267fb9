//! The list of jobs, newest first, which the tree of hashes cannot give.
//!
//! The truth is the tree. A job is made or removed in one of 256 directories, whose time then changes; only directories that changed
//! are listed again, and only the files `jid` of unknown jobs are read. What is known is kept in two files, so that a new instance does
//! not read every job: `names`, to which each writer appends a line for a job that it made (`+jid`, tab, function) and a reader those
//! for what it found or missed (`-jid`); and `shards`, the times up to which `names` is complete.
//!
//! Invariants: `names` changes only under the lock; each instance of it begins with a line of its own, so that a reader knows when it
//! was replaced; `shards` says which of them, and how much of it, it speaks of. Losing either file costs time and nothing else.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use returner_sdk::{Error, Result};

use crate::loads;
use crate::lock::Lock;
use crate::stage::random;
use crate::tree::{self, JID, Tree, at, optional, since_1970};

const NAMES: &str = "names";
const SHARDS: &str = "shards";

/// A directory that was changed this lately may change again without another time.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Lines of `names` that say nothing any more are removed when there are this many beyond those that do.
const STALE_LINES: usize = 10_000;

/// See the module.
#[derive(Debug)]
pub struct Index {
    jobs: BTreeMap<Rc<str>, Job>,
    /// The jobs of each directory by the first 16 digits of their hash.
    shards: Vec<Shard>,
    funs: BTreeSet<Rc<str>>,
    /// Which `names` was read, and how far.
    header: String,
    read: u64,
    lines: usize,
    /// Lines to append.
    unsaved: String,
    started: bool,
    times_changed: bool,
    /// Directories without a job's id.
    strange: BTreeSet<PathBuf>,
}

#[derive(Debug, Default)]
struct Job {
    fun: Option<Rc<str>>,
}

#[derive(Debug, Default)]
struct Shard {
    /// The time of the directory when it was listed, if that is all there is to know.
    time: Option<u128>,
    jobs: HashMap<u64, Rc<str>>,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            jobs: BTreeMap::new(),
            shards: (0..256).map(|_| Shard::default()).collect(),
            funs: BTreeSet::new(),
            header: String::new(),
            read: 0,
            lines: 0,
            unsaved: String::new(),
            started: false,
            times_changed: false,
            strange: BTreeSet::new(),
        }
    }
}

impl Index {
    /// Brings the list up to date. What does not fit into the time is kept for the next call, and this one fails.
    pub async fn refresh(&mut self, tree: &Tree, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        tree.renew()?;
        self.read_names(tree)?;
        if !std::mem::replace(&mut self.started, true) {
            self.read_shards(tree)?;
        }
        self.strange.clear();
        let mut left = 0;
        let mut there = [false; 256];
        for name in tree::names(tree.root())?.unwrap_or_default() {
            if let Some(number) = shard_number(&name) {
                there[usize::from(number)] = true;
                left += self.refresh_shard(tree, number, &tree.root().join(name), deadline)?;
            }
        }
        for number in (0..256_usize).filter(|&number| !there[number]) {
            let gone: Vec<Rc<str>> = self.shards[number].jobs.values().cloned().collect();
            gone.iter().for_each(|jid| self.forget(tree, jid));
        }
        self.save(tree).await?;
        if left > 0 {
            return Err(Error::retry(format!(
                "the list of jobs in `{}` is being made: {} are read, {left} are left; hint: ask again",
                tree.root().display(),
                self.jobs.len()
            )));
        }
        Ok(())
    }

    /// The ids older than `before`, newest first, with their functions where known.
    pub fn newest<'a>(
        &'a self,
        before: Option<&'a str>,
    ) -> impl Iterator<Item = (Rc<str>, Option<Rc<str>>)> + 'a {
        let end = before.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.jobs.range::<str, _>((Bound::Unbounded, end));
        range.rev().map(|(jid, job)| (jid.clone(), job.fun.clone()))
    }

    /// The ids, oldest first.
    pub fn oldest(&self) -> Vec<Rc<str>> {
        self.jobs.keys().cloned().collect()
    }

    /// Directories of jobs that nobody knows the id of.
    pub fn strange(&self) -> impl Iterator<Item = &Path> {
        self.strange.iter().map(PathBuf::as_path)
    }

    /// Notes a job's function.
    pub fn learn(&mut self, jid: &str, fun: &str) {
        let fun = self.interned(fun);
        if let Some(job) = self.jobs.get_mut(jid)
            && job.fun.is_none()
        {
            add_line(&mut self.unsaved, jid, &fun);
            job.fun = Some(fun);
        }
    }

    /// Takes a job off the list.
    pub fn forget(&mut self, tree: &Tree, jid: &str) {
        if self.remove(tree, jid) {
            let _ = writeln!(self.unsaved, "-{jid}");
        }
    }

    fn remove(&mut self, tree: &Tree, jid: &str) -> bool {
        if let Some((number, key)) = key_of(&tree.hash().of(jid)) {
            self.shards[usize::from(number)].jobs.remove(&key);
        }
        self.jobs.remove(jid).is_some()
    }

    fn insert(&mut self, tree: &Tree, jid: &str, fun: Option<&str>) {
        let fun = fun.map(|fun| self.interned(fun));
        if let Some(job) = self.jobs.get_mut(jid) {
            job.fun = fun.or_else(|| job.fun.take());
            return;
        }
        let jid: Rc<str> = jid.into();
        if let Some((number, key)) = key_of(&tree.hash().of(&jid)) {
            self.shards[usize::from(number)].jobs.insert(key, jid.clone());
            self.jobs.insert(jid, Job { fun });
        }
    }

    fn interned(&mut self, fun: &str) -> Rc<str> {
        if let Some(known) = self.funs.get(fun) {
            return known.clone();
        }
        let new: Rc<str> = fun.into();
        self.funs.insert(new.clone());
        new
    }

    /// Lists a directory if it has changed; gives the number of jobs there was no time for.
    fn refresh_shard(&mut self, tree: &Tree, number: u8, path: &Path, deadline: Instant) -> Result<usize> {
        let Some(metadata) = optional(path, fs::metadata(path))? else { return Ok(0) };
        let time = since_1970(metadata.modified().map_err(at(path))?);
        if self.shards[usize::from(number)].time == Some(time.as_nanos()) {
            return Ok(0);
        }
        let listed_at = since_1970(SystemTime::now());
        let names = tree::names(path)?.unwrap_or_default();
        let (mut seen, mut left, mut strange) = (HashSet::with_capacity(names.len()), 0, false);
        for name in names {
            let digest = format!("{number:02x}{name}");
            let Some((_, key)) = key_of(&digest) else { continue };
            seen.insert(key);
            if self.shards[usize::from(number)].jobs.contains_key(&key) {
                continue;
            }
            if Instant::now() >= deadline {
                left += 1;
                continue;
            }
            let job = path.join(&name);
            match identify(tree, &job, &digest)? {
                Some(jid) => {
                    self.insert(tree, &jid, None);
                    let _ = writeln!(self.unsaved, "+{jid}");
                }
                None => {
                    // Salt may still be about to write its file, or it is what `purge` removes.
                    strange = true;
                    self.strange.insert(job);
                }
            }
        }
        let gone: Vec<Rc<str>> = {
            let jobs = &self.shards[usize::from(number)].jobs;
            jobs.iter().filter(|(key, _)| !seen.contains(key)).map(|(_, jid)| jid.clone()).collect()
        };
        gone.iter().for_each(|jid| self.forget(tree, jid));
        let whole = left == 0 && !strange && time + SETTLED_AFTER < listed_at;
        self.shards[usize::from(number)].time = whole.then_some(time.as_nanos());
        self.times_changed |= whole;
        Ok(left)
    }

    /// Reads what is new in `names`, or all of it if it is another.
    fn read_names(&mut self, tree: &Tree) -> Result<()> {
        let path = tree.work().join(NAMES);
        let Some(mut file) = optional(&path, File::open(&path))? else {
            self.header.clear();
            self.read = 0;
            return Ok(());
        };
        let header = read_header(&mut file).map_err(at(&path))?;
        if header.is_empty() || header != self.header {
            // Jobs that are known from the tree stay known.
            self.header = header;
            self.read = self.header.len() as u64;
            self.lines = 0;
            self.shards.iter_mut().for_each(|shard| shard.time = None);
        }
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(self.read)).and_then(|_| file.read_to_end(&mut text)).map_err(at(&path))?;
        let end = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        for line in text[..end].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            self.lines += 1;
            match std::str::from_utf8(line).ok().and_then(|line| line.split_at_checked(1)) {
                Some(("+", rest)) => {
                    let (jid, fun) =
                        rest.split_once('\t').map_or((rest, None), |(jid, fun)| (jid, Some(fun)));
                    self.insert(tree, jid, fun);
                }
                Some(("-", jid)) => {
                    self.remove(tree, jid);
                }
                // What a crash left says nothing about what else is lost.
                _ => self.shards.iter_mut().for_each(|shard| shard.time = None),
            }
        }
        self.read += end as u64;
        Ok(())
    }

    /// Reads the times, if they belong to the `names` that was read.
    fn read_shards(&mut self, tree: &Tree) -> Result<()> {
        let path = tree.work().join(SHARDS);
        let Some(text) = optional(&path, fs::read(&path))? else { return Ok(()) };
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.split_inclusive('\n');
        let same = lines.next() == Some(self.header.as_str()) && !self.header.is_empty();
        let length = lines.next().and_then(|line| line.trim_end().parse::<u64>().ok());
        if !same || length.is_none_or(|length| length > self.read) {
            return Ok(());
        }
        for line in lines {
            if let Some((name, time)) = line.trim_end().split_once(' ')
                && let (Some(number), Ok(time)) = (shard_number(name), time.parse())
            {
                self.shards[usize::from(number)].time = Some(time);
            }
        }
        Ok(())
    }

    /// Keeps what is new for other instances.
    pub async fn save(&mut self, tree: &Tree) -> Result<()> {
        if self.unsaved.is_empty() && !self.times_changed {
            return Ok(());
        }
        let lock = Lock::take(tree).await?;
        let work = tree.work();
        let path = work.join(NAMES);
        let header = match optional(&path, File::open(&path))? {
            Some(mut file) => read_header(&mut file).map_err(at(&path))?,
            None => String::new(),
        };
        if header.is_empty() || (header == self.header && self.lines > 2 * self.jobs.len() + STALE_LINES) {
            self.rewrite(tree)?;
        } else {
            append(&path, &self.unsaved, &lock).map_err(at(&path))?;
        }
        self.unsaved.clear();
        // What others appended meanwhile is read with our own lines, so that the times speak of all of it.
        self.read_names(tree)?;
        let mut text = format!("{}{}\n", self.header, self.read);
        for (number, shard) in self.shards.iter().enumerate() {
            if let Some(time) = shard.time {
                let _ = writeln!(text, "{number:02x} {time}");
            }
        }
        put(&work.join(SHARDS), &text)?;
        self.times_changed = false;
        Ok(())
    }

    /// Writes `names` anew, with what is known and nothing else.
    fn rewrite(&mut self, tree: &Tree) -> Result<()> {
        let mut text = new_header();
        self.header = text.clone();
        for (jid, job) in &self.jobs {
            match &job.fun {
                Some(fun) => add_line(&mut text, jid, fun),
                None => {
                    let _ = writeln!(text, "+{jid}");
                }
            }
        }
        put(&tree.work().join(NAMES), &text)?;
        self.read = text.len() as u64;
        self.lines = self.jobs.len();
        Ok(())
    }
}

/// Notes jobs that were made, with their functions. It is only a help: what is missing is found in the tree.
pub fn note<'a>(tree: &Tree, lock: &Lock, jobs: impl Iterator<Item = (&'a str, &'a str)>) {
    let mut lines = String::new();
    for (jid, fun) in jobs {
        add_line(&mut lines, jid, fun);
    }
    if !lines.is_empty() {
        let _ = append(&tree.work().join(NAMES), &lines, lock);
    }
}

fn append(path: &Path, lines: &str, _: &Lock) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let text = if file.metadata()?.len() == 0 { new_header() + lines } else { lines.to_owned() };
    file.write_all(text.as_bytes())
}

fn put(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension(format!("{:016x}", random()));
    fs::write(&new, text).and_then(|()| fs::rename(&new, path)).map_err(at(path))
}

fn add_line(lines: &mut String, jid: &str, fun: &str) {
    let _ = if fun.is_empty() || fun.contains(char::is_control) {
        writeln!(lines, "+{jid}")
    } else {
        writeln!(lines, "+{jid}\t{fun}")
    };
}

fn new_header() -> String {
    format!("returnerd jobs 1 {:016x}\n", random())
}

/// The first line; empty if it is none of ours.
fn read_header(file: &mut File) -> std::io::Result<String> {
    let mut header = Vec::new();
    file.take(new_header().len() as u64).read_to_end(&mut header)?;
    let header = String::from_utf8(header).unwrap_or_default();
    Ok(if header.starts_with("returnerd jobs 1 ") && header.ends_with('\n') { header } else { String::new() })
}

/// The job's id, by the file that holds it or else by what lies beside it, if it belongs to this directory.
fn identify(tree: &Tree, job: &Path, digest: &str) -> Result<Option<String>> {
    let path = job.join(JID);
    let belongs = |jid: &String| tree::jid_name(jid).is_ok() && tree.hash().of(jid) == digest;
    let said = optional(&path, fs::read(&path))?.and_then(|jid| String::from_utf8(jid).ok());
    if let Some(jid) = said.filter(belongs) {
        return Ok(Some(jid));
    }
    Ok(loads::jid_inside(job)?.filter(belongs))
}

fn shard_number(name: &str) -> Option<u8> {
    let is_hex = name.len() == 2 && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    is_hex.then(|| u8::from_str_radix(name, 16).ok()).flatten()
}

/// The directory's number, and the first 16 digits of a hash.
fn key_of(digest: &str) -> Option<(u8, u64)> {
    let is_hex = digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let key = digest.get(..16).filter(|_| is_hex).and_then(|digits| u64::from_str_radix(digits, 16).ok())?;
    Some(((key >> 56) as u8, key))
}
