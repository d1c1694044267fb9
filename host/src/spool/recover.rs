//! Opening: the lock, the mark of a clean stop, checks, and what is done with a damaged database.
//!
//! A stop that was not clean is no sign of damage: the write-ahead log outlives a crash. So a start
//! always looks at the header, the log's checksums, the list of tables, all sinks and the counts of the indexes (which
//! reads the indexes and no record), and runs SQLite's full check only after an unclean stop: at once if the file is
//! small, otherwise in the background while the spool already serves.
//!
//! Damage: everything readable goes into a new file (`spool.db.rescue`), which is made complete and synced; then a note is
//! written, the damaged files are renamed to `spool.db.damaged-<date>` (with `-wal`, `-shm`), the new file takes their place
//! and the note is removed. A crash at any point begins again or goes on from the note. The damaged files are kept.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;

use super::disk::{now_ms, private_dir, private_file, stamp, sync_dir};
use super::error::{SpoolError, Trouble, trouble};
use super::pages::Wal;
use super::rescue;
use super::schema::{self, Loaded, PAGE};
use super::shared::{Command, Shared};
use super::types::*;
use super::{DB, LOCK};

const MARK: &str = "spool.clean";
const NOTE: &str = "spool.rescued";

/// An opened database.
pub(super) struct Opened {
    pub(super) conn: Connection,
    pub(super) loaded: Loaded,
    pub(super) recovery: Recovery,
    /// True if the full check is still to be done.
    pub(super) check_later: bool,
}

