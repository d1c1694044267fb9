//! The writer thread: owns the one writing connection, commits all that waits together, answers after the commit.
//!
//! Invariants: an answer is sent only after the commit that holds it; that commit has waited for the disk unless there were
//! only settlements in it, which the next one that waits, or the next checkpoint, takes along. When a whole group fails for a reason that is one
//! command's own, the commands are run again one by one, so that no command fails for another. When the disk fails,
//! appends are refused and settlements are owed; a probe brings the spool back. When damage is met, the files are set
//! aside, what is readable is rescued, and the group is run again on the new file.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::apply::{Delta, Outcome, Tx};
use super::disk::now_ms;
use super::error::{SpoolError, Trouble, trouble};
use super::recover::{self, Opened};
use super::schema;
use super::shared::{Command, Shared};
use super::types::*;
use super::upkeep;

/// Without traffic the writer looks after the file this often.
const IDLE: Duration = Duration::from_secs(1);
/// Owed settlements written in one transaction.
const OWED_STEP: usize = 2000;

/// State of the writer thread.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) conn: Option<Connection>,
    /// Held for as long as this process owns the spool.
    pub(super) lock: Option<File>,
    next_seq: i64,
    floor: i64,
    /// Frame ids that have come since old ones were forgotten.
    new_ids: u64,
    pub(super) unwritten: u64,
    pub(super) probe_at: Option<Instant>,
    last_group: usize,
    pub(super) check: Option<recover::BackgroundCheck>,
    /// Whether commits of this connection wait for the disk.
    waits: bool,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, lock: File) -> Self {
        Self {
            shared,
            conn: None,
            lock: Some(lock),
            next_seq: 1,
            new_ids: 0,
            floor: 1,
            unwritten: 0,
            probe_at: None,
            last_group: 0,
            check: None,
            waits: true,
        }
    }

    /// Opens the database, or notes that the disk does not let us. Other errors end the start.
    pub(super) fn start(&mut self) -> Result<Recovery, SpoolError> {
        match self.open() {
            Ok(recovery) => {
                if let Err(err) = self.make_reserve() {
                    self.degrade(format!("cannot keep the reserve: {err}"));
                }
                Ok(recovery)
            }
            Err(SpoolError::Unavailable { reason }) => {
                self.degrade(reason.clone());
                Ok(Recovery { unavailable: Some(reason), ..Recovery::default() })
            }
            Err(err) => Err(err),
        }
    }

    pub(super) fn open(&mut self) -> Result<Recovery, SpoolError> {
        let opened = match recover::open(&self.shared.dir, &self.shared.limits, self.next_seq) {
            Err(SpoolError::Unavailable { .. }) if self.drop_reserve() => {
                recover::open(&self.shared.dir, &self.shared.limits, self.next_seq)?
            }
            other => other?,
        };
        Ok(self.adopt(opened))
    }

    fn adopt(&mut self, opened: Opened) -> Recovery {
        let Opened { conn, loaded, recovery, check_later } = opened;
        self.next_seq = self.next_seq.max(loaded.next_seq);
        self.floor = loaded.floor;
        self.conn = Some(conn);
        self.waits = true;
        self.shared.book().reset(loaded);
        let generation = self.shared.generation.fetch_add(1, Ordering::AcqRel) + 1;
        self.shared.readers.clear();
        self.shared.open.store(true, Ordering::Release);
        if check_later {
            self.check = recover::BackgroundCheck::start(&self.shared, generation);
        }
        recovery
    }

    /// Runs until the spool is closed or no handle is left.
    pub(super) fn run(mut self) {
        loop {
            self.linger();
            let wait = if self.degraded() { self.shared.limits.probe_every.min(IDLE) } else { IDLE };
            let (mut commands, closed) = self.shared.take(wait);
            let closing = take_close(&mut commands);
            let idle = commands.is_empty();
            self.last_group = commands.len();
            self.look_for_damage(&mut commands);
            if self.degraded() {
                self.probe();
            }
            if !self.degraded()
                && let Err(err) = self.pay_owed()
            {
                self.upkeep_failed(&err);
            }
            if !commands.is_empty() {
                self.group(commands);
            }
            if let Some(reply) = closing {
                self.shared.shut();
                let (rest, _) = self.shared.take(Duration::ZERO);
                if !rest.is_empty() {
                    self.group(rest);
                }
                if let Err(err) = self.pay_owed() {
                    tracing::warn!(%err, "settlements were not written; their items are given out again");
                }
                self.close(true);
                let _ = reply.send(());
                return;
            }
            if closed && self.shared.waiting() == 0 {
                self.close(false);
                return;
            }
            if self.unwritten > self.shared.limits.log_bytes || (idle && self.unwritten > 0) {
                self.checkpoint();
            }
            if idle {
                self.tidy();
            }
        }
    }

    /// Producers that were answered together come back together, but the first wakes us: a moment's wait lets the
    /// others join its commit.
    fn linger(&self) {
        if self.last_group < 4 {
            return;
        }
        let until = Instant::now() + Duration::from_micros(150);
        while self.shared.waiting() < self.last_group / 2 * 2 && Instant::now() < until {
            std::thread::yield_now();
        }
    }

    pub(super) fn degraded(&self) -> bool {
        self.probe_at.is_some()
    }

    pub(super) fn degrade(&mut self, reason: String) {
        if self.probe_at.is_none() {
            tracing::error!(reason, "spool takes no items: the disk does not take writes; it is tried again");
        }
        // A time already set stays: settlements that go on failing must not put the probe off for ever.
        let next = self.probe_at.filter(|at| *at > Instant::now());
        self.probe_at = Some(next.unwrap_or_else(|| Instant::now() + self.shared.limits.probe_every));
        self.shared.state.send_modify(|s| {
            let since_ms = match &s.condition {
                Condition::Degraded { since_ms, .. } => *since_ms,
                Condition::Healthy => now_ms(),
            };
            s.condition = Condition::Degraded { reason, since_ms };
        });
    }

    /// After an I/O error the connection is not used again: what the kernel holds of its files is not known.
    pub(super) fn lost_connection(&mut self, err: &rusqlite::Error) {
        if matches!(trouble(err), Trouble::Disk { full: false, .. }) {
            self.conn = None;
        }
    }

    fn look_for_damage(&mut self, commands: &mut VecDeque<Command>) {
        let mut found = None;
        commands.retain_mut(|c| match c {
            Command::Damaged { reason, generation } => {
                if *generation == self.shared.generation() {
                    found = Some(std::mem::take(reason));
                }
                false
            }
            _ => true,
        });
        if let Some(reason) = found {
            self.rebuild(&reason);
        }
    }

    /// Sets the files aside and goes on with what can be rescued.
    pub(super) fn rebuild(&mut self, reason: &str) {
        tracing::error!(reason, "spool database is damaged; it is being set aside and rescued");
        self.shared.open.store(false, Ordering::Release);
        self.check = None;
        self.conn = None;
        self.shared.readers.clear();
        let result = recover::rebuild(&self.shared.dir, reason, self.next_seq).and_then(|damage| {
            Ok((damage, recover::open(&self.shared.dir, &self.shared.limits, self.next_seq)?))
        });
        match result {
            Ok((damage, opened)) => {
                recover::report(&damage);
                self.adopt(opened);
                self.shared.state.send_modify(|s| {
                    s.damages.push(damage);
                    if s.damages.len() > 8 {
                        s.damages.remove(0);
                    }
                });
            }
            Err(err) => self.degrade(format!("{reason}; rescue failed: {}", recover::chain(&err))),
        }
    }

    pub(super) fn group(&mut self, commands: VecDeque<Command>) {
        let mut commands: Vec<Command> = commands.into();
        if self.degraded() {
            let reason = self.reason();
            commands.retain_mut(|c| {
                !matches!(c, Command::Append { .. } | Command::Sink { .. } | Command::Revive { .. }) || {
                    self.refuse(c, &reason);
                    false
                }
            });
        }
        if commands.is_empty() {
            return;
        }
        match self.transact(&commands) {
            Ok(outcomes) => answer(commands, outcomes),
            Err(err) => self.failed(commands, err),
        }
    }

    fn failed(&mut self, commands: Vec<Command>, err: rusqlite::Error) {
        match trouble(&err) {
            Trouble::Disk { full, reason } => {
                self.lost_connection(&err);
                if full {
                    self.drop_reserve();
                }
                self.degrade(reason.clone());
                // With the reserve given back and the log emptied into the database, settling usually works even now.
                if let Some(conn) = &self.conn
                    && let Err(err) = upkeep::empty_log(conn)
                {
                    tracing::debug!(%err, "the log was not emptied");
                }
                let (settle, other): (Vec<_>, Vec<_>) = commands
                    .into_iter()
                    .partition(|c| matches!(c, Command::Settle { .. } | Command::Discard { .. }));
                for command in other {
                    self.refuse_owned(command, &reason);
                }
                if settle.is_empty() {
                    return;
                }
                match self.transact(&settle) {
                    Ok(outcomes) => answer(settle, outcomes),
                    Err(err) => {
                        self.lost_connection(&err);
                        for command in settle {
                            self.refuse_owned(command, &reason);
                        }
                    }
                }
            }
            Trouble::Damage(reason) => {
                self.rebuild(&reason);
                match self.transact(&commands) {
                    Ok(outcomes) => answer(commands, outcomes),
                    Err(err) => {
                        let reason = format!("{reason}; {err}");
                        for command in commands {
                            self.refuse_owned(command, &reason);
                        }
                    }
                }
            }
            Trouble::Other => {
                if commands.len() == 1 {
                    if let Some(command) = commands.into_iter().next() {
                        fail(command, err.into());
                    }
                    return;
                }
                for command in commands {
                    self.group(VecDeque::from([command]));
                }
            }
        }
    }

    fn reason(&self) -> String {
        match &self.shared.state.borrow().condition {
            Condition::Degraded { reason, .. } => reason.clone(),
            Condition::Healthy => "the disk did not take it".to_owned(),
        }
    }

    fn refuse(&mut self, command: &mut Command, reason: &str) {
        let (unused, _) = tokio::sync::oneshot::channel();
        self.refuse_owned(std::mem::replace(command, Command::Close { reply: unused }), reason);
    }

    /// Answers a command that the disk did not take; a settlement is kept in memory instead.
    fn refuse_owned(&mut self, command: Command, reason: &str) {
        match command {
            Command::Settle { list, reply } => {
                let mut owed = self.shared.owed();
                let fits = owed.len() + list.len() <= self.shared.limits.max_owed;
                if fits {
                    for settlement in list {
                        owed.insert(settlement.seq(), settlement);
                    }
                }
                let count = owed.len();
                drop(owed);
                self.shared.state.send_modify(|s| s.owed = count);
                if let Some(reply) = reply {
                    let unavailable = || SpoolError::Unavailable { reason: reason.to_owned() };
                    let _ = reply.send(if fits { Ok(Settled::Deferred) } else { Err(unavailable()) });
                }
            }
            other => {
                if matches!(other, Command::Append { .. }) {
                    self.shared.book().totals.refused_disk += 1;
                }
                fail(other, SpoolError::Unavailable { reason: reason.to_owned() });
            }
        }
    }

    /// Writes settlements that the disk did not take before.
    pub(super) fn pay_owed(&mut self) -> Result<(), rusqlite::Error> {
        loop {
            let list: Vec<Settlement> = self.shared.owed().values().take(OWED_STEP).cloned().collect();
            if list.is_empty() {
                return Ok(());
            }
            let paid: Vec<u64> = list.iter().map(Settlement::seq).collect();
            self.transact(&[Command::Settle { list, reply: None }])?;
            let mut owed = self.shared.owed();
            for seq in paid {
                owed.remove(&seq);
            }
            let count = owed.len();
            drop(owed);
            self.shared.state.send_modify(|s| s.owed = count);
        }
    }

    /// One transaction over all commands. On error nothing of it has happened.
    fn transact(
        &mut self,
        commands: &[Command],
    ) -> Result<Vec<Result<Outcome, SpoolError>>, rusqlite::Error> {
        let Some(conn) = &self.conn else {
            return Err(rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN),
                Some(self.reason()),
            ));
        };
        let waits = commands.iter().any(needs_disk);
        if waits != self.waits {
            schema::wait_for_disk(conn, waits)?;
            self.waits = waits;
        }
        let (sinks, totals) = {
            let book = self.shared.book();
            (Arc::clone(&book.sinks), book.totals)
        };
        let mut tx = Tx {
            conn,
            sinks: &sinks,
            totals,
            limits: &self.shared.limits,
            now: now_ms(),
            next_seq: self.next_seq,
            floor: self.floor,
            delta: Delta { new_ids: self.new_ids, ..Delta::default() },
            #[cfg(test)]
            fault: &self.shared.fault,
        };
        let work = |tx: &mut Tx<'_>| {
            tx.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            let mut outcomes = Vec::with_capacity(commands.len());
            for command in commands {
                outcomes.push(tx.apply(command)?);
            }
            tx.finish()?;
            tx.conn.prepare_cached("COMMIT")?.execute([])?;
            Ok(outcomes)
        };
        match work(&mut tx) {
            Ok(outcomes) => {
                let (delta, next_seq, floor) = (tx.delta, tx.next_seq, tx.floor);
                (self.next_seq, self.floor, self.new_ids) = (next_seq, floor, delta.new_ids);
                self.unwritten += delta.written + 24 * 1024;
                self.publish(delta);
                #[cfg(test)]
                let _ = self.shared.fault.at("answer");
                Ok(outcomes)
            }
            Err(err) => {
                if !conn.is_autocommit()
                    && let Err(err) = conn.execute_batch("ROLLBACK")
                {
                    tracing::debug!(%err, "rollback failed");
                }
                Err(err)
            }
        }
    }

    fn publish(&self, delta: Delta) {
        let appended = delta.counts.accepted + delta.counts.revived > 0;
        let mut book = self.shared.book();
        for (sink, (items, bytes)) in &delta.lanes {
            let lane = book.lanes.entry(*sink).or_default();
            *lane = (lane.0.saturating_add_signed(*items), lane.1.saturating_add_signed(*bytes));
            book.totals.items = book.totals.items.saturating_add_signed(*items);
            book.totals.bytes = book.totals.bytes.saturating_add_signed(*bytes);
        }
        let t = &mut book.totals;
        t.dead = t.dead.saturating_add_signed(delta.dead.0);
        t.dead_bytes = t.dead_bytes.saturating_add_signed(delta.dead.1);
        let c = delta.counts;
        for (sum, n) in [
            (&mut t.accepted, c.accepted),
            (&mut t.duplicates, c.duplicates),
            (&mut t.refused_full, c.refused_full),
            (&mut t.delivered, c.delivered),
            (&mut t.retried, c.retried),
            (&mut t.rejected, c.rejected),
            (&mut t.expired, c.expired),
            (&mut t.damaged, c.damaged),
            (&mut t.revived, c.revived),
            (&mut t.dropped, c.dropped),
            (&mut t.exported, c.exported),
            (&mut t.commits, 1),
        ] {
            *sum += n;
        }
        if !delta.errors.is_empty() {
            book.errors.extend(delta.errors);
        }
        if !delta.sinks.is_empty() {
            Arc::make_mut(&mut book.sinks).extend(delta.sinks);
        }
        drop(book);
        if let Some(dead_trouble) = delta.dead_trouble {
            self.shared.state.send_if_modified(|s| {
                let changed = s.dead_trouble != dead_trouble;
                s.dead_trouble = dead_trouble;
                changed
            });
        }
        if appended {
            self.shared.fresh.send_replace(u64::try_from(self.next_seq - 1).unwrap_or(0));
        }
    }
}

