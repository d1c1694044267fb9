//! The host's side of `file-locks`: Linux open file description locks on files of granted directories.
//!
//! Invariants
//! - A file is opened through cap-std below a directory that was granted for writing, so neither `..` nor a link nor an
//!   absolute path leaves it; only regular files are opened, and nothing is created, read or written.
//! - A lock never waits. It belongs to the [`LockFile`] alone: it holds against every other program, every other
//!   instance and every other open of the same instance, and ends when the `LockFile` is dropped, be it by the guest or
//!   with the store.
//! - Open files and ranges are limited per instance, as each costs the kernel memory.
//!
//! A lock must not end before the writes it protects. Dropping a store drops its locks, but a write that runs on
//! another thread would still go on, so `super::directories` has files written within the call.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use wasmtime::component::{HasData, Resource, ResourceTable, ResourceTableError};

use crate::plugin::bindings::salt::returner::file_locks::{self, Error, Mode};

/// How many files an instance may have open for locking.
const MAX_FILES: usize = 16;

/// How many separate ranges of one file may be locked.
const MAX_RANGES: usize = 64;

/// The directories of one instance in which files may be locked.
#[derive(Debug, Default)]
pub struct LockDirs {
    dirs: Vec<(PathBuf, Dir)>,
    open: Arc<AtomicUsize>,
}

impl LockDirs {
    /// Grants a directory, which the guest knows under the absolute path `guest`.
    pub fn add(&mut self, guest: String, directory: Dir) {
        self.dirs.push((PathBuf::from(guest), directory));
    }

    /// Opens an existing file for locking by the guest's path.
    fn open(&self, path: &str) -> Result<LockFile, Error> {
        let path = Path::new(path);
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(Error::Denied);
        }
        let (dir, rest) = self
            .dirs
            .iter()
            .filter_map(|(guest, dir)| Some((guest, dir, path.strip_prefix(guest).ok()?)))
            .max_by_key(|(guest, ..)| guest.components().count())
            .map(|(_, dir, rest)| (dir, rest))
            .ok_or(Error::Denied)?;
        let slot = Slot::take(&self.open)?;
        // A pipe or a device must neither make this wait nor be opened more than a moment.
        let open = |write: bool| {
            let mut options = OpenOptions::new();
            options.read(true).write(write).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
            dir.open_with(rest, &options)
        };
        // A file that may only be read can still be locked shared.
        let file = open(true).or_else(|_| open(false)).map_err(|_| Error::Denied)?;
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(Error::Denied);
        }
        Ok(LockFile { file: file.into_std(), ranges: Vec::new(), _slot: slot })
    }
}

/// One of the places for open files; given back when dropped.
#[derive(Debug)]
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(open: &Arc<AtomicUsize>) -> Result<Self, Error> {
        let taken = open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < MAX_FILES).then_some(count + 1)
        });
        taken.map(|_| Self(Arc::clone(open))).map_err(|_| Error::Io)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A file opened for locking; what the guest's resource `file` stands for.
#[derive(Debug)]
pub struct LockFile {
    file: std::fs::File,
    /// What is locked at most, as `start..end`; the kernel may have merged neighbours.
    ranges: Vec<(u64, u64)>,
    _slot: Slot,
}

impl LockFile {
    fn lock(&mut self, start: u64, length: u64, mode: Mode) -> Result<(), Error> {
        let (start, end) = range(start, length)?;
        let kept: Vec<_> = self.ranges.iter().copied().filter(|&(s, e)| s < start || e > end).collect();
        if kept.len() >= MAX_RANGES {
            return Err(Error::Io);
        }
        self.set(start, end, kind(mode))?;
        self.ranges = kept;
        self.ranges.push((start, end));
        Ok(())
    }

    fn unlock(&mut self, start: u64, length: u64) -> Result<(), Error> {
        let (start, end) = range(start, length)?;
        let rest: Vec<_> = self
            .ranges
            .iter()
            .flat_map(|&(s, e)| [(s, e.min(start)), (s.max(end), e)])
            .filter(|(s, e)| s < e)
            .collect();
        if rest.len() > MAX_RANGES {
            return Err(Error::Io);
        }
        self.set(start, end, libc::F_UNLCK)?;
        self.ranges = rest;
        Ok(())
    }