/// An error with its causes in one line.
pub(super) fn chain(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// Makes this process the owner of the spool, or says that another is.
pub(super) fn lock(dir: &Path) -> Result<File, SpoolError> {
    private_dir(dir)?;
    let path = dir.join(LOCK);
    let file = private_file(&path).map_err(SpoolError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(SpoolError::InUse { path }),
        Err(fs::TryLockError::Error(source)) => Err(SpoolError::Io { what: "lock", path, source }),
    }
}

fn mark_text(db: &Path) -> Option<String> {
    let meta = fs::metadata(db).ok()?;
    Some(format!("{} {} {}\n", meta.len(), meta.mtime(), meta.mtime_nsec()))
}

/// Notes that the database was closed cleanly, with what tells whether it was changed since.
pub(super) fn mark_clean(dir: &Path) {
    let write = || -> std::io::Result<()> {
        let Some(text) = mark_text(&dir.join(DB)) else { return Ok(()) };
        let mut file = private_file(&dir.join(MARK))?;
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        sync_dir(dir)
    };
    if let Err(err) = write() {
        tracing::debug!(%err, "the mark of a clean stop was not written");
    }
}

fn disk(err: std::io::Error, what: &str) -> SpoolError {
    SpoolError::Unavailable { reason: format!("cannot {what}: {err}") }
}

/// Opens, checks, and rescues if need be. `min_seq` is the lowest number that may be given out next.
pub(super) fn open(dir: &Path, limits: &Limits, min_seq: i64) -> Result<Opened, SpoolError> {
    finish_rescue(dir)?;
    let db = dir.join(DB);
    private_file(&db).map_err(|e| disk(e, "open the database"))?;
    let length = fs::metadata(&db).map_err(|e| disk(e, "read the database"))?.len();
    let wal = beside(&db, "-wal");
    let wal_length = fs::metadata(&wal).map_or(0, |m| m.len());
    let mark = fs::read_to_string(dir.join(MARK)).ok();
    let clean = wal_length == 0 && mark.is_some() && mark == mark_text(&db);
    if mark.is_some() {
        fs::remove_file(dir.join(MARK))
            .and_then(|()| sync_dir(dir))
            .map_err(|e| disk(e, "remove the mark"))?;
    }
    let created = length == 0 && wal_length == 0 && mark.is_none();
    let mut recovery = Recovery { clean: clean || created, created, ..Recovery::default() };
    let check = !clean && !created;
    let first = look_outside(&db, &wal, length, created, check)
        .map_or_else(|| look_inside(&db, created, check && length <= limits.check_at_once_bytes), Err);
    let (conn, loaded) = match first {
        Ok(opened) => opened,
        Err(SpoolError::Damaged(reason)) => {
            let damage = rebuild(dir, &reason, min_seq)?;
            report(&damage);
            recovery.damage = Some(damage);
            look_inside(&db, false, false)?
        }
        Err(other) => return Err(other),
    };
    recovery.items = loaded.lanes.values().map(|l| l.0).sum();
    recovery.bytes = loaded.lanes.values().map(|l| l.1).sum();
    recovery.dead = loaded.dead.0;
    let check_later = check && recovery.damage.is_none() && length > limits.check_at_once_bytes;
    Ok(Opened { conn, loaded, recovery, check_later })
}

/// What can be seen without SQLite, which would change the files.
fn look_outside(db: &Path, wal: &Path, length: u64, created: bool, check: bool) -> Option<SpoolError> {
    if created {
        return None;
    }
    if length == 0 {
        // SQLite would throw the log of an empty database away.
        return Some(SpoolError::Damaged("the database is empty".to_owned()));
    }
    let mut head = [0; 100];
    let read = File::open(db).and_then(|f| std::os::unix::fs::FileExt::read_exact_at(&f, &mut head, 0));
    if read.is_err() || !head.starts_with(b"SQLite format 3\0") {
        return Some(SpoolError::Damaged("the header is not that of a database".to_owned()));
    }
    let [page_size, version] = [16, 18].map(|at| head.get(at..at + 2).unwrap_or_default());
    if page_size != (PAGE as u16).to_be_bytes()
        || version.iter().any(|v| !(1..=2).contains(v))
        || head[20] != 0
    {
        return Some(SpoolError::Damaged("the header has an odd format".to_owned()));
    }
    (check && Wal::read(wal).broken)
        .then(|| SpoolError::Damaged("the write-ahead log is broken in the middle".to_owned()))
}

/// What can be seen with SQLite. All that is wrong inside is `Damaged`.
fn look_inside(db: &Path, created: bool, full_check: bool) -> Result<(Connection, Loaded), SpoolError> {
    let work = || -> Result<(Connection, Loaded), SpoolError> {
        let conn = schema::open_writing(db)?;
        schema::use_wal(&conn)?;
        let empty = conn.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |r| r.get::<_, bool>(0))?;
        if empty {
            if !created && conn.query_row("PRAGMA page_count", [], |r| r.get::<_, i64>(0))? > 1 {
                return Err(SpoolError::Damaged("there are pages but no tables".to_owned()));
            }
            schema::create(&conn)?;
        }
        if let Some(odd) = schema::check_tables(&conn)? {
            return Err(SpoolError::Damaged(odd));
        }
        if full_check && let Some(problem) = integrity(&conn, 1)?.pop() {
            return Err(SpoolError::Damaged(problem));
        }
        let loaded = schema::load(&conn)?;
        Ok((conn, loaded))
    };
    work().map_err(|err| match err {
        SpoolError::Sqlite(err) => match trouble(&err) {
            Trouble::Disk { reason, .. } => SpoolError::Unavailable { reason },
            Trouble::Damage(reason) => SpoolError::Damaged(reason),
            Trouble::Other => match err.sqlite_error_code() {
                Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
                    SpoolError::Unavailable { reason: err.to_string() }
                }
                _ => SpoolError::Damaged(err.to_string()),
            },
        },
        other => other,
    })
}

/// Complaints of SQLite's full check, at most so many.
pub(super) fn integrity(conn: &Connection, most: usize) -> Result<Vec<String>, rusqlite::Error> {
    let mut stmt = conn.prepare(&format!("PRAGMA integrity_check({most})"))?;
    let rows = stmt.query_map([], |r| r.get::<_, String>(0))?;
    let mut problems = rows.collect::<Result<Vec<_>, _>>()?;
    problems.retain(|p| p != "ok");
    Ok(problems)
}