/// Whether what was answered would be lost with the machine. An item whose settlement is lost is only given out again, which can
/// happen anyway; and an append would wait for the disk twice, once for itself and once behind the settlement of another.
fn needs_disk(command: &Command) -> bool {
    !matches!(command, Command::Settle { .. })
}

fn take_close(commands: &mut VecDeque<Command>) -> Option<tokio::sync::oneshot::Sender<()>> {
    let at = commands.iter().position(|c| matches!(c, Command::Close { .. }))?;
    match commands.remove(at) {
        Some(Command::Close { reply }) => Some(reply),
        _ => None,
    }
}

fn answer(commands: Vec<Command>, outcomes: Vec<Result<Outcome, SpoolError>>) {
    for (command, outcome) in commands.into_iter().zip(outcomes) {
        match (command, outcome) {
            (command, Err(err)) => fail(command, err),
            (Command::Append { reply, .. }, Ok(Outcome::Appended(done))) => drop(reply.send(Ok(done))),
            (Command::Settle { reply: Some(reply), .. }, Ok(_)) => drop(reply.send(Ok(Settled::Committed))),
            (Command::Sink { reply, .. }, Ok(Outcome::Sink(id))) => drop(reply.send(Ok(id))),
            (Command::Revive { reply, .. } | Command::Discard { reply, .. }, Ok(Outcome::Count(n))) => {
                drop(reply.send(Ok(n)));
            }
            _ => {}
        }
    }
}

fn fail(command: Command, err: SpoolError) {
    match command {
        Command::Append { reply, .. } => drop(reply.send(Err(err))),
        Command::Settle { reply: Some(reply), .. } => drop(reply.send(Err(err))),
        Command::Sink { reply, .. } => drop(reply.send(Err(err))),
        Command::Revive { reply, .. } | Command::Discard { reply, .. } => drop(reply.send(Err(err))),
        Command::Settle { reply: None, .. } | Command::Damaged { .. } | Command::Close { .. } => {}
    }
}