    fn holder(&self, start: u64, length: u64) -> Result<Option<Mode>, Error> {
        let (start, end) = range(start, length)?;
        let mut asked = flock(start, end, libc::F_WRLCK)?;
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut asked)).map_err(error)?;
        Ok(match libc::c_int::from(asked.l_type) {
            libc::F_UNLCK => None,
            libc::F_RDLCK => Some(Mode::Shared),
            _ => Some(Mode::Exclusive),
        })
    }

    fn set(&self, start: u64, end: u64, kind: libc::c_int) -> Result<(), Error> {
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&flock(start, end, kind)?)).map(drop).map_err(error)
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Closing would do, were it not for processes that are just being started: until they run their program, they hold a copy of
        // every descriptor.
        if let Ok(all) = flock(0, i64::MAX as u64, libc::F_UNLCK) {
            let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&all));
        }
    }
}

/// The range as `start..end`, if it is not empty and the operating system can express it.
fn range(start: u64, length: u64) -> Result<(u64, u64), Error> {
    let end = start.checked_add(length).filter(|&end| length > 0 && end <= i64::MAX as u64);
    end.map(|end| (start, end)).ok_or(Error::Io)
}

fn kind(mode: Mode) -> libc::c_int {
    match mode {
        Mode::Shared => libc::F_RDLCK,
        Mode::Exclusive => libc::F_WRLCK,
    }
}

fn flock(start: u64, end: u64, kind: libc::c_int) -> Result<libc::flock, Error> {
    let offset = |value: u64| libc::off_t::try_from(value).map_err(|_| Error::Io);
    Ok(libc::flock {
        l_type: libc::c_short::try_from(kind).map_err(|_| Error::Io)?,
        l_whence: libc::c_short::try_from(libc::SEEK_SET).map_err(|_| Error::Io)?,
        l_start: offset(start)?,
        l_len: offset(end - start)?,
        l_pid: 0,
    })
}

fn error(errno: Errno) -> Error {
    match errno {
        Errno::EAGAIN | Errno::EACCES => Error::Busy,
        // An exclusive lock on a file that could only be opened for reading.
        Errno::EBADF => Error::Denied,
        _ => Error::Io,
    }
}

/// What the interface works on: parts of the store's state.
pub struct Locks<'a> {
    /// The store's table of resources.
    pub table: &'a mut ResourceTable,
    /// The instance's directories.
    pub dirs: &'a LockDirs,
}

/// For `add_to_linker`.
pub struct HasLocks;

impl HasData for HasLocks {
    type Data<'a> = Locks<'a>;
}

impl file_locks::Host for Locks<'_> {}

impl Locks<'_> {
    fn file(&mut self, this: &Resource<LockFile>) -> Result<&mut LockFile, ResourceTableError> {
        self.table.get_mut(this)
    }
}

