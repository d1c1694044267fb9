//! The connection to the file, and inside the sandbox the locks that SQLite asks its operating system for.
//!
//! WASI has no `fcntl` locks, and SQLite's replacements for them (lock files, or none at all) are invisible to other
//! programs: one that reads the file while we write would take our journal for the leftover of a crash and roll it
//! back. So SQLite's `unix` VFS is used unchanged, except that its system calls `open`, `close` and `fcntl` come
//! here, and a lock becomes a lock of the host's interface `file-locks` on the same bytes. `pread` comes here for a fault of
//! wasi-libc.
//!
//! `.cargo/config.toml` has SQLite compiled to use `pread` and `pwrite`. With `write`, for which wasi-libc takes a stream,
//! every few bytes would be handed to another thread of the host, and a full disk would look like a broken one.
//!
//! Invariants: as with POSIX locks, all descriptors of one path share one set of locks; the set is opened with the
//! first lock and dropped, and with it every lock, when the last descriptor is closed. SQLite never has the file open
//! twice here, since an instance has one connection.
//!
//! Natively nothing is replaced: the tests use the locks of the operating system.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

/// Opens the database, making it if it does not exist, with the locks other programs see.
pub fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    #[cfg(target_family = "wasm")]
    guest::install()?;
    Connection::open_with_flags_and_vfs(path, flags, c"unix")
}

#[cfg(target_family = "wasm")]
#[allow(unsafe_code)]
mod guest {
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::ffi::{CStr, c_char, c_int, c_short, c_void};
    use std::sync::Once;

    use returner_sdk::bindings::file_locks::{Error, File, Mode};
    use rusqlite::ffi::{SQLITE_ERROR, SQLITE_OK, sqlite3_syscall_ptr, sqlite3_vfs, sqlite3_vfs_find};

    /// The commands and values that SQLite defines for WASI, whose headers lack them.
    const F_GETLK: c_int = 12;
    const F_SETLK: c_int = 13;
    const F_RDLCK: c_short = 0;
    const F_UNLCK: c_short = 2;

    // wasi-libc's numbers.
    const SEEK_SET: c_int = 0;
    const EAGAIN: c_int = 6;
    const EIO: c_int = 29;
    const EPERM: c_int = 63;

    /// The highest length of a range that begins at 0, as `fcntl` counts.
    const TO_THE_END: u64 = i64::MAX as u64;

    /// `struct flock` of wasi-libc.
    #[repr(C)]
    struct Flock {
        l_type: c_short,
        l_whence: c_short,
        l_start: i64,
        l_len: i64,
        l_pid: c_int,
    }

    unsafe extern "C" {
        safe fn __errno_location() -> *mut c_int;
        fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
        fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64;
        fn read(fd: c_int, buffer: *mut c_void, length: usize) -> isize;
    }

    type OpenCall = unsafe extern "C" fn(*const c_char, c_int, c_int) -> c_int;
    type CloseCall = unsafe extern "C" fn(c_int) -> c_int;
    type PreadCall = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;

    /// What SQLite has open, and its locks.
    #[derive(Default)]
    struct Open {
        paths: HashMap<c_int, String>,
        locks: HashMap<String, File>,
        real_open: Option<OpenCall>,
        real_close: Option<CloseCall>,
    }

    thread_local! {
        static OPEN: RefCell<Open> = RefCell::default();
    }

    /// Puts our functions into the `unix` VFS, once.
    pub fn install() -> rusqlite::Result<()> {
        static ONCE: Once = Once::new();
        let mut result = Ok(());
        ONCE.call_once(|| result = replace_calls());
        result
    }