/// The path with this ending, as SQLite names the files beside a database.
pub(super) fn beside(db: &Path, ending: &str) -> PathBuf {
    let mut name = db.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Rescues what can be read into a new database and puts it in place of the damaged one.
pub(super) fn rebuild(dir: &Path, reason: &str, min_seq: i64) -> Result<Damage, SpoolError> {
    let db = dir.join(DB);
    let new = beside(&db, ".rescue");
    for ending in ["", "-wal", "-shm", "-journal"] {
        let _ = fs::remove_file(beside(&new, ending));
    }
    let mut damage = Damage { reason: reason.to_owned(), ..Damage::default() };
    let rescued = rescue::rescue(&db, &beside(&db, "-wal"), &new, min_seq, &mut damage);
    if let Err(err) = rescued {
        let _ = fs::remove_file(&new);
        return Err(SpoolError::Unavailable {
            reason: format!("cannot rescue a damaged database: {}", chain(&err)),
        });
    }
    let base = free_name(&db);
    let note = dir.join(NOTE);
    let write = || -> std::io::Result<()> {
        let mut file = private_file(&note)?;
        file.set_len(0)?;
        file.write_all(base.as_os_str().as_encoded_bytes())?;
        file.sync_all()?;
        sync_dir(dir)
    };
    write().map_err(|e| disk(e, "write the note of a rescue"))?;
    for ending in ["", "-wal", "-shm"] {
        if beside(&db, ending).exists() {
            damage.set_aside.push(beside(&base, ending));
        }
    }
    finish_rescue(dir)?;
    Ok(damage)
}

fn free_name(db: &Path) -> PathBuf {
    let first = beside(db, &format!(".damaged-{}", stamp(now_ms())));
    let mut name = first.clone();
    let mut n = 1;
    while name.exists() || beside(&name, "-wal").exists() {
        n += 1;
        name = beside(&first, &format!("-{n}"));
    }
    name
}

/// Does what the note of a rescue says is still to be done.
fn finish_rescue(dir: &Path) -> Result<(), SpoolError> {
    let note = dir.join(NOTE);
    let Ok(base) = fs::read_to_string(&note) else { return Ok(()) };
    let db = dir.join(DB);
    let new = beside(&db, ".rescue");
    let work = || -> std::io::Result<()> {
        // As long as the new file is under its own name, what bears the old names is the damaged one.
        if new.exists() && !base.is_empty() {
            for ending in ["-shm", "-wal", ""] {
                let from = beside(&db, ending);
                if from.exists() {
                    fs::rename(from, beside(Path::new(&base), ending))?;
                }
            }
            sync_dir(dir)?;
            fs::rename(&new, &db)?;
            sync_dir(dir)?;
        }
        fs::remove_file(&note)?;
        sync_dir(dir)
    };
    work().map_err(|e| disk(e, "put the rescued database in place"))
}

/// Says loudly what happened.
pub(super) fn report(damage: &Damage) {
    let aside: Vec<_> = damage.set_aside.iter().map(|p| p.display().to_string()).collect();
    tracing::error!(
        reason = damage.reason,
        set_aside = aside.join(", "),
        sinks = damage.sinks,
        items = damage.items,
        dead = damage.dead,
        orphans = damage.orphans,
        unreadable = damage.unreadable,
        bad_pages = damage.bad_pages,
        may_repeat = damage.may_repeat,
        "spool database was damaged: it was set aside and what could be read was rescued"
    );
}

/// The full check of a large database, beside its use.
pub(super) struct BackgroundCheck {
    interrupt: rusqlite::InterruptHandle,
    thread: std::thread::JoinHandle<()>,
}

impl BackgroundCheck {
    /// None if it cannot be started; then the check is left out.
    pub(super) fn start(shared: &Arc<Shared>, generation: u64) -> Option<Self> {
        let conn = schema::open_reading(&shared.dir.join(DB)).ok()?;
        let interrupt = conn.get_interrupt_handle();
        let shared = Arc::downgrade(shared);
        let work = move || {
            let reason = match integrity(&conn, 1) {
                Ok(problems) => problems.into_iter().next(),
                Err(err) => match trouble(&err) {
                    Trouble::Damage(reason) => Some(reason),
                    _ => None,
                },
            };
            drop(conn);
            if let (Some(reason), Some(shared)) = (reason, shared.upgrade()) {
                shared.push(Command::Damaged { reason, generation });
            }
        };
        let thread = std::thread::Builder::new().name("spool-check".to_owned()).spawn(work).ok()?;
        Some(Self { interrupt, thread })
    }

    /// Ends it and waits for it.
    pub(super) fn stop(self) {
        self.interrupt.interrupt();
        let _ = self.thread.join();
    }
}