impl file_locks::HostFile for Locks<'_> {
    fn open(&mut self, path: String) -> wasmtime::Result<Result<Resource<LockFile>, Error>> {
        Ok(match self.dirs.open(&path) {
            Ok(file) => Ok(self.table.push(file)?),
            Err(error) => Err(error),
        })
    }

    fn lock(
        &mut self,
        this: Resource<LockFile>,
        start: u64,
        length: u64,
        mode: Mode,
    ) -> wasmtime::Result<Result<(), Error>> {
        Ok(self.file(&this)?.lock(start, length, mode))
    }

    fn unlock(
        &mut self,
        this: Resource<LockFile>,
        start: u64,
        length: u64,
    ) -> wasmtime::Result<Result<(), Error>> {
        Ok(self.file(&this)?.unlock(start, length))
    }

    fn holder(
        &mut self,
        this: Resource<LockFile>,
        start: u64,
        length: u64,
    ) -> wasmtime::Result<Result<Option<Mode>, Error>> {
        Ok(self.file(&this)?.holder(start, length))
    }

    fn drop(&mut self, this: Resource<LockFile>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn granted(at: &Path) -> LockDirs {
        let mut dirs = LockDirs::default();
        let directory = Dir::open_ambient_dir(at, cap_std::ambient_authority()).unwrap();
        dirs.add("/data".into(), directory);
        dirs
    }

    fn setup() -> (tempfile::TempDir, LockDirs) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "content").unwrap();
        let dirs = granted(dir.path());
        (dir, dirs)
    }

    /// Whether another process can lock the bytes 10 to 19 exclusively, by POSIX locks as SQLite uses them.
    fn other_process_can_lock(path: &Path) -> bool {
        let script = "import fcntl, sys\nfile = open(sys.argv[1], 'r+b')\n\
            try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10)\n\
            except BlockingIOError: sys.exit(3)";
        let status = Command::new("python3").arg("-c").arg(script).arg(path).status().unwrap();
        assert!(matches!(status.code(), Some(0 | 3)), "{status}");
        status.success()
    }

    #[test]
    fn two_opens_of_one_instance_exclude_each_other() {
        let (_dir, dirs) = setup();
        let mut one = dirs.open("/data/file").unwrap();
        let mut two = dirs.open("/data/file").unwrap();
        one.lock(10, 10, Mode::Shared).unwrap();
        two.lock(15, 10, Mode::Shared).unwrap();
        assert!(matches!(two.lock(10, 10, Mode::Exclusive), Err(Error::Busy)));
        assert!(matches!(two.holder(10, 1), Ok(Some(Mode::Shared))));
        assert!(matches!(two.holder(20, 1), Ok(None)));
        one.unlock(0, 100).unwrap();
        two.lock(10, 10, Mode::Exclusive).unwrap();
        assert!(matches!(one.holder(10, 1), Ok(Some(Mode::Exclusive))));
        drop(two);
        one.lock(10, 10, Mode::Exclusive).unwrap();
    }

    #[test]
    fn another_program_sees_the_lock_until_the_file_is_dropped() {
        let (dir, dirs) = setup();
        let path = dir.path().join("file");
        let mut file = dirs.open("/data/file").unwrap();
        assert!(other_process_can_lock(&path));
        file.lock(10, 10, Mode::Shared).unwrap();
        assert!(!other_process_can_lock(&path));
        drop(file);
        assert!(other_process_can_lock(&path));
    }

    #[test]
    fn dropping_a_file_ends_the_lock_while_a_copy_of_its_descriptor_is_open() {
        let (_dir, dirs) = setup();
        let mut one = dirs.open("/data/file").unwrap();
        one.lock(10, 10, Mode::Exclusive).unwrap();
        let copy = one.file.try_clone().unwrap();
        drop(one);
        dirs.open("/data/file").unwrap().lock(10, 10, Mode::Exclusive).unwrap();
        drop(copy);
    }

    #[test]
    fn closing_another_descriptor_of_the_file_keeps_the_lock() {
        let (dir, dirs) = setup();
        let path = dir.path().join("file");
        let mut file = dirs.open("/data/file").unwrap();
        file.lock(10, 10, Mode::Exclusive).unwrap();
        drop(std::fs::File::open(&path).unwrap());
        drop(dirs.open("/data/file").unwrap());
        assert!(!other_process_can_lock(&path));
    }

    #[test]
    fn nothing_outside_the_granted_directory_is_opened() {
        let (outside, _) = setup();
        let (dir, dirs) = setup();
        let target = outside.path().join("file");
        std::os::unix::fs::symlink(&target, dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("linked")).unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        let absolute = target.display().to_string();
        for path in [
            absolute.as_str(),
            "file",
            "/data",
            "/data/sub",
            "/data/none",
            "/data/link",
            "/data/linked/file",
            "/data/../data/file",
            "/data/sub/../../data/file",
            "/database/file",
            "",
        ] {
            assert!(matches!(dirs.open(path), Err(Error::Denied)), "{path}");
        }
        assert!(!dir.path().join("none").exists());
        assert!(dirs.open("/data/file").is_ok());
    }

    #[test]
    fn only_regular_files_are_opened() {
        let (dir, dirs) = setup();
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(dirs.open("/data/pipe"), Err(Error::Denied)));
    }

    #[test]
    fn open_files_are_limited_and_their_places_come_back() {
        let (_dir, dirs) = setup();
        let files: Vec<_> = (0..MAX_FILES).map(|_| dirs.open("/data/file").unwrap()).collect();
        assert!(matches!(dirs.open("/data/file"), Err(Error::Io)));
        drop(files);
        assert!(dirs.open("/data/file").is_ok());
        assert!(dirs.open("/data/none").is_err());
        assert_eq!(dirs.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn ranges_are_limited_and_must_make_sense() {
        let (_dir, dirs) = setup();
        let mut file = dirs.open("/data/file").unwrap();
        for at in 0..MAX_RANGES as u64 {
            file.lock(at * 2, 1, Mode::Shared).unwrap();
        }
        assert!(matches!(file.lock(1_000, 1, Mode::Shared), Err(Error::Io)));
        file.lock(0, 1, Mode::Exclusive).unwrap();
        file.unlock(0, i64::MAX as u64).unwrap();
        file.lock(1_000, 1, Mode::Shared).unwrap();
        for (start, length) in [(0, 0), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, i64::MAX as u64)] {
            assert!(matches!(file.lock(start, length, Mode::Shared), Err(Error::Io)), "{start} {length}");
        }
    }
}