    fn replace_calls() -> rusqlite::Result<()> {
        // SAFETY: SQLite initialises itself in this call; the VFS it returns is static.
        let vfs = unsafe { sqlite3_vfs_find(c"unix".as_ptr()) };
        if vfs.is_null() {
            return Err(failure(SQLITE_ERROR, "SQLite was built without its `unix` VFS"));
        }
        // SAFETY: the types are those to which SQLite itself casts these entries before it calls them:
        // `int(*)(const char*,int,int)`, `int(*)(int)` and the variadic `int(*)(int,int,...)`, which on wasm is a
        // function of three words, the last one pointing to the variadic arguments.
        unsafe {
            let real_open = original(vfs, c"open").map(|call| std::mem::transmute::<_, OpenCall>(call));
            let real_close = original(vfs, c"close").map(|call| std::mem::transmute::<_, CloseCall>(call));
            OPEN.with_borrow_mut(|open| {
                open.real_open = real_open;
                open.real_close = real_close;
            });
            let ours = [
                (c"open", std::mem::transmute::<OpenCall, sqlite3_syscall_ptr>(our_open)),
                (c"close", std::mem::transmute::<CloseCall, sqlite3_syscall_ptr>(our_close)),
                (c"pread", std::mem::transmute::<PreadCall, sqlite3_syscall_ptr>(our_pread)),
                (
                    c"fcntl",
                    std::mem::transmute::<
                        unsafe extern "C" fn(c_int, c_int, *const *mut Flock) -> c_int,
                        sqlite3_syscall_ptr,
                    >(our_fcntl),
                ),
            ];
            for (name, call) in ours {
                let set = (*vfs).xSetSystemCall.map_or(SQLITE_ERROR, |set| set(vfs, name.as_ptr(), call));
                if set != SQLITE_OK {
                    return Err(failure(set, "SQLite does not let its system calls be replaced"));
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// `vfs` must be valid.
    unsafe fn original(vfs: *mut sqlite3_vfs, name: &CStr) -> Option<unsafe extern "C" fn()> {
        // SAFETY: the caller vouches for `vfs`; the name is a C string that outlives the call.
        unsafe { (*vfs).xGetSystemCall.and_then(|get| get(vfs, name.as_ptr())) }
    }

    fn failure(code: c_int, text: &str) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some(text.to_owned()))
    }

    fn fail(code: c_int) -> c_int {
        // SAFETY: libc gives the address of this thread's `errno`, which is always valid.
        unsafe { *__errno_location() = code };
        -1
    }

    /// Opens as before and remembers the path.
    unsafe extern "C" fn our_open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
        let Some(real) = OPEN.with_borrow(|open| open.real_open) else { return fail(EIO) };
        // SAFETY: SQLite's own arguments, passed on to the function it would have called.
        let fd = unsafe { real(path, flags, mode) };
        if fd >= 0 && !path.is_null() {
            // SAFETY: SQLite passes a C string.
            let path = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
            OPEN.with_borrow_mut(|open| open.paths.insert(fd, path));
        }
        fd
    }

    /// Drops the locks of a path with its last descriptor, then closes as before.
    unsafe extern "C" fn our_close(fd: c_int) -> c_int {
        let (real, dropped) = OPEN.with_borrow_mut(|open| {
            let path = open.paths.remove(&fd);
            let dropped = path
                .filter(|path| !open.paths.values().any(|other| other == path))
                .and_then(|path| open.locks.remove(&path));
            (open.real_close, dropped)
        });
        drop(dropped);
        // SAFETY: SQLite's own argument, passed on to the function it would have called.
        real.map_or_else(|| fail(EIO), |real| unsafe { real(fd) })
    }

    /// Reads at an offset. When the host cannot read, wasi-libc's own `pread` goes on to copy and free whatever an earlier
    /// call left on the stack; its `read` fails properly.
    unsafe extern "C" fn our_pread(fd: c_int, buffer: *mut c_void, length: usize, offset: i64) -> isize {
        // SAFETY: SQLite's own arguments: a buffer of `length` bytes that nobody else uses during the call.
        unsafe { if lseek(fd, offset, SEEK_SET) < 0 { -1 } else { read(fd, buffer, length) } }
    }

    /// Answers the two commands for locks that SQLite uses; others go to libc.
    unsafe extern "C" fn our_fcntl(fd: c_int, command: c_int, arguments: *const *mut Flock) -> c_int {
        if command != F_GETLK && command != F_SETLK {
            // SAFETY: SQLite's other commands (`F_GETFD`, `F_SETFD`) have one integer argument or none; where there is
            // none libc does not look at it.
            return unsafe {
                let argument = if arguments.is_null() { 0 } else { arguments.cast::<c_int>().read() };
                fcntl(fd, command, argument)
            };
        }
        // SAFETY: with these commands SQLite passes one variadic argument, a pointer to a `struct flock` that nobody
        // else uses during the call.
        let flock = unsafe { (!arguments.is_null()).then(|| arguments.read().as_mut()).flatten() };
        let Some(flock) = flock else { return fail(EIO) };
        match answer(fd, command, flock) {
            Ok(()) => 0,
            Err(Error::Busy) => fail(EAGAIN),
            Err(Error::Denied) => fail(EPERM),
            Err(Error::Io) => fail(EIO),
        }
    }

    fn answer(fd: c_int, command: c_int, flock: &mut Flock) -> Result<(), Error> {
        let start = u64::try_from(flock.l_start).map_err(|_| Error::Io)?;
        let length = match u64::try_from(flock.l_len).map_err(|_| Error::Io)? {
            0 => TO_THE_END - start,
            length => length,
        };
        let mode = if flock.l_type == F_RDLCK { Mode::Shared } else { Mode::Exclusive };
        OPEN.with_borrow_mut(|open| {
            let Open { paths, locks, .. } = open;
            let path = paths.get(&fd).ok_or(Error::Io)?;
            if !locks.contains_key(path) {
                if command == F_SETLK && flock.l_type == F_UNLCK {
                    return Ok(());
                }
                locks.insert(path.clone(), File::open(path)?);
            }
            let file = locks.get(path).ok_or(Error::Io)?;
            if command == F_GETLK {
                // SQLite asks only whether an exclusive lock could be had.
                if file.holder(start, length)?.is_none() {
                    flock.l_type = F_UNLCK;
                }
                Ok(())
            } else if flock.l_type == F_UNLCK {
                file.unlock(start, length)
            } else {
                file.lock(start, length, mode)
            }
        })
    }
}
